"""Image folders in their three layouts, and what is refused."""

from pathlib import Path

import pytest

from focoop.data import folder_splits, read_folder
from focoop.errors import DataError


def plant(root: Path, *files: str) -> Path:
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return root


def test_splits_share_sorted_classes_even_where_one_is_empty(tmp_path: Path) -> None:
    root = plant(
        tmp_path,
        "train/zebra/1.PNG",
        "train/ant/2.jpg",
        "train/ant/10.jpeg",
        "train/ant/notes.txt",
        "train/ant/.hidden.png",
        "test/zebra/1.png",
    )
    train, test = read_folder(root, "train"), read_folder(root, "test")
    assert train.files == ("train/ant/10.jpeg", "train/ant/2.jpg", "train/zebra/1.PNG")
    assert train.labels == (0, 0, 1)
    assert test.files == ("test/zebra/1.png",) and test.labels == (1,)
    assert train.classes == test.classes == ("ant", "zebra")
    assert train.domains == () and len(read_folder(root, "all")) == 4
    assert folder_splits(root) == ("test", "train")


def test_one_level_is_one_split_that_cannot_be_trained_on(tmp_path: Path) -> None:
    root = plant(tmp_path, "b/1.png", "a/1.png", "a/2.png")
    images = read_folder(root, "test")
    assert images.classes == ("a", "b") and images.labels == (0, 0, 1)
    assert images.files == read_folder(root, "all").files
    assert folder_splits(root) == ("all",)
    with pytest.raises(DataError, match="'all'"):
        read_folder(root, "train")


def test_other_first_level_names_are_domains(tmp_path: Path) -> None:
    root = plant(tmp_path, "sketch/dog/1.png", "photo/dog/1.png", "photo/cat/1.png")
    images = read_folder(root, "all")
    assert images.domain_names == ("photo", "sketch") and images.classes == ("cat", "dog")
    assert images.files == ("photo/cat/1.png", "photo/dog/1.png", "sketch/dog/1.png")
    assert images.domains == (0, 0, 1) and images.labels == (0, 1, 1)
    one = read_folder(root, "sketch")
    assert one.domains == (1,) and one.labels == (1,)
    with pytest.raises(
        DataError, match=r"photo, sketch are taken as domains; .* \(partition.kind=domain\)"
    ):
        read_folder(root, "cartoon")


def test_validation_serves_as_test_and_unknown_splits_list_the_known(tmp_path: Path) -> None:
    root = plant(tmp_path, "train/a/1.png", "val/a/1.png")
    assert read_folder(root, "test").files == ("val/a/1.png",)
    with pytest.raises(DataError, match="train, val"):
        read_folder(root, "tests")


def test_a_class_that_training_does_not_have_is_refused(tmp_path: Path) -> None:
    root = plant(tmp_path, "train/cat/1.png", "test/cats/1.png")
    with pytest.raises(DataError, match="'cats' is in 'test' but not in 'train'"):
        read_folder(root, "train")
    alone = read_folder(root, "test")
    assert [alone.classes[label] for label in alone.labels] == ["cats"]


def test_dropped_classes_leave_and_the_rest_is_renumbered(tmp_path: Path) -> None:
    root = plant(tmp_path, "test/BACKGROUND_Google/1.png", "test/ant/1.png", "test/bee/1.png")
    images = read_folder(root, "test", drop_classes=["BACKGROUND_Google"])
    assert images.classes == ("ant", "bee") and images.labels == (0, 1)
    with pytest.raises(DataError, match="nearest is 'bee'"):
        read_folder(root, "test", drop_classes=["beer"])


def test_empty_missing_and_mixed_folders_are_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="check the path"):
        read_folder(tmp_path / "nowhere", "test")
    with pytest.raises(DataError, match="expected <class>/<image>"):
        read_folder(plant(tmp_path / "empty", "notes.txt"), "test")
    with pytest.raises(DataError, match="use one layout"):
        read_folder(plant(tmp_path / "mixed", "cat/1.png", "test/cat/1.png"), "test")


@pytest.mark.shared
def test_shared_folders_have_the_documented_counts(shared_dir: Path) -> None:
    images = read_folder(shared_dir / "images" / "cifar100", "test")
    assert len(images) == 5000 and len(images.classes) == 100
    office = read_folder(shared_dir / "images" / "office_caltech10", "all")
    assert office.domain_names == ("amazon", "caltech10", "dslr", "webcam") and len(office) == 320
