"""A client's answers as a row of numbers, and the summary of all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from focoop.federation.evaluation.answers import Outputs
from focoop.federation.evaluation.sets import EvaluationSets
from focoop.functional import frontier, metrics


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation measured; docs/reference/run-folder.md explains every number.

    Attributes:
        summary: Numbers over all clients by name: `accuracy_own`, `accuracy_all`,
            `accuracy_corrupted`, `cross_alarm`, `ood` (by set) and others, shares from 0 to 1.
        clients: One row of such numbers for each client that has test images.
    """

    summary: dict[str, Any]
    clients: list[dict[str, Any]]

    def __repr__(self) -> str:
        shown = [f"{name} {self.summary[name]:.4f}" for name in ("accuracy_own", "accuracy_all")]
        shown += [f"auroc {name} {v['auroc']:.4f}" for name, v in self.summary["ood"].items()]
        return f"Evaluation({len(self.clients)} clients: {', '.join(shown)}; see summary, clients)"


def client_row(
    client: int, own: np.ndarray, outputs: Mapping[str, Outputs], sets: EvaluationSets
) -> dict[str, Any]:
    """Measure a client's model.

    Args:
        client: The client's number.
        own: Rows of its own test images.
        outputs: Its answers by set: `""` the test images, `calibration`, `corrupted/NAME`,
            `ood/NAME`.
        sets: The sets.

    Returns:
        Its numbers by name.
    """
    test = outputs[""]
    labels = sets.test.images.labels.numpy()
    own_scores = test.score[own]
    others = np.ones(len(labels), dtype=bool)
    others[own] = False
    aside = np.zeros(0)
    if sets.calibration is not None:
        aside = outputs["calibration"].score[sets.calibration.index[client]]
    calibrated = len(aside) > 0
    threshold = (metrics.calibrated_threshold if calibrated else metrics.threshold_at)(
        aside if calibrated else own_scores
    )
    row: dict[str, Any] = {
        "client": client,
        "num_test": len(own),
        "num_classes": len(np.unique(labels[own])),
        "accuracy_own": metrics.accuracy(test.predicted[own], labels[own]),
        "accuracy_all": metrics.accuracy(test.predicted, labels),
        **without_prior(client, own, test, labels),
        "threshold": threshold,
        "num_calibration": len(aside),
        "kept": float(np.mean(own_scores <= threshold)) if calibrated else None,
        "cross_alarm": float(np.mean(test.score[others] > threshold)) if others.any() else None,
        "frontier": frontier_of(client, own, test, labels),
        "corrupted": {},
        "ood": {},
    }
    if len(unowned := sets.unowned):
        row["accuracy_new"] = metrics.accuracy(test.predicted[unowned], labels[unowned])
    for name, owned in sets.corrupted.items():
        index = owned.index[client]
        if len(index):
            predicted = outputs[f"corrupted/{name}"].predicted[index]
            value = metrics.accuracy(predicted, owned.images.labels.numpy()[index])
            row["corrupted"][name] = {"accuracy": value, "count": len(index)}
    for name in sets.ood:
        row["ood"][name] = metrics.detection(own_scores, outputs[f"ood/{name}"].score)
    return row


def without_prior(
    client: int, own: np.ndarray, test: Outputs, labels: np.ndarray
) -> dict[str, float]:
    """Measure a client's model at the two points that are the same for all methods.

    Args:
        client: The client's number.
        own: Rows of its own test images.
        test: Answers to the test images.
        labels: Classes of the test images.

    Returns:
        `accuracy_own_alone`, on its own images, answered with one of its own classes, and
        `accuracy_all_open`, on all images without a prior.
    """
    right = test.unbiased == labels
    of_own = test.sides[client][1] if client in test.sides else right
    return {
        "accuracy_own_alone": float(np.mean(of_own[own])),
        "accuracy_all_open": float(np.mean(right)),
    }


def frontier_of(
    client: int, own: np.ndarray, test: Outputs, labels: np.ndarray
) -> dict[str, Any] | None:
    """Compute a client's frontier, of its answers without a prior.

    Args:
        client: The client's number.
        own: Rows of its own test images.
        test: Answers to the test images.
        labels: Classes of the test images.

    Returns:
        The frontier, and `harmonic`, the harmonic mean of both accuracies as the client answers
        with its prior; None where it holds all classes, or all that are tested.
    """
    if client not in test.sides:
        return None
    margin, right = test.sides[client]
    other = ~np.isin(labels, labels[own])
    answered = test.predicted == labels
    return {
        **frontier.frontier(
            frontier.Margins(margin[own], right[own]), frontier.Margins(margin[other], right[other])
        ),
        "harmonic": frontier.harmonic(float(answered[own].mean()), float(answered[other].mean())),
    }


def mean_frontier(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Average clients' frontiers, curve by curve.

    Args:
        rows: Rows of clients.

    Returns:
        The mean; None where nobody has a frontier.
    """
    frontiers = [row["frontier"] for row in rows if row.get("frontier")]
    if not frontiers:
        return None
    keys = [key for key in frontiers[0] if key != "curve"]
    curves = {
        x: metrics.average([entry["curve"][x] for entry in frontiers])
        for x in frontiers[0].get("curve", {})
    }
    return {
        **{key: metrics.average([entry[key] for entry in frontiers]) for key in keys},
        "curve": curves,
    }


def summary_of(
    rows: Sequence[Mapping[str, Any]],
    pooled: Mapping[str, Mapping[str, float]],
    sets: EvaluationSets,
) -> dict[str, Any]:
    """Average clients' rows: own-class accuracies weighted by images, everything else plainly.

    Args:
        rows: Rows of clients.
        pooled: Detection metrics over all clients' scores, by OOD set.
        sets: The sets that were evaluated on.

    Returns:
        The summary.
    """
    weights = [float(row["num_test"]) for row in rows]
    corrupted = {
        name: metrics.average(
            [row["corrupted"][name]["accuracy"] for row in rows if name in row["corrupted"]],
            [row["corrupted"][name]["count"] for row in rows if name in row["corrupted"]],
        )
        for name in sets.corrupted
    }
    by_type: dict[str, list[float]] = {}
    for name, value in corrupted.items():
        by_type.setdefault(name.split("@")[0], []).append(value)
    alarms = [row["cross_alarm"] for row in rows if row["cross_alarm"] is not None]
    kept = [row for row in rows if row["kept"] is not None]
    ood: dict[str, Any] = {}
    for name, together in pooled.items():
        macro = {key: metrics.average([row["ood"][name][key] for row in rows]) for key in together}
        ood[name] = {**macro, "pooled": together}
    new = [row["accuracy_new"] for row in rows if "accuracy_new" in row]
    return {
        "num_clients": len(rows),
        "accuracy_own": metrics.average([row["accuracy_own"] for row in rows], weights),
        "accuracy_own_macro": metrics.average([row["accuracy_own"] for row in rows]),
        "accuracy_all": metrics.average([row["accuracy_all"] for row in rows]),
        "accuracy_own_alone": metrics.average([row["accuracy_own_alone"] for row in rows], weights),
        "accuracy_all_open": metrics.average([row["accuracy_all_open"] for row in rows]),
        **({"accuracy_new": metrics.average(new)} if new else {}),
        "accuracy_corrupted": metrics.average(list(corrupted.values())) if corrupted else None,
        "corrupted_by_type": {name: metrics.average(values) for name, values in by_type.items()},
        "corrupted": corrupted,
        "cross_alarm": metrics.average(alarms) if alarms else None,
        "kept": (
            metrics.average([row["kept"] for row in kept], [float(row["num_test"]) for row in kept])
            if kept
            else None
        ),
        "frontier": mean_frontier(rows),
        "ood": ood,
    }
