"""Rounds on Flower: who is asked, which answers count, and the same server step as everywhere."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from logging import INFO
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from focoop.config import config_hash
from focoop.errors import FederationError
from focoop.federation import Payload, round_bytes, server_round
from focoop.flower.journal import printable
from focoop.flower.records import CONFIG, GLOBAL, Order, sent_down
from focoop.flower.server.error_words import EXPIRED, REASONS, why
from focoop.flower.server.facts import Facts
from focoop.flower.server.replies import PAUSES, Collection, Enough, Pauses
from focoop.flower.server.reply_checks import (
    check_counts,
    read_rows,
    read_update,
    suspects,
)
from focoop.flower.server.roster import POLICY, Roster
from focoop.flower.server.sketches import collected, no_sketches
from focoop.flower.server.spares import Draw, chosen, secret_seed, suffice
from focoop.flower.server.summary import committed_facts, find_untold, summarise
from focoop.flower.settings import ServerSettings
from focoop.flower.sketch_records import KEEP, SKETCH, pool_content
from focoop.methods import ClientUpdate, Method, Server, Task
from focoop.predict import SKETCHES
from focoop.runs import RunFolder, is_due, write
from focoop.scenario import client_privacy, server_screen
from focoop.tracking import Hooks


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
        pauses: Pauses = PAUSES,
        hooks: Hooks | None = None,
    ) -> None:
        self.pauses, self.hooks = pauses, hooks or Hooks(folder)
        self.method, self.task, self.server, self.done = method, task, server, done
        self.folder, self.roster, self.facts = folder, roster, facts
        self.settings, self.config, self.key = settings, folder.config, key
        self.privacy, self.screen = client_privacy(self.config), server_screen(self.config)
        self.payload = Payload(self.config.federation.payload)
        self.down = self.config.federation.payload_down
        self.noised = self.privacy is not None and self.privacy.noise > 0
        self.rounds = self.config.federation.rounds if method.trains else 0
        self.hash = config_hash(self.config)
        share, seed = self.config.federation.participation, self.config.seed
        if self.config.privacy.secret_draw:
            seed = secret_seed(folder.path)
        self.draw = Draw(facts.clients, share, settings.spare, seed)
        self.journal = roster.journal
        self.sent: list[tuple[int, Message]] = []
        self.orders: dict[str, int] = {}  # message id -> client
        self.sampled: list[int] = []
        self.spares: list[int] = []
        self.busy: set[int] = set()
        self.notes: dict[str, Any] = {}
        self.outcomes: dict[int, tuple[int, str]] = {}  # client -> what became of its last update
        self.loss: float | None = None
        self.began = 0.0

    def summary(self) -> None:
        """Say what is about to run."""
        log(INFO, "\t%s, rounds %d to %d", self.config.method.name, self.done + 1, self.rounds)

    def run(self, grid: Grid) -> None:
        """Evaluate and commit the start where nothing is committed yet, then run all rounds left.

        Args:
            grid: Flower's way to the nodes.
        """
        arrays = sent_down(self.server.shared, self.down)
        if self.folder.last_round() < 0:
            self._evaluate(0, arrays, grid)
        for number in range(1, self.rounds - self.done + 1):
            self.configure_train(number, arrays, ConfigRecord(), grid)
            index = self.done + number
            enough = suffice(len(self.sampled), partial(self._read, index)) if self.spares else None
            replies = self._collect(grid, index, enough)
            arrays = self.aggregate_train(number, replies)[0] or arrays
            self._evaluate(number, arrays, grid)
        self._calibrate(arrays, grid)

    def _calibrate(self, arrays: ArrayRecord, grid: Grid) -> None:
        """Pool the sites' sketches into the run folder, and send every site the pool."""
        classes, index = self.task.classes, self.folder.last_round()
        told = no_sketches(index, self.config)
        if told is None:
            self.roster.look(grid)
            replies = self._ask_all(SKETCH, index, arrays, grid, {})
            told = collected(*replies, self.roster.name, index, classes, self.settings.count_bound)
        for name, reason in told.left_out.items():
            self.journal.note("no sketch", round=index, site=name, reason=reason)
        write(self.folder.path / SKETCHES, told.to_json().encode())
        held = {
            client: (
                self.roster.name(client),
                [k for k, name in enumerate(classes) if counts[name]],
            )
            for client, counts in told.held.items()
        }
        _, failed = self._ask_all(KEEP, index, arrays, grid, pool_content(told.pool, held))
        for name, reason in failed.items():
            self.journal.note("no model", round=index, site=name, reason=reason)

    def _ask_all(
        self, kind: str, index: int, arrays: ArrayRecord, grid: Grid, also: Mapping[str, Any]
    ) -> tuple[list[tuple[int, Message]], dict[str, str]]:
        """Usable replies of all sites that are here, and why others have none."""
        self._orders(self.roster.present(), index, arrays, kind)
        for _, message in self.sent:
            message.content.update(also)
        refused: dict[str, str] = {}
        return self._sorted(self._collect(grid, index), refused), refused

    def _evaluate(self, server_round: int, arrays: ArrayRecord, grid: Grid) -> None:
        self.configure_evaluate(server_round, arrays, ConfigRecord(), grid)
        self.aggregate_evaluate(server_round, self._collect(grid, self.done + server_round))

    def _collect(
        self, grid: Grid, round_index: int, enough: Enough | None = None
    ) -> Iterable[Message]:
        """Replies to the orders just made; who is not waited for any longer is `busy`."""
        if not self.sent:
            return []
        sites = [self.roster.name(client) for client, _ in self.sent]
        kind = self.sent[0][1].metadata.message_type
        self.journal.note("asked", round=round_index, step=kind, sites=sites)
        step = Collection(grid, self.roster, self.settings, self.journal, round_index, self.pauses)
        step.gather(self.sent, enough)
        self.orders = step.ids
        self.busy = {order.client for order in step.open} if step.closed else set()
        if step.again:
            again = {self.roster.name(client): why for client, why in step.again.items()}
            self.notes["asked_again"] = {**self.notes.get("asked_again", {}), **again}
        return list(step.replies.values())

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Make orders for the sampled clients and the spares that are connected.

        Args:
            server_round: The round's number.
            arrays: The shared tensors.
            config: Flower's own settings.
            grid: Flower's way to the nodes.

        Returns:
            The orders.
        """
        self.began = time.perf_counter()
        self.notes = {}
        round_index = self.done + server_round
        self.sampled, self.spares = self.draw.clients(round_index)
        here = self.roster.muster(grid, [*self.sampled, *self.spares], self._needed())
        return self._orders(here, round_index, arrays, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the method's server step over the updates that pass every check.

        Args:
            server_round: The round's number.
            replies: The replies.

        Returns:
            The shared tensors and Flower's metrics.
        """
        round_index = self.done + server_round
        refused: dict[str, str] = {}
        updates: list[ClientUpdate] = []
        sent = self.method.sent(self.server.shared)
        for client, reply in self._sorted(replies, refused):
            try:
                updates.append(self._read(round_index, client, reply))
            except FederationError as error:
                refused[self.roster.name(client)] = str(error)
        odd = suspects(updates, sent, self.settings.norm_bound, self.settings.count_bound)
        refused |= {self.roster.name(client): reason for client, reason in odd.items()}
        updates, surplus = chosen(
            [update for update in updates if update.client not in odd], self.sampled, self.spares
        )
        unused = [*surplus, *sorted(self.busy)]
        self._note(round_index, [update.client for update in updates], refused, unused)
        if self.method.closed_form and self.privacy is None:  # else nobody can tell
            for event, facts in find_untold(updates, sent, self.method.by_class, self.roster.name):
                self.journal.note(event, round=round_index, **facts)
        asked, answered, classes = len(self.sent), len(updates), len(self.task.classes)
        received = self.server.shared
        up, down = round_bytes(
            sent, received, classes, self.payload, self.down, asked=asked, answered=answered
        )
        return self._advance(round_index, updates, up, down, len(refused))

    def _advance(
        self, round_index: int, updates: Sequence[ClientUpdate], up: int, down: int, refused: int
    ) -> tuple[ArrayRecord, MetricRecord]:
        """The method's server step, and what the round's entry says of it."""
        self.server, self.loss = server_round(
            self.method,
            self.task,
            self.server,
            updates,
            screen=self.screen,
            down=self.down,
            spent=self._spent(round_index),
        )
        self.notes |= {"bytes_up": up, "bytes_down": down}
        if self.server.report:
            self.notes["server"] = dict(self.server.report)
        return sent_down(self.server.shared, self.down), MetricRecord(
            {"loss": self.loss, "accepted": len(self.notes["accepted"]), "refused": refused}
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Make orders for every connected client, in rounds whose evaluation is due.

        Args:
            server_round: The round's number.
            arrays: The shared tensors.
            config: Flower's own settings.
            grid: Flower's way to the nodes.

        Returns:
            The orders.
        """
        round_index = self.done + server_round
        self.sent = []
        if not is_due(round_index, self.rounds, self.config.federation.evaluate_every):
            return []
        self.roster.look(grid)
        # A straggler still trains: the round ended without it, and so does its evaluation.
        busy = self.busy if round_index < self.rounds else set()
        here = [client for client in self.roster.present() if client not in busy]
        return self._orders(here, round_index, arrays, MessageType.EVALUATE)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the rows that came, then commit the round: it is never repeated.

        Args:
            server_round: The round's number.
            replies: The replies.

        Returns:
            Flower's metrics.
        """
        round_index = self.done + server_round
        refused: dict[str, str] = {}
        usable, classes = self._sorted(replies, refused), len(self.task.classes)
        rows, wrong = read_rows(usable, round_index, classes, self.settings.count_bound)
        refused |= {self.roster.name(client): reason for client, reason in wrong.items()}
        refused = {name: printable(reason) for name, reason in refused.items()}
        for name, reason in refused.items():
            text = f"not evaluated: {reason}"
            self.journal.note("left out", round=round_index, site=name, reason=text)
        line: dict[str, Any] | None = None
        if rows:
            line = {**summarise(rows), "clients": rows}
            if round_index:
                line |= {"loss": self.loss, "server": dict(self.server.report)}
        if refused:
            self.notes["not_evaluated"] = refused
        if round_index:
            self.notes["seconds"] = round(time.perf_counter() - self.began, 3)
            self.notes["loss"] = self.loss
        self.folder.commit(round_index, self.server.shared, line, self.notes, self.server.memory)
        self.folder.log.info("round %d of %d, loss %s", round_index, self.rounds, self.loss)
        epsilon, notes = self.server.report.get("epsilon"), self.notes if round_index else {}
        facts = committed_facts(line, notes, epsilon, self.roster.name)
        self.journal.note("committed", round=round_index, **facts)
        self.hooks.committed(round_index, self.notes, line)
        if line is None:
            return None
        return MetricRecord({"accuracy_own": line["accuracy_own"], "clients": len(rows)})

    def _spent(self, round_index: int) -> dict[str, float]:
        """Epsilon so far, of the client that was asked most often."""
        if self.privacy is None:
            return {}
        return self.privacy.spent(*self.draw.turns(round_index))

    def _needed(self) -> int:
        return max(1, math.ceil(self.settings.quorum * len(self.sampled)))

    def _read(self, round_index: int, client: int, reply: Message) -> ClientUpdate:
        """A client's update, or why it is refused."""
        update = read_update(
            reply.content,
            client,
            round_index,
            self.method.sent(self.server.shared),
            len(self.task.classes),
            noised=self.noised,
            payload=self.payload,
        )
        check_counts(update, self.config, self.roster.members[client].images)
        return update

    def _orders(
        self, clients: Sequence[int], round_index: int, arrays: ArrayRecord, kind: str
    ) -> list[Message]:
        """One message per client; its time to live is the round's deadline."""
        order = Order(round_index, self.key, self.hash)
        self.sent = [
            (
                client,
                Message(
                    RecordDict(
                        {GLOBAL: arrays, CONFIG: order.record(self.outcomes.pop(client, None))}
                    ),
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
        self, replies: Iterable[Message], refused: dict[str, str]
    ) -> list[tuple[int, Message]]:
        """Usable replies by client; `Collection` has left one of each order.

        Some error replies come from the SuperLink itself: the order they answer tells the client.
        """
        by_client = {self.orders[reply.metadata.reply_to_message_id]: reply for reply in replies}
        for client, _ in self.sent:
            name = self.roster.name(client)
            if client in by_client and by_client[client].has_error():
                refused[name] = why(by_client[client].error)
            elif client not in by_client and client not in self.busy:
                refused[name] = REASONS[EXPIRED]
        return sorted((k, reply) for k, reply in by_client.items() if reply.has_content())

    def _note(
        self,
        round_index: int,
        accepted: Sequence[int],
        refused: dict[str, str],
        unused: Sequence[int],
    ) -> None:
        """Log who was left out; too few updates end the run, which can be resumed."""
        refused |= self.roster.why_absent(self.sampled, self.sent)
        for name, reason in refused.items():
            refused[name] = printable(reason)
            event = "refused" if reason.startswith(POLICY) else "left out"
            self.journal.note(event, round=round_index, site=name, reason=reason)
        for client in self.sampled:
            outcome = "" if client in accepted else refused.get(self.roster.name(client))
            if outcome is not None:
                self.outcomes[client] = round_index, outcome
        for client in unused:
            self.journal.note("not needed", round=round_index, site=self.roster.name(client))
        self.notes |= {"participants": list(self.sampled), "accepted": list(accepted)}
        self.notes["refused"] = refused
        if self.spares:
            names = [self.roster.name(client) for client in unused]
            self.notes |= {"spares": list(self.spares), "not_needed": names}
        needed = self._needed()
        if len(accepted) < needed:
            reasons = self._reasons(refused, self.sent)
            raise FederationError(
                f"round {round_index} has {len(accepted)} updates of {needed} needed ({reasons}): "
                "mend these clients and resume, or lower quorum"
            )

    def _reasons(self, lost: Mapping[str, str], asked: Sequence[tuple[int, Message]]) -> str:
        """Why there are too few updates: each client that is missing, by name."""
        known = {**lost, **self.roster.why_absent(self.sampled, asked), **self.roster.refused}
        return "; ".join(f"{name}: {printable(reason)}" for name, reason in known.items())
