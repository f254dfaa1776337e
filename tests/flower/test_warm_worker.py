"""A site's warm worker is killed in the middle of a round: the run ends with the same bits."""

import subprocess
import sys
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


FORKED = """
import gc, os, sys
from pathlib import Path
from focoop.flower.deploy import worker

def own(pid):
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:")) / 1024

worker.prepare("server")
(asked, ask), (told, tell) = os.pipe(), os.pipe()
child = os.fork()
if not child:
    os.read(asked, 1)
    gc.collect()
    os.write(tell, b"x")
    os.read(asked, 1)
    os._exit(0)
before = own(os.getpid()) + own(child)
os.write(ask, b"x")
os.read(told, 1)
print(before, own(os.getpid()) + own(child))
os.write(ask, b"x")
os.waitpid(child, 0)
"""


def test_collecting_garbage_does_not_copy_what_a_forked_task_shares(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=120
    )
    before, after = map(float, done.stdout.split())
    assert before > 100, done.stderr
    assert after - before < 10  # MiB; 80 where all objects are looked at


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
