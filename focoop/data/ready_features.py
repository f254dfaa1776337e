"""Ready features: folders of feature files that stand in for the images of public datasets.

`FOCOOP_FEATURES` (or `--features` of a command) names the folders. A file is called as the dataset
is: `cifar100.safetensors`, `dtd_32px.safetensors` for `dtd@32px`, `cifar100.fog.3.safetensors` for
`cifar100#fog@3`. Where no folder has the file, the images serve; `require` refuses datasets that
neither serves, all at once, and says how to get them.
"""

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from safetensors import SafetensorError, safe_open

from focoop.assets import asset
from focoop.caching import parse_json
from focoop.data.class_names import plain
from focoop.data.dataset import Dataset
from focoop.data.dataset_spec import NAMED, Source, expand
from focoop.data.registry import data_root, how_to_get, lookup
from focoop.errors import DataError, nearest

VARIABLE = "FOCOOP_FEATURES"
NAMES = "class_names.json"  # packaged
KNOWN_SHARE = 0.9  # of a file's class names, so that it may be of the dataset
OWN = "mini"  # the backbone of files that do not say which made them
LISTED = 6  # files that a message names


@dataclass(frozen=True)
class Ready:
    """A file of ready features that serves a dataset.

    Attributes:
        path: the file.
        split: the split of it to open where the test images are asked for.
        dataset: the public dataset that it stands in for.
    """

    path: Path
    split: str
    dataset: Dataset


def folders() -> list[Path]:
    """List the folders of ready features, in the order they are looked through.

    Returns:
        The folders.

    Raises:
        DataError: One of them does not exist.
    """
    given = [
        Path(path).expanduser() for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path
    ]
    for folder in given:
        if not folder.is_dir():
            raise DataError(
                f"no folder {folder} of ready features: check --features, or {VARIABLE} in the "
                "environment"
            )
    return given


def use(chosen: Sequence[Path]) -> None:
    """Name the folders of ready features for this process and those it starts.

    Args:
        chosen: The folders.
    """
    os.environ[VARIABLE] = os.pathsep.join(str(folder.expanduser().absolute()) for folder in chosen)
    folders()


def find(source: Source) -> Ready | None:
    """Find the file of ready features that serves a public dataset.

    Args:
        source: The dataset's name.

    Returns:
        The file, or None where no folder has one.
    """
    if source.kind != NAMED:
        return None
    dataset = lookup(source.name)
    stems = [source.stem]
    if dataset.ready:
        stems.append(source.stem.replace(source.target, dataset.ready, 1))
    for folder in folders():
        for stem in stems:
            if path := _file(folder, stem):
                return Ready(path, "test", dataset)
    if source.split and not (source.altered or source.corruption):
        # The training images are a split of the whole dataset's file, too.
        whole = find(replace(source, split=""))
        return None if whole is None else replace(whole, split=source.split)
    return None


def _file(folder: Path, stem: str) -> Path | None:
    paths = (folder / f"{stem}{ending}" for ending in (".safetensors", ".safetensors.gz"))
    return next((path for path in paths if path.is_file()), None)


def lacking(specs: Iterable[str], root: str | Path | None = None) -> dict[str, list[Source]]:
    """Public datasets that neither ready features nor images on disk serve.

    Args:
        specs: dataset names; those of other kinds are passed over.
        root: the folder of public datasets; None: the default.

    Returns:
        dataset -> what is asked of it.
    """
    absent: dict[str, list[Source]] = {}
    for spec in expand(list(dict.fromkeys(specs))):
        source = Source.parse(spec)
        if source.kind != NAMED or find(source) is not None:
            continue
        if lookup(source.name).find(data_root(root)) is None:
            absent.setdefault(source.name, []).append(source)
    return absent


def from_images(specs: Iterable[str]) -> list[str]:
    """Name the public datasets whose images are opened, because no ready features serve them.

    Args:
        specs: Dataset names; those of other kinds are passed over.

    Returns:
        Names of datasets, each once.
    """
    names: dict[str, None] = {}
    for spec in expand(list(dict.fromkeys(specs))):
        source = Source.parse(spec)
        if source.kind == NAMED and find(source) is None:
            names[source.name] = None
    return list(names)


def require(
    specs: Iterable[str], root: str | Path | None = None, backbone: str | None = None
) -> None:
    """Refuse what a run cannot open, before anything is computed.

    Args:
        specs: the run's dataset names.
        root: the folder of public datasets; None: the default.
        backbone: name of the run's backbone, which ready features must be of; None: not checked.

    Raises:
        DataError: datasets are missing, each with its size and how to get it; or a file of ready
            features is of another dataset or backbone.
    """
    specs = expand(list(dict.fromkeys(specs)))
    for spec in specs:
        source = Source.parse(spec)
        if (ready := find(source)) is not None:
            _check(spec, source, ready, backbone)
    if absent := lacking(specs, root):
        raise missing(absent, root)


def missing(absent: dict[str, list[Source]], root: str | Path | None = None) -> DataError:
    """Make the error about public datasets that are not here: what to fetch, and how large it is.

    Args:
        absent: What is asked of each dataset.
        root: The folder of public datasets; None: the default one.

    Returns:
        The error, to be raised.
    """
    fetched = [name for name in absent if lookup(name).fetched]
    lines = [f"  {name}: {_wanted(name, asked)}" for name, asked in absent.items()]
    files = list(dict.fromkeys(_told(source) for asked in absent.values() for source in asked))
    shown = ", ".join(files[:LISTED]) + (", ..." if len(files) > LISTED else "")
    looked = ", ".join(map(str, folders()))
    count = f"{len(absent)} datasets are" if len(absent) > 1 else "a dataset is"
    parts = [f"{count} not in {data_root(root)} (data.root, or FOCOOP_DATA):", *lines]
    if len(fetched) > 1:
        parts.append(f"fetch them all: focoop data fetch {' '.join(fetched)}")
    parts.append(
        f"or name a folder of ready features by --features DIR (or {VARIABLE}) that has {shown}"
        + (f"; looked in {looked}" if looked else "")
    )
    if all(source.corruption for asked in absent.values() for source in asked):
        parts.append("or measure no corrupted images: --set data.corrupted=[]")
    parts.append("without any download: focoop run demo")
    return DataError("\n".join(parts))


def _wanted(name: str, asked: Sequence[Source]) -> str:
    """How to get a dataset; of one whose features are here it says what its images are for."""
    if find(Source.parse(name)) is None:
        return how_to_get(name)
    made = dict.fromkeys(_told(source).removesuffix(".safetensors") for source in asked)
    return (
        f"its features are here, its images are not, to make {', '.join(made)}; {how_to_get(name)}"
    )


def _told(source: Source) -> str:
    """The file that would serve a source; N stands for the severity of a corruption."""
    stem = source.stem
    if source.corruption:
        stem = f"{stem.removesuffix(str(source.severity))}N"
    return f"{stem}.safetensors"


def _check(spec: str, source: Source, ready: Ready, backbone: str | None) -> None:
    """Refuse a file of another dataset, or of features that another backbone made."""
    metadata = header(ready.path)
    made_by = metadata.get("backbone", OWN)
    if backbone is not None and (made_by == OWN) != (backbone == OWN):
        raise DataError(
            f"{ready.path} holds features of {made_by}, and this run has backbone.name = "
            f"{backbone}: name a folder of its features by --features (or {VARIABLE}), or none, "
            f"so that the images of {source.name} are encoded"
        )
    try:
        classes = [str(name) for name in parse_json(metadata["classes"])]
    except (KeyError, ValueError, TypeError) as error:
        raise DataError(
            f"{ready.path} is no feature file: it has no list of classes; make it again (focoop "
            f"features {source.name} --save), or take it out of the folder"
        ) from error
    check_classes(source.name, ready, classes)


def check_classes(name: str, ready: Ready, classes: Sequence[str]) -> None:
    """Refuse classes that are not those of the dataset which a file stands in for.

    Args:
        name: The dataset's name.
        ready: The file.
        classes: The classes that it has.

    Raises:
        DataError: They are others.
    """
    dataset, known = ready.dataset, class_names(name)
    classes = [label for label in classes if label not in dataset.no_classes]
    most = max(dataset.classes, len(known))
    if dataset.classes and len(classes) > most:
        raise DataError(
            f"{ready.path} has {len(classes)} classes, and {dataset.title} has {dataset.classes}: "
            f"it is not of {name}; take it out of the folder of ready features"
        )
    strangers = [label for label in classes if known and plain(label) not in known]
    if len(strangers) > (1 - KNOWN_SHARE) * len(classes):
        raise DataError(
            f"{ready.path} has classes that {dataset.title} has not, such as {strangers[0]!r}"
            f"{nearest(strangers[0], known)}: it is not of {name}; take it out of the folder of "
            "ready features"
        )


@cache
def class_names(name: str) -> frozenset[str]:
    """Return the class names of a public dataset as `plain` writes them.

    Args:
        name: The dataset's name.

    Returns:
        The names; empty where they are not kept.
    """
    listed = json.loads(asset(NAMES))
    return frozenset(plain(label) for label in listed.get(name, ()))


def header(path: Path) -> dict[str, str]:
    """Read the metadata of a feature file; no tensor is read from an uncompressed one.

    Args:
        path: The file.

    Returns:
        Texts by name.

    Raises:
        DataError: The file is damaged.
    """
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                size = int.from_bytes(file.read(8), "little")
                return dict(parse_json(file.read(size)).get("__metadata__", {}))
        with safe_open(path, "pt") as stored:
            return dict(stored.metadata() or {})
    except (OSError, EOFError, ValueError, zlib.error, SafetensorError) as error:
        raise DataError(
            f"feature file {path} is damaged: it cannot be read ({error}); remove it, then get or "
            "make it again"
        ) from error
