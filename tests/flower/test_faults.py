"""Clients that raise, vanish or send garbage are named and left out; the run is not harmed."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)

from focoop.config.writing import to_flat
from focoop.errors import FederationError
from focoop.flower import in_process
from focoop.flower.journal import events, sentence
from focoop.flower.records import METRICS, STATS, UPDATE
from focoop.flower.server import server_app
from focoop.flower.site import client_app
from focoop.runs import RunFolder
from tests.flower.federations import CLIENTS, Answer, Tampered, federated, state, toy_config

ONE_ROUND = ("method.name=promptfl", "federation.evaluate_every=0", "federation.rounds=1")
HONEST: list[Answer] = [client_app.app] * (CLIENTS - 1)
Spoil = Callable[[Message, Message], Message]


def context_array(change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    """Changes the prompt context of an update."""

    def spoil(message: Message, reply: Message) -> Message:
        record = reply.content[UPDATE]
        assert isinstance(record, ArrayRecord)
        record["context"] = Array(change(record["context"].numpy()))
        return reply

    return spoil


def content(**records: object) -> Spoil:
    """Replaces records; None removes one."""

    def spoil(message: Message, reply: Message) -> Message:
        kept = {name: reply.content[name] for name in reply.content}
        kept |= records  # type: ignore[arg-type]
        return Message(
            RecordDict({n: r for n, r in kept.items() if r is not None}), reply_to=message
        )

    return spoil


def number(name: str, value: int | float) -> Spoil:
    """Changes one of the numbers."""

    def spoil(message: Message, reply: Message) -> Message:
        record = reply.content[METRICS]
        assert isinstance(record, MetricRecord)
        record[name] = value
        return reply

    return spoil


def counts(change: Callable[[np.ndarray], np.ndarray], total: Callable[[int], int]) -> Spoil:
    """Changes the class counts and the number of images."""

    def spoil(message: Message, reply: Message) -> Message:
        stats, metrics = reply.content[STATS], reply.content[METRICS]
        assert isinstance(stats, ArrayRecord) and isinstance(metrics, MetricRecord)
        stats["class-counts"] = Array(change(stats["class-counts"].numpy()))
        metrics["num-examples"] = total(int(metrics["num-examples"]))  # type: ignore[arg-type]
        return reply

    return spoil


def raises(message: Message, reply: Message) -> Message:
    raise RuntimeError("disk on fire")


def bomb(message: Message, reply: Message) -> Message:
    """A header that announces four terabytes."""
    record = reply.content[UPDATE]
    assert isinstance(record, ArrayRecord)
    honest = record["context"]
    text = honest.data.replace(b"(16, 192)", b"(1000000000000,)")
    record["context"] = Array("float32", (16, 192), honest.stype, text)
    return reply


def header(text: bytes) -> Spoil:
    """An array whose header is this text."""

    def spoil(message: Message, reply: Message) -> Message:
        record = reply.content[UPDATE]
        assert isinstance(record, ArrayRecord)
        head = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
        record["context"] = Array("float32", (16, 192), "numpy.ndarray", head)
        return reply

    return spoil


GARBAGE: dict[str, tuple[Spoil, str]] = {
    "raises": (raises, "disk on fire"),
    "nan": (context_array(lambda a: a * np.nan), "no numbers"),
    "shape": (context_array(lambda a: a[1:]), "shape"),
    "dtype": (context_array(lambda a: a.astype(np.float64)), "float64, not float32"),
    "scaled": (context_array(lambda a: a * 1000), "times the median"),
    "large": (context_array(lambda a: np.tile(a, (1000, 1))), "12.3 MB large, and 0.1 are"),
    "bomb": (bomb, "not an array|shape"),
    "no update": (content(update=None), "records"),
    "another record": (content(update=ConfigRecord({"a": 1})), "not arrays"),
    "more tensors": (content(extra=ArrayRecord()), "records"),
    "another client": (number("client", 0), "calls itself client 0"),
    "another round": (number("round", 7), "of round 7"),
    "loss": (number("loss", float("inf")), "loss is inf"),
    "negative": (counts(lambda c: -c, lambda n: -n), "negative"),
    "sum": (counts(lambda c: c + 1, lambda n: n), "add up"),
    "wrap": (counts(lambda c: c * 0 + 2**62, lambda n: 0), "add up"),
    "too many": (counts(lambda c: c * 50, lambda n: n * 50), "100 images of a class, and 2 are"),
    "header of a list as a key": (header(b"{[]:1}"), "not an array"),
    "header of open brackets": (header(b"(" * 4), "not an array"),
    "header of a long number": (
        header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 5000 + b",)}"),
        "not an array",
    ),
}


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A setting, and what comes of it when the last client never sends a thing."""
    folder = tmp_path_factory.mktemp("without")
    wanted = toy_config(folder, *ONE_ROUND)

    def silent(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train":
            return Message(Error(3), reply_to=message)
        return client_app.app(message, context)

    return folder, state(federated(wanted, folder / "run", [*HONEST, silent]))


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_is_refused_named_and_changes_nothing(
    tmp_path: Path, without: tuple[Path, bytes], what: str
) -> None:
    folder, expected = without
    wanted = toy_config(folder, *ONE_ROUND)
    spoil, reason = GARBAGE[what]
    run = federated(wanted, tmp_path / "run", [*HONEST, Tampered(spoil)], norm_bound=10.0)
    assert state(run) == expected
    entry = run.manifest["rounds"][1]
    assert entry["accepted"] == [0, 1] and entry["participants"] == [0, 1, 2]
    assert list(entry["refused"]) == ["client 2"]
    assert re.search(reason, entry["refused"]["client 2"])


def test_too_few_updates_end_the_run_and_resuming_goes_on(tmp_path: Path) -> None:
    wanted = toy_config(tmp_path, "method.name=promptfl", "federation.evaluate_every=0")
    answers: list[Answer] = [HONEST[0], Tampered(raises), Tampered(raises)]
    with pytest.raises(FederationError, match=r"1 updates of 2 needed \(client 1: disk on fire"):
        federated(wanted, tmp_path / "run", answers)
    assert RunFolder.open(tmp_path / "run").status == "failed"
    assert RunFolder.open(tmp_path / "run").last_round() == 0
    after = federated(wanted, tmp_path / "run", resume=True)
    assert state(after) == state(federated(wanted, tmp_path / "undisturbed"))
    lenient = federated(wanted, tmp_path / "lenient", answers, quorum=0.1)
    assert lenient.manifest["rounds"][-1]["accepted"] == [0]


class Noisy(in_process.InProcessGrid):
    """Repeats every reply of this round and of the ones before, as a confused network might."""

    past: list[Message] = []

    def pull_messages(self, message_ids):  # type: ignore[no-untyped-def]
        replies = list(super().pull_messages(message_ids))
        found = [*self.past, *replies[::-1], *replies]
        self.past = [*self.past, *replies]
        return found


def test_late_and_repeated_replies_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = toy_config(tmp_path, "method.name=promptfl")
    quiet = federated(wanted, tmp_path / "quiet")
    monkeypatch.setattr(in_process, "InProcessGrid", Noisy)
    noisy = federated(wanted, tmp_path / "noisy")
    assert state(noisy) == state(quiet)
    assert noisy.metrics() == quiet.metrics()


def test_a_client_that_is_away_is_left_out_until_it_is_back(tmp_path: Path) -> None:
    wanted = toy_config(tmp_path, "method.name=promptfl", "federation.evaluate_every=0")
    journal = tmp_path / "journal.jsonl"
    flat = {**to_flat(wanted), "wait": 0.0, "out": str(tmp_path / "run"), "journal": str(journal)}
    grid = in_process.InProcessGrid([client_app.app] * CLIENTS, flat)

    class Comes:
        """Client 0 unplugs client 2 in its first round."""

        def __call__(self, message: Message, context: Context) -> Message:
            if message.metadata.message_type == "train":
                grid.offline ^= {2}
            return client_app.app(message, context)

    grid.answers = [Comes(), *[client_app.app] * (CLIENTS - 1)]
    grid.offline = {2}
    server_app.app(grid, Context(1, 1, {}, RecordDict(), flat))
    rounds = RunFolder.open(tmp_path / "run").manifest["rounds"]
    assert [entry.get("accepted") for entry in rounds] == [None, [0, 1], [0, 1, 2]]
    assert rounds[1]["refused"] == {"client 2": "it is not connected"}
    (waiting,) = [event for event in events(journal) if event["event"] == "waiting"]
    assert sentence(waiting) == "waiting: for client 2 (2 of 3 are here)"


def test_an_impostor_and_a_stranger_take_no_part(tmp_path: Path) -> None:
    wanted = toy_config(tmp_path, *ONE_ROUND)

    def about(**changes: object) -> Spoil:
        def spoil(message: Message, reply: Message) -> Message:
            record = reply.content["about"]
            assert isinstance(record, ConfigRecord)
            for name, value in changes.items():
                record[name] = value  # type: ignore[assignment]
            return reply

        return spoil

    for changes, reason in (
        ({"client": 0}, "client 0 already"),
        ({"classes": ["apple", "boat", "cat", "dog"]}, "classes (dog, drum)"),
        ({"backbone": "other"}, "weights"),
        ({"client": 9}, "client 9 of 3"),
    ):
        answers = [*HONEST, Tampered(about(**changes), kind="query.hello")]
        run = federated(wanted, tmp_path / reason.replace(" ", "-"), answers)
        entry = run.manifest["rounds"][-1]
        assert entry["accepted"] == [0, 1] and list(entry["refused"]) == ["client 2"]
        known = entry["refused"]["client 2"]  # where its own name is known, so is the reason
        assert known == "it is not connected" or reason in known
        told = run.manifest["federation_refused"]
        assert reason in " ".join(told.values()), told


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("row/accuracy_own", float("nan"), "accuracy_own is not a number"),
        ("row/accuracy_own", 7.0, "accuracy_own is 7, and must lie between 0 and 1"),
        ("row/num_test", 10_000, "10000 test images, 1429 times the median"),
        ("row/ood", 1.0, "ood"),
        ("row/ood/far/auroc/x", 1.0, "auroc"),
        ("row/corrupted/fog@1/accuracy", 0.5, "corrupted/fog@1 has other values"),
    ],
)
def test_evaluations_are_looked_at_too(
    tmp_path: Path, name: str, value: float, reason: str
) -> None:
    wanted = toy_config(tmp_path, "method.name=promptfl", "federation.rounds=1")
    spoil = number(name, value)
    run = federated(wanted, tmp_path / "run", [*HONEST, Tampered(spoil, kind="evaluate")])
    line = run.metrics()[-1]
    assert [row["client"] for row in line["clients"]] == [0, 1]
    assert reason in run.manifest["rounds"][-1]["not_evaluated"]["client 2"]
    known = [(row["accuracy_own"], row["num_test"]) for row in line["clients"]]
    mean = sum(value * count for value, count in known) / sum(count for _, count in known)
    assert line["accuracy_own"] == pytest.approx(mean)


def test_a_site_does_not_grow_fifty_times_in_the_run(tmp_path: Path) -> None:
    """Where no number of shots bounds the counts, what the site told of when it joined does."""
    wanted = toy_config(tmp_path, *ONE_ROUND, "partition.shots=0")
    liar = Tampered(counts(lambda c: c * 3, lambda n: n * 3))
    run = federated(wanted, tmp_path / "run", [*HONEST, liar])
    refused = run.manifest["rounds"][1]["refused"]["client 2"]
    assert re.search(r"counts \d+ images, and it told of \d+ when it joined", refused)

    def about(message: Message, reply: Message) -> Message:
        reply.content["about"]["images"] = 10**6  # type: ignore[index]
        return reply

    liar = Tampered(about, "query.hello", Tampered(counts(lambda c: c * 50, lambda n: n * 50)))
    run = federated(wanted, tmp_path / "declared", [*HONEST, liar])
    assert "50 times the median" in run.manifest["rounds"][1]["refused"]["client 2"]


class Undecodable(in_process.InProcessGrid):
    """Flower cannot decode client 2's replies, and hands out none of that request's."""

    def pull_messages(self, message_ids):  # type: ignore[no-untyped-def]
        replies = list(super().pull_messages(message_ids))
        for reply in replies:
            trains = reply.metadata.message_type == "train"
            if trains and reply.metadata.src_node_id == in_process.FIRST_NODE + 2:
                raise ValueError("Unexpected format for object head.")
        return replies


def test_a_reply_that_flower_cannot_decode_is_its_senders_alone(
    tmp_path: Path, without: tuple[Path, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected = without
    wanted = toy_config(folder, *ONE_ROUND)
    monkeypatch.setattr(in_process, "InProcessGrid", Undecodable)
    run = federated(wanted, tmp_path / "run")
    assert state(run) == expected
    reason = run.manifest["rounds"][1]["refused"]["client 2"]
    assert reason == "its reply cannot be read (ValueError)"


class Down(in_process.InProcessGrid):
    """The SuperLink itself is gone."""

    def pull_messages(self, message_ids):  # type: ignore[no-untyped-def]
        raise ConnectionRefusedError


def test_a_lost_connection_is_nobodys_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process, "InProcessGrid", Down)
    with pytest.raises(ConnectionRefusedError):
        federated(toy_config(tmp_path, "method.name=promptfl"), tmp_path / "run")
