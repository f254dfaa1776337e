"""Secure sums on Flower: the simulator's bits, whoever drops out when, and no secret told."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from focoop.config.writing import to_flat
from focoop.errors import FederationError
from focoop.flower import in_process
from focoop.flower.journal import events
from focoop.flower.records import UPDATE
from focoop.flower.server import server_app
from focoop.flower.settings import server_settings
from focoop.flower.site import client_app
from focoop.flower.sum_records import MASKED, SUM
from focoop.runs import RunFolder
from tests.flower.federations import CLIENTS, Answer, lines, simulated, state, toy_config
from tests.flower.test_policy import SAID, SETTINGS, site_nodes

SITES = 4
SECURE = (
    f"partition.clients={SITES}",
    "federation.evaluate_every=0",
    "privacy.secure_sum=true",
)
STEPS = ("query.sum_keys", "query.sum_shares", "train", "query.sum_open")


def federated(wanted: object, path: Path, answers: list[Answer], **settings: object) -> RunFolder:
    in_process.run(wanted, path, SITES, answers=answers, **settings)  # type: ignore[arg-type]
    return RunFolder.open(path)


def honest() -> list[Answer]:
    return [client_app.app] * SITES


def about_round(message: Message) -> int:
    order = message.content["config"]
    assert isinstance(order, ConfigRecord)
    return int(order["round"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "overrides",
    [
        ("method.name=promptfl", "federation.participation=0.75"),
        ("method.name=promptfl", "privacy.clip=0.5", "privacy.noise=0.3", "federation.rounds=1"),
        pytest.param(
            ("method.name=focoop", "method.goc_pool=mean"), marks=pytest.mark.slow, id="focoop"
        ),
    ],
)
def test_same_bits_as_the_simulator(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    wanted = toy_config(tmp_path, *SECURE, *overrides)
    plain = simulated(wanted, tmp_path / "sim")
    flower = federated(wanted, tmp_path / "flower", honest())
    assert state(flower) == state(plain)
    ours, theirs = lines(flower)[-1], lines(plain)[-1]
    # The loss is part of the sum, in fixed point.
    assert ours.pop("loss") == pytest.approx(theirs.pop("loss"), abs=1e-6, nan_ok=True)
    assert ours == theirs
    for name in ("participants", "bytes_up", "bytes_down"):
        assert flower.manifest["rounds"][-1][name] == plain.manifest["rounds"][-1][name]


def leaves(step: str, in_round: int = 1) -> Answer:
    """A site that answers everything but one step of one round."""

    def app(message: Message, context: Context) -> Message:
        if message.metadata.message_type == step and about_round(message) == in_round:
            raise RuntimeError("power cut")
        return client_app.app(message, context)

    return app


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_who_drops_out_is_left_out_of_the_sum_and_no_more(tmp_path: Path, step: str) -> None:
    wanted = toy_config(tmp_path, *SECURE, "method.name=promptfl", "federation.rounds=2")
    run = federated(wanted, tmp_path / "run", [*honest()[:-1], leaves(step)])
    first, second = run.manifest["rounds"][1:]
    everyone, others = list(range(SITES)), list(range(SITES - 1))
    assert second["accepted"] == everyone
    if step == STEPS[-1]:  # its vector is in the sum
        assert first["accepted"] == everyone and first["refused"] == {}
        assert "power cut" in first["shares_not_opened"]["client 3"]
        expected = federated(wanted, tmp_path / "expected", honest())
    else:
        assert first["accepted"] == others and "power cut" in first["refused"]["client 3"]
        assert first["server"]["summed"] == SITES - 1
        # The same as if it had never been asked, with no masks about.
        plain = toy_config(tmp_path, *SECURE, "method.name=promptfl", "privacy.secure_sum=false")
        expected = federated(plain, tmp_path / "expected", [*honest()[:-1], leaves("train")])
        ours, theirs = (np.frombuffer(state(r)[-16 * 192 * 4 :], "<f4") for r in (run, expected))
        assert np.abs(ours - theirs).max() < 2e-6  # sums are in fixed point
        return
    assert state(run) == state(expected)


@pytest.mark.slow
def test_too_few_left_lose_the_round_and_resuming_repeats_it(tmp_path: Path) -> None:
    wanted = toy_config(tmp_path, *SECURE, "method.name=promptfl", "federation.rounds=1")
    kept = tmp_path / "kept"
    plain = simulated(wanted, tmp_path / "sim")
    for step in ("query.sum_shares", "query.sum_open"):
        answers = [*honest()[2:], *[leaves(step)] * 2]
        path = tmp_path / step
        with pytest.raises(FederationError, match=r"needs 3|3 are needed"):
            federated(wanted, path, answers, state=kept, quorum=0.1)
        assert RunFolder.open(path).last_round() == 0
        after = federated(wanted, path, honest(), state=kept, resume=True)
        assert state(after) == state(plain)


def test_nothing_is_opened_without_a_quorum(tmp_path: Path) -> None:
    wanted = toy_config(tmp_path, *SECURE, "method.name=promptfl", "federation.rounds=1")
    kinds: list[str] = []

    def listens(message: Message, context: Context) -> Message:
        kinds.append(message.metadata.message_type)
        return client_app.app(message, context)

    too_few = r"3 clients sent a vector, and a secure sum needs 4 \(client 3: .*power cut.*\)"
    with pytest.raises(FederationError, match=too_few):
        federated(wanted, tmp_path / "run", [listens, *honest()[2:], leaves("train")], quorum=1.0)
    assert "train" in kinds and "query.sum_open" not in kinds


def test_a_sum_of_too_few_names_the_sites_that_have_gone(tmp_path: Path) -> None:
    wanted = toy_config(tmp_path, *SECURE, "method.name=promptfl", "federation.rounds=2")
    flat = {"wait": 0.0, "quorum": 0.1, **to_flat(wanted), "out": str(tmp_path / "run")}

    def goes(message: Message, context: Context) -> Message:
        reply = client_app.app(message, context)
        if message.metadata.message_type == "query.sum_open":
            grid.offline = {1, 2}
        return reply

    grid = in_process.InProcessGrid([*honest()[1:], goes], flat)
    for context in grid.contexts:
        context.node_config["state"] = str(tmp_path / "clients")
    with pytest.raises(FederationError) as error:
        server_app.run_federation(grid, wanted, server_settings(flat))
    told = "client 1: it is not connected; client 2: it is not connected"
    assert f"round 2: 2 clients sent keys, and a secure sum needs 3 ({told})" in str(error.value)


def test_a_site_hears_of_every_round_of_a_secure_sum_that_counted(tmp_path: Path) -> None:
    settings = [*SETTINGS, "privacy.secure_sum=true", "federation.rounds=4"]
    nodes = site_nodes(tmp_path, settings)
    wanted = toy_config(tmp_path, *settings)
    in_process.run(wanted, tmp_path / "run", CLIENTS, nodes=nodes, classes=SAID)
    for k in range(CLIENTS):
        told = list(events(tmp_path / f"state{k}" / "journal.jsonl"))
        assert [one["round"] for one in told if one["event"] == "accepted"] == [1, 2, 3, 4]


def bends(step: str, spoil: Callable[[RecordDict], None]) -> Answer:
    """A site whose answers to one step are changed on their way."""

    def app(message: Message, context: Context) -> Message:
        reply = client_app.app(message, context)
        if message.metadata.message_type == step:
            spoil(reply.content)
        return reply

    return app


def changed(name: str, change: Callable[[bytes], bytes | None]) -> Callable[[RecordDict], None]:
    """Changes the first entry `name/...` of a record of the sum; None removes it."""

    def spoil(content: RecordDict) -> None:
        record = content[SUM]
        assert isinstance(record, ConfigRecord)
        key = min(k for k in record if k.startswith(f"{name}/"))
        value = change(record[key])  # type: ignore[arg-type]
        if value is None:
            del record[key]
        else:
            record[key] = value

    return spoil


def shorter(content: RecordDict) -> None:
    record = content[UPDATE]
    assert isinstance(record, ArrayRecord)
    record[MASKED] = Array(record[MASKED].numpy()[1:])


def flipped(raw: bytes) -> bytes:
    return raw[:-1] + bytes([raw[-1] ^ 1])


def shifted(raw: bytes) -> bytes:
    # Lies of the same size may cancel each other, and then the secret is right.
    return raw[:-9] + bytes([raw[-9] ^ 1]) + raw[-8:]


@pytest.mark.parametrize(
    ("step", "spoil", "reason"),
    [
        ("query.sum_keys", changed("mask", lambda raw: b"\1" + b"\0" * 31), "key that is none"),
        ("query.sum_shares", changed("package", lambda raw: None), "not one for each"),
        ("train", shorter, "shape"),
        ("query.sum_open", changed("seed", lambda raw: raw[:9]), "cannot be read"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_reason(
    tmp_path: Path, step: str, spoil: Callable[[RecordDict], None], reason: str
) -> None:
    wanted = toy_config(tmp_path, *SECURE, "method.name=promptfl", "federation.rounds=1")
    answers = [*honest()[:-1], bends(step, spoil)]
    entry = federated(wanted, tmp_path / "run", answers).manifest["rounds"][-1]
    told = {**entry["refused"], **entry.get("shares_not_opened", {})}
    assert list(told) == ["client 3"] and re.search(reason, told["client 3"])


def test_false_shares_are_named_and_done_without(tmp_path: Path) -> None:
    wanted = toy_config(tmp_path, *SECURE, "method.name=promptfl", "federation.rounds=1")
    plain = simulated(wanted, tmp_path / "sim")
    liar = bends("query.sum_open", changed("seed", flipped))
    run = federated(wanted, tmp_path / "run", [liar, *honest()[1:]])
    assert state(run) == state(plain)
    assert run.manifest["rounds"][-1]["false_shares"] == ["client 0"]
    with pytest.raises(FederationError, match="is lost"):
        other = bends("query.sum_open", changed("seed", shifted))
        federated(wanted, tmp_path / "lost", [liar, other, *honest()[2:]])


def test_secrets_stay_at_the_site_and_only_as_long_as_needed(tmp_path: Path) -> None:
    wanted = toy_config(tmp_path, *SECURE, "method.name=promptfl", "federation.rounds=1")
    told: list[bytes] = []
    secrets: set[str] = set()
    modes: set[int] = set()

    def spy(message: Message, context: Context) -> Message:
        reply = client_app.app(message, context)
        for path in (tmp_path / "run-clients").rglob("sums/*.json"):
            modes.add(path.stat().st_mode & 0o777)
            secrets.update(json.loads(path.read_text())["masker"]["secrets"])
        for record in reply.content.values():
            values = record.values() if isinstance(record, ConfigRecord) else []
            told.extend(value for value in values if isinstance(value, bytes))
        assert not context.state
        return reply

    federated(wanted, tmp_path / "run", [spy] * SITES)
    assert len(secrets) == 3 * SITES and modes == {0o600}
    seen = b"/".join(told)
    assert seen and not any(bytes.fromhex(one.zfill(64)) in seen for one in secrets)
    assert not list((tmp_path / "run-clients").rglob("sums/*.json"))


def test_a_site_answers_the_same_again_and_nothing_else(tmp_path: Path) -> None:
    """A server that asks a second time with other prompts would learn the difference."""
    wanted = toy_config(tmp_path, *SECURE, "method.name=promptfl", "federation.rounds=1")
    found: list[str] = []

    def curious(message: Message, context: Context) -> Message:
        reply = client_app.app(message, context)
        if message.metadata.message_type == "train":
            again = client_app.app(message, context)
            assert again.content[UPDATE][MASKED].data == reply.content[UPDATE][MASKED].data  # type: ignore[index]
            arrays = message.content["global"]
            assert isinstance(arrays, ArrayRecord)
            other = ArrayRecord({"context": Array(arrays["context"].numpy() + np.float32(0.1))})
            content = RecordDict({**message.content, "global": other})
            asked = Message(content, message.metadata.dst_node_id, "train")
            with pytest.raises(Exception, match="asked twice for one sum") as error:
                client_app.app(asked, context)
            found.append(str(error.value))
            bare = RecordDict({n: r for n, r in message.content.items() if n != SUM})
            asked = Message(bare, message.metadata.dst_node_id, "train")
            with pytest.raises(Exception, match="says nothing of a sum"):  # no plain update leaves
                client_app.app(asked, context)
        if message.metadata.message_type == "query.sum_open":
            with pytest.raises(Exception, match="it is over"):
                client_app.app(message, context)
        return reply

    federated(wanted, tmp_path / "run", [curious, *honest()[1:]])
    assert len(found) == 1
