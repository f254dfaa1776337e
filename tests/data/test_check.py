"""`focoop data check` accounts for every file of a messy folder, and hangs on none."""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from focoop.cli import app
from focoop.data import check_report, decoding
from focoop.data.depth import FIRST, TRANSPARENT
from focoop.data.folder_tree import OUTSIDE
from focoop.data.formats import HIDDEN, OTHER, SYSTEM, UNREAD
from focoop.data.sources import open_images
from focoop.seeds import numpy_generator
from tests.data import trees
from tests.data.deep_files import png16
from tests.data.test_decoding import write_any


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))


def check(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["data", "check", *words])
    return done.exit_code, done.stdout


def document(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(check(*words, "--json")[1])
    return found


def photo(path: Path, seed: int, **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = numpy_generator(seed, "photo").integers(0, 256, (9, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)


def messy(root: Path) -> Path:
    """Two splits of two classes, and all that may lie about in them."""
    for seed, name in enumerate(("train/cat/1.JPG", "train/dog/1.png", "test/cat/1.gif")):
        photo(root / name, seed)
    photo(root / "test/dog/1.webp", 8)
    photo(root / "train/cat/more/2.png", 9)
    photo(root / "train/overview.png", 10)
    cat = root / "train" / "cat"
    write_any(cat / "3.heic")
    (cat / "2.jpg").write_bytes(b"<html>")
    os.mkfifo(cat / "3.jpg")
    png16(cat / "deep.png", np.full((4, 4, 1), 4000, dtype=np.uint16))
    Image.new("RGBA", (4, 4), (0, 0, 0, 9)).save(cat / "clear.png")
    frames = [Image.new("L", (4, 4), grey) for grey in (10, 200)]
    frames[0].save(cat / "moving.gif", save_all=True, append_images=frames[1:])
    for name in (".DS_Store", "Thumbs.db", "notes.txt", "4.cr2"):
        (cat / name).write_bytes(b"x")
    shutil.copy(root / "train/dog/1.png", cat / "copy.png")
    shutil.copy(root / "test/dog/1.webp", root / "train/dog/seen.webp")
    return root


def test_every_file_of_a_messy_folder_is_accounted_for(tmp_path: Path) -> None:
    root = messy(tmp_path / "i")
    told = document(f"folder:{root}")
    assert told["broken"] == {
        "train/cat/2.jpg": decoding.NO_IMAGE,
        "train/cat/3.jpg": "not a regular file",
    }
    assert told["left_out"] == {
        OUTSIDE: ["train/overview.png"],
        UNREAD: ["train/cat/4.cr2"],
        OTHER: ["train/cat/notes.txt"],
        SYSTEM: ["train/cat/Thumbs.db"],
        HIDDEN: ["train/cat/.DS_Store"],
    }
    assert told["remarks"] == {
        "files of more than 8 bits, values up to 4000: read as 12 bits": ["train/cat/deep.png"],
        TRANSPARENT: ["train/cat/clear.png"],
        FIRST: ["train/cat/moving.gif"],
        check_report.NESTED: ["train/cat/more/2.png"],
    }
    same = {
        how: [[row["file"] for row in rows] for rows in groups]
        for how, groups in told["repeated"].items()
    }
    assert same == {
        check_report.TWO_CLASSES: [["train/cat/copy.png", "train/dog/1.png"]],
        check_report.TWO_SPLITS: [["test/dog/1.webp", "train/dog/seen.webp"]],
    }
    assert told["splits"] == {"test": 2, "train": 11} and told["classes"] == 2
    kinds = {"PNG": 5, "GIF": 2, "WEBP": 2, "JPEG": 1, "HEIC": 1}
    assert told["formats"] == kinds and told["images"] == sum(kinds.values()) + 2
    everything = sum(1 for path in root.rglob("*") if not path.is_dir())
    assert everything == told["images"] + sum(map(len, told["left_out"].values()))


def test_the_text_counts_by_reason_and_names_a_few(tmp_path: Path) -> None:
    root = messy(tmp_path / "i")
    for number in range(5):
        (root / "train" / "dog" / f"bad{number}.jpg").write_bytes(b"<html>")
    code, text = check(f"folder:{root}")
    assert code == 3
    assert re.search(r"  6  not an image.*\n +train/cat/2.jpg\n(.*\n){2} +and 3 more\n", text)
    assert "train/cat/copy.png (cat, train) = train/dog/1.png (dog, train)" in text
    assert text.endswith("18 images, 2 classes, 7 cannot be read\n")
    assert max(map(len, text.splitlines())) <= 100 + len(str(tmp_path))


def test_remarks_alone_are_no_failure(tmp_path: Path) -> None:
    photo(tmp_path / "i/cat/1.png", 1)
    photo(tmp_path / "i/dog/1.png", 1)
    (tmp_path / "i/cat/notes.txt").write_bytes(b"x")
    code, text = check(f"folder:{tmp_path / 'i'}")
    assert code == 0 and check_report.TWO_CLASSES in text and OTHER in text
    assert text.endswith("2 images, 2 classes, 0 cannot be read\n")


def test_a_table_is_checked_by_the_rows_it_lists(tmp_path: Path) -> None:
    photo(tmp_path / "a.png", 1)
    photo(tmp_path / "b.gif", 2)
    os.mkfifo(tmp_path / "c.jpg")
    rows = ["a.png,cat,train", "a.png,dog,test", "b.gif,cat,test", "c.jpg,dog,train"]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,split", *rows]), encoding="utf-8")
    told = document(f"csv:{tmp_path / 't.csv'}")
    assert told["broken"] == {"c.jpg": "not a regular file"} and told["left_out"] == {}
    for how in (check_report.TWO_CLASSES, check_report.TWO_SPLITS):
        ((one, other),) = told["repeated"][how]
        assert {one["label"], other["label"]} == {"cat", "dog"}
        assert {one["split"], other["split"]} == {"train", "test"}


def test_clients_are_told_of_images_they_share(tmp_path: Path) -> None:
    root = tmp_path / "i"
    photo(root / "north/cat/1.png", 1)
    photo(root / "south/cat/2.png", 1)
    photo(root / "south/cat/inner/3.png", 2)
    shutil.copy(root / "south/cat/inner/3.png", root / "south/cat/4.png")
    told = document(f"clients:{root}")
    ((one, other),) = told["repeated"][check_report.TWO_CLIENTS]
    assert (one["group"], other["group"]) == ("north", "south")
    assert [row["file"] for row in told["repeated"][check_report.TWICE][0]] == [
        "south/cat/4.png",
        "south/cat/inner/3.png",
    ]
    assert told["remarks"] == {check_report.NESTED: ["south/cat/inner/3.png"]}


def test_a_file_is_read_once_its_package_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo(tmp_path / "i/cat/1.png", 1)
    write_any(tmp_path / "i/cat/2.heic")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pillow_heif", None)
        code, text = check(f"folder:{tmp_path / 'i'}")
        assert code == 3 and "pip install 'focoop[formats]'" in text
    assert check(f"folder:{tmp_path / 'i'}")[0] == 0


def test_a_run_is_told_of_pictures_it_does_not_use(tmp_path: Path) -> None:
    root = tmp_path / "i"
    photo(root / "train/cat/1.png", 1)
    photo(root / "test/cat/1.png", 2)
    open_images("folder", str(root), "train")  # nothing to tell
    photo(root / "train/overview.png", 3)
    (root / "train/cat/raw.nef").write_bytes(b"x")
    (root / "train/cat/notes.txt").write_bytes(b"x")
    words = r"1 image in no class folder or table and 1 picture or film .* \(\.nef\); focoop data"
    with pytest.warns(UserWarning, match=words):
        found = open_images("folder", str(root), "train")
    assert found.files == ("train/cat/1.png",)


def test_a_public_dataset_of_arrays_is_counted(tmp_path: Path) -> None:
    trees.cifar100(tmp_path / "data", 4, 4)
    code, text = check("cifar100", "--root", str(tmp_path / "data"))
    assert code == 0 and text.endswith("8 images, 100 classes, 0 cannot be read\n")


def test_classes_by_patient_are_pointed_out_and_put_right_by_a_file_of_names(
    tmp_path: Path,
) -> None:
    for seed, name in enumerate(("tumour/p1/1.png", "tumour/p2/1.png", "healthy/p3/1.png")):
        photo(tmp_path / "scans" / name, seed)
    code, text = check(f"folder:{tmp_path}/scans")
    told = " ".join(text.split())
    assert code == 0 and "healthy, tumour hold folders and no images" in told
    assert "in lines such as healthy,healthy" in told and "classes: 1 p1, 1 p2, 1 p3" in told
    (tmp_path / "scans" / "class_names.csv").write_text("healthy,healthy\ntumour,brain tumour\n")
    code, text = check(f"folder:{tmp_path}/scans")
    assert code == 0 and "warning" not in text
    assert "classes: 2 brain tumour, 1 healthy" in text


def test_many_classes_are_counted_and_not_all_listed(tmp_path: Path) -> None:
    for seed in range(23):
        photo(tmp_path / "things" / f"c{seed:02d}" / "1.png", seed)
    text = check(f"folder:{tmp_path}/things")[1]
    assert "1 c19, and 3 more" in " ".join(text.split()) and "c20" not in text
    assert document(f"folder:{tmp_path}/things")["labels"]["c22"] == 1
