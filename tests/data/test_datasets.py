"""Every public dataset on a small tree in its official layout; official numbers as published."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from focoop.data import data_hash, read_folder, registry
from focoop.data.datasets.cifar10_c import TYPES as CIFAR_TYPES
from focoop.data.datasets.tinyimagenet_c import TYPES as TINY_TYPES
from focoop.errors import DataError
from tests.data import trees
from tests.data.trees import plant, write

# Classes and images as the datasets' own pages and papers give them; CoOp's split for Food-101,
# DTD, Caltech-101, Flowers and Pets (the paper's table of datasets has the same train and test).
OFFICIAL = {
    "caltech101": (100, {"train": 4128, "val": 1649, "test": 2465}),
    "caltech101_objects": (0, {"test": 3403}),
    "cifar10": (10, {"train": 50000, "test": 10000}),
    "cifar100": (100, {"train": 50000, "test": 10000}),
    "cifar100_c": (100, {"test": 10000}),
    "cifar10_c": (10, {"test": 10000}),
    "cub200": (200, {"train": 5994, "test": 5794}),
    "domainnet": (
        345,
        {
            "train": 33525 + 36023 + 50416 + 120750 + 120906 + 48212,
            "test": 14604 + 15582 + 21850 + 51750 + 52041 + 20916,
        },
    ),
    "domainnet10": (10, {}),
    "dtd": (47, {"train": 2820, "val": 1128, "test": 1692}),
    "flowers102": (102, {"train": 4093, "val": 1633, "test": 2463}),
    "food101": (101, {"train": 50500, "val": 20200, "test": 30300}),
    "inaturalist": (0, {"test": 10000}),
    "intel_scenes": (0, {"test": 3000}),
    "isun": (0, {"test": 8925}),
    "lsun_c": (0, {"test": 10000}),
    "lsun_r": (0, {"test": 10000}),
    "office_caltech10": (10, {"amazon": 958, "caltech": 1123, "dslr": 157, "webcam": 295}),
    "oxford_pets": (37, {"train": 2944, "val": 736, "test": 3669}),
    "pacs": (7, {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}),
    "places365": (0, {"test": 10000}),
    "stanford_cars": (196, {"train": 8144, "test": 8041}),
    "sun": (0, {"test": 10000}),
    "svhn": (10, {"train": 73257, "test": 26032}),
    "texture": (0, {"test": 5640}),
    "tinyimagenet": (200, {"train": 100000, "test": 10000}),
    "tinyimagenet_objects": (0, {"test": 3750}),
    "tinyimagenet_c": (200, {"test": 10000}),
}
# Whole datasets whose splits leave nothing out.
TOTALS = {"caltech101": 8242, "dtd": 5640, "flowers102": 8189, "food101": 101000}


def test_the_registry_has_the_official_numbers() -> None:
    known = registry.available()
    assert {name: (d.classes, dict(d.counts)) for name, d in known.items()} == OFFICIAL
    for name, total in TOTALS.items():
        assert sum(known[name].counts.values()) == total
    assert sum(known["office_caltech10"].counts.values()) == 2533
    assert sum(known["pacs"].counts.values()) == 9991
    assert sum(known["cub200"].counts.values()) == 11788
    assert len(CIFAR_TYPES) == 19 and len(TINY_TYPES) == 15
    assert set(CIFAR_TYPES) - set(TINY_TYPES) == {
        "gaussian_blur",
        "saturate",
        "spatter",
        "speckle_noise",
    }


@pytest.mark.parametrize("name", OFFICIAL)
def test_an_absent_dataset_says_where_it_was_looked_for_and_how_it_must_lie(
    name: str, tmp_path: Path
) -> None:
    dataset = registry.lookup(name)
    with pytest.raises(DataError) as caught:
        registry.find(name, tmp_path)
    for part in (dataset.title, str(tmp_path), dataset.layout, dataset.folder, "FOCOOP_DATA"):
        assert part in str(caught.value)
    assert dataset.licence and dataset.page.startswith("http")
    assert dataset.downloads or dataset.by_hand
    for one in dataset.downloads:
        kind, _, digits = one.checksum.partition(":")
        assert not digits or len(digits) == {"md5": 32, "sha256": 64}[kind]


def test_cifar10_reads_five_training_batches_of_python_2(tmp_path: Path) -> None:
    planted = trees.cifar10(tmp_path)
    train, test = (registry.read("cifar10", split, tmp_path) for split in ("train", "test"))
    assert train.classes == (
        "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
    )  # fmt: skip
    assert (len(train), len(test)) == (20, 4)
    assert train.labels[4:8] == tuple((i + len("data_batch_2")) % 10 for i in range(4))
    assert (np.asarray(train.image(6)) == planted["data_batch_2"][2]).all()
    every = registry.read("cifar10", "all", tmp_path)
    assert len(every) == 24 and (np.asarray(every.image(21)) == planted["test_batch"][1]).all()


def test_cifar100_has_its_fine_classes_in_their_order(tmp_path: Path) -> None:
    planted = trees.cifar100(tmp_path)
    test = registry.read("cifar100", "test", tmp_path)
    assert sorted(test.classes) == list(test.classes) and len(set(test.classes)) == 100
    assert [test.classes[i] for i in (0, 1, 41, 47, 83, 99)] == [
        "apple", "aquarium fish", "lawn mower", "maple tree", "sweet pepper", "worm",
    ]  # fmt: skip
    assert test.labels[:3] == (0, 7, 14)
    assert (np.asarray(test.image(99)) == planted["test"][99]).all()
    # The folder of the dataset itself may be given in place of its parent.
    own = registry.read("cifar100", "test", tmp_path / "cifar-100-python")
    assert own.store is not None and test.store is not None
    assert own.store.digest() == test.store.digest()
    train = registry.read("cifar100", "train", tmp_path)
    assert train.store is not None and train.store.digest() != test.store.digest()


def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path) -> None:
    trees.cifar100(tmp_path)
    (tmp_path / "cifar-100-python" / "train").write_bytes(b"cos\nsystem\n(S'touch x'\ntR.")
    with pytest.raises(DataError, match=r"train.*asks for os.system"):
        registry.read("cifar100", "train", tmp_path)


@pytest.mark.parametrize(
    ("name", "folder"), [("cifar10", "CIFAR-10-C"), ("cifar100", "CIFAR-100-C")]
)
def test_cifar_c_cuts_one_severity_out_of_each_array(
    name: str, folder: str, tmp_path: Path
) -> None:
    assert registry.read_corrupted(name, "fog", 3, tmp_path) is None
    with pytest.raises(DataError, match=f"{folder}/labels.npy"):
        registry.read_corrupted(f"{name}_c", "fog", 3, tmp_path)
    trees.cifar_c(tmp_path, folder, 6, CIFAR_TYPES)
    for kind in CIFAR_TYPES:
        for severity in (1, 5):
            found = registry.read_corrupted(name, kind, severity, tmp_path)
            assert found is not None and len(found) == 6 and found.labels == (0, 1, 2, 3, 4, 5)
            want = trees.pixels(30, kind)[6 * (severity - 1) + 2]
            assert (np.asarray(found.image(2)) == want).all()
    with pytest.raises(DataError, match="nearest is 'fog'"):
        registry.read_corrupted(f"{name}_c", "fogg", 1, tmp_path)
    with pytest.raises(DataError, match=f"{name}#brightness@3"):
        registry.read(f"{name}_c", "test", tmp_path)
    np.save(tmp_path / folder / "labels.npy", np.zeros(7))
    with pytest.raises(DataError, match="five times the test set"):
        registry.read_corrupted(name, "fog", 1, tmp_path)


WORDNET = {
    "n02423022": "gazelle",
    "n02012849": "crane",
    "n03126707": "crane, lifting crane",
    "n01443537": "goldfish, Carassius auratus",
}


def test_tinyimagenet_takes_first_synonyms_and_tests_on_validation(tmp_path: Path) -> None:
    trees.tinyimagenet(tmp_path, WORDNET)
    train, test = (registry.read("tinyimagenet", split, tmp_path) for split in ("train", "test"))
    # In the order of WordNet ids; of two cranes the one with a name of its own takes it.
    assert train.classes == ("goldfish", "crane n02012849", "gazelle", "lifting crane")
    assert train.classes == test.classes and train.labels == (0, 0, 1, 1, 2, 2, 3, 3)
    assert train.files[0] == "train/n01443537/images/n01443537_0.JPEG"
    assert dict(zip(test.files, test.labels, strict=True)) == {
        f"val/images/val_{i}.JPEG": label for i, label in enumerate((2, 1, 3, 0))
    }
    write(tmp_path / "tiny-imagenet-200" / "words.txt", "n02423022\tgazelle")
    with pytest.raises(DataError, match="no name for n01443537"):
        registry.read("tinyimagenet", "train", tmp_path)


def test_tinyimagenet_c_is_named_by_tinyimagenet(tmp_path: Path) -> None:
    files = [f"{t}/{s}/{w}/test_0.JPEG" for t in TINY_TYPES for s in (1, 5) for w in WORDNET]
    plant(tmp_path / "Tiny-ImageNet-C", *files)
    with pytest.raises(DataError, match="put TinyImageNet beside it"):
        registry.read_corrupted("tinyimagenet_c", "fog", 1, tmp_path)
    trees.tinyimagenet(tmp_path, WORDNET)
    clean = registry.read("tinyimagenet", "test", tmp_path)
    for kind in TINY_TYPES:
        found = registry.read_corrupted("tinyimagenet", kind, 5, tmp_path)
        assert found is not None and found.classes == clean.classes and len(found) == 4
        assert all(file.startswith(f"{kind}/5/") for file in found.files)
    # Types that only CIFAR-C has are generated instead.
    assert registry.read_corrupted("tinyimagenet", "saturate", 5, tmp_path) is None


def test_the_root_comes_from_the_argument_the_environment_or_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FOCOOP_DATA", raising=False)
    monkeypatch.setenv("FOCOOP_CACHE", str(tmp_path / "cache"))
    assert registry.data_root() == tmp_path / "cache" / "data"
    monkeypatch.setenv("FOCOOP_DATA", str(tmp_path / "data"))
    assert registry.data_root("") == tmp_path / "data"
    assert registry.data_root("x") == Path("x")
    assert registry.data_root("~/x") == Path.home() / "x"


def test_public_images_are_read_as_stored_and_own_ones_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise
    for folder in ("iNaturalist/images", "own/cat"):
        (tmp_path / folder).mkdir(parents=True)
        Image.new("RGB", (8, 4)).save(tmp_path / folder / "x.jpg", exif=exif)
    stored = registry.read("inaturalist", "test", tmp_path)
    assert stored.image(0).size == (8, 4)
    own = read_folder(tmp_path / "own", "all")
    assert own.image(0).size == (4, 8)
    same = replace(stored, turned=True)
    assert data_hash(stored, tmp_path / "c") != data_hash(same, tmp_path / "c")
