"""What tests of run folders share."""

import os
from pathlib import Path

import pytest

from tests.runs.work import work


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests end processes, not machines: what was written is there without syncing."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reference") / "run"
    work(path)
    return path
