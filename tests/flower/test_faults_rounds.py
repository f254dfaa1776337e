"""Orders that get lost are sent again, deadlines hold, and spares stand in for stragglers."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import torch
from flwr.app import Error, Message
from flwr.proto.node_pb2 import NodeInfo

from focoop.config.schema import RunConfig
from focoop.config.writing import to_flat
from focoop.federation.participation import sample_clients
from focoop.flower import in_process
from focoop.flower.journal import Journal, events, sentence
from focoop.flower.server import server_app
from focoop.flower.server.replies import Pauses
from focoop.flower.server.spares import Draw, chosen, spare_clients
from focoop.flower.settings import run_config, server_settings
from focoop.flower.site import client_app
from focoop.methods.base import ClientUpdate
from focoop.runs import RunFolder
from tests.flower.federations import CLIENTS, federated, state, toy_config

LOST = 2  # the client that has trouble
NODE = in_process.FIRST_NODE + LOST


QUICK = Pauses(first=0.01, longest=0.02, look_every=0.0, least_time=0.0)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunConfig, bytes]:
    """One round of three clients, and its bits when nothing happens."""
    folder = tmp_path_factory.mktemp("plain")
    wanted = toy_config(folder, "method.name=focoop", "federation.evaluate_every=0")
    return wanted, state(federated(wanted, folder / "run"))


@dataclass
class Trouble:
    """What becomes of the orders to train that client `LOST` is sent, in turn; then all is well.

    An int is Flower's error code in place of the reply; "never" swallows the reply.
    """

    script: list[int | str]
    sent: list[Message] = field(default_factory=list)


class Grid(in_process.InProcessGrid):
    """The in-process grid with trouble for one client."""

    trouble = Trouble([])
    back_after: float | None = None  # seconds the client is away after an error 5
    activated: datetime | None = None

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = list(super().push_messages(messages))
        for message in messages:
            key, kind = message.metadata.message_id, message.metadata.message_type
            if message.metadata.dst_node_id != NODE or kind != "train":
                continue
            self.trouble.sent.append(message)
            if len(self.trouble.sent) <= len(self.trouble.script):
                what = self.trouble.script[len(self.trouble.sent) - 1]
                if isinstance(what, int):
                    self.replies[key] = Message(Error(what), reply_to=message)
                    if what == 5:
                        self.offline, self.gone = {LOST}, time.monotonic()
                else:
                    del self.replies[key]
        return ids

    def get_nodes(self) -> Iterable[NodeInfo]:
        patience = self.back_after
        if self.offline and patience is not None and time.monotonic() > self.gone + patience:
            self.offline = set()
        stamp = self.activated.isoformat() if self.activated else ""
        return [
            NodeInfo(node_id=node, last_activated_at=stamp if node == NODE else "")
            for node in self.get_node_ids()
        ]


def run(
    wanted: RunConfig,
    path: Path,
    script: list[int | str],
    *,
    back_after: float | None = None,
    activated: datetime | None = None,
    **settings: Any,
) -> tuple[RunFolder, Trouble, list[dict[str, Any]]]:
    """A federation with trouble: its folder, the orders sent, its journal."""
    journal = path.with_name(f"{path.name}.jsonl")
    flat = {**to_flat(wanted), "wait": 60.0, "rejoin": 0.2, **settings}
    flat |= {"out": str(path), "journal": str(journal)}
    grid = Grid([client_app.app] * CLIENTS, flat)
    grid.trouble, grid.back_after, grid.activated = Trouble(script), back_after, activated
    for context in grid.contexts:
        context.node_config["state"] = str(path.with_name(f"{path.name}-clients"))
    server_app.run_federation(grid, run_config(flat), server_settings(flat), QUICK)
    return RunFolder.open(path), grid.trouble, list(events(journal))


@pytest.mark.parametrize(("code", "reason"), [(8, "its process died"), (4, "lost on the way")])
def test_a_lost_order_is_sent_again_and_changes_no_bit(
    tmp_path: Path, setting: tuple[RunConfig, bytes], code: int, reason: str
) -> None:
    wanted, expected = setting
    found, trouble, journal = run(wanted, tmp_path / "run", [code], deadline=50.0)
    assert state(found) == expected
    entry = found.manifest["rounds"][1]
    assert entry["accepted"] == [0, 1, 2] and entry["refused"] == {}
    assert reason in entry["asked_again"]["client 2"]
    assert "asked_again" not in found.manifest["rounds"][2]
    first, second = (message.metadata for message in trouble.sent[:2])
    assert first.ttl == 50.0 and 0 < second.ttl < 50.0
    # No order outlives its round, but for the time it takes to be sent.
    assert second.created_at + second.ttl < first.created_at + 50.0 + 5.0
    assert [one for one in journal if one["event"] == "asked again"]


@pytest.mark.slow
def test_once_and_only_for_a_passing_reason(
    tmp_path: Path, setting: tuple[RunConfig, bytes]
) -> None:
    wanted, _ = setting
    for script, settings, orders in (
        ([8, 8], {}, 2),  # again, and again in vain
        ([8], {"retries": 0}, 1),
        ([2], {}, 1),  # it raised: it would again
        ([7], {}, 1),
    ):
        name = f"run-{script[0]}-{orders}"
        found, trouble, _ = run(wanted, tmp_path / name, script, **settings)  # type: ignore[arg-type]
        assert [e.get("accepted") for e in found.manifest["rounds"]] == [None, [0, 1], [0, 1, 2]]
        assert len(trouble.sent) == orders + 1  # and one in round 2
        assert list(found.manifest["rounds"][1]["refused"]) == ["client 2"]


def test_a_node_that_has_gone_is_waited_for_and_then_not_again(
    tmp_path: Path, setting: tuple[RunConfig, bytes]
) -> None:
    wanted, expected = setting
    found, _, journal = run(wanted, tmp_path / "back", [5], back_after=0.1, rejoin=30.0)
    assert state(found) == expected
    assert found.manifest["rounds"][1]["asked_again"] == {"client 2": "its node is gone"}
    began = time.monotonic()
    found, _, journal = run(wanted, tmp_path / "gone", [5], rejoin=0.3)
    assert 0.3 <= time.monotonic() - began < 20
    refused = [entry.get("refused") for entry in found.manifest["rounds"][1:]]
    assert refused == [{"client 2": "its node is gone"}, {"client 2": "it is not connected"}]
    told = [sentence(one) for one in journal]
    assert told.count("client 2 away") == 1
    assert "round 2: client 2 left out: it is not connected" in told


def test_a_node_restarted_with_an_order_in_hand_is_asked_again(
    tmp_path: Path, setting: tuple[RunConfig, bytes]
) -> None:
    """No error comes then: Flower takes the order for delivered."""
    wanted, expected = setting
    soon = datetime.now(UTC) + timedelta(days=1)
    found, trouble, _ = run(wanted, tmp_path / "run", ["never"], activated=soon)
    assert state(found) == expected
    assert found.manifest["rounds"][1]["asked_again"] == {"client 2": "its node was restarted"}


def test_the_deadline_ends_a_round(tmp_path: Path, setting: tuple[RunConfig, bytes]) -> None:
    wanted, _ = setting
    early = datetime.now(UTC) - timedelta(days=1)
    began = time.monotonic()
    found, trouble, _ = run(wanted, tmp_path / "run", ["never"], deadline=2.0, activated=early)
    assert 2.0 <= time.monotonic() - began < 30
    assert found.manifest["rounds"][1]["refused"] == {"client 2": "it did not answer in time"}
    assert found.manifest["rounds"][2]["accepted"] == [0, 1, 2]


def sampled_without_spare(wanted: RunConfig) -> tuple[int, list[int], list[int]]:
    """A seed whose first round samples the client in trouble, with its clients and spares."""
    for seed in range(50):
        sampled = sample_clients(CLIENTS, 0.67, seed, 1)
        if LOST in sampled:
            return seed, sampled, spare_clients(CLIENTS, sampled, 0.5, seed, 1)
    raise AssertionError


def test_spares_stand_in_for_stragglers(tmp_path: Path) -> None:
    wanted = toy_config(tmp_path, "method.name=promptfl", "federation.evaluate_every=0")
    seed, sampled, spares = sampled_without_spare(wanted)
    common = ("method.name=promptfl", "federation.evaluate_every=0", "federation.rounds=1")
    wanted = toy_config(tmp_path, *common, "federation.participation=0.67", f"seed={seed}")
    plain = state(federated(wanted, tmp_path / "plain"))
    # All are quick: the spare's update is one too many, and the bits are those without spares.
    found, _, _ = run(wanted, tmp_path / "quick", [], spare=0.5)
    assert state(found) == plain
    entry = found.manifest["rounds"][1]
    assert entry["participants"] == sampled and entry["spares"] == spares
    assert entry["accepted"] == sampled and entry["refused"] == {}
    assert entry["not_needed"] == [f"client {spares[0]}"]
    # A sampled client is slow: the round ends without it, long before its deadline.
    began = time.monotonic()
    found, _, _ = run(wanted, tmp_path / "slow", ["never"], spare=0.5, deadline=3600.0)
    assert time.monotonic() - began < 60
    entry = found.manifest["rounds"][1]
    assert entry["accepted"] == sorted({*sampled, *spares} - {LOST}) and entry["refused"] == {}
    assert entry["not_needed"] == [f"client {LOST}"]
    assert state(found) != plain
    # What cannot be used does not make a round complete.
    with_garbage = toy_config(tmp_path, *common, "federation.participation=0.67", f"seed={seed}")
    found, _, _ = run(with_garbage, tmp_path / "garbage", [2], spare=0.5)
    entry = found.manifest["rounds"][1]
    assert entry["accepted"] == sorted({*sampled, *spares} - {LOST})
    assert list(entry["refused"]) == [f"client {LOST}"]


def update(client: int) -> ClientUpdate:
    return ClientUpdate(client, {}, 1, torch.ones(1, dtype=torch.int64), 0.0)


@given(
    st.permutations(range(8)),
    st.integers(1, 8),
    st.integers(0, 8),
    st.lists(st.integers(0, 7), unique=True),
)
def test_which_updates_count_depends_on_who_answered_alone(
    drawn: list[int], many: int, more: int, answered: list[int]
) -> None:
    sampled, spares = sorted(drawn[:many]), drawn[many : many + more]
    known = [client for client in answered if client in (*sampled, *spares)]
    taken, surplus = chosen([update(k) for k in known], sampled, spares)
    again, _ = chosen([update(k) for k in sorted(known)], sampled, spares)
    clients = [one.client for one in taken]
    assert clients == sorted(clients) == [one.client for one in again]
    assert len(clients) == min(len(sampled), len(known))
    assert sorted([*clients, *surplus]) == sorted(known)
    # A sampled client that answered always counts; spares do in the order they were drawn.
    assert {k for k in known if k in sampled} <= set(clients)
    counted = [spares.index(k) for k in clients if k in spares]
    left = [spares.index(k) for k in surplus]
    assert all(a < b for a in counted for b in left)


@pytest.mark.parametrize("spare", [0.0, 0.4, 5.0])
def test_privacy_counts_all_who_were_asked(spare: float) -> None:
    draw, turns, most = Draw(10, 0.3, spare, seed=4), [0] * 10, 0
    for index in range(1, 8):
        sampled, spares = draw.clients(index)
        assert sampled == sample_clients(10, 0.3, 4, index) and not set(sampled) & set(spares)
        assert len(spares) == min(7, {0.0: 0, 0.4: 2, 5.0: 15}[spare])
        for client in (*sampled, *spares):
            turns[client] += 1
        most = max(most, len(sampled) + len(spares))
    assert draw.turns(7) == (max(turns), 7, most / 10)


def test_a_journal_survives_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "a" / "journal.jsonl"
    assert list(events(path)) == []
    Journal(path).note("joined", site="ghent", client=1)
    with open(path, "ab") as file:
        file.write(b'{"event": "commi')
    with Journal(path) as journal:
        journal.note("left out", round=2, site="ghent", reason="bad\x1b[2J" + "x" * 5000)
    found = list(events(path))
    assert [one["event"] for one in found] == ["joined", "left out", "ended"]
    assert len(found[1]["reason"]) < 400 and found[1]["reason"].isprintable()
    with pytest.raises(RuntimeError, match="disk"), Journal(path):
        raise RuntimeError("disk full")
    assert list(events(path))[-1]["reason"] == "disk full"
