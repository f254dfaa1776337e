"""What tests of Flower's runners share."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from focoop.threads import one_core

if TYPE_CHECKING:
    from tests.flower.processes import Started


@pytest.fixture(scope="module", autouse=True)
def a_core_each() -> Iterator[None]:
    """A client alone would use all cores; the simulator's clients have one each, and its bits."""
    with one_core():
        yield


@pytest.fixture
def started() -> Iterator["Started"]:
    """Processes to end with the test."""
    from focoop.flower.deploy import processes as launch

    processes: Started = []
    yield processes
    launch.stop(processes)
