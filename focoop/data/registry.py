"""Public datasets by name: every file of `datasets/` that declares a `DATASET`."""

import os
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

from focoop.caching import cache_folder
from focoop.data.dataset import Dataset
from focoop.data.image_set import ImageSet
from focoop.errors import DataError, nearest

FOLDER = Path(__file__).parent / "datasets"


@cache
def available() -> Mapping[str, Dataset]:
    """Return all public datasets by name, one per file: the directory is the registry."""
    found = {}
    for module_info in pkgutil.iter_modules([str(FOLDER)]):
        if module_info.name.startswith("_"):
            continue
        module = import_module(f"focoop.data.datasets.{module_info.name}")
        dataset = getattr(module, "DATASET", None)
        if isinstance(dataset, Dataset):
            found[module_info.name] = dataset
    return dict(sorted(found.items()))


def data_root(given: str | Path | None = None) -> Path:
    """Return the folder where datasets lie.

    Args:
        given: A folder that the user chose.

    Returns:
        `given`, else `$FOCOOP_DATA`, else `data` in the cache folder.
    """
    chosen = str(given or os.environ.get("FOCOOP_DATA", ""))
    return Path(chosen).expanduser() if chosen else cache_folder(None, "data")


def lookup(name: str) -> Dataset:
    """Find a dataset by its name.

    Args:
        name: The name.

    Returns:
        The dataset.

    Raises:
        DataError: There is none; the message names the nearest.
    """
    known = available()
    if name not in known:
        raise DataError(
            f"no dataset is called {name!r}{nearest(name, known)}: focoop data list shows all; "
            "your own are folder:PATH, clients:PATH, csv:FILE, hf:NAME, file:PATH.safetensors"
        )
    return known[name]


def read(name: str, split: str, root: str | Path | None = None) -> ImageSet:
    """Read one split of a dataset on disk.

    Args:
        name: The dataset's name; `NAME/official` and `NAME/coop` choose the other split.
        split: The split.
        root: The folder of public datasets; None: the default one.

    Returns:
        The images.

    Raises:
        DataError: The dataset is not on disk, or has no such split.
    """
    plain, _, variant = name.partition("/")
    dataset = lookup(plain)
    reader = dataset.read if not variant else getattr(dataset, variant, None)
    if variant not in ("", "official", "coop") or (variant and reader is None):
        offered = [v for v in ("official", "coop") if getattr(dataset, v) is not None]
        ways = f"{plain}" + "".join(f" or {plain}/{v}" for v in offered)
        raise DataError(f"dataset {name!r}: write {ways}")
    if reader is None:
        clean = next(n for n, d in available().items() if d.corrupted == plain)
        raise DataError(f"{plain} holds corrupted images only: write {clean}#brightness@3")
    base = find(plain, root)
    try:
        return reader(base).pick(split)
    except DataError as error:
        also = ", or ask for the authors' split: " + f"{plain}/official" if dataset.official else ""
        if variant or "split_zhou" not in str(error):
            raise
        raise DataError(f"{error} (focoop data fetch {plain}){also}") from error


def read_corrupted(
    name: str, kind: str, severity: int, root: str | Path | None = None
) -> ImageSet | None:
    """Read the official corrupted test images of a dataset.

    Args:
        name: The dataset's name.
        kind: The corruption's name.
        severity: 1 to 5.
        root: The folder of public datasets; None: the default one.

    Returns:
        The images; None where they are not on disk.

    Raises:
        DataError: A dataset of corrupted images alone lacks them.
    """
    plain = name.partition("/")[0]
    dataset = lookup(plain)
    only = dataset.role == "corrupted"
    official = dataset if only else lookup(dataset.corrupted) if dataset.corrupted else None
    if official is None or official.corrupt is None:
        return None
    if kind not in official.types:
        if only:
            raise DataError(f"{official.title} has no {kind!r}{nearest(kind, official.types)}")
        return None
    base = official.find(data_root(root))
    if base is None and only:
        raise missing(plain, root)
    return None if base is None else official.corrupt(base, kind, severity)


def find(name: str, root: str | Path | None = None) -> Path:
    """Find the folder of a dataset.

    Args:
        name: The dataset's name.
        root: The folder of public datasets; None: the default one.

    Returns:
        The folder.

    Raises:
        DataError: It is not there; the message says how to have it.
    """
    base = lookup(name).find(data_root(root))
    if base is None:
        raise missing(name, root)
    return base


def how_to_get(name: str) -> str:
    """Say what a dataset is, how much there is to fetch, and the command; or how to get it by hand.

    Args:
        name: The dataset's name.

    Returns:
        A sentence.
    """
    dataset = lookup(name)
    if dataset.fetched:
        return f"{dataset.title}, {dataset.told_size}: focoop data fetch {name}"
    return f"{dataset.title}, by hand: {dataset.by_hand}; it must lie as {dataset.layout}"


def missing(name: str, root: str | Path | None = None) -> DataError:
    """Make the error about a dataset that is not on this disk.

    Args:
        name: The dataset's name.
        root: The folder of public datasets; None: the default one.

    Returns:
        The error, to be raised.
    """
    dataset = lookup(name)
    how = dataset.by_hand
    if dataset.fetched:
        how = f"get it with focoop data fetch {name} ({dataset.told_size})"
    return DataError(
        f"{dataset.title} is not in {data_root(root)}: {how}, or point data.root (or --root, or "
        f"the environment variable FOCOOP_DATA) at a folder that holds {dataset.layout}; a folder "
        "with its ready features may stand in (--features DIR, or FOCOOP_FEATURES)"
    )
