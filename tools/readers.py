"""Evaluate a run again and again while it trains, and compare with what the run itself measured.

    python tools/readers.py --cases 150 --seed 0 --docs docs/reliability.md

A run of a method with private tensors trains in a process of its own and evaluates every round. A
reader opens its folder, waits while up to `MOST` rounds go by and old files are deleted, and
evaluates. Its numbers must be those that the run wrote for the round that the reader names, or it
must say that the run moved on. Anything else is printed; the exit code is then 1.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import focoop  # noqa: E402
from focoop.errors import FocoopError  # noqa: E402
from tools.fuzz import Ground  # noqa: E402
from tools.promises import Promise, write_promise  # noqa: E402

MOST = 4  # rounds between opening and evaluating
NEAR = 1e-6  # of numbers between 0 and 1: features of one client or of all are rounded otherwise
SETTINGS = (
    "method.name=promptfolio",
    "partition.clients=3",
    "federation.epochs=1",
    "federation.rounds=100000",
    "federation.evaluate_every=1",
    "federation.large=true",
)


@contextmanager
def writer(folder: Path) -> Iterator[Path]:
    """Train in another process.

    Args:
        folder: A folder with a `Ground`.

    Yields:
        The run's folder, in which rounds are committed until the end.
    """
    words = [sys.executable, "-m", "focoop", "run", "toy.toml", "--untuned", "--out", "run"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with open(folder / "log.txt", "wb") as log:
        process = subprocess.Popen(
            [*words, *(f"--set={text}" for text in SETTINGS)],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        end = time.monotonic() + 120
        while len(measured(folder / "run")) < 3:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError((folder / "log.txt").read_text())
            time.sleep(0.1)
        yield folder / "run"
        if process.poll() is not None:
            raise RuntimeError((folder / "log.txt").read_text())
    finally:
        process.terminate()
        process.wait(30)


def measured(run: Path) -> dict[int, dict[str, Any]]:
    """Return what the run wrote of each round, read as plain text."""
    path = run / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return {line["round"]: line for line in map(json.loads, lines)}


def numbers(summary: dict[str, Any]) -> dict[str, float]:
    """Return the measures of a summary that a table shows."""
    found = {name: summary[name] for name in ("accuracy_own", "accuracy_all", "cross_alarm")}
    for name, one in summary["ood"].items():
        found |= {f"{name} {key}": one[key] for key in ("auroc", "fpr95")}
    return found


def read(path: Path, rounds: int) -> str:
    """Open a run, wait, evaluate and compare.

    Args:
        path: The run's folder.
        rounds: Rounds that go by between opening and evaluating.

    Returns:
        `right`, `told` where the reader says that the run moved on, or what is wrong.
    """
    run, opened = focoop.open_run(path), max(measured(path))
    end = time.monotonic() + 60
    while max(measured(path)) < opened + rounds and time.monotonic() < end:
        time.sleep(0.02)
    try:
        found = numbers(run.evaluate().summary)
    except FocoopError:
        return "told"
    wanted = numbers(measured(path)[run.evaluated_round or 0])
    if all(abs(found[name] - wanted[name]) < NEAR for name in wanted):
        return "right"
    return f"round {run.evaluated_round} (opened at {opened}): {found} instead of {wanted}"


def main() -> int:
    """Run the tool; 1 where a reading was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--docs", type=Path, help="write the counts into this page")
    given = parser.parse_args()
    counts, draw = Counter[str](), random.Random(given.seed)
    with tempfile.TemporaryDirectory() as place:
        Ground(Path(place))
        with writer(Path(place)) as run:
            first = max(measured(run))
            for _ in range(given.cases):
                outcome = read(run, draw.randint(0, MOST))
                if outcome not in ("right", "told"):
                    print(outcome, flush=True)
                    outcome = "wrong"
                counts[outcome] += 1
            rounds = max(measured(run)) - first
    print(dict(counts), f"{rounds} rounds went by")
    if given.docs:
        row = Promise(
            "A reader beside a running federation sees one round",
            "a run opened and evaluated while it trains",
            counts.total(),
            f"{counts['right']:,} right, {counts['told']:,} told that the run moved on; "
            f"{rounds:,} rounds went by",
            counts["wrong"],
            f"python tools/readers.py --cases {given.cases} --seed {given.seed}",
        )
        write_promise(given.docs, row)
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
