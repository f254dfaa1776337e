"""Packaged files are those whose checksums are pinned, and a changed bit in one is named."""

from pathlib import Path

import pytest

from focoop import assets
from focoop.caching import checksum
from focoop.clip import mini
from focoop.errors import BackboneError, DataError

KINDS = (".npy", ".json", ".gz", ".safetensors")


def test_every_packaged_file_has_its_checksum_pinned() -> None:
    files = [path for path in assets.ASSETS.rglob("*") if path.suffix in KINDS]
    found = {path.relative_to(assets.ASSETS).as_posix(): path.read_bytes() for path in files}
    assert {name: checksum(raw) for name, raw in found.items()} == assets.SUMS


def test_a_changed_bit_of_the_weights_or_of_a_list_is_named(
    tmp_path: Path,
) -> None:
    names = ("mini/image_head.safetensors", "mini/manifest.json", "bpe_merges.npy")
    for name in names:
        raw = bytearray((assets.ASSETS / name).read_bytes())
        raw[len(raw) // 2] ^= 8
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(raw)
    for name in names:
        with pytest.raises(DataError, match=f"{name} is damaged: .*install focoop again"):
            assets.asset(name, tmp_path, sums=assets.SUMS)
    with pytest.raises(BackboneError, match="image_head.*checksum differs; install focoop again"):
        mini.read(tmp_path, names[0], sums=assets.SUMS)
    with pytest.raises(DataError, match="cannot be read .*install focoop again"):
        assets.asset("class_names.json", tmp_path)  # it is missing there
