"""Rounds on Flower of which the server sees sums alone: four messages, whoever drops out.

`sum_keys`, `sum_shares`, training under masks, `sum_open`; a client that does not answer one of
them takes no part in the next. The sum opens while more than `privacy.threshold` of the clients
that sent keys are left, and has the bits of the simulator's (`secure_sum.py`).
"""

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from focoop.errors import ConfigError, FederationError, MethodError
from focoop.federation import (
    PACKAGE_BYTES,
    SHARE_BYTES,
    Payload,
    Words,
    num_bytes,
    num_words,
    sum_bytes,
    threshold_of,
    unpack,
)
from focoop.flower.identity import signs
from focoop.flower.mask_keys import Keys
from focoop.flower.masking import Revealed
from focoop.flower.masking import unmask as unmasked
from focoop.flower.records import CONFIG, METRICS, UPDATE, Order, reading, to_tensor
from focoop.flower.server.strategy import PromptStrategy
from focoop.flower.sum_records import (
    KEYS,
    MASKED,
    OPEN,
    SHARES,
    SUM,
    numbered,
    record_of,
    sum_context,
    sum_name,
    to_keys,
    to_record,
)
from focoop.methods import ClientUpdate, Method, Server, Task

Read = TypeVar("Read")
Values = Mapping[str, Any]
LONGEST_SIGNATURE = 200  # bytes; one of P-521 has 139


class SecureStrategy(PromptStrategy):
    """A method's rounds over sums of updates."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if self.settings.spare:
            raise ConfigError("a secure sum holds all who answered: set spare to 0")
        if self.config.federation.edges:
            raise ConfigError("secure sums at edge servers need the simulator: focoop run")
        self.attempt, self.asked, self.context = "", self.sent, b""
        self.about = ""
        self.everyone: dict[int, Keys] = {}
        self.lost: dict[str, str] = {}
        self.summed = 0

        def counted(
            method: Method, server: Server, updates: Iterable[ClientUpdate], task: Task
        ) -> tuple[list[ClientUpdate], dict[str, float]]:
            return list(updates), {"summed": float(self.summed)}

        self.screen = counted

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Keys and sealed shares go round; then the orders to train, with the shares."""
        outcomes = dict(self.outcomes)
        super().configure_train(server_round, arrays, config, grid)
        self.outcomes = outcomes  # these orders are not sent: those to train tell of the last round
        self.grid, self.attempt, self.asked = grid, secrets.token_hex(16), list(self.sent)
        self.everyone, self.lost = {}, {}
        round_index, here = self.done + server_round, [client for client, _ in self.sent]
        order = Order(round_index, self.key, self.hash)
        self.about = sum_name(order, self.attempt)
        self.context = sum_context(order, self.attempt, arrays)
        self.everyone = self._ask(round_index, KEYS, {k: {} for k in here}, self._read_keys)
        self._check(round_index, "sent keys", len(self.everyone))
        values = {**to_record(self.everyone), **self._identities()}
        sealed = self._ask(
            round_index, SHARES, dict.fromkeys(self.everyone, values), self._read_packages
        )
        self._check(round_index, "sent shares", len(sealed))
        messages = list(self._orders(sorted(sealed), round_index, arrays, MessageType.TRAIN))
        for client, message in self.sent:
            given = {f"package/{k}": sealed[k][client] for k in sealed if k != client}
            message.content[SUM] = self._record(given)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The method's server step over the sum of the vectors that came."""
        round_index, refused = self.done + server_round, self.lost
        shared = [client for client, _ in self.sent]
        classes = len(self.task.classes)
        masked: dict[int, Words] = {}
        for client, reply in self._sorted(replies, refused):
            try:
                words = num_words(self.method.sent(self.server.shared), classes)
                masked[client] = read_masked(reply.content, client, round_index, words)
            except FederationError as error:
                refused[self.roster.name(client)] = str(error)
        self._check(round_index, "sent a vector", len(masked))
        opened = self._open(round_index, sorted(masked))
        try:
            total, liars = unmasked(
                masked,
                shared,
                self.everyone,
                list(opened.values()),
                self._threshold(),
                self.context,
            )
            received = self.method.sent(self.server.shared)
            mean = unpack(total, received, self.method.by_class, classes)
        except (FederationError, MethodError) as error:
            lost = {**refused, **self.notes.get("shares_not_opened", {})}
            reasons = self._reasons(lost, self.asked)
            why = f"{error} ({reasons})" if reasons else str(error)
            raise FederationError(f"round {round_index}: {why}; resume to repeat it") from error
        if liars:
            self.notes["false_shares"] = [self.roster.name(client) for client in sorted(liars)]
            for name in self.notes["false_shares"]:
                reason = "it opened false shares: others' were used"
                self.journal.note("false shares", round=round_index, site=name, reason=reason)
        self.sent = self.asked  # whoever is not among these was not connected
        self._note(round_index, sorted(masked), refused, [])
        self.summed = len(masked)
        down = num_bytes(Payload(self.down).form(self.server.shared))
        steps = len(self.everyone), len(shared), len(masked), len(opened)
        up, down = sum_bytes(*steps, len(total), down)
        return self._advance(round_index, [mean], up, down, len(refused))

    def _open(self, round_index: int, alive: list[int]) -> dict[int, Revealed]:
        """Shares of those who answered; who opens none is no loss while enough do."""
        before = dict(self.lost)
        opened = self._ask(round_index, OPEN, {k: {"answered": alive} for k in alive}, read_opened)
        closed = {name: why for name, why in self.lost.items() if name not in before}
        if closed:
            self.notes["shares_not_opened"] = closed
        self.lost.clear()
        self.lost.update(before)
        return opened

    def _ask(
        self,
        round_index: int,
        step: str,
        questions: Mapping[int, Values],
        read: Callable[[ConfigRecord, int], Read],
    ) -> dict[int, Read]:
        """One message to each client and what its answer says; who fails is noted in `lost`."""
        order = Order(round_index, self.key, self.hash)
        self.sent = [
            (
                client,
                Message(
                    RecordDict({CONFIG: order.record(), SUM: self._record(values)}),
                    self.roster.members[client].node,
                    f"{MessageType.QUERY}.{step}",
                    ttl=self.settings.deadline,
                    group_id=str(round_index),
                ),
            )
            for client, values in questions.items()
        ]
        answers: dict[int, Read] = {}
        for client, reply in self._sorted(self._collect(self.grid, round_index), self.lost):
            try:
                with reading("its answer"):
                    record = record_of(reply.content)
                if (record.get("client"), record.get("round")) != (client, round_index):
                    raise FederationError("its answer is another client's, or of another round")
                with reading("its answer"):
                    answers[client] = read(record, client)
            except FederationError as error:
                self.lost[self.roster.name(client)] = str(error)
        return answers

    def _record(self, values: Values) -> ConfigRecord:
        record = ConfigRecord({"attempt": self.attempt})
        for name, value in values.items():
            record[name] = value
        return record

    def _threshold(self) -> int:
        return threshold_of(len(self.everyone), self.config.privacy.threshold)

    def _check(self, round_index: int, what: str, count: int) -> None:
        """With too few clients nothing is opened: the run ends, and can be resumed.

        A quorum is asked for before: a round opened and then repeated would tell a difference.
        """
        needed = max(self.config.privacy.parties, self._threshold(), self._needed())
        if count < needed:
            raise FederationError(
                f"round {round_index}: {count} clients {what}, and a secure sum needs {needed} "
                f"({self._reasons(self.lost, self.asked)}): mend these clients and resume"
            )

    def _identities(self) -> dict[str, bytes]:
        """The public keys by which sites check each other's signatures; none without keys."""
        sites = self.roster.sites
        if sites is None:
            return {}
        return {f"identity/{client}": sites[client].public for client in self.everyone}

    def _read_keys(self, record: ConfigRecord, client: int) -> Keys:
        """A client's keys, signed by its site where sites have keys; others would refuse them."""
        keys, sites = read_keys(record, client), self.roster.sites
        claim = keys.claim(self.about, client)
        if sites is not None and not signs(sites[client].public, keys.signature, claim):
            raise FederationError("its keys are not signed by its site")
        return keys

    def _read_packages(self, record: ConfigRecord, client: int) -> dict[int, bytes]:
        packages = dict(numbered(record, "package"))
        wrong = [k for k, raw in packages.items() if len(raw) != PACKAGE_BYTES]
        if wrong or set(packages) != set(self.everyone) - {client}:
            raise FederationError("its shares are not one for each other client")
        return packages


def read_keys(record: ConfigRecord, client: int) -> Keys:
    """Read a client's public keys.

    Args:
        record: What it sent.
        client: The client's number.

    Returns:
        The keys.

    Raises:
        FederationError: They cannot be used.
    """
    keys = to_keys(record)
    if set(keys) != {client} or len(keys[client].signature) > LONGEST_SIGNATURE:
        raise FederationError("its keys cannot be read")
    if not keys[client].usable:
        raise FederationError("it sent a key that is none")
    return keys[client]


def read_opened(record: ConfigRecord, client: int) -> Revealed:
    """Read the shares a client opens; whether they are true, the secrets will tell.

    Args:
        record: What it sent.
        client: The client's number.

    Returns:
        The shares.

    Raises:
        FederationError: They cannot be read.
    """
    parts = [dict(numbered(record, name)) for name in ("seed", "key")]
    if any(len(raw) != SHARE_BYTES for part in parts for raw in part.values()):
        raise FederationError("its shares cannot be read")
    seeds, keys = ({k: int.from_bytes(raw, "big") for k, raw in part.items()} for part in parts)
    return Revealed(client, seeds, keys)


@reading("its vector")
def read_masked(content: RecordDict, client: int, round_index: int, words: int) -> Words:
    """Read a client's vector, of which nothing but its length can be checked.

    Args:
        content: The reply's content.
        client: The client's number.
        round_index: The round's number.
        words: The right length.

    Returns:
        The vector (uint64).

    Raises:
        FederationError: It has another length.
    """
    arrays, metrics = content.get(UPDATE), content.get(METRICS)
    if not isinstance(arrays, ArrayRecord) or set(arrays) != {MASKED}:
        raise FederationError("it holds no vector under masks")
    if not isinstance(metrics, MetricRecord) or set(content) != {UPDATE, METRICS}:
        raise FederationError(f"it holds the records {sorted(content)}")
    if (metrics.get("client"), metrics.get("round")) != (client, round_index):
        raise FederationError("its answer is another client's, or of another round")
    like = torch.empty(words, dtype=torch.int64, device="meta")
    masked: Words = to_tensor(MASKED, arrays[MASKED], like).numpy().view(np.uint64)
    return masked
