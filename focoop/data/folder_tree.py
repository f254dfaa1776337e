"""All files below a folder: those that are images, and the others by the reason they are not."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from focoop.data.class_names import FILES, SYNSETS
from focoop.data.formats import HIDDEN, SYSTEM, SYSTEM_FOLDERS, UNREAD, suffix, why_not
from focoop.errors import DataError

OUTSIDE = "images outside any class folder"


@dataclass(frozen=True)
class Files:
    """What a folder holds, at any depth.

    Attributes:
        images: image files relative to the folder, with forward slashes, sorted. Links that lead
            nowhere, and pipes with the name of an image, are among them: they are named later with
            the files that cannot be read.
        others: reason -> files that are not images by that reason, sorted.
    """

    images: tuple[str, ...]
    others: Mapping[str, tuple[str, ...]]


def walk(root: Path) -> Files:
    """Look through a folder and all folders below it; links to folders are followed.

    Args:
        root: The folder.

    Returns:
        Images and other files.

    Raises:
        DataError: A folder may not be looked into.
    """
    images: list[str] = []
    others: dict[str, list[str]] = {}
    waiting = [("", frozenset[tuple[int, int]]())]  # a folder, and the folders it lies in
    while waiting:
        folder, above = waiting.pop()
        here = root / folder
        status = here.stat()
        place = (status.st_dev, status.st_ino)
        if place in above:  # a link to a folder around it
            continue
        for entry in _entries(here):
            path = f"{folder}{entry.name}"
            if _is_dir(entry):
                reason = _skipped(entry.name)
                if not reason:
                    waiting.append((f"{path}/", above | {place}))
            elif path in (
                *FILES,
                *SYNSETS,
            ):  # read beside the images, so not among the files left out
                continue
            else:
                reason = why_not(here, entry.name)
                if not reason:
                    images.append(path)
            if reason:
                others.setdefault(reason, []).append(path)
    return Files(tuple(sorted(images)), {name: tuple(sorted(others[name])) for name in others})


def image_files(root: Path) -> list[Path]:
    """List the image files below a folder.

    Args:
        root: The folder.

    Returns:
        Their paths, sorted.
    """
    return [root / name for name in walk(root).images]


def lost(others: Mapping[str, Sequence[str]]) -> str:
    """Say which files a user may take for images of the set though they are not.

    Args:
        others: Files that are not images, by the reason.

    Returns:
        A sentence; empty without any such file.
    """
    files = others.get(UNREAD, ())
    if not files:
        return ""
    what = "picture or film" if len(files) == 1 else "pictures or films"
    return f"{len(files)} {what} of a format that is not read ({suffixes(files)})"


def suffixes(files: Iterable[str]) -> str:
    """List the suffixes of some files in order, such as `.cr2, .svg`.

    Args:
        files: Names of files.

    Returns:
        The list as text.
    """
    return ", ".join(sorted({suffix(file) for file in files if suffix(file)}))


def _skipped(folder: str) -> str:
    """Why a folder is not looked into; empty where it is."""
    if folder.startswith("."):
        return HIDDEN
    return SYSTEM if folder.lower() in SYSTEM_FOLDERS else ""


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


def _entries(path: Path) -> list[os.DirEntry[str]]:
    """What a folder holds; one that may not be looked into is refused by name."""
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError as error:
        raise DataError(f"cannot look into {path} ({error.strerror}): give read access") from error
