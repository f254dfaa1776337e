"""Look at every image file of a set, once; what is found is remembered by size and time."""

import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from focoop.caching import cache_folder, is_intact, parse_json, sealed, write_whole
from focoop.data.decoding import UnreadableImageError, decode
from focoop.data.depth import Whites, whites_of
from focoop.data.image_set import ImageSet
from focoop.errors import DataError, MissingExtra
from focoop.progress import tell

THREADS = 4  # decoding releases the interpreter
SHOWN = 5
TOLD = 100  # images between two reports of progress
STAMP = 4  # numbers by which a file is known to be the same
FORMAT = 3  # part of the name of what is remembered: raise it when a look finds something else
DARK = 16  # a white that is so many times too large makes an image nearly black


@dataclass(frozen=True)
class Finding:
    """What a look at one file finds.

    Attributes:
        reason: why it cannot be read; empty where it can.
        format: name of its format, such as JPEG; empty where it cannot be read.
        top: its largest value, where only the values of a set tell which of them is white.
        remarks: what is done to it that its owner may want to know.
        lasting: whether a later look finds the same while the file stays as it is.
    """

    reason: str = ""
    format: str = ""
    top: float | None = None
    remarks: tuple[str, ...] = ()
    lasting: bool = True


def examine(images: ImageSet, cache_dir: Path | None = None) -> dict[str, Finding]:
    """Look at every file of a set; nothing is done for images of a store.

    Args:
        images: The set. Every file is decoded once; a file of unchanged size and time is not opened
            again.
        cache_dir: Where findings are remembered; None is the usual cache folder.

    Returns:
        What was found, by file.
    """
    if images.store is not None:
        return {}
    root = images.root.resolve()
    name = hashlib.sha256(f"{FORMAT} {root}".encode()).hexdigest()[:32]
    folder = None if cache_dir is None else cache_dir / "checked"
    path = cache_folder(folder, "checked") / f"{name}.json"
    known = _remembered(path)
    stamps = {file: _stamp(root / file) for file in images.files}
    fresh = [file for file, stamp in stamps.items() if known.get(file, [])[:STAMP] != stamp]
    findings: dict[str, Finding] = {}
    with ThreadPoolExecutor(THREADS) as pool:
        looked = pool.map(lambda file: look(root / file), fresh)
        for done, (file, finding) in enumerate(zip(fresh, looked, strict=True)):
            if done % TOLD == 0:
                tell(f"checking {root.name}", done, len(fresh))
            findings[file] = finding
        tell(f"checking {root.name}", len(fresh), len(fresh))
    if fresh:
        entries = {
            file: [*stamps[file], *_stored(finding)]
            for file, finding in findings.items()
            if finding.lasting
        }
        try:
            content = json.dumps(sealed({"files": known | entries})).encode()
            write_whole(path, content, private=True)  # names of files may name people
        except OSError as error:
            warnings.warn(f"the check of {root} could not be kept: {error}", stacklevel=2)
    return {file: findings.get(file) or _restored(known[file]) for file in images.files}


def look(path: Path) -> Finding:
    """Say what one image file holds, or why it cannot be read.

    Args:
        path: The file.

    Returns:
        The finding.
    """
    try:
        decoded = decode(path, small=True)
    except UnreadableImageError as error:
        return Finding(error.reason, lasting=not error.mendable)
    return Finding("", decoded.format, decoded.top, decoded.remarks)


def broken(images: ImageSet, cache_dir: Path | None = None) -> dict[str, str]:
    """Find the files that cannot be read; images of a store are sound.

    Args:
        images: The set.
        cache_dir: Where findings are remembered; None is the usual cache folder.

    Returns:
        Why each of them cannot be read, by file.
    """
    return {
        file: finding.reason
        for file, finding in examine(images, cache_dir).items()
        if finding.reason
    }


def sift(
    images: ImageSet,
    strict: bool = False,
    cache_dir: Path | None = None,
    whole: Callable[[], ImageSet] | None = None,
) -> ImageSet:
    """Keep the readable images of a set; the others are counted and named in a warning.

    Args:
        images: The set.
        strict: Refuse files that cannot be read.
        cache_dir: Where findings are remembered; None is the usual cache folder.
        whole: Gives all splits of the set: deep images of all of them share one scale.

    Returns:
        The readable images.
    """
    findings = examine(images, cache_dir)
    bad = {file: finding.reason for file, finding in findings.items() if finding.reason}
    if bad:
        message = summary(images, bad)
        # Files that stay unread for want of a package alone.
        wanting = not any(finding.reason and finding.lasting for finding in findings.values())
        refusal = MissingExtra if wanting else DataError
        if strict:
            raise refusal(f"{message}: replace or remove them, or set data.strict = false")
        rows = [row for row, file in enumerate(images.files) if file not in bad]
        if not rows:
            raise refusal(f"{message}: no image is left")
        warnings.warn(f"{message}: left out", stacklevel=2)
        images = images.take(rows)
    if all(finding.top is None for finding in findings.values()):
        return images
    every = images if whole is None else whole()
    return replace(images, whites=scales(every, examine(every, cache_dir)))


def scales(images: ImageSet, findings: Mapping[str, Finding]) -> tuple[Whites, ...]:
    """Say which values of deep images are white.

    Args:
        images: All splits of a set.
        findings: What a look at its files found.

    Returns:
        One answer for each domain or client, or one for the set.
    """
    tops: list[list[float]] = [[] for _ in images.domain_names or ("",)]
    for file, group in zip(images.files, images.domains or [0] * len(images), strict=True):
        top = findings[file].top
        if top is not None:
            tops[group].append(top)
    for group, values in enumerate(tops):
        dark = nearly_black(values)
        if 2 * dark > len(values):
            name = images.domain_names[group] if images.domain_names else images.root
            warnings.warn(
                f"{dark} of {len(values)} deep images of {name} come out nearly black: others hold "
                f"values up to {max(values)}, and all share one scale (see focoop data check)",
                stacklevel=2,
            )
    return tuple(whites_of(values) for values in tops)


def nearly_black(tops: Sequence[float]) -> int:
    """Count the images of integers that are far darker than their set's scale.

    Args:
        tops: The largest value of each image.

    Returns:
        Their number.
    """
    integers = [top for top in tops if isinstance(top, int)]
    white = whites_of(integers).integers
    return sum(whites_of([top]).integers * DARK <= white for top in integers)


def summary(images: ImageSet, bad: Mapping[str, str]) -> str:
    """Describe the files that cannot be read in one line, the first few by name.

    Args:
        images: The set.
        bad: Why files cannot be read, by file.

    Returns:
        The line.
    """
    named: Sequence[str] = [f"{file} ({reason})" for file, reason in bad.items()]
    more = f" and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    return (
        f"{len(bad)} of {len(images)} images in {images.root} cannot be read: "
        f"{', '.join(named[:SHOWN])}{more}"
    )


def _stored(finding: Finding) -> list[Any]:
    return [finding.reason, finding.format, finding.top, list(finding.remarks)]


def _restored(row: list[Any]) -> Finding:
    reason, kind, top, remarks = row[STAMP:]
    return Finding(reason, kind, top, tuple(remarks))


def _stamp(path: Path) -> list[int]:
    """Size, times and inode of a file; zeros where it cannot be looked at."""
    try:
        status = path.stat()
    except OSError:
        return [0] * STAMP
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _remembered(path: Path) -> dict[str, list[Any]]:
    try:
        known = parse_json(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return dict(known["files"]) if isinstance(known, dict) and is_intact(known) else {}
