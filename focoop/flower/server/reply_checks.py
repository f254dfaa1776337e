"""Replies are checked before they are used: records, shapes, types, numbers, lengths, counts.

Every function here raises `FederationError` for what it refuses and nothing else, whatever was
sent: one site's reply must never end the run for all.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from focoop.config import RunConfig
from focoop.errors import FederationError
from focoop.federation import UNCODED, Payload
from focoop.flower.records import METRICS, STATS, UPDATE, reading, to_tensor, unflatten
from focoop.functional import frontier
from focoop.functional import metrics as measures
from focoop.methods import ClientUpdate, Params

# Below this many updates a median says nothing about a single one.
FEWEST_TO_COMPARE = 3
HEADERS = 2**16  # bytes beside the tensors' own that an update may have
ACCURACIES = ("accuracy_own", "accuracy_all", "accuracy_own_alone", "accuracy_all_open")
ROW_KEYS = ("num_test", "num_classes", *ACCURACIES, "threshold")
OPTIONAL = ("num_calibration", "frontier", "corrupted", "ood", "client")
FRONTIER = ("ausuc", "harmonic", "harmonic_best", "own_only", "other_only")
SHARES = (*ACCURACIES, "accuracy_new", "cross_alarm", "kept")  # of a row, between 0 and 1
DETECTION = set(measures.detection([0.0], [1.0]))  # what is told of each OOD set
MOST_IMAGES = 10**9
MOST_SETS = 1000  # sets a row may tell of
LARGEST_LOSS = 1e6
GROWTH = 2  # a site may train on so many times the images it declared: some may have come since


@reading("its update")
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
    """Read a client's update and check it.

    Args:
        content: The reply's content.
        client: The client's number.
        round_index: The round's number.
        sent: What the client was given of the shared tensors that it sends: its own have their
            names, shapes and types, or those `payload` gives them.
        num_classes: Number of classes.
        noised: The client's tensors are noised for privacy, so that it tells no loss.
        payload: How tensors travel.

    Returns:
        The update.

    Raises:
        FederationError: It is refused; the message says why.
    """
    if set(content) != {UPDATE, STATS, METRICS}:
        raise FederationError(f"it holds the records {_names(content)}")
    arrays, stats = content[UPDATE], content[STATS]
    if not isinstance(arrays, ArrayRecord) or not isinstance(stats, ArrayRecord):
        raise FederationError("its tensors are not arrays")
    form = payload.form(sent)
    expected = sum(tensor.nbytes for tensor in form.values()) + 8 * num_classes
    if (size := num_bytes(content)) > (most := 2 * expected + HEADERS):
        raise FederationError(f"it is {size / 1e6:.1f} MB large, and {most / 1e6:.1f} are the most")
    if set(arrays) != set(form) or set(stats) != {"class-counts"}:
        raise FederationError(f"it holds the tensors {_names(arrays)} and {_names(stats)}")
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
    if total > MOST_IMAGES:
        raise FederationError(f"it counts more than {MOST_IMAGES} images")
    # Python integers: int64 sums of invented counts may wrap around.
    if sum(counts.tolist()) != total:
        raise FederationError(f"its class counts do not add up to its {total} images")
    if not isinstance(loss, float) or (total and not noised and not math.isfinite(loss)):
        raise FederationError(f"its loss is {loss}")
    if math.isfinite(loss) and abs(loss) > LARGEST_LOSS:
        raise FederationError(f"its loss is {loss:g}")
    device = next(iter(sent.values())).device if sent else torch.device("cpu")
    on_device = {name: value.to(device) for name, value in shared.items()}
    return ClientUpdate(client, on_device, total, counts, loss)


def check_counts(update: ClientUpdate, config: RunConfig, declared: int | None) -> None:
    """Refuse counts that the settings or the site's own declaration rule out.

    Args:
        update: the site's update.
        config: the run's settings; `partition.shots` bounds the images of a class.
        declared: training images the site told of when it joined; None: it told of none, as under
            `privacy.counts` other than exact.

    Raises:
        FederationError: that says which count is too large.
    """
    if config.privacy.counts != "exact":
        return
    shots = config.partition.shots
    most = shots * (1 + config.data.views)
    largest = int(update.class_counts.max()) if len(update.class_counts) else 0
    if shots and largest > most:
        raise FederationError(f"it counts {largest} images of a class, and {most} are the most")
    if declared is not None and update.num_examples > GROWTH * declared:
        raise FederationError(
            f"it counts {update.num_examples} images, and it told of {declared} when it joined"
        )


@reading("its evaluation")
def read_row(
    content: RecordDict, client: int, round_index: int, num_classes: int
) -> dict[str, Any] | None:
    """A client's row of the evaluation.

    Args:
        content: its reply.
        client: its number.
        round_index: the round that is evaluated.
        num_classes: classes of the run, of which a site's test images are.

    Returns:
        The row, or None where the site has no test images or keeps its accuracies.

    Raises:
        FederationError: for a row with other values than an evaluation has, named.
    """
    if set(content) != {METRICS}:
        raise FederationError(f"it holds the records {_names(content)}")
    flat = _numbers(content, client, round_index)
    named = {n.removeprefix("row/"): v for n, v in flat.items() if n.startswith("row/")}
    if not named:
        return None
    if bad := [name for name, value in named.items() if not math.isfinite(value)]:
        raise FederationError(f"{bad[0][:60]} is not a number")
    row = unflatten(named)
    if missing := [name for name in ROW_KEYS if name not in row]:
        raise FederationError(f"it says nothing of {missing[0]}")
    _check_row(row, num_classes)
    # Left out on the way where a client has none of them.
    empty = {"num_calibration": 0, "kept": None, "cross_alarm": None, "frontier": None}
    return {**empty, "corrupted": {}, "ood": {}, **row}


def _check_row(row: Mapping[str, Any], num_classes: int) -> None:
    """Refuse values that no evaluation gives, and values that do not belong to one."""
    if odd := set(row) - {*ROW_KEYS, *SHARES, *OPTIONAL}:
        raise FederationError(f"it tells of {min(odd)[:60]}, which no evaluation has")
    _whole("num_test", row["num_test"], MOST_IMAGES)
    _whole("num_classes", row["num_classes"], num_classes)
    if row.get("num_calibration"):
        _whole("num_calibration", row["num_calibration"], MOST_IMAGES)
    for name in SHARES:
        if name in row:
            _share(name, row[name])
    if isinstance(row["threshold"], Mapping):
        raise FederationError("threshold is not a number")
    if "frontier" in row:
        _check_frontier(row["frontier"])
    for kind, keys in (("corrupted", {"accuracy", "count"}), ("ood", DETECTION)):
        sets = row.get(kind, {})
        if not isinstance(sets, Mapping) or len(sets) > MOST_SETS:
            raise FederationError(f"{kind} is no table of sets")
        for name, values in sets.items():
            if not isinstance(values, Mapping) or set(values) != keys:
                raise FederationError(f"{kind}/{name[:60]} has other values than an evaluation")
            for key, value in values.items():
                where = f"{kind}/{name[:60]}/{key}"
                _whole(where, value, MOST_IMAGES) if key == "count" else _share(where, value)


def _check_frontier(values: Any) -> None:
    """Refuse a frontier with other values than an evaluation has."""
    if not isinstance(values, Mapping) or set(values) != {*FRONTIER, "bias", "curve"}:
        raise FederationError("frontier has other values than an evaluation")
    curve = values["curve"]
    if not isinstance(curve, Mapping) or set(curve) != set(map(str, frontier.CURVE)):
        raise FederationError("frontier/curve has other places than an evaluation")
    if isinstance(values["bias"], Mapping):
        raise FederationError("frontier/bias is not a number")
    for name in FRONTIER:
        _share(f"frontier/{name}", values[name])
    for x, value in curve.items():
        _share(f"frontier/curve/{x}", value)


def _share(name: str, value: Any) -> None:
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise FederationError(f"{name} is {_text(value)}, and must lie between 0 and 1")


def _whole(name: str, value: Any, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise FederationError(f"{name} is {_text(value)}, and must be a number from 1 to {most}")


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else "no number"


def read_rows(
    replies: Iterable[tuple[int, Message]], round_index: int, num_classes: int, count_bound: float
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Read the rows of an evaluation.

    Args:
        replies: Clients and their replies.
        round_index: The round.
        num_classes: Number of classes C.
        count_bound: How many times the median number of test images is too many.

    Returns:
        The usable rows, each with its client's number, and why other clients have none. A client
        that keeps its row to itself is in neither.
    """
    rows: dict[int, dict[str, Any]] = {}
    refused: dict[int, str] = {}
    for client, reply in replies:
        try:
            row = read_row(reply.content, client, round_index, num_classes)
        except FederationError as error:
            refused[client] = str(error)
            continue
        if row is not None:
            rows[client] = {**row, "client": client}
    refused |= suspicious_rows(rows, count_bound)
    return [row for client, row in rows.items() if client not in refused], refused


def suspicious_rows(rows: Mapping[int, Mapping[str, Any]], count_bound: float) -> dict[int, str]:
    """Find rows that claim far more test images than the median does.

    Accuracies are weighted by them.

    Args:
        rows: Rows of the evaluation by client.
        count_bound: How many times the median is too many.

    Returns:
        Reasons by client.
    """
    if len(rows) < FEWEST_TO_COMPARE or not count_bound:
        return {}
    usual = median(float(row["num_test"]) for row in rows.values())
    return {
        client: f"it tells of {row['num_test']} test images, {row['num_test'] / usual:.0f} times "
        "the median"
        for client, row in rows.items()
        if row["num_test"] > count_bound * usual
    }


def suspects(
    updates: Sequence[ClientUpdate], sent: Params, norm_bound: float, count_bound: float
) -> dict[int, str]:
    """Find updates far outside what the round's median says is usual.

    Args:
        updates: The updates.
        sent: What clients were given of the shared tensors that they send.
        norm_bound: How many times the median change is too much.
        count_bound: How many times the median number of images is too many.

    Returns:
        Reasons by client.
    """
    present = [update for update in updates if update.num_examples]
    if len(present) < FEWEST_TO_COMPARE:
        return {}
    reasons: dict[int, str] = {}
    rules = (
        ("moved the shared tensors by", {u.client: moved(u.shared, sent) for u in present}),
        ("has a number of images of", {u.client: float(u.num_examples) for u in present}),
    )
    for (what, values), bound in zip(rules, (norm_bound, count_bound), strict=True):
        usual = median(values.values())
        for client, value in values.items():
            if bound and usual > 0 and value > bound * usual and client not in reasons:
                reasons[client] = f"it {what} {value:g}, {value / usual:.0f} times the median"
    return reasons


def moved(shared: Params, sent: Mapping[str, Tensor]) -> float:
    """Return |update - sent| over all floating tensors, in float64.

    Args:
        shared: The client's tensors.
        sent: The tensors it was given.

    Returns:
        The distance.
    """
    parts = [
        (value.double() - sent[name].double()).square().sum()
        for name, value in shared.items()
        if value.is_floating_point()
    ]
    return math.sqrt(math.fsum(float(part) for part in parts))


def num_bytes(content: RecordDict) -> int:
    """Count the bytes of all arrays of a message.

    Args:
        content: The message's content.

    Returns:
        Their number.
    """
    records = [value for value in content.values() if isinstance(value, ArrayRecord)]
    return sum(len(array.data) for record in records for array in record.values())


def _numbers(content: RecordDict, client: int, round_index: int) -> dict[str, int | float]:
    metrics = content[METRICS]
    if not isinstance(metrics, MetricRecord):
        raise FederationError("its numbers are no metrics")
    numbers = {
        n: v for n, v in metrics.items() if isinstance(v, int | float) and type(v) is not bool
    }
    if len(numbers) != len(metrics):
        raise FederationError("its metrics hold lists")
    if metrics.get("client") != client:
        raise FederationError(f"it calls itself client {metrics.get('client')}")
    if metrics.get("round") != round_index:
        raise FederationError(f"it is of round {metrics.get('round')}")
    return numbers


def _names(record: Mapping[str, Any]) -> list[str]:
    """Names of another party's, a few and short, for a message."""
    return [name[:30] for name in sorted(record)[:8]]
