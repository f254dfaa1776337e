"""What tests of run folders share."""

from pathlib import Path

import pytest

from tests.runs.work import work


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reference") / "run"
    work(path)
    return path
