"""CUB-200-2011 (Wah et al. 2011): birds, the authors' split."""

from pathlib import Path

from focoop.data.dataset import Dataset, Download
from focoop.data.listing import Listing, Row, read_lines, spaced
from focoop.errors import DataError


def _numbered(path: Path) -> dict[str, str]:
    """Lines of `number value`."""
    return dict(line.split(" ", 1) for line in read_lines(path) if " " in line)


def read(base: Path) -> Listing:
    """Four lists by number: images, their classes, which are for training, and class names."""
    files, labels = _numbered(base / "images.txt"), _numbered(base / "image_class_labels.txt")
    trains, names = _numbered(base / "train_test_split.txt"), _numbered(base / "classes.txt")
    splits: dict[str, list[Row]] = {"train": [], "test": []}
    try:
        for number, file in files.items():
            split = "train" if trains[number] == "1" else "test"
            splits[split].append((f"images/{file}", int(labels[number]) - 1))
    except KeyError as error:
        raise DataError(f"{base}: image {error} is missing from one of its lists") from error
    ordered = [names[str(i)] for i in range(1, len(names) + 1)]
    return Listing(base, [spaced(name.partition(".")[2]) for name in ordered], splits)


DATASET = Dataset(
    title="CUB-200-2011",
    folder="CUB_200_2011",
    others=("cub200/CUB_200_2011",),
    marks=("images", "images.txt", "train_test_split.txt"),
    layout="CUB_200_2011/images/<class>/*.jpg, images.txt, image_class_labels.txt, "
    "train_test_split.txt and classes.txt",
    classes=200,
    counts={"train": 5_994, "test": 5_794},
    licence="non-commercial research and education",
    page="https://data.caltech.edu/records/65de6-vp158",
    read=read,
    downloads=(
        Download(
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            "CUB_200_2011.tgz",
            "md5:97eceeb196236b17998738112f37df78",
            1_150_585_339,
            unpack="",
        ),
    ),
)
