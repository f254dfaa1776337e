"""A secure sum between real processes: every message a new one, secrets in files between them."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from focoop.config import to_toml
from focoop.features import save_splits
from focoop.flower import launch
from focoop.runs import RunFolder
from focoop.split import make_split
from tests.flower.federations import simulated, state, toy_config
from tests.flower.test_runners import free_ports
from tests.toy_setting import CLASSES

ROOT = Path(__file__).resolve().parents[2]
SITES = 3
pytestmark = pytest.mark.slow


@pytest.fixture
def started() -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Processes to end with the test."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    launch.stop(processes)


def test_a_coordinator_sees_the_sum_and_gets_the_simulators_bits(
    tmp_path: Path, started: list["subprocess.Popen[bytes]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    wanted = toy_config(
        tmp_path,
        f"partition.clients={SITES}",
        "method.name=promptfl",
        "partition.shots=0",
        "federation.rounds=1",
        "federation.evaluate_every=0",
        "privacy.secure_sum=true",
    )
    plain, split = simulated(wanted, tmp_path / "sim"), make_split(wanted)
    (tmp_path / "run.toml").write_text(to_toml(wanted))
    (port,) = free_ports(1)

    def begin(name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        with open(tmp_path / f"{name}.log", "wb") as log:
            command = [sys.executable, "-m", "focoop", *arguments]
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path)
        started.append(process)
        return process

    names = [f"site-{k}" for k in range(SITES)]
    sites = [text for name in names for text in ("--site", name)]
    assert begin("keys", "keys", "keys", "--host", "127.0.0.1", *sites).wait(60) == 0
    server = begin(
        "coordinator",
        *("coordinator", "run.toml", "--keys", "keys", "--classes", "; ".join(CLASSES)),
        *("--port", str(port), "--out", "run", "--quorum", "1.0", "--deadline", "600"),
    )
    launch.await_server(f"127.0.0.1:{port}", tmp_path / "keys" / "ca.crt", 120)
    for k, name in enumerate(names):
        own = {
            "train": split.train.select(split.train_index[k]),
            "test": split.test.select(split.test_index[k]),
        }
        save_splits(tmp_path / f"{name}.safetensors", own)
        begin(
            name,
            *("site", "join", f"127.0.0.1:{port}", "--keys", f"keys/sites/{name}"),
            *("--data", f"file:{name}.safetensors", "--state", f"state/{name}"),
        )
    seen: set[Path] = set()
    while server.poll() is None:
        seen |= set((tmp_path / "state").rglob("sums/*.json"))
        time.sleep(0.2)
    assert server.returncode == 0, (tmp_path / "coordinator.log").read_text()
    run = RunFolder.open(tmp_path / "run")
    assert run.status == "finished" and state(run) == state(plain)
    entry = run.manifest["rounds"][-1]
    assert entry["accepted"] == [0, 1, 2] and entry["server"]["summed"] == SITES
    # Each site kept its secrets in its own folder while it needed them.
    assert {path.relative_to(tmp_path / "state").parts[0] for path in seen} == set(names)
    assert not list((tmp_path / "state").rglob("sums/*.json"))
