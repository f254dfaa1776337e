"""Which files of a folder are images, of which class, and why the others are not."""

import os
from pathlib import Path

import pytest

from focoop.data import read_folder
from focoop.data.folder_tree import walk
from focoop.data.formats import ARCHIVE, BARE, HIDDEN, OTHER, SYSTEM, UNREAD
from focoop.data.sources import open_images
from focoop.errors import DataError
from tests.data.test_folders import plant


def test_every_file_is_an_image_or_left_out_by_reason(tmp_path: Path) -> None:
    root = plant(
        tmp_path,
        *("cat/1.JPG", "cat/2.gif", "cat/3.avif", "cat/4.HEIC", "cat/5.dcm", "cat/deep/er/6.tiff"),
        *("cat/.DS_Store", "cat/._1.jpg", ".git/config", "cat/Thumbs.db", "__MACOSX/cat/1.jpg"),
        *("cat/notes.txt", "cat/labels.csv", "cat/7.cr2", "cat/film.mp4", "cat/README"),
        *("cat/scan.nii.gz", "all.zip"),
        "class_names.csv",
    )
    files = walk(root)
    assert files.images == (
        *("cat/1.JPG", "cat/2.gif", "cat/3.avif", "cat/4.HEIC", "cat/5.dcm"),
        "cat/deep/er/6.tiff",
    )
    assert files.others == {
        HIDDEN: (".git", "cat/.DS_Store", "cat/._1.jpg"),
        SYSTEM: ("__MACOSX", "cat/Thumbs.db"),
        OTHER: ("cat/labels.csv", "cat/notes.txt"),
        UNREAD: ("cat/7.cr2", "cat/film.mp4", "cat/scan.nii.gz"),
        ARCHIVE: ("all.zip",),
        BARE: ("cat/README",),
    }


@pytest.mark.parametrize(
    "start",
    [
        *(b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"II*\0", b"MM\0*"),
        *(b"RIFF\1\0\0\0WEBP", b"\0\0\0\x20ftypavif", b"\0\0\0\x1cftypheic"),
        bytes(128) + b"DICM",
    ],
)
def test_a_file_without_suffix_is_an_image_by_its_first_bytes(start: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "scan"
    folder.mkdir()
    for name in ("IM0001", "1.2.840.113619.2"):
        (folder / name).write_bytes(start + bytes(20))
        (folder / f"{name}.txt").write_bytes(start + bytes(20))
    assert walk(tmp_path).images == ("scan/1.2.840.113619.2", "scan/IM0001")


def test_folders_below_a_class_belong_to_it(tmp_path: Path) -> None:
    root = plant(tmp_path / "one", "cat/1.png", "cat/a/2.png", "cat/a/b/3.png", "dog/1.png")
    found = read_folder(root, "test")
    assert found.files == ("cat/1.png", "cat/a/2.png", "cat/a/b/3.png", "dog/1.png")
    assert found.labels == (0, 0, 0, 1) and found.domains == ()
    root = plant(tmp_path / "two", "train/cat/a/1.png", "train/cat/2.png", "test/cat/b/c/3.png")
    assert read_folder(root, "all").classes == ("cat",)
    assert read_folder(root, "train").files == ("train/cat/2.png", "train/cat/a/1.png")
    assert read_folder(root, "test").files == ("test/cat/b/c/3.png",)


def test_class_folders_of_folders_alone_are_told_by_their_names(tmp_path: Path) -> None:
    files = ("tumour/patient 1/1.png", "tumour/patient 2/1.png", "healthy/patient 3/1.png")
    root = plant(tmp_path / "ward", *files)
    assert read_folder(root, "all").domain_names == ("healthy", "tumour")
    with pytest.raises(DataError, match=r"write them into class_names\.csv"):
        read_folder(root, "train")
    (root / "class_names.csv").write_text("tumour,brain tumour\nhealthy,healthy brain\n")
    found = read_folder(root, "all")
    assert found.classes == ("brain tumour", "healthy brain") and found.domain_names == ()
    assert found.files == (*files[:2], files[2])
    clients = plant(tmp_path / "wards", *(f"north/{file}" for file in files), "south/tumour/2.png")
    with pytest.raises(DataError, match=r"write them into class_names\.csv"):
        open_images("clients", str(clients), "all", check=False)
    (clients / "class_names.csv").write_text("tumour,brain tumour\nhealthy,healthy brain\n")
    found = open_images("clients", str(clients), "all", check=False)
    assert found.domain_names == ("north", "south") and len(found) == 4
    assert found.classes == ("brain tumour", "healthy brain")


def test_an_image_beside_the_class_folders_of_a_split_is_no_class(tmp_path: Path) -> None:
    strays = ("overview.png", "train/montage.png", "test/montage.png")
    root = plant(tmp_path, "train/cat/1.png", "test/cat/2.png", *strays)
    found = read_folder(root, "all")
    assert found.classes == ("cat",) and found.files == ("test/cat/2.png", "train/cat/1.png")
    assert set(walk(root).images) - set(found.files) == set(strays)


def test_links_are_followed_and_a_circle_ends(tmp_path: Path) -> None:
    root = plant(tmp_path / "set", "cat/1.png")
    outside = plant(tmp_path / "elsewhere", "2.png")
    (root / "cat" / "more").symlink_to(outside)
    (root / "cat" / "round").symlink_to(root)
    assert walk(root).images == ("cat/1.png", "cat/more/2.png")


def test_a_folder_of_formats_that_are_not_read_says_so(tmp_path: Path) -> None:
    root = plant(tmp_path, "cat/1.cr2", "dog/2.nef", "dog/3.cr2")
    with pytest.raises(
        DataError, match=r"3 pictures or films of a format that is not read \(\.cr2, \.nef\)"
    ):
        read_folder(root, "test")


def test_a_pipe_without_suffix_is_not_opened(tmp_path: Path) -> None:
    plant(tmp_path, "cat/1.png")
    os.mkfifo(tmp_path / "cat" / "pipe")
    os.mkfifo(tmp_path / "cat" / "pipe.jpg")
    files = walk(tmp_path)
    assert files.others == {BARE: ("cat/pipe",)} and files.images == ("cat/1.png", "cat/pipe.jpg")
