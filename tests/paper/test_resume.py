"""Items of the paper from a clean folder, killed in the middle and resumed: equal to unkilled."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

TIMEOUT = 600
SMALL = (
    "--packaged",
    "--seeds=1",
    "--jobs=0",
    "--formats=svg",
    "--set=data.unknown_classes=92",  # eight classes are left
    "--set=partition.clients=2",
    "--set=partition.classes_per_client=4",
    "--set=federation.rounds=2",
    "--set=federation.epochs=1",
    "--set=negatives.count=4",
)


def command(item: str, out: Path) -> list[str]:
    return [sys.executable, "-m", "focoop", "paper", item, f"--out={out}", *SMALL]


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}


def finished(out: Path) -> int:
    """How many runs have been evaluated, which they are after their last round."""
    return sum(path.stat().st_size > 0 for path in out.glob("runs/**/metrics.jsonl"))


def kill_after(item: str, out: Path, runs: int, jobs: int) -> None:
    """Start the command, and kill it in the run after so many; its workers end by themselves."""
    with subprocess.Popen(
        [*command(item, out), f"--jobs={jobs}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        end = time.monotonic() + TIMEOUT
        while process.poll() is None and time.monotonic() < end and finished(out) < runs:
            time.sleep(0.02)
        process.kill()
        assert process.wait(timeout=30) != 0, "it ended before it was killed"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("item", "count", "jobs"),
    [("ablation", 6, 0), ("ablation", 6, 2), ("T1", 20, 0), ("F5", 40, 0), ("F7", 28, 0)],
)
def test_killed_and_resumed_equals_unkilled(
    item: str, count: int, jobs: int, tmp_path: Path
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run(command(item, whole), check=True, capture_output=True, timeout=TIMEOUT)
    assert finished(whole) == count
    for runs in (1, count // 2):
        kill_after(item, cut, runs, jobs)
    assert finished(cut) < count and contents(cut) == {}
    subprocess.run(command(item, cut), check=True, capture_output=True, timeout=TIMEOUT)
    made = contents(cut)
    assert made == contents(whole)
    assert {f"{item}.{kind}" for kind in ("md", "tex", "csv", "json")} < set(made)
    assert any(name.endswith(".svg") for name in made)
