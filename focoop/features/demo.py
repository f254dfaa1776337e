"""The packaged demo features: CIFAR-100, its brightness-corrupted test images, and OOD sets."""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from focoop.assets import ASSETS, asset, asset_path
from focoop.errors import DataError, nearest

FOLDER = ASSETS / "demo"


@dataclass(frozen=True)
class DemoFile:
    """One packaged feature file as its manifest describes it."""

    name: str
    path: Path
    sha256: str
    size: int
    details: dict[str, Any]


@cache
def manifest(folder: Path = FOLDER) -> dict[str, Any]:
    """Read the pack's manifest: origin, counts, errors, hashes.

    Args:
        folder: The folder of the pack.

    Returns:
        The manifest that `tools/make_demo_pack.py` wrote.

    Raises:
        DataError: The pack is missing or damaged.
    """
    path = folder / "manifest.json"
    try:
        raw = asset("demo/manifest.json") if folder == FOLDER else path.read_bytes()
        content: dict[str, Any] = json.loads(raw)
    except (OSError, ValueError, DataError) as error:
        raise DataError(
            f"the demo pack is missing or damaged ({path}): reinstall focoop"
        ) from error
    return content


def files(folder: Path = FOLDER) -> dict[str, DemoFile]:
    """List all files of the pack; corrupted ones are called `cifar100.brightness.3`.

    Args:
        folder: The folder of the pack.

    Returns:
        Files by name.
    """
    return {
        name: DemoFile(name, folder / entry["file"], entry["sha256"], entry["bytes"], entry)
        for name, entry in manifest(folder)["files"].items()
    }


def names() -> tuple[str, ...]:
    """Return the names of the pack's datasets, without corrupted variants."""
    return tuple(name for name in files() if "." not in name)


def fingerprint() -> str:
    """Return the image fingerprint of the backbone that made the pack's features."""
    return str(manifest()["backbone"]["fingerprint"])


def demo_path(name: str) -> Path:
    """Find the feature file of a packaged dataset.

    Args:
        name: The dataset's name.

    Returns:
        The file.

    Raises:
        DataError: The pack has no such dataset, or its file is damaged.
    """
    known = files()
    if name not in known:
        raise DataError(
            f"no demo dataset {name!r}{nearest(name, known)} (all: {', '.join(names())})"
        )
    return asset_path(f"demo/{known[name].path.name}")


def verify(folder: Path = FOLDER) -> list[str]:
    """Compare the installed pack with its hashes.

    Args:
        folder: The folder of the pack.

    Returns:
        What is wrong, one line per file; empty where all hashes agree.
    """
    problems = []
    for name, entry in files(folder).items():
        if not entry.path.is_file():
            problems.append(f"demo file {entry.path} ({name}) is missing: reinstall focoop")
        elif hashlib.sha256(entry.path.read_bytes()).hexdigest() != entry.sha256:
            problems.append(f"demo file {entry.path} ({name}) is damaged: reinstall focoop")
    return problems
