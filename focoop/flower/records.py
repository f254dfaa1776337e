"""What travels: named tensors and numbers as Flower records, read back with suspicion.

Down go `global` (shared tensors) and `config` (the order); up come `update` (shared tensors),
`stats` (class counts, int64) and `metrics` (numbers).
"""

import io
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from focoop.errors import FederationError
from focoop.methods._base import ClientUpdate, Params
from focoop.payload import narrow, widen

GLOBAL, CONFIG, UPDATE, STATS, METRICS, ABOUT = (
    "global",
    "config",
    "update",
    "stats",
    "metrics",
    "about",
)
KEY = re.compile(r"[0-9a-f]{16}")
CHALLENGE = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Order:
    """What the server asks for: which round of which federation, of which configuration.

    `key` names the federation over resumptions, so that private tensors of another are never used.
    """

    round_index: int
    key: str
    config_hash: str

    def record(self) -> ConfigRecord:
        """As it travels; make one per message.

        Flower names a message by the hash of its content and takes a reply from any node that
        knows the name: the nonce keeps other sites from guessing it.
        """
        record = ConfigRecord({"round": self.round_index, "nonce": secrets.token_hex(16)})
        record["key"], record["config-hash"] = self.key, self.config_hash
        return record

    @classmethod
    def read(cls, content: RecordDict) -> "Order":
        """From a message; the key becomes a folder's name, so it must be a plain one."""
        record = content[CONFIG]
        if not isinstance(record, ConfigRecord):
            raise FederationError("the message holds no order")
        index, key, hash_ = (record.get(name) for name in ("round", "key", "config-hash"))
        if type(index) is not int or index < 0 or not isinstance(hash_, str):
            raise FederationError("the message's order cannot be read")
        if not isinstance(key, str) or not KEY.fullmatch(key):
            raise FederationError(f"the message names the federation {key!r}, not 16 hex digits")
        return cls(index, key, hash_)


def challenge(content: RecordDict) -> str:
    """What the server wants signed by a site that says who it is."""
    record = content.get(CONFIG)
    text = record.get("challenge") if isinstance(record, ConfigRecord) else None
    if not isinstance(text, str) or not CHALLENGE.fullmatch(text):
        raise FederationError("the server asks who this is without a challenge to sign")
    return text


def to_arrays(params: Mapping[str, Tensor]) -> ArrayRecord:
    """Named tensors as a record, to the bit."""
    return ArrayRecord({n: Array(t.detach().cpu().contiguous().numpy()) for n, t in params.items()})


def to_tensors(record: Any, device: torch.device | str = "cpu") -> Params:
    """The record's tensors."""
    if not isinstance(record, ArrayRecord):
        raise FederationError("the message holds no arrays where it should")
    return {name: to_tensor(name, array).to(device) for name, array in record.items()}


def to_tensor(name: str, array: Array, like: Tensor | None = None) -> Tensor:
    """One array; `like` is what it must resemble in shape and type.

    The header is read before the data, as it alone decides how much memory would be taken.
    """
    stream = io.BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    except ValueError as error:
        raise FederationError(f"{name} is not an array ({error})") from error
    if like is not None:
        wanted = torch.empty(0, dtype=like.dtype).numpy().dtype
        if shape != tuple(like.shape):
            raise FederationError(f"{name} has shape {shape}, not {tuple(like.shape)}")
        if dtype != wanted:
            raise FederationError(f"{name} is of type {dtype}, not {wanted}")
    expected = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if dtype.hasobject or len(array.data) - stream.tell() != expected:
        raise FederationError(f"{name} does not hold the {expected} bytes its header announces")
    stream.seek(0)
    found = np.load(stream, allow_pickle=False)
    return torch.from_numpy(np.ascontiguousarray(found).reshape(shape))


def sent_down(shared: Params, kind: str) -> ArrayRecord:
    """The server's tensors as `federation.payload_down` wants them to travel."""
    return to_arrays(narrow(shared, kind))


def received(content: RecordDict, kind: str, like: Params, device: torch.device) -> Params:
    """The shared tensors of an order, as the server holds them; `like` tells their types."""
    return widen(to_tensors(content.get(GLOBAL), device), kind, like)


def update_content(update: ClientUpdate, round_index: int, coded: Params) -> RecordDict:
    """A client's answer to an order to train; `coded` is what its shared tensors travel as."""
    return RecordDict(
        {
            UPDATE: to_arrays(coded),
            STATS: to_arrays({"class-counts": update.class_counts}),
            METRICS: MetricRecord(
                {
                    "client": update.client,
                    "round": round_index,
                    "num-examples": update.num_examples,
                    "loss": update.loss,
                }
            ),
        }
    )


def row_content(row: Mapping[str, Any] | None, client: int, round_index: int) -> RecordDict:
    """A client's answer to an order to evaluate: its row, flat; None without test images."""
    metrics = MetricRecord({"client": client, "round": round_index})
    for name, value in flatten(row or {}, "row/").items():
        metrics[name] = value
    return RecordDict({METRICS: metrics})


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, int | float]:
    """Nested numbers by path; absent values (None) are left out.

    >>> flatten({"ood": {"sun": {"auroc": 0.5}}, "alarm": None})
    {'ood/sun/auroc': 0.5}
    """
    found: dict[str, int | float] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{prefix}{name}/")
        elif value is not None:
            found[prefix + name] = value
    return found


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flatten`.

    >>> unflatten({"ood/sun/auroc": 0.5})
    {'ood': {'sun': {'auroc': 0.5}}}
    """
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, leaf = path.split("/")
        place = tree
        for name in parents:
            place = place.setdefault(name, {})
        place[leaf] = value
    return tree
