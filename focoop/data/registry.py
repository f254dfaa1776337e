"""Public datasets by name: every file of `datasets/` that declares a `DATASET`."""

import inspect
import os
import pkgutil
import re
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from focoop.caching import cache_folder
from focoop.data.dataset import Dataset, Reader
from focoop.data.image_set import ImageSet
from focoop.data.listing import Listing
from focoop.errors import DataError, FocoopError, nearest
from focoop.plugins import line_of, plugged
from focoop.plugins import names as plugin_names

FOLDER = Path(__file__).parent / "datasets"


@cache
def _built_in() -> Mapping[str, Dataset]:
    """The datasets of `datasets/` by name, one per file: the directory is the registry."""
    datasets = {}
    for module_info in pkgutil.iter_modules([str(FOLDER)]):
        if module_info.name.startswith("_"):
            continue
        module = import_module(f"focoop.data.datasets.{module_info.name}")
        dataset = getattr(module, "DATASET", None)
        if isinstance(dataset, Dataset):
            datasets[module_info.name] = dataset
    return dict(sorted(datasets.items()))


def available() -> Mapping[str, Dataset]:
    """Return all datasets by name: those of `datasets/`, of installed packages, and registered."""
    others = {
        name: _dataset_of(thing, name)
        for name, thing in plugin_names("dataset").items()
        if name not in _built_in()
    }
    return {**_built_in(), **dict(sorted(others.items()))}


def parted(target: str) -> tuple[str, str]:
    """Part the name of a dataset from the split it asks for.

    Args:
        target: `NAME`, `NAME/official` or `NAME/coop`; NAME may be a file, `./mine.py`.

    Returns:
        The name, and the split or nothing.

    >>> parted("oxford_pets/official"), parted("./mine.py"), parted("own/mine.py/official")
    (('oxford_pets', 'official'), ('./mine.py', ''), ('own/mine.py', 'official'))
    """
    match = re.fullmatch(r"(.*\.py)(?:/(\w+))?", target)
    if match:
        return match[1], match[2] or ""
    name, _, variant = target.partition("/")
    return name, variant


def _dataset_of(thing: Any, name: str) -> Dataset:
    """The dataset that a module declares as `DATASET`, or that was given itself."""
    dataset = getattr(thing, "DATASET", None) if inspect.ismodule(thing) else thing
    if not isinstance(dataset, Dataset):
        raise DataError(f"{name} must declare DATASET = focoop.Dataset(...)")
    if dataset.read is None and dataset.role != "corrupted":
        raise DataError(f"{name} has no reader: give DATASET read=..., a function of its folder")
    return dataset


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
    if name in _built_in():
        return _built_in()[name]
    plugin = plugged("dataset", name)
    if plugin is not None:
        return _dataset_of(plugin, name)
    if meant := _path_meant(name):
        raise DataError(f"no dataset is called {name!r}, but there is such a path: write {meant}")
    raise DataError(
        f"no dataset is called {name!r}{nearest(name, available())}: focoop data list shows all; "
        "your own are folder:PATH, clients:PATH, csv:FILE, hf:NAME, file:PATH.safetensors"
    )


def _path_meant(name: str) -> str:
    """A user's own images as settings name them, where a name is a path to some."""
    path = os.path.expanduser(name)
    if os.path.isdir(path):  # Path's own raises where a name is too long for a path
        return f"folder:{name}"
    kind = {".csv": "csv", ".safetensors": "file"}.get(os.path.splitext(path)[1])
    return f"{kind}:{name}" if kind and os.path.isfile(path) else ""


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
    plain, variant = parted(name)
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
        return listed(plain, reader, base).pick(split)
    except DataError as error:
        also = ", or ask for the authors' split: " + f"{plain}/official" if dataset.official else ""
        if variant or "split_zhou" not in str(error):
            raise
        raise DataError(f"{error} (focoop data fetch {plain}){also}") from error


def listed(name: str, reader: Reader, base: Path) -> Listing:
    """Read all that a dataset holds; what its reader does wrong becomes an error that says where.

    Args:
        name: The dataset's name.
        reader: Its reader.
        base: Its folder.

    Returns:
        The listing.

    Raises:
        DataError: The reader failed, or returned something else.
        FocoopError: The reader refused the folder, with a message of its own.
        OSError: A file cannot be read.
    """
    try:
        listing: object = reader(base)
    except (FocoopError, OSError):
        raise
    except Exception as error:  # a user's own code, or a file that no reader expects
        place = line_of(error, reader.__module__)
        raise DataError(
            f"the reader of {name} failed{place}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(listing, Listing):
        raise DataError(
            f"the reader of {name} must return focoop.Listing(base, classes, splits): it returned "
            + ("None (is a return missing?)" if listing is None else f"a {type(listing).__name__}")
        )
    return listing


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
    plain = parted(name)[0]
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
