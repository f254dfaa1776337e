"""The same bits through Flower's own engines: Ray, and a SuperLink with TLS and node keys."""

import os
import signal
import subprocess
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from focoop.config.writing import to_toml
from focoop.flower.deploy import processes
from focoop.flower.deploy.keys import make_keys
from focoop.runs import RunFolder
from focoop.scenario.assignment import make_split
from tests.flower.federations import CLIENTS, lines, simulated, state, toy_config
from tests.flower.processes import SAID, Parties, Started, free_ports

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's processes import focoop from this checkout."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def children(home: Path) -> list[int]:
    """Processes whose Flower home is this one: `flwr run` leaves a SuperLink behind."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environ = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"FLWR_HOME={home.resolve()}".encode() in environ:
            found.append(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc to clean up")
def test_ray_gives_the_simulators_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="the extra `flower-ray` is not installed")
    (port,) = free_ports(1)
    monkeypatch.setenv("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", str(port))
    monkeypatch.setenv("FOCOOP_STATE", str(tmp_path / "state"))
    wanted = toy_config(tmp_path, "method.name=focoop")
    plain = simulated(wanted, tmp_path / "sim")
    (tmp_path / "run.toml").write_text(to_toml(wanted))
    home = tmp_path / "home"
    command = [processes.program("flwr"), "run", str(ROOT), "--stream"]
    command += ["-c", f"config='{tmp_path}/run.toml' out='{tmp_path}/run'"]
    command += ["--federation-config", f"num-supernodes={CLIENTS} client-resources-num-cpus=1"]
    try:
        done = subprocess.run(
            command, env=processes.environment(home), capture_output=True, text=True, timeout=420
        )
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        for process in children(home):
            os.kill(process, signal.SIGTERM)
    run = RunFolder.open(tmp_path / "run")
    assert run.status == "finished", done.stdout
    assert state(run) == state(plain) and lines(run) == lines(plain)


def test_a_coordinator_and_its_sites_give_the_simulators_bits(
    tmp_path: Path, started: Started
) -> None:
    """Through TLS and node keys, each site with nothing but its own images."""
    wanted = toy_config(
        tmp_path,
        "method.name=focoop",
        "partition.shots=0",
        "partition.kind=pathological",
        "federation.evaluate_every=0",
    )
    plain = simulated(wanted, tmp_path / "sim")
    split = make_split(wanted)
    (tmp_path / "run.toml").write_text(to_toml(wanted))
    parties = Parties(tmp_path, started, [f"site-{k}" for k in range(CLIENTS)])
    (tmp_path / "setting" / "id.safetensors").unlink()
    server = parties.coordinate(deadline=400)
    for k, name in enumerate(parties.names):
        data = parties.give_images(split, k)
        own = ("--keys", f"keys/sites/{name}")  # and the policy that lies there
        parties.begin(f"{name}-check", "site", "check", *data, *SAID, *own, "run.toml").wait(120)
        assert "; nothing was sent" in parties.log(f"{name}-check")
        parties.join(k, data)
    assert server.wait(500) == 0, parties.log("coordinator")
    assert "round 2/2, 3 updates" in parties.log("coordinator")
    run = RunFolder.open(tmp_path / "run")
    assert run.status == "finished" and state(run) == state(plain)
    assert [row["client"] for row in run.metrics()[-1]["clients"]] == [0, 1, 2]


def test_nobody_is_let_in_without_a_registered_key_or_tls(tmp_path: Path, started: Started) -> None:
    keys, others = tmp_path / "keys", tmp_path / "others"
    make_keys(keys, ["127.0.0.1"], ["known", "unknown"])
    make_keys(others, ["127.0.0.1"], ["known"])
    port, own = free_ports(2)
    server = f"127.0.0.1:{port}"
    with open(tmp_path / "link.log", "wb") as log:
        secret = processes.new_secret(tmp_path / "link")
        command = processes.superlink(keys, port, tmp_path / "state.db", secret)
        env = processes.environment(tmp_path / "link")
        started.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
    processes.await_server(server, keys / "ca.crt", 90)
    with pytest.raises((URLError, OSError)):
        urlopen(f"http://{server}/health", timeout=5)
    node = {"partition-id": 0, "num-partitions": 1}
    # An unregistered key, and a site that trusts another authority.
    for site in (keys / "sites" / "unknown", others / "sites" / "known"):
        # Not through a pipe: programs that the node has started would keep it open.
        with open(tmp_path / "node.log", "wb") as log:
            secret = processes.new_secret(tmp_path / "node")
            command = processes.supernode(site, server, own, node, secret)
            env = processes.environment(tmp_path / "node")
            process = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        started.append(process)
        assert process.wait(120) != 0
