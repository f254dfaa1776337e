"""Run folders for `tools/fuzz.py`: whole ones, of now and of format 1, with one file replaced."""

import contextlib
import json
import tempfile
from functools import cache
from pathlib import Path

import torch

from focoop import runs
from focoop.config import RunConfig
from focoop.errors import FocoopError

CLIENTS = 2
OLD = "format 1/"  # before the names of files of an earlier focoop


@cache
def run_files() -> dict[str, bytes]:
    """Return all files of a small finished run by their names, and those of the same run as old."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        made = runs.start(path, RunConfig(), {"status": "running"}, resume=False)
        with made:
            made.keep_names(runs.Names(("ant", "bee"), (runs.Client("a", {"ant": 1}, {}),), ()))
            for index in range(3):
                for client in range(CLIENTS):
                    made.private.save(client, index, {"p": torch.full((4,), float(index))})
                made.commit(index, {"w": torch.zeros(4)}, {"accuracy_own": 0.5}, {"seconds": 0.1})
            made.finish("finished")
        told = runs.RunFolder.open(path).manifest
        new = {
            str(file.relative_to(path)): file.read_bytes()
            for file in sorted(path.rglob("*"))
            if file.is_file() and file.name not in (runs.LOCK, runs.LOG)
        }
    old = {key: value for key, value in told.items() if key not in ("run", "sums")}
    later = (runs.ROUNDS, runs.BEFORE)  # files that format 1 had not
    kept = {name: raw for name, raw in new.items() if name not in later}
    kept[runs.MANIFEST] = json.dumps({**old, "format": 1}).encode()
    return new | {OLD + name: raw for name, raw in kept.items()}


def read_run(folder: Path, name: str, content: bytes) -> None:
    """Write a run folder with one file replaced, and read it as every command does.

    Args:
        folder: An empty folder.
        name: The file, one of `run_files`.
        content: Its new content.
    """
    old = name.startswith(OLD)
    for other, raw in {**run_files(), name: content}.items():
        if other.startswith(OLD) == old:
            path = folder / "run" / other.removeprefix(OLD)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)
    runs.survey_runs(folder)  # names what is damaged, whatever it is
    told: list[FocoopError] = []
    for writable in (False, True):
        try:
            with contextlib.closing(runs.RunFolder.open(folder / "run", writable=writable)) as run:
                run.metrics()
                _, private = run.snapshot()
                loaded = [private.load(client) for client in range(CLIENTS)]
                assert all(loaded) or run.last_round() < 2
                _ = run.names, run.committed_rounds(), run.status
        except FocoopError as error:
            told.append(error)
    if told:
        raise told[0]
