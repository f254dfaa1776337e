"""A disk that fails at any call, and readers beside a writer: nothing is lost, nothing is wrong."""

import json
from pathlib import Path

import pytest

from focoop.runs import durable
from tools import disk_faults, readers
from tools.fuzz import Ground


@pytest.mark.slow
# A process that dies closes its files; one that only seems to die leaves them to Python.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("crash", [False, True], ids=["errors", "crashes"])
def test_a_disk_that_fails_at_any_call_loses_nothing(crash: bool) -> None:
    counts, calls = disk_faults.attack(60, seed=2, crash=crash, every=4)
    assert counts["broken"] == 0 and counts.total() == 60 and calls > 150


@pytest.mark.slow
def test_an_error_that_nobody_tells_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "refusal", lambda path, error: error)
    counts, _ = disk_faults.attack(12, seed=2, crash=False, every=9)
    assert counts["broken"] > 3


@pytest.mark.slow
def test_readers_beside_a_run_see_its_own_numbers(tmp_path: Path) -> None:
    Ground(tmp_path)
    with readers.writer(tmp_path) as run:
        found = [readers.read(run, rounds) for rounds in (0, 3, 1, 4, 2, 3)]
    assert set(found) <= {"right", "told"} and "right" in found
    lines = (run / "metrics.jsonl").read_bytes().splitlines()
    line = json.loads(lines[-1])
    assert readers.numbers(line) != readers.numbers({**line, "accuracy_own": 2.0})
