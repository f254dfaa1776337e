"""A site's warm worker is killed in the middle of a round: the run ends with the same bits."""

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from focoop.runs import RunFolder
from tests.flower.federations import simulated, state
from tests.flower.processes import free_ports
from tools.flower_hosts import Federation, Network, cmdline, family, small

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc"),
]


def test_a_killed_worker_is_replaced_and_the_bits_stay(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    made = Federation(tmp_path, small(tmp_path, 2, 3), Network(False), port)
    try:
        made.prepare()
        server = made.coordinate("--deadline", "300", "--quorum", "1.0")
        sites = [made.join(k) for k in range(2)]
        made.wait("asked", round=2, step="train", seconds=300)
        first = [
            pid for pid in family(sites[0].pid) if "focoop.flower.deploy.worker" in cmdline(pid)
        ]
        assert made.kill(sites[0], "focoop.flower.deploy.worker") >= 1
        assert server.wait(400) == 0, made.told()
        later = [
            pid for pid in family(sites[0].pid) if "focoop.flower.deploy.worker" in cmdline(pid)
        ]
        assert later and not set(later) & set(first)
    finally:
        made.close()
    run = RunFolder.open(tmp_path / "run")
    assert all(entry["accepted"] == [0, 1] for entry in run.manifest["rounds"][1:]), made.told()
    assert state(run) == state(simulated(made.config, tmp_path / "plain"))
    assert "the worker ended (-9)" in (tmp_path / "state/site-0/flower/node.log").read_text()
