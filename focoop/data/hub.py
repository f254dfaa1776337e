"""Datasets of the Hugging Face hub, read through the package `datasets`."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from focoop.data.decoding import as_rgb
from focoop.data.image_set import ImageSet, Store
from focoop.data.splits import split_of
from focoop.errors import DataError, MissingExtra, nearest

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, eq=False)
class HubRows:
    """Images of one split of a `datasets.Dataset`."""

    rows: Any
    column: str

    def image(self, row: int) -> "Image":
        """Read one image.

        Args:
            row: Its number.

        Returns:
            The image as RGB.
        """
        image: Image = self.rows[row][self.column]
        return as_rgb(image)

    def digest(self) -> str:
        """Return the library's own fingerprint of the rows."""
        return hashlib.sha256(f"hf {self.rows._fingerprint} {len(self)}".encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.rows)


def read_hub(target: str, split: str) -> ImageSet:
    """Read a dataset of the hub: one image column, one column of class labels.

    Args:
        target: `NAME` or `NAME@CONFIG`.
        split: The split.

    Returns:
        The images.

    Raises:
        DataError: It cannot be read, or its columns are not clear.
        MissingExtra: The package `datasets` is not installed.
    """
    try:
        library = import_module("datasets")
    except ImportError as error:
        raise MissingExtra(
            f"hf:{target} needs the package datasets (pip install datasets), or save the images "
            "as folders and name them folder:PATH"
        ) from error
    name, _, config = target.partition("@")
    try:
        splits = library.load_dataset(name, config or None)
    except Exception as error:  # the library raises errors of many packages
        raise DataError(
            f"cannot load hf:{target} ({type(error).__name__}: {error}): check the name and the "
            "network, or use a copy on disk (folder:PATH)"
        ) from error
    if split not in splits:
        same = [name for name in splits if split_of(name) == split]
        same += [name for name in splits if split == "test" and split_of(name) == "val"]
        split = next(iter(same), split)
    if split not in splits:
        raise DataError(f"hf:{target} has no split {split!r}{nearest(split, list(splits))}")
    rows = splits[split]
    kinds = {column: type(kind).__name__ for column, kind in rows.features.items()}
    images = [column for column, kind in kinds.items() if kind == "Image"]
    labels = [column for column, kind in kinds.items() if kind == "ClassLabel"]
    if not images or not labels:
        raise DataError(f"hf:{target} needs an Image and a ClassLabel column; it has {kinds}")
    label = "fine_label" if "fine_label" in labels else labels[0]
    store: Store = HubRows(rows, images[0])
    _refuse_unlabelled(target, split, rows[label], len(rows.features[label].names))
    return ImageSet(
        root=Path(name),
        files=tuple(f"{split}/{i:07d}" for i in range(len(rows))),
        labels=tuple(int(value) for value in rows[label]),
        classes=tuple(rows.features[label].names),
        split=split,
        store=store,
    )


def _refuse_unlabelled(target: str, split: str, labels: Sequence[Any], classes: int) -> None:
    """Refuse a split of the hub without labels, before any image is encoded."""
    wrong = [value for value in labels if value is None or not 0 <= value < classes]
    if wrong:
        raise DataError(
            f"hf:{target}: {len(wrong)} of {len(labels)} images of the split {split!r} have no "
            f"label of the {classes} classes ({wrong[0]} in its place), as hidden test sets do: "
            "use a dataset whose test images are labelled, or save its labelled images as folders "
            "and name them folder:PATH"
        )
