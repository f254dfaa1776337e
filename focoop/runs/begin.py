"""Begin a run in a folder, continue the one that is there, or list the runs below a folder."""

import contextlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from focoop.config import RunConfig, differences
from focoop.errors import RunError
from focoop.runs.durable import DRAFT, locked, remove
from focoop.runs.files import (
    BEFORE,
    CLIENTS,
    CONFIG,
    DRAW,
    LOCK,
    MANIFEST,
    METRICS,
    NAMES,
    ROUNDS,
    STATE,
    read_config,
)
from focoop.runs.folder import RunFolder
from focoop.runs.lengthen import lengthen as lengthened
from focoop.runs.names import listed


def start(
    path: Path,
    config: RunConfig,
    manifest: Mapping[str, Any],
    *,
    resume: bool,
    lengthen: bool = False,
    from_round_before: bool = False,
) -> RunFolder:
    """Create the folder of a run, or continue the run that is there; it is then open for writing.

    A finished run is opened for reading: its status says that nothing is left to do.

    Args:
        path: The run folder.
        config: The run's configuration; a folder that holds another one is refused.
        manifest: What is known of the run's origin.
        resume: Continue what is there.
        lengthen: A resumed run, finished or not, may go on to more rounds than it was started with.
        from_round_before: A resumed run, finished or not, goes on from the round before its last
            one, such as when that is damaged.

    Returns:
        The run folder.

    Raises:
        RunError: The folder holds another run, is in use, or holds one and `resume` is not set.
    """
    again = resume and from_round_before
    if not (path / CONFIG).exists() or (not again and _discarded(path)):
        return RunFolder.create(path, config, manifest)
    old = read_config(path)
    changed = differences(old, config)
    longer = bool(changed) and lengthen and _only_longer(old, config)
    if changed and not (longer and resume):
        advice = f"go on to {config.federation.rounds} rounds with --resume, or " if longer else ""
        raise RunError(
            f"{path} holds a run with another configuration:{listed(changed)}\n"
            f"{advice}choose another folder with --out, or go back to those settings"
        )
    if again:
        folder = RunFolder.open(path, writable=True, from_round_before=True)
        return _lengthened(folder, config) if longer else folder
    existing = RunFolder.open(path)
    if not resume:
        raise RunError(
            f"{path} already holds this run ({existing.status}, round "
            f"{max(existing.last_round(), 0)}): continue it with --resume, or choose another "
            "folder with --out (in Python resume=True, which returns a finished run as it is, or "
            "out=...)"
        )
    if existing.status == "finished" and not longer:
        return existing
    folder = RunFolder.open(path, writable=True)
    return _lengthened(folder, config) if longer else folder


def _lengthened(folder: RunFolder, config: RunConfig) -> RunFolder:
    try:
        folder.note = lengthened(folder, config)
    except BaseException:
        folder.close()
        raise
    return folder


def _only_longer(old: RunConfig, new: RunConfig) -> bool:
    """Whether the two differ in the number of rounds alone, and the new one has more."""
    rounds = new.federation.rounds
    same = replace(old, federation=replace(old.federation, rounds=rounds)) == new
    return same and rounds > old.federation.rounds


def _discarded(path: Path) -> bool:
    """Clear away a run that ended before its first commit: there is nothing in it but its log."""
    if not _ended_unbegun(path):
        return False
    with locked(path / LOCK):
        if not _ended_unbegun(path):  # another process has taken it up meanwhile
            return False
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path / CLIENTS)  # of a first round that was never committed
        # The manifest goes last: without a configuration beside it, a folder counts as new.
        for name in (METRICS, NAMES, STATE, BEFORE, ROUNDS, DRAW, CONFIG, MANIFEST):
            for file in (path / name, path / (name + DRAFT)):
                remove(file)
    return True


def _ended_unbegun(path: Path) -> bool:
    try:
        folder = RunFolder.open(path, convert=False)
    except RunError:
        if (path / CONFIG).exists():
            raise
        return True  # another process clears it away
    return folder.last_round() < 0 and folder.status in ("failed", "interrupted")


@dataclass(frozen=True)
class DamagedRun:
    """A run folder that cannot be read.

    Attributes:
        path: the folder.
        reason: why not, and what to do.
    """

    path: Path
    reason: str


def list_runs(root: Path) -> list[RunFolder]:
    """List all runs below a folder, oldest first; what cannot be read is passed over.

    Args:
        root: The folder.

    Returns:
        The runs.
    """
    return survey_runs(root)[0]


def survey_runs(root: Path) -> tuple[list[RunFolder], list[DamagedRun]]:
    """List all runs below a folder, oldest first, and those that are damaged.

    A folder with a `config.toml` that is no run's (no manifest beside it) is passed over.

    Args:
        root: The folder.

    Returns:
        The runs, and the damaged ones with the reason.
    """
    folders, damaged = [], []
    for path in sorted(root.rglob(CONFIG)) if root.is_dir() else []:
        try:
            folder = RunFolder.open(path.parent, convert=False)
            folder.metrics()
            folders.append(folder)
        except (RunError, OSError, RecursionError) as error:
            if (path.parent / MANIFEST).exists() or (path.parent / STATE).exists():
                damaged.append(DamagedRun(path.parent, str(error)))
    return sorted(
        folders, key=lambda run: (str(run.manifest.get("started", "")), run.path)
    ), damaged
