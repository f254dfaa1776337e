"""What the messages of a secure sum hold: names, public keys, and entries by client."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ConfigRecord, RecordDict

from focoop.errors import FederationError
from focoop.flower.mask_keys import Keys
from focoop.flower.records import Order

SUM, MASKED = "sum", "masked"
KEYS, SHARES, OPEN = "sum_keys", "sum_shares", "sum_open"
NUMBERED = re.compile(r"[a-z]+/([0-9]{1,9})")


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


def parties_of(record: Mapping[str, Any]) -> int | None:
    """Count the sites that a message about a secure sum tells of.

    Args:
        record: The message.

    Returns:
        Their number; None where it tells of none.

    >>> parties_of({"mask/0": b"", "channel/0": b"", "mask/2": b"", "mask/02": b""})
    2
    >>> parties_of({"attempt": "x", "answered": [0, 1, 2]})
    3
    """
    answered = record.get("answered")
    if isinstance(answered, list):
        return len(set(answered))
    masks = [NUMBERED.fullmatch(name) for name in record if name.startswith("mask/")]
    return len({int(match[1]) for match in masks if match}) if masks else None
