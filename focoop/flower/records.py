"""What travels: named tensors and numbers as Flower records, read back with suspicion.

Down go `global` (shared tensors) and `config` (the order); up come `update` (shared tensors),
`stats` (class counts, int64) and `metrics` (numbers).
"""

import io
import re
import secrets
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MessageType, MetricRecord, RecordDict
from torch import Tensor

from focoop.errors import FederationError
from focoop.federation import narrow, widen
from focoop.methods import ClientUpdate, Params

GLOBAL, CONFIG, UPDATE, STATS, METRICS, ABOUT = (
    "global",
    "config",
    "update",
    "stats",
    "metrics",
    "about",
)
OUTCOME, OUTCOME_ROUND = "outcome", "outcome-round"
FAILED_STEP, REASON = "failed", "reason"
RUN_FAILED = f"{MessageType.QUERY}.{FAILED_STEP}"  # kind of the message that a run has failed
KEY = re.compile(r"[0-9a-f]{16}")
CHALLENGE = re.compile(r"[0-9a-f]{32}")


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn whatever goes wrong while another party's message is decoded into a refusal of it.

    It is a context manager and a decorator. A `FederationError` passes as it is.

    Args:
        what: What is read, as the start of a sentence: "its update".

    Yields:
        Nothing.

    Raises:
        FederationError: For any `Exception` inside, with its class alone: the text of the error may
            repeat megabytes of what was sent.
    """
    try:
        yield
    except FederationError:
        raise
    except Exception as error:
        raise FederationError(f"{what} cannot be read ({type(error).__name__})") from error


@dataclass(frozen=True)
class Order:
    """What the server asks for: which round of which federation, of which configuration.

    `key` names the federation over resumptions, so that private tensors of another are never used.
    """

    round_index: int
    key: str
    config_hash: str

    def record(self, last_outcome: tuple[int, str] | None = None) -> ConfigRecord:
        """Return the order as it travels; make one per message.

        Flower names a message by the hash of its content and takes a reply from any node that knows
        the name: the nonce keeps other sites from guessing it.

        Args:
            last_outcome: What became of the client's last update: the round, and why it was left
                out, or "" where it counted.

        Returns:
            The record.
        """
        record = ConfigRecord({"round": self.round_index, "nonce": secrets.token_hex(16)})
        record["key"], record["config-hash"] = self.key, self.config_hash
        if last_outcome is not None:
            record[OUTCOME_ROUND], record[OUTCOME] = last_outcome
        return record

    @classmethod
    def read(cls, content: RecordDict) -> "Order":
        """Read an order from a message; the key becomes a folder's name, so it must be a plain one.

        Args:
            content: The message's content.

        Returns:
            The order.

        Raises:
            FederationError: It is no order.
        """
        record = content.get(CONFIG)
        if not isinstance(record, ConfigRecord):
            raise FederationError("the message holds no order")
        index, key, hash_ = (record.get(name) for name in ("round", "key", "config-hash"))
        if type(index) is not int or index < 0 or not isinstance(hash_, str):
            raise FederationError("the message's order cannot be read")
        if not isinstance(key, str) or not KEY.fullmatch(key):
            raise FederationError(f"the message names the federation {key!r}, not 16 hex digits")
        return cls(index, key, hash_)


def challenge(content: RecordDict) -> str:
    """Read what the server wants signed by a site that says who it is.

    Args:
        content: The message's content.

    Returns:
        The challenge.

    Raises:
        FederationError: There is none.
    """
    record = content.get(CONFIG)
    text = record.get("challenge") if isinstance(record, ConfigRecord) else None
    if not isinstance(text, str) or not CHALLENGE.fullmatch(text):
        raise FederationError("the server asks who this is without a challenge to sign")
    return text


def failure(reason: str) -> RecordDict:
    """Return what a coordinator sends when a run has failed.

    Args:
        reason: Why it failed.

    Returns:
        A message's content.
    """
    return RecordDict({CONFIG: ConfigRecord({REASON: reason})})


def failed_by(content: RecordDict) -> str:
    """Read why a coordinator says that a run has failed.

    Args:
        content: The message's content.

    Returns:
        The reason.
    """
    record = content.get(CONFIG)
    reason = record.get(REASON) if isinstance(record, ConfigRecord) else None
    return reason if isinstance(reason, str) and reason else "it does not say why"


def outcome(content: RecordDict) -> tuple[int, str] | None:
    """Read what the server says became of this client's last update.

    Args:
        content: The message's content.

    Returns:
        The round and why the update was left out ("" where it counted); None where nothing is said.
    """
    record = content.get(CONFIG)
    if not isinstance(record, ConfigRecord):
        return None
    number, text = record.get(OUTCOME_ROUND), record.get(OUTCOME)
    return (number, text) if type(number) is int and isinstance(text, str) else None


def to_arrays(params: Mapping[str, Tensor]) -> ArrayRecord:
    """Return named tensors as a record, to the bit.

    Args:
        params: Tensors by name.

    Returns:
        The record.
    """
    return ArrayRecord({n: Array(t.detach().cpu().contiguous().numpy()) for n, t in params.items()})


def to_tensors(record: Any, device: torch.device | str = "cpu") -> Params:
    """Read a record's tensors.

    Args:
        record: The record.
        device: Where the tensors go.

    Returns:
        Tensors by name.

    Raises:
        FederationError: The record is damaged.
    """
    if not isinstance(record, ArrayRecord):
        raise FederationError("the message holds no arrays where it should")
    return {name: to_tensor(name, array).to(device) for name, array in record.items()}


def to_tensor(name: str, array: Array, like: Tensor | None = None) -> Tensor:
    """Read one array that another party sent.

    The header is read before the data, as it alone decides how much memory would be taken.

    Args:
        name: the array's name, for errors.
        array: a NumPy file (.npy) in Flower's wrapping, possibly malformed.
        like: what the array must resemble in shape and type; None: anything that torch can hold.

    Returns:
        The tensor on the CPU.

    Raises:
        FederationError: for every array that is not exactly what its header announces.
    """
    with reading(f"the array {name}"):
        stream = io.BytesIO(array.data)
        shape, dtype = _header(name, stream)
        if like is not None:
            wanted = torch.empty(0, dtype=like.dtype).numpy().dtype
            if shape != tuple(like.shape):
                raise FederationError(f"{name} has shape {_short(shape)}, not {tuple(like.shape)}")
            if dtype != wanted:
                raise FederationError(f"{name} is of type {_short(dtype)}, not {wanted}")
        expected = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if dtype.hasobject or len(array.data) - stream.tell() != expected:
            raise FederationError(f"{name} does not hold the bytes its header announces")
        stream.seek(0)
        values = np.load(stream, allow_pickle=False)
        return torch.from_numpy(np.ascontiguousarray(values).reshape(shape))


def _header(name: str, stream: io.BytesIO) -> tuple[tuple[int, ...], "np.dtype[Any]"]:
    """Shape and type of a NumPy file; NumPy evaluates the header as a Python literal.

    Malformed ones raise nearly anything: SyntaxError, RecursionError, MemoryError, TokenError.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # headers of Python 2, which nobody here writes
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0
            if version != (1, 0):
                read = np.lib.format.read_array_header_2_0
            shape, _, dtype = read(stream)
    except Exception as error:
        raise FederationError(f"{name} is not an array ({type(error).__name__})") from error
    if any(size < 0 for size in shape):
        raise FederationError(f"{name} is not an array (a negative size)")
    return shape, dtype


def _short(what: object) -> str:
    """Something of another party in few words; whole numbers of any length have some text."""
    try:
        text = str(what)
    except ValueError:  # Python writes no number of more than 4,300 digits
        text = "of numbers too long to write"
    return text if len(text) <= 60 else text[:60] + "..."


def sent_down(shared: Params, kind: str) -> ArrayRecord:
    """Return the server's tensors as `federation.payload_down` wants them to travel.

    Args:
        shared: The shared tensors.
        kind: The setting.

    Returns:
        The record.
    """
    return to_arrays(narrow(shared, kind))


def received(content: RecordDict, kind: str, like: Params, device: torch.device) -> Params:
    """Read the shared tensors of an order, as the server holds them.

    Args:
        content: The message's content.
        kind: The setting `federation.payload_down`.
        like: Tensors of the right types.
        device: Where the tensors go.

    Returns:
        Tensors by name.
    """
    with reading("what the server sent"):
        return widen(to_tensors(content.get(GLOBAL), device), kind, like)


def update_content(update: ClientUpdate, round_index: int, coded: Params) -> RecordDict:
    """Return a client's answer to an order to train.

    Args:
        update: The update.
        round_index: The round's number.
        coded: What its shared tensors travel as.

    Returns:
        A message's content.
    """
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
    """Return a client's answer to an order to evaluate.

    Args:
        row: Its row of the evaluation; None without test images.
        client: The client's number.
        round_index: The round's number.

    Returns:
        A message's content.
    """
    metrics = MetricRecord({"client": client, "round": round_index})
    for name, value in flatten(row or {}, "row/").items():
        metrics[name] = value
    return RecordDict({METRICS: metrics})


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, int | float]:
    """Return nested numbers by path; absent values (None) are left out.

    Args:
        tree: Nested numbers.
        prefix: The path to them.

    Returns:
        Numbers by path.

    >>> flatten({"ood": {"sun": {"auroc": 0.5}}, "alarm": None})
    {'ood/sun/auroc': 0.5}
    """
    flat: dict[str, int | float] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}/")
        elif value is not None:
            flat[prefix + name] = value
    return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return numbers by path as a nested tree, the inverse of `flatten`.

    Args:
        flat: Numbers by path.

    Returns:
        Nested numbers.

    Raises:
        FederationError: A path is the beginning of another.

    >>> unflatten({"ood/sun/auroc": 0.5})
    {'ood': {'sun': {'auroc': 0.5}}}
    """
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, leaf = path.split("/")
        place = tree
        for name in parents:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise FederationError(f"{_short(path)} is inside of a number")
        if isinstance(place.get(leaf), dict):
            raise FederationError(f"{_short(path)} is a number and holds others")
        place[leaf] = value
    return tree
