"""Clients whose folders have different layouts, as sites bring them."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from focoop.config.loading import load
from focoop.data.check_report import NO_SPLIT, UNLISTED, inspect
from focoop.data.client_folders import clients_table
from focoop.data.sources import advice, held_out_note, is_divided, listed_note
from focoop.data.tables import listing
from focoop.errors import DataError
from focoop.scenario.assignment import client_split, make_split, remarks
from focoop.scenario.split import Split
from focoop.seeds import numpy_generator
from tests.data.trees import plant, write
from tests.helpers import toy_backbone

GIVEN = ("partition.kind=given", "partition.clients=0", "partition.shots=0", "data.corrupted=[]")
BACKBONE = toy_backbone()


def paint(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = numpy_generator(3, *file.parts[-4:]).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(file)


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three sites: class folders, a table with training and testing, train and test folders."""
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "sites"
    for name in ("cat", "dog"):
        paint(*(root / "a" / name / f"{k}.png" for k in range(10)))
        paint(*(root / "c" / split / name / f"{k}.png" for split in ("train", "val") for k in "12"))
    lines = []
    for k in range(12):
        paint(root / "b" / "scans" / f"{k}.png")
        lines.append(f"scans/{k}.png,{k % 2},{'Testing' if k < 4 else 'Training'}\n")
    write(root / "b" / "labels.csv", "path,label,split\n" + "".join(lines))
    write(root / "b" / "names.txt", "0 cat\n1 dog\n")
    (root / "a" / "cat" / "0.png").write_bytes(b"no image")
    return root


def rows_of(split: Split, client: int) -> list[torch.Tensor]:
    """Training and test images of a client, as features."""
    pairs = ((split.train, split.train_index), (split.test, split.test_index))
    return [features.pooled[torch.from_numpy(index[client])] for features, index in pairs]


@pytest.mark.filterwarnings("ignore:1 of")
def test_each_client_holds_what_its_site_alone_would_hold(sites: Path, tmp_path: Path) -> None:
    config = load(None, [f"data.id=clients:{sites}", *GIVEN])
    whole = make_split(config, BACKBONE, tmp_path / "c")
    assert whole.counts().tolist() == [[8, 8], [4, 4], [2, 2]]  # one of nine cats, two of ten dogs
    assert whole.counts(of_test=True).tolist() == [[1, 2], [2, 2], [2, 2]]
    alone = (f"folder:{sites}/a", f"csv:{sites}/b/labels.csv", f"folder:{sites}/c")
    for client, data in enumerate(alone):
        own = client_split(
            load(None, [f"data.id={data}", *GIVEN]),
            BACKBONE,
            tmp_path / "c",
            client=client,
            clients=3,
            classes=("cat", "dog"),
        )
        for ours, theirs in zip(rows_of(whole, client), rows_of(own, client), strict=True):
            # Files are listed in another order where they are all in one table.
            assert sorted(ours.tolist()) == sorted(theirs.tolist())
    # A client without test images was tested on those of validation; the table is its own.
    assert whole.tested.split == "all"
    dropped = load(None, [f"data.id=clients:{sites}", "data.drop_classes=['cat']", *GIVEN])
    assert make_split(dropped).counts(of_test=True).tolist() == [[2], [2], [2]]


def test_who_has_no_splits_is_said(sites: Path) -> None:
    told = f"folder:{sites}: tables list the images: b by labels.csv"
    assert listed_note("folder", str(sites), "client") == told
    assert listed_note("folder", str(sites)) == "" == listed_note("csv", f"{sites}/b/labels.csv")
    assert listed_note("clients", f"{sites}/absent") == ""  # refused where it is opened
    note = held_out_note("clients", str(sites), 0.2, "client")
    assert "no train/test folders at a: held out 20% of each class there" in note
    assert not is_divided("clients", str(sites), "client")
    table = clients_table(sites)
    assert table.undivided == ("a",) and table.splits == ("test", "train")
    assert set(table.pick("all").splits) == {"", "test", "train"}
    with pytest.raises(DataError, match="a has no 'test' images of its own, others have"):
        table.pick("test")


@pytest.mark.filterwarnings("ignore:1 of")
def test_a_client_of_training_and_validation_beside_one_without_splits_keeps_its_images(
    sites: Path,
) -> None:
    shutil.rmtree(sites / "b")  # who alone had test images
    split = make_split(load(None, [f"data.id=clients:{sites}", *GIVEN]))
    assert split.counts().tolist() == [[8, 8], [2, 2]]
    assert split.counts(of_test=True).tolist() == [[1, 2], [2, 2]]
    report = inspect("clients", str(sites))
    assert report.splits == {"test": 4, "train": 4, NO_SPLIT: 20}
    held_out, validated = report.notes
    assert "no train/test folders at a: held out 20% of each class there" in held_out
    assert validated == f"clients:{sites}: val images are the test images at c"
    config = load(None, [f"data.id=clients:{sites}", *GIVEN])
    assert {held_out, validated} <= set(remarks(config))


def test_a_table_of_clients_tests_each_as_alone(tmp_path: Path) -> None:
    rows = ["path,label,split,client"]
    for client, held in (("a", "val"), ("b", "test")):
        for k in range(6):
            paint(tmp_path / f"{client}{k}.png")
            rows.append(
                f"{client}{k}.png,{'catdog'[k % 2 * 3 :][:3]},{held if k < 2 else 'train'},{client}"
            )
    write(tmp_path / "list.csv", "\n".join(rows))
    split = make_split(load(None, [f"data.id=csv:{tmp_path}/list.csv", *GIVEN]))
    assert split.counts(of_test=True).tolist() == [[1, 1], [1, 1]]
    assert inspect("csv", f"{tmp_path}/list.csv").notes == [
        f"csv:{tmp_path}/list.csv: val images are the test images at a"
    ]


def test_the_check_accounts_for_every_file_of_every_layout(sites: Path) -> None:
    paint(sites / "b" / "scans" / "spare.png", sites / "a" / "dog" / "old" / "1.png")
    report = inspect("clients", str(sites))
    assert report.splits == {"test": 8, "train": 12, NO_SPLIT: 21}
    assert report.groups == {"a": 21, "b": 12, "c": 8}
    assert report.left_out == {UNLISTED: ("b/scans/spare.png",)}
    assert list(report.remarks.values()) == [["a/dog/old/1.png"]]
    assert not report.warnings


def test_a_table_of_other_classes_in_a_plain_folder_is_pointed_out(sites: Path) -> None:
    write(sites / "a" / "list.csv", "path,label\ncat/1.png,cat\ndog/1.png,dog\n")
    assert advice("folder", f"{sites}/a") == []  # the same classes
    write(sites / "a" / "more.csv", "path,label\ncat/1.png,puma\n")
    assert advice("folder", f"{sites}/a") == []  # two tables: neither is meant
    (told,) = advice("folder", f"{sites}/b")
    assert "labels.csv lists images and is not read: the classes are the folders" in told
    assert told.endswith(f"Name csv:{sites}/b/labels.csv to use its labels")


def test_one_table_per_client_and_no_other_csv(tmp_path: Path) -> None:
    plant(tmp_path / "a", "cat/1.png")
    write(tmp_path / "a" / "patients.csv", "patient,age\n1,50\n")
    write(tmp_path / "a" / "class_names.csv", "path,label\n")
    (tmp_path / "a" / "x.csv").write_bytes(b"\xff\xfe,a\n")
    (tmp_path / "a" / "folder.csv").mkdir()
    assert listing(tmp_path / "a") is None
    write(tmp_path / "a" / "one.csv", "path;label\ncat/1.png;dog\n")
    assert listing(tmp_path / "a") == tmp_path / "a" / "one.csv"
    assert clients_table(tmp_path).pick("all").classes == ("dog",)
    write(tmp_path / "a" / "two.csv", "Label,Path\ndog,cat/1.png\n")
    with pytest.raises(DataError, match=r"one.csv and two.csv, which both list images"):
        clients_table(tmp_path)


def test_a_table_without_the_columns_is_pointed_out(sites: Path, tmp_path: Path) -> None:
    write(sites / "a" / "images.csv", "file,diagnosis\ncat/1.png,puma\n")
    (told,) = advice("folder", f"{sites}/a")
    assert told.startswith(f"{sites}/a/images.csv names images and is not read: it has no column ")
    assert "no column path and no label (file, diagnosis)" in told and "labels.csv" in told
    assert told in advice("clients", str(sites), "client")
    assert told in inspect("clients", str(sites)).warnings
    write(sites / "a" / "images.csv", "patient,age\n1,50\n")  # names no images
    assert advice("folder", f"{sites}/a") == []
    paint(tmp_path / "flat" / "x" / "1.png")
    write(tmp_path / "flat" / "x" / "images.csv", "file,label\n1.png,puma\n")
    for kind, path in (("clients", "flat"), ("folder", "flat/x")):
        with pytest.raises(
            DataError, match=r"no class folders.*images.csv names images.*no column path"
        ):
            advice(kind, f"{tmp_path}/{path}", "client" if kind == "clients" else "domain")
    write(tmp_path / "flat" / "x" / "images.csv", "path,label\n1.png,puma\n")
    with pytest.raises(DataError, match=r"or name csv:.*images.csv"):
        advice("folder", f"{tmp_path}/flat/x")


def test_paths_may_be_written_as_windows_writes_them(tmp_path: Path) -> None:
    paint(tmp_path / "scans" / "1.png", tmp_path / "odd\\name.png")
    write(tmp_path / "labels.csv", "path,label\nscans\\1.png,cat\nodd\\name.png,dog\n")
    report = inspect("csv", str(tmp_path / "labels.csv"))
    assert not report.broken and report.images.files == ("scans/1.png", "odd\\name.png")


def test_a_folder_that_ends_with_a_blank_can_be_renamed(tmp_path: Path) -> None:
    plant(tmp_path / "a", "Mouse /1.png", "mouse/2.png", "rat/3.png")
    (warning,) = advice("folder", f"{tmp_path}/a")
    assert "'Mouse ' and 'mouse' differ in spelling only" in warning
    for line in ("Mouse ,mouse", "Mouse,mouse"):
        write(tmp_path / "a" / "class_names.csv", f"{line}\n")
        assert advice("folder", f"{tmp_path}/a") == [] == advice("clients", str(tmp_path), "client")
        assert inspect("folder", f"{tmp_path}/a").labels == {"mouse": 2, "rat": 1}
        assert clients_table(tmp_path).pick("all").classes == ("mouse", "rat")
