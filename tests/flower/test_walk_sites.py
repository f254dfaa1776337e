"""Three messy sites walk from their folders to answers, with FOCoOp+ and then with secure sums."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")
pytest.importorskip("pillow_heif", reason="the extra `formats` is not installed")

import focoop
from focoop.flower.site.status import read_status
from focoop.runs import RunFolder
from tests.flower.processes import free_ports

ROOT = Path(__file__).resolve().parents[2]
SITES = ("bonn", "ghent", "lille")
pytestmark = pytest.mark.slow


def test_messy_sites_end_with_answers_after_both_studies(tmp_path: Path) -> None:
    (port,), work = free_ports(1), tmp_path / "work"
    command = [sys.executable, str(ROOT / "tools" / "walk_sites.py"), "--work", str(work)]
    with open(tmp_path / "log.txt", "wb") as log:
        done = subprocess.run(
            [*command, "--port", str(port)],
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    said = (tmp_path / "log.txt").read_text(errors="replace")
    assert done.returncode == 0, said[-5000:]
    right = re.findall(r"^(\w+): (\d+) of 24 new images are what they show$", said, re.M)
    assert [site for site, _ in right] == [*SITES, *SITES]
    assert min(int(count) for _, count in right) > 16  # a third by chance
    study = work / "coordinator" / "study"
    for name, sums in (("run-1", False), ("run", True)):
        run = RunFolder.open(study / name)
        assert run.status == "finished" and run.config.title == "study"
        assert run.config.privacy.secure_sum is sums
        assert run.manifest["rounds"][-1]["accepted"] == [0, 1, 2]
        assert (run.manifest["rounds"][-1]["server"].get("summed") == 3) is sums
    federation = RunFolder.open(study / "run").manifest["federation"]
    for site in SITES:
        state = work / site / "focoop-site"
        model = focoop.load_model(state / "model")
        assert model.facts.origin["run"] == federation and model.calibration is not None
        assert model.calibration.never_unknown(model.client) == ""
        status = read_status(state)
        assert status["updates_sent"] == status["updates_counted"] == 2
    logs = [*work.rglob("*.log"), *work.rglob("output.txt"), *work.rglob("journal.jsonl")]
    assert len(logs) > 9 and not any(b"\x1b" in log.read_bytes() for log in logs)
    journal = (study / "run-flower" / "journal.jsonl").read_text()
    assert "contributes nothing" not in journal and "private True" not in journal
