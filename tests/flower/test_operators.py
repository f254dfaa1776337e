"""What operators see of a real federation: sites that start first, refuse and finish; the page."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from focoop.config.writing import to_toml
from focoop.runs import RunFolder
from focoop.scenario.assignment import make_split
from tests.flower.federations import CLIENTS, toy_config
from tests.flower.processes import SAID, Parties, Started, free_ports
from tests.flower.test_tracking import MINE

pytestmark = pytest.mark.slow
SETTINGS = (
    "method.name=promptfl",
    "partition.kind=pathological",
    "partition.shots=0",
    "federation.rounds=2",
)


def status(folder: Path, name: str) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "focoop",
        "site",
        "status",
        "--state",
        f"state/{name}",
        "--json",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def page(port: int, path: str) -> str:
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return str(answer.read().decode())


@pytest.mark.timeout(600)
def test_operators_see_the_run_and_the_refusal(tmp_path: Path, started: Started) -> None:
    wanted = toy_config(tmp_path, *SETTINGS)
    split = make_split(wanted)
    (tmp_path / "run.toml").write_text(to_toml(wanted))
    names = ["ghent", "lille", "utrecht"]
    (tmp_path / "mine.py").write_text(MINE)  # a tracker
    parties = Parties(tmp_path, started, names)
    strict = tmp_path / "keys" / "sites" / "utrecht" / "policy.toml"
    strict.write_text("[privacy]\nnoise_at_least = 1.0\n")
    for k in range(CLIENTS):
        parties.join(k, parties.give_images(split, k))
    until = time.monotonic() + 60
    while "not reachable yet" not in parties.log("ghent") and time.monotonic() < until:
        time.sleep(0.5)
    assert status(tmp_path, "ghent")["state"] == "waiting"
    (port,) = free_ports(1)
    server = parties.begin(
        "coordinator",
        *("coordinator", "run.toml", "--keys", "keys", *SAID, "--port", str(parties.port)),
        *("--out", "run", "--quorum", "0.5", "--deadline", "300", "--wait", "90"),
        *("--status-port", str(port), "--log-json", "--track", "./mine.py:told.txt"),
    )
    seen: dict[str, Any] = {}
    while server.poll() is None:
        time.sleep(0.05)  # a step of training may take a fifth of a second
        try:
            found = json.loads(page(port, "/status.json"))
        except OSError:
            continue  # not up yet, or over
        if found["step"] == "training":
            seen, metrics = found, page(port, "/metrics")
    assert server.wait(1) == 0, parties.log("coordinator")
    assert [one["connected"] for one in seen["sites"]] == [True, True, True]
    assert [one["refused"] > 0 for one in seen["sites"]] == [False, False, True]
    assert 'focoop_site_connected{site="ghent"} 1.0' in metrics
    lines = [json.loads(line) for line in parties.log("coordinator").splitlines() if line[0] == "{"]
    reason = "policy: privacy.noise = 0, 1 is the least"
    assert any(one.get("site") == "utrecht" and one.get("reason") == reason for one in lines)
    assert [one["round"] for one in lines if one["event"] == "committed"] == [0, 1, 2]
    assert f"utrecht: refused: {reason}" in parties.log("utrecht")
    assert "ghent: finished: the last round is done" in parties.log("ghent")
    found = status(tmp_path, "ghent")
    assert found["finished"] and found["updates_sent"] == 2 == found["updates_counted"]
    assert status(tmp_path, "utrecht")["refused"][0]["reason"] == reason
    run = RunFolder.open(tmp_path / "run")
    assert run.manifest["rounds"][-1]["accepted"] == [0, 1]
    told = (tmp_path / "told.txt").read_text().splitlines()  # below where the command was given
    assert [line.split()[1] for line in told] == ["-1", "0", "1", "2", "2"]
    assert told[-1] == "finished 2"
