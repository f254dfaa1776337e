"""Hosts that die, in network namespaces of their own: what `tools/flower_faults.py` shows."""

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Context, Message

from focoop.flower import in_process
from focoop.flower.records import Order
from focoop.flower.site import client_app
from focoop.runs import RunFolder
from tests.flower.federations import state
from tests.flower.light import SELF
from tools.flower_faults import CLIENTS, LOST, ROUNDS, disturbed, measures, simulated
from tools.flower_hosts import Federation, federation, separable, small

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc"),
]
WAIT = 45.0  # seconds
ABSENT = (2, 3)  # rounds without the site that is killed


def absent(message: Message, context: Context) -> Message:
    """The site that is killed in round 2 and back in round 4."""
    kind = message.metadata.message_type
    if kind == "train" and Order.read(message.content).round_index in ABSENT:
        raise RuntimeError("dead")
    return client_app.app(message, context)


class Light(Federation):
    """Sites that start no process per message: the machine the tests run on may be slow."""

    def join(self, k: int) -> "subprocess.Popen[bytes]":
        name = self.sites[k]
        state = self.folder / "state" / name
        state.mkdir(parents=True, exist_ok=True)
        data = f"file:{self.folder / name}.safetensors"
        own = (self.address, f"keys/sites/{name}", data, str(state))
        return self.begin(name, name, *own, module=SELF)


def test_a_site_and_the_superlink_die_and_the_run_is_the_one_without_that_site(
    tmp_path: Path,
) -> None:
    if not separable():
        pytest.skip("network namespaces need root and iproute2's `ip`")
    wanted = small(tmp_path, CLIENTS, ROUNDS)
    with federation(tmp_path, wanted, 8000, separate=True, kind=Light) as made:
        run = disturbed(made, WAIT)
        told = made.told()
    assert run.status == "finished"
    everybody = list(range(CLIENTS))
    for entry in run.manifest["rounds"][1:]:
        lost = [LOST] if entry["round"] in ABSENT else []
        assert entry["accepted"] == [k for k in everybody if k not in lost], told
        assert list(entry["refused"]) == [f"site-{k}" for k in lost], told
    # Nothing lost: bit for bit what comes of it when the site merely has nothing to say.
    answers = [absent if k == LOST else client_app.app for k in everybody]
    in_process.run(wanted, tmp_path / "alone", CLIENTS, answers=answers)
    assert state(run) == state(RunFolder.open(tmp_path / "alone"))
    plain, found = simulated(wanted, tmp_path / "plain"), run.metrics()[-1]
    assert [row["client"] for row in found["clients"]] == everybody
    expected = measures(plain)
    for name, value in measures(found).items():
        assert abs(value - expected[name]) < 0.1, (name, value, expected[name])
    # Everything in the log.
    for words in ("site-2 away", "after round 2", "site-2 joined", "killed by signal 9"):
        assert words in told
