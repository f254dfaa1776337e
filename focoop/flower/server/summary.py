"""The server's summary of clients' rows: what `evaluation` makes of them, without pooled scores."""

from collections.abc import Sequence
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
