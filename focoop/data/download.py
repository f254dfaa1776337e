"""Download files: resumed where they broke off, compared with the published checksum, put whole."""

import hashlib
import json
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focoop.caching import write_whole
from focoop.data.dataset import Dataset, Download
from focoop.data.registry import data_root, lookup
from focoop.errors import DataError

CHUNK = 1 << 20
TIMEOUT = 60
Progress = Callable[[str, int, int], None]  # file, bytes so far, bytes in all (0: not known)


@dataclass(frozen=True)
class Fetched:
    """One file that was got: what it is and how sure that is."""

    url: str
    file: str
    bytes: int
    sha256: str
    checked: str  # the published checksum it agrees with, or "no published checksum"


def fetch(name: str, root: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Download and unpack what a dataset lacks.

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
        known[entry.url] = vars(_get(entry, dataset, where, progress or (lambda *_: None)))
        content = {"dataset": name, "licence": dataset.licence, "files": list(known.values())}
        write_whole(record, json.dumps(content, indent=1).encode())
    base = dataset.find(where)
    if base is None:
        hint = f"{dataset.by_hand}; " if dataset.by_hand else ""
        raise DataError(
            f"{dataset.title} is not complete in {where}: {hint}expected {dataset.layout}"
        )
    return base


def download(url: str, target: Path, checksum: str = "", progress: Progress | None = None) -> str:
    """Fetch a file, going on where an earlier attempt stopped.

    The part that is there already is kept beside the target as `.part`. A server that has another
    file by now, or cannot continue one, sends it from the start.

    Args:
        url: Where the file is.
        target: Where to put it.
        checksum: `md5:...` or `sha256:...` as published; empty where none is.
        progress: Is told of bytes done and bytes in all.

    Returns:
        The file's sha256.
    """
    part, tag = target.with_name(target.name + ".part"), target.with_name(target.name + ".tag")
    target.parent.mkdir(parents=True, exist_ok=True)
    have = part.stat().st_size if part.is_file() else 0
    headers = {"User-Agent": "focoop"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if tag.is_file():
            headers["If-Range"] = tag.read_text("utf-8")
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=TIMEOUT
        ) as answer:
            _receive(answer, part, tag, have if answer.status == 206 else 0, progress, target.name)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # nothing is left to send: the part is the whole
            raise _unreachable(url, target, str(error)) from error
    except (OSError, ValueError) as error:
        raise _unreachable(url, target, str(getattr(error, "reason", error))) from error
    try:
        digest = _checked(part, target, url, checksum)
    except DataError:
        part.unlink()
        tag.unlink(missing_ok=True)
        raise
    os.replace(part, target)
    tag.unlink(missing_ok=True)
    return digest


def _receive(
    answer: Any, part: Path, tag: Path, have: int, progress: Progress | None, name: str
) -> None:
    """Append what the server sends from byte `have` on."""
    if "text/html" in answer.headers.get("Content-Type", ""):
        raise ValueError("the server sent a web page in place of the file")
    length = int(answer.headers.get("Content-Length") or 0)
    total = have + length if length else 0
    if etag := answer.headers.get("ETag"):
        tag.write_text(etag, "utf-8")
    with open(part, "r+b" if have else "wb") as file:
        file.seek(have)
        while block := answer.read(CHUNK):
            file.write(block)
            have += len(block)
            if progress is not None:
                progress(name, have, total)
    if total and have < total:
        raise OSError(f"the connection ended after {have} of {total} bytes")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar or zip archive beside its place first, then move its content there.

    Args:
        archive: The archive.
        folder: Where its content goes.

    Raises:
        DataError: It is damaged, or would write outside the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".unpack-", dir=folder))
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                zipped.extractall(draft)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(draft, filter="data")
        _merge(draft, folder)
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise DataError(
            f"cannot unpack {archive} ({error}): make room, or remove it and fetch it again"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _merge(source: Path, target: Path) -> None:
    """Move everything of one folder into another; folders that are there are filled up."""
    for entry in sorted(source.iterdir()):
        place = target / entry.name
        if entry.is_dir() and place.is_dir():
            _merge(entry, place)
        else:
            os.replace(entry, place)


def _get(entry: Download, dataset: Dataset, where: Path, progress: Progress) -> Fetched:
    """Download one file and unpack it where it is an archive."""
    base = dataset.find(where) or where / dataset.folder
    target = (base if entry.unpack is None else where) / entry.file
    if target.is_file():  # got by hand, or by a fetch that was stopped before unpacking
        digest = _checked(target, target, entry.url, entry.checksum)
    else:
        _room(entry, where)
        digest = download(entry.url, target, entry.checksum, progress)
    size = target.stat().st_size
    if entry.unpack is not None:
        unpack(target, base if entry.unpack == dataset.folder else where / entry.unpack)
        if entry.inner:
            inner = where / entry.inner
            unpack(inner, inner.parent)
            inner.unlink()
        target.unlink()
    return Fetched(entry.url, entry.file, size, digest, entry.checksum or "no published checksum")


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
        return ((base or where / dataset.folder) / entry.file).is_file()
    if entry.gives:
        return ((base or where / dataset.folder) / entry.gives).exists()
    return base is not None


def _checked(file: Path, target: Path, url: str, checksum: str) -> str:
    """The sha256 of a file that agrees with its published checksum."""
    digest = _hash(file, "sha256")
    kind, _, wanted = checksum.partition(":")
    if wanted and (digest if kind == "sha256" else _hash(file, kind)) != wanted:
        raise DataError(
            f"{file} is not the file that {url} publishes ({kind} differs from {wanted}): remove "
            f"it and try again, or get it elsewhere and put it at {target}"
        )
    return digest


def _read(record: Path) -> dict[str, dict[str, Any]]:
    """What was fetched before, by address."""
    try:
        return {file["url"]: file for file in json.loads(record.read_text("utf-8"))["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _hash(path: Path, kind: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()


def _unreachable(url: str, target: Path, why: str) -> DataError:
    return DataError(
        f"cannot get {url} ({why}): check the network and run it again (it continues where it "
        f"stopped), or download the file elsewhere and put it at {target}"
    )
