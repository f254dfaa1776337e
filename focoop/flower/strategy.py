"""Rounds on Flower: who is asked, which answers count, and the same server step as everywhere."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from focoop.config import config_hash
from focoop.errors import FederationError
from focoop.experiment import client_privacy, server_screen
from focoop.federation.round import aggregate, num_bytes, sample_clients
from focoop.flower.checks import read_row, read_update, suspects
from focoop.flower.records import CONFIG, GLOBAL, Order, to_arrays
from focoop.flower.roster import Facts, Roster
from focoop.flower.settings import ServerSettings
from focoop.flower.summary import summarise
from focoop.methods._base import ClientUpdate, Method, Server, Task
from focoop.runs import RunFolder


class PromptStrategy(Strategy):
    """A method's rounds from the one after `done`; every round is committed to the run folder."""

    def __init__(
        self,
        method: Method,
        task: Task,
        server: Server,
        done: int,
        folder: RunFolder,
        roster: Roster,
        facts: Facts,
        settings: ServerSettings,
        key: str,
    ) -> None:
        self.method, self.task, self.server, self.done = method, task, server, done
        self.folder, self.roster, self.facts = folder, roster, facts
        self.settings, self.config, self.key = settings, folder.config, key
        self.privacy, self.screen = client_privacy(self.config), server_screen(self.config)
        self.noised = self.privacy is not None and self.privacy.noise > 0
        self.rounds = self.config.federation.rounds if method.trains else 0
        self.hash = config_hash(self.config)
        self.sent: list[tuple[int, Message]] = []
        self.sampled: list[int] = []
        self.notes: dict[str, Any] = {}
        self.loss: float | None = None
        self.began = 0.0

    def summary(self) -> None:
        """Say what is about to run."""
        log(INFO, "\t%s, rounds %d to %d", self.config.method.name, self.done + 1, self.rounds)

    def run(self, grid: Grid) -> None:
        """Evaluate and commit the start where nothing is committed yet, then all rounds left."""
        arrays = to_arrays(self.server.shared)
        if self.folder.last_round() < 0:
            asked = list(self.configure_evaluate(0, arrays, ConfigRecord(), grid))
            replies = grid.send_and_receive(asked, timeout=self.settings.deadline) if asked else []
            self.aggregate_evaluate(0, replies)
        left = self.rounds - self.done
        if left > 0:
            self.start(grid, arrays, num_rounds=left, timeout=self.settings.deadline)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Orders for the sampled clients that are connected; waits for a quorum of them."""
        self.began = time.perf_counter()
        self.notes = {}
        round_index = self.done + server_round
        share = self.config.federation.participation
        self.sampled = sample_clients(self.facts.clients, share, self.config.seed, round_index)
        self.roster.gather(grid, lambda: len(self._connected()) == len(self.sampled))
        return self._orders(self._connected(), round_index, arrays, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The method's server step over the updates that pass every check."""
        round_index = self.done + server_round
        refused: dict[str, str] = {}
        updates: list[ClientUpdate] = []
        sent, classes = self.server.shared, len(self.task.classes)
        for client, reply in self._sorted(replies, round_index, refused):
            try:
                content = reply.content
                update = read_update(
                    content, client, round_index, sent, classes, noised=self.noised
                )
                updates.append(update)
            except FederationError as error:
                refused[self.roster.name(client)] = str(error)
        limits = self.settings.norm_bound, self.settings.count_bound
        odd = suspects(updates, sent, *limits)
        refused |= {self.roster.name(client): reason for client, reason in odd.items()}
        updates = [update for update in updates if update.client not in odd]
        self._note(round_index, updates, refused)
        before = self.server
        self.server = aggregate(self.method, before, updates, self.task, self.screen)
        self.server = replace(
            self.server, report={**self.server.report, **self._spent(round_index)}
        )
        examples = sum(u.num_examples for u in updates)
        losses = [u.loss * u.num_examples for u in updates if u.num_examples]
        self.loss = math.fsum(losses) / examples if examples else math.nan
        up = sum(num_bytes(u.shared) + num_bytes({"c": u.class_counts}) for u in updates)
        down = num_bytes(before.shared) * len(self.sent)
        self.notes |= {"bytes_up": up, "bytes_down": down}
        if self.privacy is not None or self.screen is not None:
            self.notes["server"] = dict(self.server.report)
        return to_arrays(self.server.shared), MetricRecord(
            {"loss": self.loss, "accepted": len(updates), "refused": len(refused)}
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Orders for every connected client, in rounds whose evaluation is due."""
        round_index = self.done + server_round
        every = self.config.federation.evaluate_every
        due = round_index == self.rounds or (every > 0 and round_index % every == 0)
        self.sent = []
        if not due:
            return []
        self.roster.look(grid)
        return self._orders(self.roster.present(), round_index, arrays, MessageType.EVALUATE)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the rows that came, then commit the round: it is never repeated."""
        round_index = self.done + server_round
        refused: dict[str, str] = {}
        rows: list[dict[str, Any]] = []
        for client, reply in self._sorted(replies, round_index, refused):
            try:
                row = read_row(reply.content, client, round_index)
            except FederationError as error:
                refused[self.roster.name(client)] = str(error)
                continue
            rows += [] if row is None else [{**row, "client": client}]
        for name, reason in refused.items():
            log(WARNING, "round %d: %s was not evaluated: %s", round_index, name, reason)
        line: dict[str, Any] | None = None
        if rows:
            line = {**summarise(rows), "clients": rows}
            if round_index:
                line |= {"loss": self.loss, "server": dict(self.server.report)}
        if refused:
            self.notes["not_evaluated"] = refused
        if round_index:
            self.notes["seconds"] = round(time.perf_counter() - self.began, 3)
        self.folder.commit(round_index, self.server.shared, line, self.notes, self.server.memory)
        if line is None:
            return None
        return MetricRecord({"accuracy_own": line["accuracy_own"], "clients": len(rows)})

    def _spent(self, round_index: int) -> dict[str, float]:
        """Epsilon so far, of the client that was asked most often."""
        if self.privacy is None:
            return {}
        share, turns = self.config.federation.participation, Counter[int]()
        for index in range(1, round_index + 1):
            turns.update(sample_clients(self.facts.clients, share, self.config.seed, index))
        return self.privacy.spent(max(turns.values()), round_index, share)

    def _connected(self) -> list[int]:
        return [client for client in self.roster.present() if client in self.sampled]

    def _orders(
        self, clients: Sequence[int], round_index: int, arrays: ArrayRecord, kind: str
    ) -> list[Message]:
        """One message per client; its time to live is the round's deadline."""
        order = Order(round_index, self.key, self.hash).record()
        self.sent = [
            (
                client,
                Message(
                    RecordDict({GLOBAL: arrays, CONFIG: order}),
                    self.roster.members[client].node,
                    kind,
                    ttl=self.settings.deadline,
                    group_id=str(round_index),
                ),
            )
            for client in clients
        ]
        return [message for _, message in self.sent]

    def _sorted(
        self, replies: Iterable[Message], round_index: int, refused: dict[str, str]
    ) -> list[tuple[int, Message]]:
        """Usable replies by client: one per order of this round, the first that came.

        Some error replies come from the SuperLink itself: the order they answer tells the client.
        """
        asked = {message.metadata.message_id: client for client, message in self.sent}
        found: dict[int, Message] = {}
        for reply in replies:
            client = asked.get(reply.metadata.reply_to_message_id)
            if client is None or client in found:
                log(WARNING, "round %d: a late or repeated reply is ignored", round_index)
            elif reply.has_error():
                found[client] = reply
                refused[self.roster.name(client)] = reply.error.reason or str(reply.error.code)
            elif reply.metadata.src_node_id != self.roster.members[client].node:
                log(WARNING, "round %d: a reply of another node is ignored", round_index)
            else:
                found[client] = reply
        for client, _ in self.sent:
            if client not in found:
                refused[self.roster.name(client)] = "it did not answer in time"
        return sorted((k, reply) for k, reply in found.items() if reply.has_content())

    def _note(
        self, round_index: int, updates: Sequence[ClientUpdate], refused: dict[str, str]
    ) -> None:
        """Log who was left out; too few updates end the run, which can be resumed."""
        absent = [k for k in self.sampled if k not in {client for client, _ in self.sent}]
        refused |= {self.roster.name(client): "it is not connected" for client in absent}
        for name, reason in refused.items():
            log(WARNING, "round %d: %s is left out: %s", round_index, name, reason)
        self.notes |= {
            "participants": list(self.sampled),
            "accepted": [update.client for update in updates],
            "refused": refused,
        }
        needed = max(1, math.ceil(self.settings.quorum * len(self.sampled)))
        if len(updates) < needed:
            known = {**refused, **self.roster.refused}
            told = "; ".join(f"{name}: {reason}" for name, reason in known.items())
            raise FederationError(
                f"round {round_index} has {len(updates)} updates of {needed} needed ({told}): "
                "mend these clients and resume, or lower quorum"
            )
