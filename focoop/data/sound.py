"""Which image files of a set can be read: looked at once, remembered by size and time."""

import hashlib
import json
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from focoop import atomic
from focoop.data.imageset import ImageSet, read_rgb
from focoop.errors import DataError
from focoop.tensorcache import cache_folder
from focoop.watch import tell

THREADS = 4  # decoding releases the interpreter
SHOWN = 5
# Pillow's error -> what it means for the file, where its own words would repeat the path.
PLAIN = {"UnidentifiedImageError": "not an image, or of an unknown format"}
TOLD = 100  # images between two reports of progress


def broken(images: ImageSet, cache_dir: Path | None = None) -> dict[str, str]:
    """File -> why it cannot be read, for every such file; images of a store are sound."""
    if images.store is not None:
        return {}
    root = images.root.resolve()
    name = hashlib.sha256(str(root).encode()).hexdigest()[:32]
    folder = None if cache_dir is None else cache_dir / "checked"
    path = cache_folder(folder, "checked") / f"{name}.json"
    known = _remembered(path)
    stamps = {file: _stamp(root / file) for file in images.files}
    fresh = [file for file, stamp in stamps.items() if known.get(file, [])[:2] != stamp]
    with ThreadPoolExecutor(THREADS) as pool:
        reasons = pool.map(lambda file: _reason(root / file), fresh)
        for done, (file, reason) in enumerate(zip(fresh, reasons, strict=True)):
            if done % TOLD == 0:
                tell(f"checking {root.name}", done, len(fresh))
            known[file] = [*stamps[file], reason]
        tell(f"checking {root.name}", len(fresh), len(fresh))
    if fresh:
        try:
            atomic.replace(path, json.dumps(known).encode())
        except OSError as error:
            warnings.warn(f"the check of {root} could not be kept: {error}", stacklevel=2)
    return {file: known[file][2] for file in images.files if known[file][2]}


def sift(images: ImageSet, strict: bool = False, cache_dir: Path | None = None) -> ImageSet:
    """The readable images of a set; the others are counted and named, or refused if `strict`."""
    bad = broken(images, cache_dir)
    if not bad:
        return images
    told = summary(images, bad)
    if strict:
        raise DataError(f"{told}: replace or remove them, or set data.strict = false")
    kept = [row for row, file in enumerate(images.files) if file not in bad]
    if not kept:
        raise DataError(f"{told}: no image is left")
    warnings.warn(f"{told}: left out", stacklevel=2)
    return images.take(kept)


def summary(images: ImageSet, bad: dict[str, str]) -> str:
    """One line on the files that cannot be read, the first few by name."""
    named: Sequence[str] = [f"{file} ({reason})" for file, reason in bad.items()]
    more = f" and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    return (
        f"{len(bad)} of {len(images)} images in {images.root} cannot be read: "
        f"{', '.join(named[:SHOWN])}{more}"
    )


def _reason(path: Path) -> str:
    """Why a file is no image; empty when it is one."""
    try:
        read_rgb(path, small=True)
    except DataError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        kind = type(cause).__name__
        return PLAIN.get(kind, str(cause).partition(", could be")[0] or kind)
    return ""


def _stamp(path: Path) -> list[int]:
    """Size and time of a file; zeros where it cannot be looked at."""
    try:
        found = path.stat()
    except OSError:
        return [0, 0]
    return [found.st_size, found.st_mtime_ns]


def _remembered(path: Path) -> dict[str, list[Any]]:
    try:
        known = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
