"""CIFAR-10 (Krizhevsky 2009): the Python version, five training batches and one of test."""

from pathlib import Path

from focoop.data.dataset import Dataset, Download
from focoop.data.datasets._arrays import cifar_pixels, read_pickle
from focoop.data.listing import Listing

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
BATCHES = {
    "train": [f"data_batch_{i}" for i in range(1, 6)],
    "test": ["test_batch"],
}


def read(base: Path, batches: dict[str, list[str]], labels: str, classes: list[str]) -> Listing:
    """Read pickled batches of `data` (N, 3072) and labels.

    Args:
        base: The dataset's folder.
        batches: Files of each split.
        labels: Key of the labels in a batch.
        classes: Class names in label order.

    Returns:
        All splits.
    """
    splits, stores = {}, {}
    for split, names in batches.items():
        contents = [read_pickle(base / name) for name in names]
        rows = [int(label) for batch in contents for label in batch[labels]]
        splits[split] = [(f"{split}/{i:05d}", label) for i, label in enumerate(rows)]
        stores[split] = cifar_pixels(contents, base)
    return Listing(base, classes, splits, stores=stores)


DATASET = Dataset(
    title="CIFAR-10",
    folder="cifar-10-batches-py",
    marks=("data_batch_1", "test_batch"),
    layout="cifar-10-batches-py/data_batch_1 to data_batch_5 and test_batch",
    classes=10,
    counts={"train": 50_000, "test": 10_000},
    licence="none stated; cite Krizhevsky (2009)",
    page="https://www.cs.toronto.edu/~kriz/cifar.html",
    read=lambda base: read(base, BATCHES, "labels", CLASSES),
    corrupted="cifar10_c",
    downloads=(
        Download(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "cifar-10-python.tar.gz",
            "md5:c58f30108f718f92721af3b95e74349a",
            170_498_071,
            unpack="",
        ),
    ),
)
