"""Begin a run in a folder, continue the one that is there, or list the runs below a folder."""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from focoop.config import RunConfig, differences
from focoop.errors import RunError
from focoop.runs.durable import DRAFT, remove
from focoop.runs.files import CONFIG, MANIFEST, METRICS, NAMES, STATE, read_config
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
) -> RunFolder:
    """Create the folder of a run, or continue the run that is there; it is then open for writing.

    A finished run is opened for reading: its status says that nothing is left to do.

    Args:
        path: The run folder.
        config: The run's configuration; a folder that holds another one is refused.
        manifest: What is known of the run's origin.
        resume: Continue what is there.
        lengthen: A resumed run, finished or not, may go on to more rounds than it was started with.

    Returns:
        The run folder.

    Raises:
        RunError: The folder holds another run, is in use, or holds one and `resume` is not set.
    """
    if not (path / CONFIG).exists() or _discarded(path):
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
    existing = RunFolder.open(path)
    if not resume:
        raise RunError(
            f"{path} already holds this run ({existing.status}, round "
            f"{max(existing.last_round(), 0)}): continue it with --resume, or choose another "
            "folder with --out"
        )
    if existing.status == "finished" and not longer:
        return existing
    folder = RunFolder.open(path, writable=True)
    if longer:
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
    folder = RunFolder.open(path)
    if folder.last_round() >= 0 or folder.status not in ("failed", "interrupted"):
        return False
    # The manifest goes last: without a configuration beside it, a folder counts as new.
    for name in (METRICS, NAMES, STATE, CONFIG, MANIFEST):
        for file in (path / name, path / (name + DRAFT)):
            remove(file)
    return True


def list_runs(root: Path) -> list[RunFolder]:
    """List all runs below a folder, oldest first; folders that are no runs are passed over.

    Args:
        root: The folder.

    Returns:
        The runs.
    """
    folders = []
    for path in sorted(root.rglob(CONFIG)) if root.is_dir() else []:
        with contextlib.suppress(RunError):
            folders.append(RunFolder.open(path.parent))
    return sorted(folders, key=lambda run: (str(run.manifest.get("started", "")), run.path))
