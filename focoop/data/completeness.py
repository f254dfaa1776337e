"""Compare public datasets on disk with their official numbers of images and classes."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from focoop.data.dataset import Dataset
from focoop.data.listing import Listing
from focoop.data.ready_features import from_images
from focoop.data.registry import data_root, listed, lookup
from focoop.errors import DataError
from focoop.plugins import origin

HERE, INCOMPLETE, OTHER, MISSING = "here", "incomplete", "other", "missing"
ALLOW = (
    "to use it as it is, set data.incomplete to true (--set data.incomplete=true; --incomplete of "
    "focoop encode; incomplete=True of focoop.encode)"
)


@dataclass(frozen=True)
class OnDisk:
    """What is on disk of a public dataset.

    Attributes:
        state: `here`; `incomplete`, where images or classes lack; `other`, where there are more
            than there should be; `missing`.
        images: images that are there.
        official: images there should be: the published number, else those that the dataset's own
            lists name; 0 where nobody says.
        why: what lacks beside images, in words.
    """

    state: str
    images: int = 0
    official: int = 0
    why: str = ""

    def __str__(self) -> str:
        if self.state in (HERE, MISSING):
            return self.state
        counts = f"{self.images:,} of {self.official:,}" if self.official else f"{self.images:,}"
        return f"{self.state} {counts}" + (f" ({self.why})" if self.why else "")


def on_disk(name: str, root: str | Path | None = None) -> OnDisk:
    """Count the images of a public dataset that are on disk.

    Args:
        name: The dataset's name.
        root: The folder of public datasets; None: the default one.

    Returns:
        What is there.
    """
    dataset = lookup(name)
    base = dataset.find(data_root(root))
    official = sum(dataset.counts.values())
    if base is None:
        return OnDisk(MISSING, 0, official)
    if dataset.read is None:
        return _corrupted(dataset, base, official)
    try:
        listing = listed(name, dataset.read, base)
    except DataError as error:
        if dataset.official is None:
            return OnDisk(INCOMPLETE, 0, official, str(error))
        return _authors_split(dataset, base, str(error))
    images, absent = present(listing)
    official = official or sum(map(len, listing.splits.values()))
    classes = len(listing.classes)
    if dataset.classes and classes != dataset.classes:
        why = f"{classes} of {dataset.classes} classes"
        return OnDisk(OTHER if classes > dataset.classes else INCOMPLETE, images, official, why)
    if not images or images < official:
        return OnDisk(INCOMPLETE, images, official, f"without {absent}" if absent else "")
    return OnDisk(OTHER if official and images > official else HERE, images, official)


def present(listing: Listing) -> tuple[int, str]:
    """Count the images of a listing that are on disk.

    Args:
        listing: All splits of a dataset.

    Returns:
        Their number, and the first file that is not there; empty where all are.
    """
    files = [file for rows in listing.splits.values() for file, _ in rows]
    if listing.stores:
        return len(files), ""
    folders: dict[str, set[str]] = {}
    found, absent = 0, ""
    for file in files:
        folder, _, name = file.rpartition("/")
        if folder not in folders:
            try:
                folders[folder] = set(os.listdir(listing.base / folder))
            except OSError:
                folders[folder] = set()
        here = name in folders[folder]
        found += here
        absent = absent or ("" if here else file)
    return found, absent


def refuse_incomplete(name: str, root: str | Path | None = None) -> None:
    """Refuse a public dataset on disk that does not have its official numbers.

    Args:
        name: The dataset's name.
        root: The folder of public datasets; None: the default one.

    Raises:
        DataError: Images or classes lack, or there are too many; the message says how to go on.
    """
    found = on_disk(name, root)
    if found.state in (HERE, MISSING):
        return
    dataset = lookup(name)
    again = f"focoop data fetch {name}" if dataset.fetched else dataset.by_hand
    mend = f"remove it and get it again ({again})" if again else "get all of it"
    if origin("dataset", name) is not None:
        mend = f"mend read, classes and counts of {name}, or {mend}"
    raise DataError(
        f"{dataset.title} in {dataset.find(data_root(root))} is {found}: {mend}; {ALLOW}"
    )


def refuse_incomplete_of(specs: Iterable[str], root: str | Path | None = None) -> None:
    """Refuse public datasets whose images are opened and do not have their official numbers.

    Args:
        specs: Dataset names as settings write them; those of other kinds are passed over.
        root: The folder of public datasets; None: the default one.
    """
    for name in from_images(specs):
        refuse_incomplete(name, root)


def _corrupted(dataset: Dataset, base: Path, official: int) -> OnDisk:
    """What is there of a dataset of corrupted images: every type must be."""
    absent = [
        kind
        for kind in dataset.types
        if not (base / f"{kind}.npy").is_file() and not (base / kind).is_dir()
    ]
    there = [kind for kind in dataset.types if kind not in absent]
    if dataset.corrupt is None or not there:
        return OnDisk(INCOMPLETE, 0, official, "no type of corruption")
    try:
        images = len(dataset.corrupt(base, there[0], 1))
    except DataError as error:
        return OnDisk(INCOMPLETE, 0, official, str(error))
    why = f"without {', '.join(absent)}" if absent else ""
    state = INCOMPLETE if absent or images < official else HERE
    return OnDisk(OTHER if images > official else state, images, official, why)


def _authors_split(dataset: Dataset, base: Path, why: str) -> OnDisk:
    """What is there where CoOp's split is not, and the authors' may be."""
    official = sum(dataset.counts.values())
    try:
        assert dataset.official is not None
        return OnDisk(INCOMPLETE, present(dataset.official(base))[0], official, why)
    except DataError:
        return OnDisk(INCOMPLETE, 0, official, why)
