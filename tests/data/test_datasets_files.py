"""Public datasets that are lists of image files, each on a small tree in its official layout."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from focoop.data import registry
from focoop.errors import DataError
from tests.data import trees
from tests.data.trees import coop, plant, write

COOP = {
    "food101": ("food-101", "images", "split_zhou_Food101.json"),
    "dtd": ("dtd", "images", "split_zhou_DescribableTextures.json"),
    "caltech101": ("caltech-101", "101_ObjectCategories", "split_zhou_Caltech101.json"),
    "oxford_pets": ("oxford_pets", "images", "split_zhou_OxfordPets.json"),
    "flowers102": ("oxford_flowers", "jpg", "split_zhou_OxfordFlowers.json"),
}


@pytest.mark.parametrize("name", COOP)
def test_coop_splits_number_and_name_the_classes(name: str, tmp_path: Path) -> None:
    folder, images, file = COOP[name]
    plant(tmp_path / folder / images, "a_b/1.jpg")
    with pytest.raises(DataError, match=f"{file}.*focoop data fetch {name}"):
        registry.read(name, "train", tmp_path)
    rows = {
        "train": [("x/1.jpg", 1, "ice_cream"), ("y/1.jpg", 0, "a_b")],
        "val": [("x/2.jpg", 1, "ice_cream")],
        "test": [("y/3.jpg", 0, "a_b"), ("x/3.jpg", 1, "ice_cream"), ("y/4.jpg", 0, "a_b")],
    }
    coop(tmp_path / folder / file, rows)
    train, val, test = (registry.read(name, s, tmp_path) for s in ("train", "val", "test"))
    want = ("a_b", "ice_cream") if name == "flowers102" else ("a b", "ice cream")
    assert train.classes == test.classes == want
    assert train.files == (f"{images}/x/1.jpg", f"{images}/y/1.jpg") and train.labels == (1, 0)
    assert test.labels == (0, 1, 0) and len(val) == 1 and train.root == tmp_path / folder
    assert len(registry.read(name, "all", tmp_path)) == 6
    with pytest.raises(DataError, match="train, val, test"):
        registry.read(name, "tests", tmp_path)
    write(tmp_path / folder / file, '{"train": []}')
    with pytest.raises(DataError, match="no CoOp split file"):
        registry.read(name, "train", tmp_path)


def test_caltech_writes_four_classes_in_the_singular(tmp_path: Path) -> None:
    base = tmp_path / "caltech-101"
    plant(base / "101_ObjectCategories", "Faces/image_0001.jpg")
    names = ["Faces", "Leopards", "Motorbikes", "airplanes", "car_side"]
    rows = [(f"{name}/image_0001.jpg", i, name) for i, name in enumerate(names)]
    coop(base / "split_zhou_Caltech101.json", {"train": rows, "val": rows, "test": rows})
    found = registry.read("caltech101", "test", tmp_path)
    assert found.classes == ("face", "leopard", "motorbike", "airplane", "car side")


def test_official_splits_of_food_dtd_and_pets(tmp_path: Path) -> None:
    plant(tmp_path / "food-101" / "images", "a/1.jpg")
    write(tmp_path / "food-101/meta/train.json", '{"tuna_tartare": ["tuna_tartare/7"], "pho": []}')
    write(tmp_path / "food-101/meta/test.json", '{"pho": ["pho/1"], "tuna_tartare": []}')
    food = registry.read("food101/official", "train", tmp_path)
    assert food.classes == ("pho", "tuna tartare") and food.files == ("images/tuna_tartare/7.jpg",)
    assert food.labels == (1,) and registry.read("food101/official", "test", tmp_path).labels == (
        0,
    )

    plant(tmp_path / "dtd" / "images", "banded/banded_0002.jpg")
    for split, lines in (
        ("train1", "zigzagged/z_1.jpg\nbanded/b_1.jpg\n"),
        ("val1", "banded/b_2.jpg"),
    ):
        write(tmp_path / "dtd" / "labels" / f"{split}.txt", lines)
    write(tmp_path / "dtd" / "labels" / "test1.txt", "polka-dotted/p_1.jpg\n")
    dtd = registry.read("dtd/official", "train", tmp_path)
    assert dtd.classes == ("banded", "polka-dotted", "zigzagged") and dtd.labels == (2, 0)

    plant(tmp_path / "oxford_pets" / "images", "Abyssinian_1.jpg")
    lines = "Abyssinian_1 1 1 1\nAmerican_Bulldog_203 2 2 1\n"
    write(tmp_path / "oxford_pets/annotations/trainval.txt", lines)
    write(tmp_path / "oxford_pets/annotations/test.txt", "american_bulldog_1 2 2 1\n")
    pets = registry.read("oxford_pets/official", "train", tmp_path)
    assert pets.classes == ("abyssinian", "american bulldog") and pets.labels == (0, 1)
    assert pets.files[1] == "images/American_Bulldog_203.jpg"
    with pytest.raises(DataError, match="dtd or dtd/official"):
        registry.read("dtd/oficial", "train", tmp_path)
    with pytest.raises(DataError, match="write cifar100$"):
        registry.read("cifar100/official", "train", tmp_path)


def test_official_flowers_by_matlab_files(tmp_path: Path) -> None:
    base = plant(tmp_path / "oxford_flowers", "jpg/image_00001.jpg")
    scipy.io.savemat(base / "imagelabels.mat", {"labels": np.array([[77, 1, 102, 1]])})
    ids = {"trnid": np.array([[2]]), "valid": np.array([[4]]), "tstid": np.array([[3, 1]])}
    scipy.io.savemat(base / "setid.mat", ids)
    test = registry.read("flowers102/official", "test", tmp_path)
    assert test.files == ("jpg/image_00003.jpg", "jpg/image_00001.jpg")
    assert [test.classes[label] for label in test.labels] == ["blackberry lily", "passion flower"]
    assert test.classes[0] == "pink primrose" and len(set(test.classes)) == 102
    assert registry.read("flowers102/official", "train", tmp_path).labels == (0,)
    scipy.io.savemat(base / "setid.mat", {"trnid": np.array([[9]])})
    with pytest.raises(DataError, match="do not fit"):
        registry.read("flowers102/official", "train", tmp_path)


def test_cars_by_matlab_structs_with_the_year_first(tmp_path: Path) -> None:
    names = ["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Ram C/V Cargo Van Minivan 2012"]
    trees.stanford_cars(tmp_path, names)
    train, test = (registry.read("stanford_cars", s, tmp_path) for s in ("train", "test"))
    assert train.classes[0] == "2000 AM General Hummer SUV" and len(train.classes) == 3
    assert train.files == ("cars_train/00001.jpg", "cars_train/00002.jpg")
    assert train.labels == (1, 0) and test.labels == (2,)
    rows = [("cars_train/00001.jpg", 0, "2012 Acura RL Sedan")]
    split = {"train": rows, "val": rows, "test": rows}
    coop(tmp_path / "stanford_cars" / "split_zhou_StanfordCars.json", split)
    assert registry.read("stanford_cars/coop", "val", tmp_path).files == ("cars_train/00001.jpg",)


def test_cub_joins_its_four_lists(tmp_path: Path) -> None:
    base = plant(tmp_path / "CUB_200_2011", "images/001.Black_footed_Albatross/a.jpg")
    files = ["001.Black_footed_Albatross/a.jpg", "002.Laysan_Albatross/b.jpg"]
    write(base / "images.txt", "".join(f"{i} {f}\n" for i, f in enumerate(files, 1)))
    write(base / "image_class_labels.txt", "1 1\n2 2\n")
    write(base / "train_test_split.txt", "1 0\n2 1\n")
    write(base / "classes.txt", "1 001.Black_footed_Albatross\n2 002.Laysan_Albatross\n")
    train = registry.read("cub200", "train", tmp_path)
    assert train.classes == ("Black footed Albatross", "Laysan Albatross")
    assert train.labels == (1,) and train.files == (f"images/{files[1]}",)
    assert registry.read("cub200", "test", tmp_path).labels == (0,)
    write(base / "train_test_split.txt", "1 0\n")
    with pytest.raises(DataError, match="missing from one of its lists"):
        registry.read("cub200", "train", tmp_path)


def test_domainnet_whole_and_by_ten_classes(tmp_path: Path) -> None:
    ten = ("bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill",
           "wine_glass", "zebra")  # fmt: skip
    trees.domainnet(tmp_path, tuple(sorted((*ten, "axe", "The_Eiffel_Tower"))))
    domains = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    whole, few = (registry.read(n, "all", tmp_path) for n in ("domainnet", "domainnet10"))
    assert whole.domain_names == few.domain_names == domains
    assert (len(whole.classes), len(whole)) == (12, 12 * 6 * 3)
    assert few.classes == tuple(name.replace("_", " ") for name in ten)
    assert Counter(few.domains) == dict.fromkeys(range(6), 30)
    train = registry.read("domainnet10", "train", tmp_path)
    assert len(train) == 120 and len(registry.read("domainnet10", "test", tmp_path)) == 60
    for file, label, domain in zip(train.files, train.labels, train.domains, strict=True):
        where, name, _ = file.split("/")
        assert name == ten[label] and where == domains[domain]


def test_domain_sets_have_one_set_and_four_domains(tmp_path: Path) -> None:
    places = ("amazon", "caltech", "dslr", "webcam")
    files = [f"{d}/{c}/1.jpg" for d in places for c in ("back_pack", "laptop_computer", "mug")]
    plant(tmp_path / "office_caltech_10", *files)
    office = registry.read("office_caltech10", "all", tmp_path)
    assert office.domain_names == places and office.classes == ("backpack", "laptop", "mug")
    assert office.domains == (0,) * 3 + (1,) * 3 + (2,) * 3 + (3,) * 3
    styles = ("art_painting", "cartoon", "photo", "sketch")
    kinds = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    plant(tmp_path / "PACS", *[f"{d}/{c}/pic_001.png" for d in styles for c in kinds])
    pacs = registry.read("pacs", "all", tmp_path)
    assert pacs.classes == kinds and pacs.domain_names == styles and len(pacs) == 28
    with pytest.raises(DataError, match="partition.kind = domain"):
        registry.read("pacs", "train", tmp_path)


DETECTION = {
    "texture": ("dtd", ["images/banded/b_1.jpg", "images/zigzagged/z_1.jpg"]),
    "inaturalist": ("iNaturalist", ["images/0a.jpg", "images/0b.jpg"]),
    "isun": ("iSUN", ["iSUN_patches/1.jpeg", "iSUN_patches/2.jpeg"]),
    "places365": ("Places", ["images/b_badlands_1.jpg", "images/c_cliff_2.jpg"]),
    "sun": ("SUN", ["images/sun_a.jpg", "images/sun_b.jpg"]),
    "lsun_c": ("LSUN", ["test/0.jpg", "test/1.jpg"]),
    "lsun_r": ("LSUN_resize", ["LSUN_resize/0.jpg", "LSUN_resize/1.jpg"]),
}


@pytest.mark.parametrize("name", DETECTION)
def test_detection_sets_are_every_image_of_a_folder(name: str, tmp_path: Path) -> None:
    folder, files = DETECTION[name]
    plant(tmp_path / folder, *files, f"{files[0].rpartition('/')[0]}/.hidden.jpg", "labels/x.txt")
    found = registry.read(name, "test", tmp_path)
    assert found.files == tuple(files) and found.labels == (0, 0) and len(found.classes) == 1
    assert found.image(0).size == (1, 1)
    # Another dataset's folder of the same inner name is not taken for this one.
    other = plant(tmp_path / "elsewhere", *files)
    assert registry.lookup(name).find(other) is None


def test_svhn_reads_pixels_and_digits(tmp_path: Path) -> None:
    planted = trees.svhn(tmp_path)
    found = registry.read("svhn", "test", tmp_path)
    assert found.labels == (0, 1, 2, 9, 0, 5) and found.classes == tuple("0123456789")
    assert (np.asarray(found.image(3)) == planted[3]).all()
    with pytest.raises(DataError, match="no split 'train'"):
        registry.read("svhn", "train", tmp_path)


@pytest.mark.shared
def test_real_images_of_the_domain_sets_are_found_by_name(shared_dir: Path) -> None:
    office = registry.read("office_caltech10", "all", shared_dir / "images")
    assert office.domain_names == ("amazon", "caltech", "dslr", "webcam") and len(office) == 320
    assert office.classes == (
        "backpack", "bike", "calculator", "headphones", "keyboard", "laptop", "monitor", "mouse",
        "mug", "projector",
    )  # fmt: skip
    pacs = registry.read("pacs", "all", shared_dir / "images")
    assert len(pacs.domain_names) == 4 and len(pacs.classes) == 7
    assert office.image(0).mode == pacs.image(0).mode == "RGB"
    folders = {path.name for path in (shared_dir / "images" / "caltech101" / "test").iterdir()}
    kept = folders - {"BACKGROUND_Google", "Faces_easy"}
    assert len(kept) == registry.lookup("caltech101").classes
