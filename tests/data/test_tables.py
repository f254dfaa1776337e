"""A user's own images: CSV files, client folders, hub datasets, class names, broken files."""

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from focoop.data import read_folder, unreadable
from focoop.data.client_folders import clients_table
from focoop.data.hub import read_hub
from focoop.data.sources import open_images, splits_of
from focoop.data.tables import csv_table
from focoop.errors import DataError, MissingExtra
from tests.data.trees import plant, write

TABLE = """path, Label,split,client,domain
a/1.png,cat,train,north,day
a/2.png,dog,train,south,night
b/3.png,dog,test,north,night
/abs/4.png,cat,test,south,day
"""


def test_a_csv_gives_splits_clients_and_domains(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    write(path, TABLE)
    train, test = (csv_table(path, "client").pick(split) for split in ("train", "test"))
    assert train.files == ("a/1.png", "a/2.png") and train.labels == (0, 1)
    assert train.classes == test.classes == ("cat", "dog")
    assert train.domain_names == test.domain_names == ("north", "south")
    assert train.domains == (0, 1) and test.domains == (0, 1) and test.labels == (1, 0)
    assert train.root / test.files[1] == Path("/abs/4.png")
    domains = csv_table(path).pick("all")
    assert domains.domain_names == ("day", "night") and domains.domains == (0, 1, 1, 0)
    assert splits_of("csv", str(path)) == ("test", "train") and splits_of("name", "cifar100") == ()


def test_a_csv_without_splits_is_one_set(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write(path, "﻿path,label\n1.png,Äpfel\n2.png,b\n")
    table = csv_table(path)
    assert table.pick("test").files == table.pick("all").files == ("1.png", "2.png")
    assert table.pick("all").classes == ("b", "Äpfel") and table.pick("all").domains == ()
    with pytest.raises(DataError, match="one set without splits"):
        table.pick("train")
    write(path, "path,label,split\n1.png,a,val\n2.png,a,train\n")
    assert csv_table(path).pick("test").files == ("1.png",)
    with pytest.raises(DataError, match="nearest is 'train'"):
        csv_table(path).pick("tran")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no column 'path'"),
        ("file,label\nx,y\n", r"no column 'path' \(it has file, label\)"),
        ("path,label\n", "lists no images"),
        ("path,label\n1.png,a\n,b\n", "line 3"),
        ("path,label\n1.png,a\n\0.png,b\n", "line 3: the path holds a zero byte"),
        ("path,label,split\n1.png,a,train\n2.png,a,\n", "line 3: split is empty"),
        ("path,label,client\n1.png,a,n\n2.png,a,\n", "2.png has no client"),
    ],
)
def test_wrong_csv_files_name_the_line(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write(path, content)
    with pytest.raises(DataError, match=says):
        csv_table(path, "client").pick("all")
    path.write_bytes(b"path,label\n\xff\xfe,a\n")
    with pytest.raises(DataError, match="UTF-8"):
        csv_table(path)
    with pytest.raises(DataError, match="absent"):
        csv_table(tmp_path / "absent.csv")


def test_client_folders_with_and_without_splits(tmp_path: Path) -> None:
    flat = plant(tmp_path / "flat", "north/cat/1.png", "south/dog/1.png", "south/dog/2.png")
    found = clients_table(flat).pick("all")
    assert found.domain_names == ("north", "south") and found.domains == (0, 1, 1)
    assert found.files[1] == "south/dog/1.png" and found.labels == (0, 1, 1)
    both = plant(tmp_path / "both", "n/train/cat/1.png", "n/test/cat/2.png", "s/train/dog/1.png")
    train, test = (clients_table(both).pick(split) for split in ("train", "test"))
    assert train.files == ("n/train/cat/1.png", "s/train/dog/1.png") and train.domains == (0, 1)
    assert test.classes == ("cat", "dog") and test.domain_names == ("n", "s") and len(test) == 1
    assert splits_of("clients", str(both)) == ("test", "train")
    assert splits_of("folder", str(flat), "client") == ()
    plant(both, "s/photo/dog/1.png")
    with pytest.raises(DataError, match="both/s holds the split folder 'train' beside photo"):
        clients_table(both)
    for path in (tmp_path / "absent", plant(tmp_path / "x", "1.png")):
        with pytest.raises(DataError, match=str(path)):
            clients_table(path)


def test_class_names_come_from_a_file(tmp_path: Path) -> None:
    root = plant(tmp_path / "a", "train/n01/1.png", "train/n02/1.png", "test/n02/2.png")
    write(root / "class_names.csv", "n02,ant\nn01,Große Biene\n")
    train = read_folder(root, "train")
    assert train.classes == ("Große Biene", "ant") and train.labels == (0, 1)
    assert read_folder(root, "test").labels == (1,)
    clients = plant(tmp_path / "b", "k1/n01/1.png", "k2/n02/1.png")
    write(clients / "class_names.csv", "n01,one\nn02,one\n")
    assert clients_table(clients).pick("all").classes == ("one",)
    write(root / "class_names.csv", "n02,ant\nn01\n")
    with pytest.raises(DataError, match="line 2"):
        read_folder(root, "train")


def images(root: Path) -> None:
    for name in ("ok/1.png", "ok/2.png", "bad/3.png"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (3, 3)).save(path)
    (root / "bad" / "0.png").write_bytes(b"no image")
    (root / "ok" / "9.jpg").symlink_to(root / "nowhere.jpg")
    (root / "ok" / "8.jpg").symlink_to(root / "ok" / "8.jpg")  # a circle
    (root / "ok" / "folder.jpg").mkdir()


def test_unreadable_images_are_named_and_skipped_or_refused(tmp_path: Path) -> None:
    images(tmp_path / "i")
    spec, cache = str(tmp_path / "i"), tmp_path / "cache"
    with pytest.warns(UserWarning, match=r"3 of 6 images .*bad/0.png \(not an .*\): left out"):
        found = open_images("folder", spec, "test", cache_dir=cache)
    assert found.files == ("bad/3.png", "ok/1.png", "ok/2.png") and found.labels == (0, 1, 1)
    with pytest.raises(DataError, match="data.strict = false"):
        open_images("folder", spec, "test", strict=True, cache_dir=cache)
    assert len(open_images("folder", spec, "test", check=False)) == 6
    table = tmp_path / "i" / "t.csv"
    write(table, "path,label\nbad/0.png,a\nok/9.jpg,a\n")
    with pytest.raises(DataError, match="no image is left"):
        open_images("csv", str(table), "test", cache_dir=cache)


def test_a_mended_image_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images(tmp_path / "i")
    found = read_folder(tmp_path / "i", "test")
    told = {
        "bad/0.png": "not an image, or of an unknown format",
        "ok/8.jpg": "Too many levels of symbolic links",
        "ok/9.jpg": "there is no such file",
    }
    assert unreadable.broken(found, tmp_path) == told
    Image.new("RGB", (2, 2)).save(tmp_path / "i" / "bad" / "0.png")
    Image.new("RGB", (2, 2)).save(tmp_path / "i" / "nowhere.jpg")
    assert list(unreadable.broken(found, tmp_path)) == ["ok/8.jpg"]
    monkeypatch.setattr(unreadable, "decode", None)  # nothing is opened a second time
    assert list(unreadable.broken(found, tmp_path)) == ["ok/8.jpg"]


class Column:
    def __init__(self, names: list[str]) -> None:
        self.names = names


class Rows:
    """What `focoop` uses of a `datasets.Dataset`."""

    def __init__(self, count: int) -> None:
        label = type("ClassLabel", (Column,), {})(["cat", "dog"])
        self.features = {"id": 0, "img": type("Image", (), {})(), "label": label}
        self.values = [i % 2 for i in range(count)]
        self._fingerprint = f"f{count}"

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Any:
        if key == "label":
            return self.values
        return {"img": Image.new("L", (2, 2), key), "label": self.values[key]}


def test_hub_datasets_by_their_typed_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, config: str | None) -> dict[str, Rows]:
        asked.append((name, config))
        if name == "me/gone":
            raise FileNotFoundError("offline")
        return {"train": Rows(4), "validation": Rows(3)}

    library = types.ModuleType("datasets")
    library.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", library)
    train = read_hub("me/pets@small", "train")
    assert asked == [("me/pets", "small")]
    assert train.labels == (0, 1, 0, 1) and train.classes == ("cat", "dog")
    assert np.asarray(train.image(2)).tolist() == [[[2] * 3] * 2] * 2
    test = open_images("hf", "me/pets", "test")
    assert len(test) == 3 and test.store is not None and train.store is not None
    assert test.store.digest() != train.store.digest()
    with pytest.raises(DataError, match="nearest is 'train'"):
        read_hub("me/pets", "trains")
    with pytest.raises(DataError, match=r"me/gone \(FileNotFoundError: offline\)"):
        read_hub("me/gone", "train")


def test_hub_datasets_need_their_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match="pip install datasets"):
        read_hub("me/pets", "train")


@pytest.mark.parametrize("wrong", [-1, None, 7])
def test_hub_splits_without_labels_are_refused_before_encoding(
    wrong: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = Rows(4)
    hidden.values = [wrong, 1, wrong, 0]  # type: ignore[list-item]
    library = types.ModuleType("datasets")
    library.load_dataset = lambda name, config: {"test": hidden}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", library)
    with pytest.raises(DataError, match=r"2 of 4 images of the split 'test' have no label"):
        read_hub("me/pets", "test")
