"""Names of a round's numbers: a group, a slash and a name, as trackers sort their charts."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MOST_CLIENTS = 20  # with more clients there is no curve for each
GROUPED = {
    "accuracy_own": "own/accuracy",
    "accuracy_own_macro": "own/accuracy_macro",
    "accuracy_all": "all/accuracy",
    "accuracy_own_alone": "own/accuracy_alone",
    "accuracy_all_open": "all/accuracy_open",
    "accuracy_corrupted": "corrupted/accuracy",
    "cross_alarm": "alarm/cross_client",
    "kept": "alarm/kept",
    "loss": "train/loss",
    "num_clients": "clients/evaluated",
}


def flat_metrics(
    line: Mapping[str, Any] | None,
    facts: Mapping[str, Any],
    clients: Sequence[str] = (),
) -> dict[str, float]:
    """Return a round's numbers by name.

    Args:
        line: The round's evaluation as in `metrics.jsonl`; None: it was not evaluated.
        facts: What is known of the round otherwise: `loss`, `seconds`, `bytes_up`, `bytes_down`,
            `participants` and the report of the `server`.
        clients: Names of the clients in the order of their numbers; empty: numbers are shown.

    Returns:
        Finite numbers by name; what was not measured is left out.

    >>> flat_metrics({"accuracy_own": 0.5, "ood": {"dtd": {"fpr95": 0.25}}}, {"loss": 2.0})
    {'own/accuracy': 0.5, 'ood/dtd/fpr95': 0.25, 'train/loss': 2.0}
    """
    pairs = [*_evaluated(line or {}, clients), *_trained(facts)]
    return {
        _safe(name): float(value)
        for name, value in pairs
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _evaluated(line: Mapping[str, Any], clients: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for key, name in GROUPED.items():
        yield name, line.get(key)
    for kind, value in _part(line, "corrupted_by_type").items():
        yield f"corrupted/{kind}/mean", value
    for level, value in _part(line, "corrupted").items():  # such as brightness@3
        yield f"corrupted/{level.replace('@', '/')}", value
    for name, value in _part(line, "frontier").items():
        yield f"frontier/{name}", value  # its curve is no number and is left out
    for place, numbers in _part(line, "ood").items():
        for name, value in numbers.items():
            inner = value if isinstance(value, Mapping) else {"": value}
            for part, number in inner.items():
                yield "/".join(filter(None, ("ood", place, name, part))), number
    for name, value in _part(line, "server").items():
        yield f"server/{name}", value
    rows = line.get("clients") or []
    own = [row["accuracy_own"] for row in rows if row.get("accuracy_own") is not None]
    yield "own/accuracy_worst", min(own) if own else None
    for row in rows if len(rows) <= MOST_CLIENTS else ():
        number = row["client"]
        shown = clients[number] if number < len(clients) else str(number)
        yield f"clients/{shown}/accuracy", row.get("accuracy_own")


def _trained(facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "train/loss", facts.get("loss")
    if "participants" in facts:
        yield "train/clients", len(facts.get("accepted", facts["participants"]))
    for name in ("seconds", "bytes_up", "bytes_down"):
        yield f"cost/{name}", facts.get(name)
    for name, value in _part(facts, "server").items():
        yield f"server/{name}", value


def _part(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A nested part; empty where it was not measured."""
    part = values.get(key)
    return part if isinstance(part, Mapping) else {}


def _safe(name: str) -> str:
    """A name of characters that every tracker takes."""
    return re.sub(r"[^\w./ -]", "_", name)
