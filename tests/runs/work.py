"""A small federation on a run folder, and crashes at its disk operations."""

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from focoop import runs
from focoop.caching import sealed
from focoop.config.schema import RunConfig
from focoop.seeds import torch_generator

ROUNDS, CLIENTS = 4, 3
CONFIG = RunConfig(seed=5)
NAMES = runs.Names(("cat", "dog"), (runs.Client("north", {"cat": 2}, {"dog": 1}),), ("fog",))


def new_manifest() -> dict[str, Any]:
    return {"status": "running", "started": "2026-01-01", "code": {"commit": "c"}}


def work(path: Path, resume: bool = True) -> None:
    """A small federation: every value depends on all earlier rounds, private and shared."""
    folder = runs.start(path, CONFIG, new_manifest(), resume=resume)
    if folder.status == "finished":
        return
    with folder:
        folder.pin("data", {"x": "hash"})
        folder.keep_names(NAMES)
        point = folder.resume_point()
        done = point.round_index if point else 0
        shared = point.shared["w"] if point else torch.zeros(4)
        momentum = point.memory["m"] if point else torch.zeros(4)
        for index in range(done + 1, ROUNDS + 1):
            total = torch.zeros(4)
            for client in range(CLIENTS):
                if client == 2 and index % 2:  # takes part in every second round alone
                    continue
                before = folder.private.load(client)
                own = torch.zeros(4) if before is None else before["p"]
                noise = torch.randn(4, generator=torch_generator(1, index, client))
                own = torch.sin(own + shared + noise)
                folder.private.save(client, index, {"p": own})
                total += own
            momentum = 0.5 * momentum + total
            shared = shared + momentum
            metrics = {"sum": float(shared.sum())} if index != 2 else None
            traffic = {"bytes_up": index, "bytes_down": 1, "seconds": 0.1}
            folder.commit(index, {"w": shared}, metrics, traffic, memory={"m": momentum})
        folder.finish("finished")


def content(path: Path) -> dict[str, bytes]:
    """All bytes that must agree: everything but files with times or process ids."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in runs.TIMED
    }


def change_manifest(path: Path, **facts: Any) -> None:
    """Put facts into a run's manifest, as focoop would."""
    told = json.loads((path / runs.MANIFEST).read_text())
    (path / runs.MANIFEST).write_text(json.dumps(sealed({**told, **facts})))


def as_earlier(path: Path, *, without: tuple[str, ...] = ()) -> None:
    """Make a run folder what focoop of format 1 wrote: no checksums, rounds in the manifest."""
    folder = runs.RunFolder.open(path)
    told = json.loads((path / runs.MANIFEST).read_text())
    told = {key: told[key] for key in told if key not in ("run", "sum", "sums")}
    told |= {"format": 1, "rounds": folder.manifest["rounds"]}
    (path / runs.MANIFEST).write_text(json.dumps(told, indent=1))
    for name in (runs.ROUNDS, runs.BEFORE, *without):
        (path / name).unlink(missing_ok=True)
    for client in (path / runs.CLIENTS).glob("*"):
        for earlier in sorted(client.iterdir())[:-1]:
            earlier.unlink()


class Crash(BaseException):
    """Stands for the end of the process; no `except Exception` may survive it."""


def crash_at(monkeypatch: pytest.MonkeyPatch, moment: int, after: bool) -> Callable[[], int]:
    """Stop at the given disk operation, before it or right after it; returns the count so far."""
    numbers, count = itertools.count(1), 0  # threads take numbers too, no two the same

    def wrap(name: str) -> None:
        real = getattr(os, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            number = next(numbers)
            count = max(count, number)
            if number == moment and not after:
                raise Crash
            result = real(*arguments, **options)
            if number == moment:
                raise Crash
            return result

        monkeypatch.setattr(os, name, counted)

    for name in ("replace", "fsync", "unlink", "link"):
        wrap(name)
    return lambda: count
