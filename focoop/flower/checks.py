"""Replies are looked at before they are used: schema, shapes, types, numbers, lengths, counts."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from torch import Tensor

from focoop.errors import FederationError
from focoop.flower.records import METRICS, STATS, UPDATE, to_tensor, unflatten
from focoop.methods._base import ClientUpdate, Params
from focoop.payload import UNCODED, Payload

# Below this many updates a median says nothing about a single one.
FEWEST_TO_COMPARE = 3
HEADERS = 2**16  # bytes beside the tensors' own that an update may have
ROW_KEYS = ("num_test", "num_classes", "accuracy_own", "accuracy_all", "threshold")


def read_update(
    content: RecordDict,
    client: int,
    round_index: int,
    sent: Params,
    num_classes: int,
    *,
    noised: bool = False,
    payload: Payload = UNCODED,
) -> ClientUpdate:
    """A client's update, or a `FederationError` that says why it is refused.

    `sent` are the shared tensors the client was given: its own have their names, shapes and types,
    or those `payload` gives them. A client whose tensors are `noised` for privacy tells no loss.
    """
    if set(content) != {UPDATE, STATS, METRICS}:
        raise FederationError(f"it holds the records {sorted(content)}")
    arrays, stats = content[UPDATE], content[STATS]
    if not isinstance(arrays, ArrayRecord) or not isinstance(stats, ArrayRecord):
        raise FederationError("its tensors are not arrays")
    form = payload.form(sent)
    expected = sum(one.nbytes for one in form.values()) + 8 * num_classes
    if (size := num_bytes(content)) > (most := 2 * expected + HEADERS):
        raise FederationError(f"it is {size / 1e6:.1f} MB large, and {most / 1e6:.1f} are the most")
    if set(arrays) != set(form) or set(stats) != {"class-counts"}:
        raise FederationError(f"it holds the tensors {sorted(arrays)} and {sorted(stats)}")
    metrics = _numbers(content, client, round_index)
    coded = {name: to_tensor(name, arrays[name], like) for name, like in form.items()}
    shared = payload.decode(coded, {name: value.cpu() for name, value in sent.items()})
    for name, value in shared.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise FederationError(f"{name} has values that are no numbers")
        if not value.is_floating_point() and not torch.equal(value, sent[name].cpu()):
            raise FederationError(f"{name} was changed, and it is not trained")
    counts = to_tensor(
        "class-counts", stats["class-counts"], torch.empty(num_classes, dtype=torch.int64)
    )
    total, loss = metrics.get("num-examples"), metrics.get("loss")
    if type(total) is not int or total < 0 or bool((counts < 0).any()):
        raise FederationError("it counts a negative number of images")
    # Python integers: int64 sums of invented counts may wrap around.
    if sum(counts.tolist()) != total:
        raise FederationError(f"its class counts do not add up to its {total} images")
    if not isinstance(loss, float) or (total and not noised and not math.isfinite(loss)):
        raise FederationError(f"its loss is {loss}")
    device = next(iter(sent.values())).device if sent else torch.device("cpu")
    on_device = {name: value.to(device) for name, value in shared.items()}
    return ClientUpdate(client, on_device, total, counts, loss)


def read_row(content: RecordDict, client: int, round_index: int) -> dict[str, Any] | None:
    """A client's row of the evaluation; None where it has no test images."""
    if set(content) != {METRICS}:
        raise FederationError(f"it holds the records {sorted(content)}")
    flat = _numbers(content, client, round_index)
    named = {n.removeprefix("row/"): v for n, v in flat.items() if n.startswith("row/")}
    if not named:
        return None
    if bad := [name for name, value in named.items() if not math.isfinite(value)]:
        raise FederationError(f"{bad[0]} is not a number")
    row = unflatten(named)
    if missing := [name for name in ROW_KEYS if name not in row]:
        raise FederationError(f"it says nothing of {missing[0]}")
    # Left out on the way where a client has none of them.
    return {"cross_alarm": None, "corrupted": {}, "ood": {}, **row}


def suspects(
    updates: Sequence[ClientUpdate], sent: Params, norm_bound: float, count_bound: float
) -> dict[int, str]:
    """Client -> reason, for updates far outside what the round's median says is usual."""
    present = [update for update in updates if update.num_examples]
    if len(present) < FEWEST_TO_COMPARE:
        return {}
    found: dict[int, str] = {}
    rules = (
        ("moved the shared tensors by", {u.client: moved(u.shared, sent) for u in present}),
        ("has a number of images of", {u.client: float(u.num_examples) for u in present}),
    )
    for (what, values), bound in zip(rules, (norm_bound, count_bound), strict=True):
        usual = median(values.values())
        for client, value in values.items():
            if bound and usual > 0 and value > bound * usual and client not in found:
                found[client] = f"it {what} {value:g}, {value / usual:.0f} times the median"
    return found


def moved(shared: Params, sent: Mapping[str, Tensor]) -> float:
    """|update - sent| over all floating tensors, in float64."""
    parts = [
        (value.double() - sent[name].double()).square().sum()
        for name, value in shared.items()
        if value.is_floating_point()
    ]
    return math.sqrt(math.fsum(float(part) for part in parts))


def num_bytes(content: RecordDict) -> int:
    """Bytes of all arrays of a message."""
    records = [one for one in content.values() if isinstance(one, ArrayRecord)]
    return sum(len(array.data) for record in records for array in record.values())


def _numbers(content: RecordDict, client: int, round_index: int) -> dict[str, int | float]:
    metrics = content[METRICS]
    if not isinstance(metrics, MetricRecord):
        raise FederationError("its numbers are no metrics")
    numbers = {n: v for n, v in metrics.items() if isinstance(v, int | float)}
    if len(numbers) != len(metrics):
        raise FederationError("its metrics hold lists")
    if metrics.get("client") != client:
        raise FederationError(f"it calls itself client {metrics.get('client')}")
    if metrics.get("round") != round_index:
        raise FederationError(f"it is of round {metrics.get('round')}")
    return numbers
