"""What tests of real processes share."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.flower.processes import Started


@pytest.fixture
def started() -> Iterator["Started"]:
    """Processes to end with the test."""
    from focoop.flower import launch

    processes: Started = []
    yield processes
    launch.stop(processes)
