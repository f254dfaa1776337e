"""Runs as the page watches them: how far, how good, who holds what, who took part."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from focoop.errors import FocoopError, RunError
from focoop.runs import CONFIG, MANIFEST, METRICS, NAMES, STATE, RunFolder

EVERY = 0.5  # seconds between two looks at a folder
ALIVE = 15.0  # seconds after which a silent stream says that it is there
MOST = 200  # runs that are listed
DEPTH = 4  # folders below the given one in which runs are looked for
CURVES = ("accuracy_own", "accuracy_all", "accuracy_corrupted", "cross_alarm")


class Runs:
    """The run folders below a folder, called by their path from there.

    Args:
        root: The folder.

    Raises:
        RunError: It is no folder.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise RunError(f"{root} is no folder: give one that holds runs, such as runs")
        self.root = root.resolve()

    def paths(self) -> dict[str, Path]:
        """Return the run folders by name, the newest first."""
        found: list[tuple[float, Path]] = []
        for path, folders, files in os.walk(self.root):
            depth = len(Path(path).relative_to(self.root).parts)
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            if CONFIG in files and MANIFEST in files:
                folders.clear()  # no run holds another
                found.append(((Path(path) / MANIFEST).stat().st_mtime, Path(path)))
            elif depth >= DEPTH:
                folders.clear()
        found.sort(key=lambda pair: (-pair[0], pair[1]))
        return {self._name(path): path for _, path in found[:MOST]}

    def find(self, name: str) -> Path:
        """Find a run by name; a name never leads out of the folder.

        Args:
            name: A key of `paths`.

        Returns:
            The run folder.

        Raises:
            RunError: There is no such run.
        """
        path = self.paths().get(name)
        if path is None:
            raise RunError(f"no run {name[:100]!r} in the watched folder")
        return path

    def listed(self) -> list[dict[str, Any]]:
        """Return one line per run: name, status, method, round, rounds, time of the last change."""
        lines = []
        for name, path in self.paths().items():
            try:
                run = RunFolder.open(path)
                lines.append({"name": name, **_state(run)})
            except (FocoopError, OSError):
                continue  # half written, or of a method that is not installed here
        return lines

    def _name(self, path: Path) -> str:
        name = path.relative_to(self.root).as_posix()
        return self.root.name if name == "." else name


def snapshot(path: Path) -> dict[str, Any]:
    """Read all that the page shows of a run.

    Args:
        path: The run folder.

    Returns:
        Plain values: state, `curves`, `partition`, `rounds` with who took part.

    Raises:
        RunError: The folder is no run, or is damaged.
    """
    run = RunFolder.open(path)
    rounds = [
        {
            "round": entry["round"],
            "participants": entry.get("participants", []),
            "seconds": entry.get("seconds"),
            "bytes_up": entry.get("bytes_up"),
            "bytes_down": entry.get("bytes_down"),
        }
        for entry in run.manifest.get("rounds", [])
        if entry.get("participants") is not None
    ]
    return {
        **_state(run),
        "curves": [_point(line) for line in run.metrics()],
        "partition": _partition(run),
        "rounds": rounds,
    }


def _state(run: RunFolder) -> dict[str, Any]:
    return {
        "title": run.config.name or run.path.resolve().name,
        "status": run.status,
        "method": run.config.method.label,
        "round": max(run.last_round(), 0),
        "total": run.config.federation.rounds,
        "started": run.manifest.get("started"),
        "updated": run.manifest.get("updated"),
    }


def _point(line: dict[str, Any]) -> dict[str, Any]:
    """An evaluated round, without its clients: shares and means over the OOD sets."""
    sets = [entry for entry in line.get("ood", {}).values() if entry]
    means = {
        name: sum(entry[name] for entry in sets) / len(sets) if sets else None
        for name in ("auroc", "fpr95")
    }
    own = [row.get("accuracy_own") for row in line.get("clients", [])]
    curves = {name: line.get(name) for name in CURVES}
    return {"round": line["round"], "loss": line.get("loss"), **curves, **means, "clients": own}


def _partition(run: RunFolder) -> dict[str, Any] | None:
    """Who trains on how many images of which class: rows of [class, images]; None where unknown."""
    names = run.names
    if names is None or not names.counted:
        return None
    place = {name: number for number, name in enumerate(names.classes)}
    return {
        "classes": list(names.classes),
        "clients": [
            {
                "name": client.name,
                "images": sum(client.train.values()),
                "held": sorted([place[name], n] for name, n in client.train.items() if n),
            }
            for client in names.clients
        ],
    }


async def events(
    path: Path, ended: Callable[[], bool], every: float = EVERY
) -> AsyncIterator[bytes]:
    """Follow a run: an event with a snapshot at once, and whenever the folder changes.

    Args:
        path: The run folder.
        ended: Says whether the server stops.
        every: Seconds between two looks.

    Yields:
        Server-sent events.
    """
    seen: tuple[Any, ...] | None = None
    spoke = time.monotonic()
    while not ended():
        stamp = await asyncio.to_thread(_stamp, path)
        if stamp != seen:
            try:
                found = await asyncio.to_thread(snapshot, path)
                seen = stamp
                yield _event("run", found)
                spoke = time.monotonic()
            except (FocoopError, OSError):  # a round is being written: look again
                pass
        if time.monotonic() - spoke > ALIVE:
            yield b": still here\n\n"
            spoke = time.monotonic()
        await asyncio.sleep(every)
    yield _event("end", {})


def _event(kind: str, document: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps(document, allow_nan=False)}\n\n".encode()


def _stamp(path: Path) -> tuple[Any, ...]:
    """What changes when a run commits a round, ends, or its process dies."""
    stamps: list[Any] = []
    for name in (MANIFEST, METRICS, NAMES, STATE):
        try:
            status = (path / name).stat()
            stamps += [status.st_mtime_ns, status.st_size]
        except OSError:
            stamps.append(None)
    try:
        stamps.append(RunFolder.open(path).status)
    except (FocoopError, OSError):
        stamps.append(None)
    return tuple(stamps)
