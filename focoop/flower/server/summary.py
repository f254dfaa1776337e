"""What a committed round comes to: the mean of the clients' rows, and facts for the journal."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from focoop.clip import LabelledFeatures
from focoop.federation import EvaluationSets, Owned, summary_of
from focoop.methods import ClientUpdate, Params


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


def find_untold(
    updates: Sequence[ClientUpdate],
    sent: Params,
    by_class: Sequence[str],
    name: Callable[[int], str],
) -> Iterator[tuple[str, dict[str, str]]]:
    """Find sites with images that are in no statistic which they sent.

    Args:
        updates: The sites' updates, with exact counts.
        sent: What sites were given: a class of which one tells nothing keeps its rows.
        by_class: Names of tensors with one row per class.
        name: A client's name by its number.

    Yields:
        Events for the journal, each with its site and reason.
    """
    for update in updates:
        counts = update.class_counts.cpu()
        told = torch.zeros_like(counts, dtype=torch.bool)
        for tensor in by_class:
            told |= (
                (update.shared[tensor] != sent[tensor]).cpu().reshape(len(counts), -1).any(dim=1)
            )
        kinds, untold = int((counts > 0).sum()), counts[(counts > 0) & ~told]
        if not len(untold):
            continue
        images = f"{int(untold.sum())} of {int(counts.sum())} images"
        reason = (
            f"it sends nothing of {len(untold)} of its {kinds} classes ({images}): it has too few "
            "images of each (least_images of its policy, or of the study)"
        )
        event = "contributes nothing" if len(untold) == kinds else "held back"
        yield event, {"site": name(update.client), "reason": reason}


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
