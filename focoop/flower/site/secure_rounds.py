"""A site's part in a secure sum: its secrets of the round, in a file of its own between messages.

Four messages a round, each a new process: `sum_keys`, `sum_shares`, the training itself, whose
answer goes under masks, and `sum_open`. The file is readable by its owner alone, never leaves the
site and is removed as soon as the shares are open, or by what the server asks next.

A site with a key of its own signs the keys of the sum and checks the others' signatures
(`peers.py`). It takes part in no sum of fewer clients than it wants, and in each sum once.
"""

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from focoop.caching import checksum, is_intact, sealed
from focoop.errors import FederationError
from focoop.federation import SHARE_BYTES, pack, threshold_of
from focoop.flower.identity import read_site, sign
from focoop.flower.mask_keys import Keys
from focoop.flower.masking import Masker
from focoop.flower.records import GLOBAL, METRICS, UPDATE, Order, to_arrays
from focoop.flower.site.client import SiteClient
from focoop.flower.site.peers import accept, peers_file
from focoop.methods import ClientUpdate
from focoop.runs import append, write

SUM, MASKED = "sum", "masked"
KEYS, SHARES, OPEN = "sum_keys", "sum_shares", "sum_open"
LAST = ".last"  # of the file that names the last sum that has begun
ATTEMPT = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class SumSecrets:
    """The file of a site's secrets in the sum that `attempt` names."""

    path: Path
    round_index: int
    attempt: str

    @classmethod
    def of(cls, party: SiteClient, order: Order, content: RecordDict) -> "SumSecrets":
        """Find the sum that a message is about.

        Args:
            party: The client.
            order: The order.
            content: The message's content.

        Returns:
            The sum.

        Raises:
            FederationError: The message names none.
        """
        attempt = record_of(content).get("attempt")
        if not isinstance(attempt, str) or not ATTEMPT.fullmatch(attempt):
            raise FederationError("the message does not say which sum it is about")
        return cls(file_of(party, order), order.round_index, attempt)

    def load(self) -> Masker | None:
        """Return what was kept of this sum, or None.

        A file of another sum, or a damaged one, is none.
        """
        try:
            saved = json.loads(self.path.read_text(encoding="utf-8"))
            if not is_intact(saved):
                return None
            if (saved["round"], saved["attempt"]) != (self.round_index, self.attempt):
                return None
            return Masker.load(saved["masker"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def need(self) -> Masker:
        """Return what was kept of this sum, where it must have begun.

        Returns:
            Its secrets.

        Raises:
            FederationError: It has not.
        """
        masker = self.load()
        if masker is None:
            raise FederationError("this site has no part in that sum: it is over, or never began")
        return masker

    def begin(self) -> None:
        """Note that this sum has begun here; one that has is never begun again.

        Keys that others signed for it could otherwise come back after their secrets were opened.

        Raises:
            FederationError: The site has taken part in it, or its marks are damaged.
        """
        path = self.path.with_suffix(".begun")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        attempts, last = begun(path)
        if self.attempt in attempts:
            raise FederationError("this site has taken part in that sum: it is over")
        whole, torn, _ = _content(path).rpartition(b"\n")
        if _content(path) != whole + torn:
            write(path, whole + torn)
        known = checksum(last, self.attempt)
        append(path, f"{self.attempt} {known}\n".encode())
        write(path.with_suffix(LAST), f"{known}\n".encode())

    def save(self, masker: Masker) -> None:
        """Keep a sum on the disk before an answer leaves, for nobody else to read.

        Args:
            masker: Its secrets.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = {"round": self.round_index, "attempt": self.attempt, "masker": masker.dump()}
        draft = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(sealed(about), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self.path)


def begun(path: Path) -> tuple[list[str], str]:
    """Read the marks of sums that have begun; a mark that a crash has cut short never counted.

    Args:
        path: The file; a line is a sum and a checksum of it and of the line before. Lines of an
            earlier focoop have no checksum.

    Returns:
        The sums, and the checksum of the last line.

    Raises:
        FederationError: A line is damaged or lost; the file beside it names the last one.
    """
    noted = _content(path.with_suffix(LAST)).decode("ascii", "replace").strip()
    attempts, ends = [], [""]
    for line in _content(path).split(b"\n")[:-1]:
        attempt, _, known = line.decode("ascii", "replace").partition(" ")
        unsealed = not known and not ends[-1]
        if not ATTEMPT.fullmatch(attempt) or not (unsealed or known == checksum(ends[-1], attempt)):
            break
        attempts.append(attempt)
        ends.append(known)
    else:
        if noted in ends:
            return attempts, ends[-1]
    raise FederationError(
        f"{path} is damaged: this site cannot tell which sums it took part in; restore the file "
        "from a copy, or join the next run with a new state folder"
    )


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def file_of(party: SiteClient, order: Order) -> Path:
    """Return the file of a client's sums.

    Args:
        party: The client.
        order: The order.

    Returns:
        The file.
    """
    return party.state / order.key / "sums" / f"{party.client:04d}.json"


def forget(party: SiteClient, order: Order) -> None:
    """Remove what a sum has left that was never opened.

    Args:
        party: The client.
        order: The order.
    """
    file_of(party, order).unlink(missing_ok=True)


def keys(message: Message, context: Context) -> Message:
    """Begin a sum: two public keys and a hash, of secrets drawn now, signed by this site.

    Args:
        message: The order.
        context: Flower's context.

    Returns:
        The reply.
    """
    party, order = client_and_order(message, context)
    sum_state = SumSecrets.of(party, order, message.content)
    masker = sum_state.load()
    if masker is None:
        sum_state.begin()
        masker = Masker(party.client, 2, least_parties(party))
        sum_state.save(masker)  # the threshold follows with all the keys
    mine = masker.keys()
    if party.keys is not None:
        mine = mine.signed(
            sign(party.keys, mine.claim(sum_name(order, sum_state.attempt), party.client))
        )
    return answer(message, party, order, to_record({party.client: mine}))


def shares(message: Message, context: Context) -> Message:
    """Send shares of this site's secrets, sealed for each of the others.

    Args:
        message: The order.
        context: Flower's context.

    Returns:
        The reply.

    Raises:
        FederationError: There are too few sites, or a key is not signed by its site.
    """
    party, order = client_and_order(message, context)
    sum_state = SumSecrets.of(party, order, message.content)
    record = record_of(message.content)
    masker, everyone = sum_state.need(), to_keys(record)
    if not all(0 <= client < party.clients for client in everyone):
        raise FederationError("the sum names clients that this federation does not have")
    if party.keys is not None:
        identities, own = dict(numbered(record, "identity")), read_site(party.keys)
        file = peers_file(party.state, party.keys)
        accept(file, own, identities, everyone, sum_name(order, sum_state.attempt))
    masker.threshold = threshold_of(len(everyone), party.config.privacy.threshold)
    sealed = masker.share(everyone)
    sum_state.save(masker)
    return answer(message, party, order, {f"package/{k}": package for k, package in sealed.items()})


def least_parties(party: SiteClient) -> int:
    """Return the fewest clients in a sum: the most of what the run and this site's policy ask.

    Args:
        party: The client.

    Returns:
        Their number.
    """
    own = party.policy.privacy.parties_at_least if party.policy is not None else 0
    return max(party.config.privacy.parties, own)


def sum_name(order: Order, attempt: str) -> str:
    """Name a sum of a federation, for signatures.

    Args:
        order: The order.
        attempt: The attempt's name.

    Returns:
        The name.
    """
    return f"{order.key}/{order.config_hash}/{order.round_index}/{attempt}"


def sum_context(order: Order, attempt: str, arrays: Mapping[str, Array]) -> bytes:
    """Hash what all clients of a sum must have been asked alike, tensors included.

    It is part of every mask: a server that gives one client other tensors than the rest, to tell
    its share of the sum by them, gets a sum of masks that do not cancel.

    Args:
        order: The order.
        attempt: The attempt's name.
        arrays: The tensors that were sent.

    Returns:
        The hash.
    """
    hasher = hashlib.sha256(f"{attempt}/{order.round_index}/{order.config_hash}".encode())
    for name in sorted(arrays):
        data = arrays[name].data
        hasher.update(f"/{len(name)}/{name}/{len(data)}/".encode() + data)
    return hasher.digest()


def masked_content(
    party: SiteClient,
    order: Order,
    content: RecordDict,
    update: ClientUpdate,
    by_class: Sequence[str],
) -> RecordDict:
    """Make the answer to an order to train: an update under masks, its counts and its loss with it.

    Args:
        party: The client.
        order: The order.
        content: The message's content.
        update: The update.
        by_class: Names of tensors with one row per class.

    Returns:
        A message's content.

    Raises:
        FederationError: The sum has not begun, or there are too few sites.
    """
    sum_state = SumSecrets.of(party, order, content)
    masker, record = sum_state.need(), record_of(content)
    packages = dict(numbered(record, "package"))
    vector, arrays = pack(update, by_class, party.clients), content.get(GLOBAL)
    if not isinstance(arrays, ArrayRecord):
        raise FederationError("the message holds no arrays where it should")
    hidden = masker.mask(vector, packages, sum_context(order, sum_state.attempt, arrays))
    sum_state.save(masker)
    numbers = MetricRecord({"client": party.client, "round": order.round_index})
    words = torch.from_numpy(hidden.view(np.int64))
    return RecordDict({UPDATE: to_arrays({MASKED: words}), METRICS: numbers})


def open_shares(message: Message, context: Context) -> Message:
    """Open shares once it is known who answered; with that the site has forgotten the sum.

    Args:
        message: The order.
        context: Flower's context.

    Returns:
        The reply.

    Raises:
        FederationError: Too few have answered.
    """
    party, order = client_and_order(message, context)
    sum_state = SumSecrets.of(party, order, message.content)
    masker, alive = sum_state.need(), record_of(message.content).get("answered")
    if not isinstance(alive, list) or not all(type(client) is int for client in alive):
        raise FederationError("the message does not say who answered")
    revealed = masker.reveal([int(client) for client in alive])
    forget(party, order)
    values = {
        f"seed/{k}": share.to_bytes(SHARE_BYTES, "big") for k, share in revealed.seeds.items()
    }
    values |= {f"key/{k}": share.to_bytes(SHARE_BYTES, "big") for k, share in revealed.keys.items()}
    return answer(message, party, order, values)


def client_and_order(message: Message, context: Context) -> tuple[SiteClient, Order]:
    """Read who is asked what, by a server of the same settings.

    Args:
        message: The order.
        context: Flower's context.

    Returns:
        The client and the order.

    Raises:
        FederationError: The run has no secure sums.
    """
    party, order = SiteClient.of(context), Order.read(message.content)
    party.check(order)
    if not party.config.privacy.secure_sum:
        raise FederationError("this run has no secure sums")
    return party, order


def answer(message: Message, party: SiteClient, order: Order, values: dict[str, bytes]) -> Message:
    """Make a reply of named bytes.

    Args:
        message: The order.
        party: The client.
        order: What was asked.
        values: Bytes by name.

    Returns:
        The reply.
    """
    record = ConfigRecord({"client": party.client, "round": order.round_index})
    for name, raw in values.items():
        record[name] = raw
    return Message(RecordDict({SUM: record}), reply_to=message)


def record_of(content: RecordDict) -> ConfigRecord:
    """Read what a message says of a sum.

    Args:
        content: The message's content.

    Returns:
        The record.

    Raises:
        FederationError: It says nothing.
    """
    record = content.get(SUM)
    if not isinstance(record, ConfigRecord):
        raise FederationError("the message says nothing of a sum")
    return record


def numbered(record: ConfigRecord, name: str) -> list[tuple[int, bytes]]:
    """Read the entries `name/CLIENT` of a record.

    Args:
        record: The record.
        name: The entries' name.

    Returns:
        Client and bytes of each.
    """
    pairs = []
    for key, raw in record.items():
        head, _, number = key.partition("/")
        # No federation has a billion clients, and Python reads no number of 5,000 digits.
        plain = number.isascii() and number.isdecimal() and len(number) < 10
        if head == name and plain and isinstance(raw, bytes):
            pairs.append((int(number), raw))
    return pairs


def to_record(everyone: Mapping[int, Keys]) -> dict[str, bytes]:
    """Return public keys as they travel.

    Args:
        everyone: Keys by client.

    Returns:
        Bytes by name.
    """
    record: dict[str, bytes] = {}
    for k, mine in everyone.items():
        record[f"mask/{k}"], record[f"channel/{k}"] = mine.mask, mine.channel
        record[f"commitment/{k}"], record[f"signature/{k}"] = mine.commitment, mine.signature
    return record


def to_keys(record: ConfigRecord) -> dict[int, Keys]:
    """Read public keys, the inverse of `to_record`.

    Args:
        record: The record.

    Returns:
        Keys by client.

    Raises:
        FederationError: An entry is missing.
    """
    masks, channels, commitments, signatures = (
        dict(numbered(record, name)) for name in ("mask", "channel", "commitment", "signature")
    )
    if not masks or not set(masks) == set(channels) == set(commitments) == set(signatures):
        raise FederationError("the keys of a sum cannot be read")
    return {k: Keys(masks[k], channels[k], commitments[k], signatures[k]) for k in masks}
