"""A secure sum between real processes: every message a new one, secrets in files between them."""

import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from focoop.config.writing import to_toml
from focoop.flower.deploy.enrolment import key_print
from focoop.flower.identity import registered
from focoop.flower.site.peers import known_peers
from focoop.runs import RunFolder
from focoop.scenario.assignment import make_split
from tests.flower.federations import simulated, state, toy_config
from tests.flower.processes import Parties, Started

ROOT = Path(__file__).resolve().parents[2]
SITES = 3
pytestmark = pytest.mark.slow


def test_a_coordinator_sees_the_sum_and_gets_the_simulators_bits(
    tmp_path: Path, started: Started, monkeypatch: pytest.MonkeyPatch
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
    names = [f"site-{k}" for k in range(SITES)]
    parties = Parties(tmp_path, started, names)
    server = parties.coordinate(deadline=600)
    for k in range(SITES):
        parties.join(k, parties.give_images(split, k))
    seen: set[Path] = set()
    while server.poll() is None:
        seen |= set((tmp_path / "state").rglob("sums/*.json"))
        time.sleep(0.2)
    assert server.returncode == 0, parties.log("coordinator")
    run = RunFolder.open(tmp_path / "run")
    assert run.status == "finished" and state(run) == state(plain)
    entry = run.manifest["rounds"][-1]
    assert entry["accepted"] == [0, 1, 2] and entry["server"]["summed"] == SITES
    # Each site kept its secrets in its own folder while it needed them.
    assert {path.relative_to(tmp_path / "state").parts[0] for path in seen} == set(names)
    assert not list((tmp_path / "state").rglob("sums/*.json"))
    # Each knows the others by the keys they joined with.
    keys = {k: site.public for k, site in registered(tmp_path / "keys").items()}
    for name in names:
        (known,) = known_peers(tmp_path / "state" / name).values()
        assert known == {str(k): key_print(public) for k, public in keys.items()}
