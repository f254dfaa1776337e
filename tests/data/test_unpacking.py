"""Archives that a dataset cannot have are refused: bombs, and encrypted ones."""

import tarfile
import zipfile
from pathlib import Path

import pytest

from focoop.data import registry, unpacking
from focoop.errors import DataError


def test_bombs_and_encrypted_archives_are_refused(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("zeros", bytes(3_000_000))
    small = unpacking.Limits(1_000_000, 100)
    with pytest.raises(DataError, match="more than this dataset can have"):
        unpacking.unpack(bomb, tmp_path / "out", small)
    tar = tmp_path / "bomb.tar.gz"
    with tarfile.open(tar, "w:gz") as packed:
        for index in range(200):
            packed.addfile(tarfile.TarInfo(f"{index}"))
    with pytest.raises(DataError, match="more than this dataset can have"):
        unpacking.unpack(tar, tmp_path / "out", small)
    locked = bytearray(bomb.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        locked[locked.index(mark) + place] |= 1  # says: encrypted
    (tmp_path / "locked.zip").write_bytes(locked)
    with pytest.raises(DataError, match="encrypted.*unpack it yourself"):
        unpacking.unpack(tmp_path / "locked.zip", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_limits_leave_room_for_every_real_dataset() -> None:
    for dataset in registry.available().values():
        for entry in dataset.downloads:
            most = unpacking.limits(dataset, entry.size)
            assert most.files > sum(dataset.counts.values())
            assert most.bytes > 3 * entry.size
