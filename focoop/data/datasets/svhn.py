"""SVHN (Netzer et al. 2011), cropped digits: MATLAB files of (32, 32, 3, N) pixels."""

from pathlib import Path

import numpy as np

from focoop.data.dataset import Dataset, Download
from focoop.data.datasets._matfile import read_mat
from focoop.data.image_set import Pixels, Store
from focoop.data.listing import Listing, Row
from focoop.errors import DataError

SITE = "http://ufldl.stanford.edu/housenumbers"


def read(base: Path) -> Listing:
    """The splits whose files are there; label 10 is the digit 0."""
    splits: dict[str, list[Row]] = {}
    stores: dict[str, Store] = {}
    for split in ("train", "test"):
        path = base / f"{split}_32x32.mat"
        if not path.is_file():
            continue
        variables = read_mat(path)
        try:
            pixels, labels = variables["X"].transpose(3, 0, 1, 2), variables["y"].ravel() % 10
        except (KeyError, ValueError, AttributeError) as error:
            raise DataError(f"{path} is no file of SVHN ({error}): get it again") from error
        splits[split] = [(f"{split}/{i:05d}", int(label)) for i, label in enumerate(labels)]
        stores[split] = Pixels(np.ascontiguousarray(pixels))
    return Listing(base, [str(digit) for digit in range(10)], splits, stores=stores)


DATASET = Dataset(
    title="SVHN",
    folder="SVHN",
    others=("svhn",),
    marks=("test_32x32.mat",),
    layout="SVHN/test_32x32.mat (and train_32x32.mat to train on it)",
    classes=10,
    counts={"train": 73_257, "test": 26_032},
    licence="non-commercial use",
    page=SITE,
    read=read,
    role="ood",
    downloads=(
        Download(
            f"{SITE}/test_32x32.mat",
            "test_32x32.mat",
            "md5:eb5a983be6a315427106f1b164d9cef3",
            64_275_384,
        ),
    ),
)
