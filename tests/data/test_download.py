"""Datasets from a server of our own: fetched, unpacked, recorded, fetched no second time."""

import hashlib
import io
import json
import re
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from focoop.caching import is_intact
from focoop.data import download as fetching
from focoop.data import registry
from focoop.data.dataset import Dataset, Download
from focoop.data.download import fetch
from focoop.errors import DataError
from tests.data import trees
from tests.data.toy_server import Server, md5


def archive(folder: Path, kind: str) -> bytes:
    """All of a folder as a tar or zip."""
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w") as zipped:
            for path in sorted(folder.rglob("*")):
                zipped.write(path, path.relative_to(folder))
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            tar.add(folder, ".")
    return buffer.getvalue()


def served(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """Oxford Pets in two archives and a split file, on our server."""
    made = tmp_path / "made"
    trees.plant(made / "a", "images/Abyssinian_1.jpg")
    trees.write(made / "b" / "annotations" / "list.txt", "x")
    server.files = {
        "images.tar.gz": archive(made / "a", "tar"),
        "annotations.zip": archive(made / "b", "zip"),
        "split_zhou_OxfordPets.json": b'{"train": [], "val": [], "test": []}',
    }
    files = server.files
    dataset = replace(
        registry.lookup("oxford_pets"),
        downloads=(
            Download(
                server.url("images.tar.gz"),
                "images.tar.gz",
                md5(files["images.tar.gz"]),
                unpack="oxford_pets",
            ),
            Download(
                server.url("annotations.zip"),
                "annotations.zip",
                unpack="oxford_pets",
                gives="annotations",
            ),
            Download(server.url("split_zhou_OxfordPets.json"), "split_zhou_OxfordPets.json"),
        ),
    )
    monkeypatch.setattr(fetching, "lookup", lambda name: dataset)
    return dataset


def test_a_dataset_is_fetched_unpacked_and_recorded(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = served(server, tmp_path, monkeypatch)
    root = tmp_path / "root"
    base = fetch("oxford_pets", root)
    assert base == root / "oxford_pets" and (base / "images" / "Abyssinian_1.jpg").is_file()
    assert sorted(path.name for path in base.iterdir()) == [
        "annotations",
        "images",
        "split_zhou_OxfordPets.json",
    ]
    assert sorted(path.name for path in root.iterdir()) == [".focoop", "oxford_pets"]
    record = json.loads((root / ".focoop" / "oxford_pets.json").read_text("utf-8"))
    assert record["licence"] == dataset.licence
    assert [one["checked"].partition(":")[0] for one in record["files"]] == [
        "md5",
        "no published checksum",
        "no published checksum",
    ]
    for one in record["files"]:
        content = server.files[one["file"]]
        assert one["bytes"] == len(content) and one["sha256"] == hashlib.sha256(content).hexdigest()
    asked = len(server.ranges)
    fetch("oxford_pets", root)
    assert len(server.ranges) == asked  # nothing is fetched twice


def test_a_file_without_a_published_checksum_is_the_one_of_the_first_fetch(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(server, tmp_path, monkeypatch)
    root, name = tmp_path / "root", "split_zhou_OxfordPets.json"
    split = fetch("oxford_pets", root) / name
    record = root / ".focoop" / "oxford_pets.json"
    assert is_intact(json.loads(record.read_text()))
    split.unlink()
    fetch("oxford_pets", root)
    assert split.read_bytes() == server.files[name]
    split.unlink()
    server.files[name] = b'{"train": [], "val": [], "test": [1]}'
    with pytest.raises(DataError, match=r"first fetched .*remove .*oxford_pets\.json"):
        fetch("oxford_pets", root)
    assert not split.exists()
    whole = record.read_bytes()
    record.write_bytes(whole.replace(b'"bytes": 36', b'"bytes": 35'))
    with pytest.warns(UserWarning, match=r"oxford_pets\.json is damaged .its checksum differs"):
        fetch("oxford_pets", root)
    assert split.read_bytes() == server.files[name] and is_intact(json.loads(record.read_text()))


def test_a_file_on_disk_is_compared_with_its_published_checksum(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = served(server, tmp_path, monkeypatch)
    split = replace(dataset.downloads[2], checksum=md5(server.files["split_zhou_OxfordPets.json"]))
    pinned = replace(dataset, downloads=(*dataset.downloads[:2], split))
    monkeypatch.setattr(fetching, "lookup", lambda name: pinned)
    base = fetch("oxford_pets", tmp_path / "root")
    fetch("oxford_pets", tmp_path / "root")
    (base / split.file).write_text('{"train": [], "val": [], "test": [2]}')
    with pytest.raises(DataError, match=r"split_zhou_OxfordPets\.json is not the file .*remove it"):
        fetch("oxford_pets", tmp_path / "root")


def test_every_split_file_has_a_pinned_checksum() -> None:
    """All files to fetch have one but a single archive, whose bytes nobody publishes."""
    unknown = {
        entry.file
        for name in registry.available()
        for entry in registry.lookup(name).downloads
        if not re.fullmatch("md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", entry.checksum)
    }
    assert unknown == {"office_caltech_10_dataset.zip"}


def test_what_is_on_disk_already_is_not_fetched(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(server, tmp_path, monkeypatch)
    root = trees.plant(tmp_path / "root", "oxford-iiit-pet/images/mine.jpg")
    (root / "annotations.zip").write_bytes(server.files["annotations.zip"])  # got by hand
    base = fetch("oxford_pets", root)
    assert base == root / "oxford-iiit-pet" and len(server.ranges) == 1  # the split file alone
    assert (base / "split_zhou_OxfordPets.json").is_file() and (base / "annotations").is_dir()
    assert not (root / "oxford_pets").exists()


def test_damaged_archives_and_full_disks_are_refused(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = served(server, tmp_path, monkeypatch)
    server.files["images.tar.gz"] = b"no archive at all"
    first = replace(dataset.downloads[0], checksum="")
    broken = replace(dataset, downloads=(first,))
    monkeypatch.setattr(fetching, "lookup", lambda name: broken)
    with pytest.raises(DataError, match=r"cannot unpack .*images.tar.gz"):
        fetch("oxford_pets", tmp_path / "root")
    assert not list((tmp_path / "root").glob("oxford_pets/*"))
    large = replace(dataset, downloads=(replace(first, size=10**18, file="y.tar.gz"),))
    monkeypatch.setattr(fetching, "lookup", lambda name: large)
    with pytest.raises(DataError, match="make room"):
        fetch("oxford_pets", tmp_path / "other")
    with pytest.raises(DataError, match=r"cannot be fetched.*PACS/"):
        monkeypatch.setattr(fetching, "lookup", registry.lookup)
        fetch("pacs", tmp_path)


def test_an_archive_inside_an_archive_is_unpacked_too(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trees.plant(tmp_path / "in", "101_ObjectCategories/ant/image_0001.jpg")
    outer = tmp_path / "out" / "caltech-101"
    outer.mkdir(parents=True)
    (outer / "101_ObjectCategories.tar.gz").write_bytes(archive(made, "tar"))
    server.files["c.zip"] = archive(tmp_path / "out", "zip")
    real = registry.lookup("caltech101")
    dataset = replace(real, downloads=(replace(real.downloads[0], url=server.url("c.zip"),
                                               checksum="", size=0),))  # fmt: skip
    monkeypatch.setattr(fetching, "lookup", lambda name: dataset)
    base = fetch("caltech101", tmp_path / "root")
    assert (base / "101_ObjectCategories" / "ant" / "image_0001.jpg").is_file()
    assert [path.name for path in base.iterdir()] == ["101_ObjectCategories"]


def test_a_cut_split_file_is_fetched_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(server, tmp_path, monkeypatch)
    base = fetch("oxford_pets", tmp_path / "root")
    split = base / "split_zhou_OxfordPets.json"
    for damaged in (b"", split.read_bytes()[:10]):
        split.write_bytes(damaged)
        fetch("oxford_pets", tmp_path / "root")
        assert split.read_bytes() == server.files["split_zhou_OxfordPets.json"]
