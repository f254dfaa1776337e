"""A run folder that is written round by round, with numbers made up by the test."""

from pathlib import Path
from typing import Any

import torch

from focoop.config import RunConfig, from_dict
from focoop.runs import Client, Names, RunFolder

CLIENTS = ("north", "south", "west")


def begin(path: Path, rounds: int = 3) -> RunFolder:
    """A run that has committed nothing; the caller closes it."""
    config: RunConfig = from_dict({"federation": {"rounds": rounds}})
    run = RunFolder.create(path, config, {"status": "running", "started": "2026-01-01T00:00:00"})
    held: list[dict[str, int]] = [{"cat": 8}, {"dog": 8, "cup": 4}, {"cup": 2}]
    clients = tuple(Client(name, n, n) for name, n in zip(CLIENTS, held, strict=True))
    run.keep_names(Names(("cat", "dog", "cup"), clients))
    return run


def step(run: RunFolder, number: int, own: float) -> None:
    """Commit a round of which two clients are part."""
    line: dict[str, Any] = {
        "accuracy_own": own,
        "accuracy_all": own / 2,
        "accuracy_corrupted": None,
        "cross_alarm": 0.1,
        "ood": {"far": {"auroc": 0.9, "fpr95": 0.2}},
        "clients": [{"client": k, "accuracy_own": own} for k in range(3)],
    }
    traffic: dict[str, Any] = {"participants": [0, 2], "seconds": 1.5, "bytes_up": 10}
    traffic |= {"bytes_down": 20}
    run.commit(number, {"x": torch.zeros(1)}, line, traffic if number else {})
