"""Get what a dataset lacks: every file compared with its published or its first checksum."""

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from focoop.caching import SUM, is_intact, parse_json, sealed, write_whole
from focoop.data.dataset import Dataset, Download
from focoop.data.registry import data_root, lookup
from focoop.data.transfer import Differs, Progress, compared, cut, download
from focoop.data.unpacking import limits, unpack
from focoop.errors import DataError

UNKNOWN = "no published checksum"


@dataclass(frozen=True)
class Fetched:
    """One file that was got: what it is and how sure that is."""

    url: str
    file: str
    bytes: int
    sha256: str
    checked: str  # the checksum it agrees with, or UNKNOWN


def fetch(name: str, root: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Download and unpack what a dataset lacks.

    A file without a published checksum must be the one that was fetched the first time.

    Args:
        name: The dataset's name.
        root: The folder of public datasets; None: the default one.
        progress: Is told of bytes done and bytes in all.

    Returns:
        The dataset's folder.

    Raises:
        DataError: It must be got by hand, or a download failed.
    """
    dataset, where = lookup(name), data_root(root)
    if not dataset.downloads:
        raise DataError(
            f"{dataset.title} cannot be fetched: {dataset.by_hand}, as {dataset.layout} in {where}"
        )
    record = where / ".focoop" / f"{name}.json"
    known = _read(record)
    for entry in dataset.downloads:
        if _here(entry, dataset, where):
            continue
        first = str(known.get(entry.url, {}).get("sha256", ""))
        with _told_of(record, entry, first):
            wanted = entry.checksum or (f"sha256:{first}" if first else "")
            one = replace(entry, checksum=wanted)
            known[entry.url] = vars(_get(one, dataset, where, progress or (lambda *_: None)))
        content = {"dataset": name, "licence": dataset.licence, "files": list(known.values())}
        write_whole(record, json.dumps(sealed(content), indent=1).encode())
    base = dataset.find(where)
    if base is None:
        hint = f"{dataset.by_hand}; " if dataset.by_hand else ""
        raise DataError(
            f"{dataset.title} is not complete in {where}: {hint}expected {dataset.layout}"
        )
    return base


@contextmanager
def _told_of(record: Path, entry: Download, first: str) -> Iterator[None]:
    """Say of a file that differs from the first fetch how its authors' new one is accepted."""
    try:
        yield
    except Differs as error:
        if entry.checksum or not first:
            raise
        raise DataError(
            f"{error.file} is not the file that {entry.url} sent when it was first fetched (its "
            f"sha256 differs from {first}; nobody publishes one): where its authors have replaced "
            f"it and you trust it, remove {record} and fetch it again"
        ) from error


def _get(entry: Download, dataset: Dataset, where: Path, progress: Progress) -> Fetched:
    """Download one file and unpack it where it is an archive."""
    base = dataset.find(where) or where / dataset.folder
    target = (base if entry.unpack is None else where) / entry.file
    # Got by hand, or by a fetch that was stopped before unpacking.
    if target.is_file() and not cut(target, target.name):
        digest = compared(target, target, entry.url, entry.checksum)
    else:
        _room(entry, where)
        digest = download(entry.url, target, entry.checksum, progress, entry.size)
    size = target.stat().st_size
    if entry.unpack is not None:
        most = limits(dataset, size)
        unpack(target, base if entry.unpack == dataset.folder else where / entry.unpack, most)
        if entry.inner:
            inner = where / entry.inner
            unpack(inner, inner.parent, most)
            inner.unlink()
        target.unlink()
    return Fetched(entry.url, entry.file, size, digest, entry.checksum or UNKNOWN)


def _room(entry: Download, where: Path) -> None:
    """Refuse a download that the disk cannot hold: the archive and its content."""
    where.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(where).free
    needed = entry.size * (2 if entry.unpack is not None else 1)
    if free < needed:
        raise DataError(
            f"{where} has {free / 1e9:.1f} GB left and {entry.file} needs about {needed / 1e9:.1f} "
            "GB: make room, or choose another folder with --root"
        )


def _here(entry: Download, dataset: Dataset, where: Path) -> bool:
    """Whether a download's result is on disk, fetched or put there by hand."""
    base = dataset.find(where)
    if entry.unpack is None:
        kept = (base or where / dataset.folder) / entry.file
        if not kept.is_file() or cut(kept, kept.name):
            return False
        if entry.checksum:
            compared(kept, kept, entry.url, entry.checksum)
        return True
    if entry.gives:
        return ((base or where / dataset.folder) / entry.gives).exists()
    return base is not None


def _read(record: Path) -> dict[str, dict[str, Any]]:
    """What was fetched before, by address; records of an earlier focoop have no checksum."""
    try:
        content = parse_json(record.read_text("utf-8"))
        if SUM in content and not is_intact(content):
            raise ValueError("its checksum differs")
        return {file["url"]: file for file in content["files"]}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        warnings.warn(
            f"{record} is damaged ({error}): files without a published checksum are taken as they "
            "come, and the record is written anew",
            stacklevel=3,
        )
        return {}
