"""Stanford Cars (Krause et al. 2013), the authors' split; `stanford_cars/coop` has CoOp's."""

from pathlib import Path

from focoop.data.dataset import Dataset, Download, drive
from focoop.data.datasets._matfile import read_mat
from focoop.data.listing import Listing, Row, coop
from focoop.errors import DataError

SPLIT = "split_zhou_StanfordCars.json"
LISTS = {
    "train": ("cars_train", "devkit/cars_train_annos.mat"),
    "test": ("cars_test", "cars_test_annos_withlabels.mat"),
}


def official(base: Path) -> Listing:
    """Annotations with `fname` and `class`; names with the year put first, as CoOp does."""
    try:
        names = [str(name) for name in read_mat(base / "devkit" / "cars_meta.mat")["class_names"]]
        splits: dict[str, list[Row]] = {}
        for split, (folder, file) in LISTS.items():
            rows = read_mat(base / file)["annotations"]
            splits[split] = [
                (f"{folder}/{row['fname']}", int(row["class"].ravel()[0]) - 1) for row in rows
            ]
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise DataError(f"{base}: its .mat files are not those of the cars ({error})") from error
    return Listing(base, [year_first(name) for name in names], splits)


def year_first(name: str) -> str:
    """Put the year before make and model.

    Args:
        name: A name such as `Acura TL Sedan 2012`.

    Returns:
        The name.

    >>> year_first("AM General Hummer SUV 2000")
    '2000 AM General Hummer SUV'
    """
    rest, _, year = name.rpartition(" ")
    return f"{year} {rest}"


DATASET = Dataset(
    title="Stanford Cars",
    folder="stanford_cars",
    marks=("cars_train", "cars_test"),
    layout="stanford_cars/cars_train/*.jpg, cars_test/*.jpg, devkit/cars_train_annos.mat and "
    f"cars_meta.mat, cars_test_annos_withlabels.mat (and {SPLIT} for stanford_cars/coop)",
    classes=196,
    counts={"train": 8_144, "test": 8_041},
    licence="non-commercial research",
    page="https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
    read=official,
    coop=lambda base: coop(base, "", SPLIT, str.strip),
    downloads=(
        Download(
            drive("1ObCFbaAgVu0I-k_Au-gIUcefirdAuizT"),
            SPLIT,
            "sha256:40acee7aa65c8e4727a32d90e884b7c3f8960b523422317e163f7af65432959d",
            1_855_652,
        ),
    ),
    by_hand="its authors' server is gone: get the images from a mirror you trust",
)
