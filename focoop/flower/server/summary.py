"""What a committed round comes to: the mean of the clients' rows, and facts for the journal."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from focoop.clip import LabelledFeatures
from focoop.federation import EvaluationSets, Owned, summary_of


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Average clients' rows.

    Detection over all clients' scores together needs scores, kept at home.

    A set that not every row mentions is left out.

    Args:
        rows: Rows of the evaluation.

    Returns:
        The summary.
    """
    nothing = Owned(
        LabelledFeatures(torch.empty(0, 0), None, torch.empty(0, dtype=torch.int64)), []
    )
    common = [set(row["ood"]) for row in rows]
    names = [name for name in rows[0]["ood"] if all(name in row_names for row_names in common)]
    measures = {name: dict.fromkeys(rows[0]["ood"][name], 0.0) for name in names}
    corrupted = dict.fromkeys(name for row in rows for name in row["corrupted"])
    sets = EvaluationSets(nothing, dict.fromkeys(corrupted, nothing))
    summary = summary_of(rows, measures, sets)
    for measured in summary["ood"].values():
        del measured["pooled"]
    return summary


def committed_facts(
    line: Mapping[str, Any] | None,
    notes: Mapping[str, Any],
    epsilon: float | None,
    name: Callable[[int], str],
) -> dict[str, Any]:
    """Sum up a committed round for the journal, which the screen and the status page show.

    Args:
        line: The round's evaluation, if it had one.
        notes: What the run folder notes of the round; empty before the first one.
        epsilon: The privacy spent so far, if updates are noised.
        name: A client's name by its number.

    Returns:
        Facts by name; numbers that are not finite are None.
    """
    facts: dict[str, Any] = {}
    if line:
        facts["accuracy"] = line["accuracy_own"]
        facts["accuracies"] = {name(row["client"]): row["accuracy_own"] for row in line["clients"]}
    if notes:
        facts["accepted"] = [name(client) for client in notes["accepted"]]
        facts |= {key: notes[key] for key in ("bytes_up", "bytes_down", "seconds")}
        facts |= {"loss": _finite(notes["loss"]), "epsilon": _finite(epsilon)}
    return facts


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
