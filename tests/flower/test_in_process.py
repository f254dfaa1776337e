"""Flower's apps in one process give the simulator's bits; runs resume; private tensors stay."""

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import ArrayRecord, Context, Message, RecordDict

from focoop.errors import ConfigError, FederationError
from focoop.experiments.evaluation import open_state
from focoop.flower import in_process
from focoop.flower.site import client_app
from focoop.flower.site.client import SiteClient
from focoop.methods import available
from focoop.runs import LOG, RunFolder
from focoop.runs.private_store import read
from tests.flower.federations import CLIENTS, federated, lines, simulated, state, toy_config

FEDERATED = [n for n, m in available().items() if not m.pools_data and not m.patch_kind]
QUICK = ("promptfl", "focoop")


def private_files(root: Path) -> dict[str, bytes]:
    """Client -> its newest private tensors."""
    files = sorted(root.rglob("round-*.safetensors"))
    return {path.parent.name: path.read_bytes() for path in files}


def check_parity(folder: Path, *overrides: str) -> None:
    wanted = toy_config(folder, *overrides)
    plain, flower = simulated(wanted, folder / "sim"), federated(wanted, folder / "flower")
    assert state(flower) == state(plain)
    assert lines(flower) == lines(plain)
    kept = private_files(folder / "flower-clients")
    assert kept == private_files(folder / "sim" / "clients")
    traffic = ("participants", "bytes_up", "bytes_down")
    for ours, theirs in zip(flower.manifest["rounds"], plain.manifest["rounds"], strict=True):
        assert {k: ours.get(k) for k in traffic} == {k: theirs.get(k) for k in traffic}


@pytest.mark.parametrize("method", QUICK)
def test_same_bits_as_the_simulator(tmp_path: Path, method: str) -> None:
    check_parity(tmp_path, f"method.name={method}", "federation.participation=0.67")


def test_privacy_and_robust_rules_hold_here_too(tmp_path: Path) -> None:
    check_parity(
        tmp_path,
        "method.name=promptfl",
        "privacy.clip=0.5",
        "privacy.noise=0.3",
        "privacy.counts=noised",
        "robust.rule=median",
    )
    report = RunFolder.open(tmp_path / "flower").manifest["rounds"][-1]["server"]
    assert report == RunFolder.open(tmp_path / "sim").manifest["rounds"][-1]["server"]
    assert report["epsilon"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(set(FEDERATED) - set(QUICK)))
def test_same_bits_as_the_simulator_whatever_the_method(tmp_path: Path, method: str) -> None:
    check_parity(tmp_path, f"method.name={method}")


class Dies:
    """A client that takes the whole process with it in round 2."""

    def __call__(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train" and message.metadata.group_id == "2":
            raise KeyboardInterrupt
        return client_app.app(message, context)


@pytest.mark.slow
def test_a_run_stopped_in_round_two_resumes_to_the_same_bits(tmp_path: Path) -> None:
    wanted = toy_config(tmp_path, "method.name=focoop")
    whole = federated(wanted, tmp_path / "whole")
    path, state_of_clients = tmp_path / "broken", tmp_path / "clients"
    # The last client dies, so that the others have private tensors of a round never committed.
    answers = [client_app.app] * (CLIENTS - 1) + [Dies()]
    with pytest.raises(KeyboardInterrupt):
        in_process.run(wanted, path, CLIENTS, answers=answers, state=state_of_clients)
    broken = RunFolder.open(path)
    assert broken.last_round() == 1 and broken.status == "interrupted"
    assert any("round-0002" in str(file) for file in state_of_clients.rglob("*.safetensors"))
    in_process.run(wanted, path, CLIENTS, state=state_of_clients, resume=True)
    resumed = RunFolder.open(path)
    assert state(resumed) == state(whole)
    assert lines(resumed) == lines(whole)
    assert private_files(state_of_clients) == private_files(tmp_path / "whole-clients")
    before = path.stat().st_mtime_ns
    in_process.run(wanted, path, CLIENTS, state=state_of_clients, resume=True)  # nothing left
    assert path.stat().st_mtime_ns == before


@pytest.mark.slow
def test_the_servers_folder_has_names_and_a_log_and_may_be_lengthened(tmp_path: Path) -> None:
    short = toy_config(tmp_path, "method.name=focoop", "federation.rounds=1")
    longer = toy_config(tmp_path, "method.name=focoop", "federation.rounds=2")
    path, clients = tmp_path / "run", tmp_path / "clients"
    in_process.run(short, path, CLIENTS, state=clients)
    in_process.run(longer, path, CLIENTS, state=clients, resume=True)
    whole = simulated(longer, tmp_path / "whole")
    run = RunFolder.open(path)
    assert (run.status, run.last_round(), state(run)) == ("finished", 2, state(whole))
    assert run.class_names == whole.class_names and run.client_names == ("0", "1", "2")
    assert run.negative_words == whole.negative_words and len(run.negative_words) == 6
    assert (path / LOG).read_text().count("round 2 of 2") == 1
    found = open_state(run).evaluate()  # what a server of sites does not know is not compared
    assert len(found.clients) == CLIENTS


def test_private_tensors_never_travel_and_belong_to_one_federation(tmp_path: Path) -> None:
    wanted = toy_config(tmp_path, "method.name=focoop")
    seen: list[RecordDict] = []

    def spy(message: Message, context: Context) -> Message:
        reply = client_app.app(message, context)
        seen.append(reply.content)
        assert not context.state  # Flower would keep it at the node, but lose it at a restart
        return reply

    in_process.run(wanted, tmp_path / "run", CLIENTS, answers=[spy] * CLIENTS)
    (key,) = (path.name for path in (tmp_path / "run-clients").iterdir())
    assert key == RunFolder.open(tmp_path / "run").manifest["federation"]
    kept = [read(path)[0] for path in (tmp_path / "run-clients").rglob("round-0002*")]
    assert len(kept) == CLIENTS
    sent = [
        array.numpy().tobytes()
        for content in seen
        for record in content.values()
        if isinstance(record, ArrayRecord)
        for array in record.values()
    ]
    assert len(sent) > CLIENTS
    for tensors in kept:
        for value in tensors.values():
            assert value.numpy().tobytes() not in sent


def test_what_cannot_be_federated_says_so(tmp_path: Path) -> None:
    pooled = toy_config(tmp_path, "method.name=centralized")
    with pytest.raises(ConfigError, match="focoop run"):
        federated(pooled, tmp_path / "pooled")
    late = toy_config(tmp_path, "federation.late_clients=1", "federation.rounds=2")
    with pytest.raises(ConfigError, match="late_clients is for simulated runs"):
        federated(late, tmp_path / "late")
    four = toy_config(tmp_path, "partition.clients=4", "method.name=promptfl")
    with pytest.raises(FederationError, match="divided among 4 clients, and there are 3 nodes"):
        federated(four, tmp_path / "four")
    with pytest.raises(ConfigError, match="partition-id"):
        SiteClient.of(Context(1, 1, {}, RecordDict(), {}))
    assert RunFolder.open(tmp_path / "four").status == "failed"


def test_zero_shot_is_evaluated_alone(tmp_path: Path) -> None:
    check_parity(tmp_path, "method.name=zeroshot")
