"""A folder to work in, and a toy setting."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from focoop.plugins import finding
from tests.toy_setting import write_setting


@pytest.fixture
def setting(tmp_path: Path) -> Path:
    """The file of a toy setting."""
    return write_setting(tmp_path / "data")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of one's own to work in, with nothing registered."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    finding.forget()
    yield folder
    finding.forget()
