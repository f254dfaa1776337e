"""Evaluation of every client's model: own classes, all classes, shifted images and detection.

For each client: accuracy on its own test images over all C classes (the paper's ACC), accuracy on
everybody's test images, accuracy under corruption, detection of each OOD set, and the cross-client
alarm, the share of other clients' ID images it flags when it keeps 95% of its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from focoop import metrics
from focoop.errors import DataError
from focoop.methods._base import Method, Params, Task, Text

CHUNK = 8192


@dataclass(frozen=True)
class Images:
    """Features to evaluate on: pooled (N, D), patches (N, P, D) or None, labels (N,)."""

    pooled: Tensor
    patches: Tensor | None
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Owned:
    """A labelled set and which of its rows each client owns."""

    images: Images
    index: Sequence[np.ndarray]


@dataclass(frozen=True)
class EvaluationSets:
    """All sets a run is measured on; `corrupted` is keyed by `type@severity`, `ood` by name."""

    test: Owned
    corrupted: Mapping[str, Owned] = field(default_factory=dict)
    ood: Mapping[str, Images] = field(default_factory=dict)


@dataclass(frozen=True)
class Outputs:
    """A model's answers on one set: predicted classes and OOD scores (higher: more OOD)."""

    predicted: np.ndarray
    score: np.ndarray


@dataclass(frozen=True)
class Evaluation:
    """`summary` for tables and logs, `clients` one row per client with test images."""

    summary: dict[str, Any]
    clients: list[dict[str, Any]]


@torch.no_grad()
def answers(method: Method, text: Text, images: Images, task: Task) -> Outputs:
    """Predict and score a set in chunks; predictions run over all C classes."""
    predicted, scored = [], []
    for start in range(0, len(images), CHUNK):
        rows = slice(start, start + CHUNK)
        pooled = images.pooled[rows].to(task.device)
        patches = None if images.patches is None else images.patches[rows].to(task.device)
        logits = method.logits(text, pooled, patches)
        predicted.append(logits.id.argmax(dim=1).cpu().numpy())
        scored.append(method.score(logits, task).double().cpu().numpy())
    if not predicted:
        return Outputs(np.zeros(0, dtype=np.int64), np.zeros(0))
    return Outputs(np.concatenate(predicted), np.concatenate(scored))


def evaluate(
    method: Method,
    task: Task,
    params: Callable[[int], Params],
    sets: EvaluationSets,
    *,
    same_for_all: bool = False,
) -> Evaluation:
    """Evaluate all clients; `params(k)` gives client k's model.

    `same_for_all` says that clients have no private tensors, so one pass answers for all.
    """
    rows: list[dict[str, Any]] = []
    pooled_scores: dict[str, list[np.ndarray]] = {name: [] for name in ("", *sets.ood)}
    for client, found in _per_client(method, task, params, sets, same_for_all):
        own = sets.test.index[client]
        rows.append(_client_row(client, own, found, sets))
        pooled_scores[""].append(found[""].score[own])
        for name in sets.ood:
            pooled_scores[name].append(found[f"ood/{name}"].score)
    if not rows:
        raise DataError("no client has a test image: check the partition and the test split")
    return Evaluation(_summary(rows, pooled_scores, sets), rows)


def _per_client(
    method: Method,
    task: Task,
    params: Callable[[int], Params],
    sets: EvaluationSets,
    same_for_all: bool,
) -> Iterator[tuple[int, dict[str, Outputs]]]:
    """Answers of every client that has test images."""
    found: dict[str, Outputs] | None = None
    for client, own in enumerate(sets.test.index):
        if len(own) == 0:
            continue
        if found is None or not same_for_all:
            with torch.no_grad():
                text = method.encode(params(client), task)
            found = {"": answers(method, text, sets.test.images, task)}
            for name, owned in sets.corrupted.items():
                found[f"corrupted/{name}"] = answers(method, text, owned.images, task)
            for name, images in sets.ood.items():
                found[f"ood/{name}"] = answers(method, text, images, task)
        yield client, found


def _client_row(
    client: int, own: np.ndarray, found: Mapping[str, Outputs], sets: EvaluationSets
) -> dict[str, Any]:
    test = found[""]
    labels = sets.test.images.labels
    own_scores = test.score[own]
    others = np.setdiff1d(np.arange(len(labels)), own)
    row: dict[str, Any] = {
        "client": client,
        "num_test": len(own),
        "num_classes": len(np.unique(labels[own])),
        "accuracy_own": metrics.accuracy(test.predicted[own], labels[own]),
        "accuracy_all": metrics.accuracy(test.predicted, labels),
        "threshold": metrics.threshold_at(own_scores),
        "cross_alarm": metrics.alarm(own_scores, test.score[others]) if len(others) else None,
        "corrupted": {},
        "ood": {},
    }
    for name, owned in sets.corrupted.items():
        index = owned.index[client]
        if len(index):
            predicted = found[f"corrupted/{name}"].predicted[index]
            value = metrics.accuracy(predicted, owned.images.labels[index])
            row["corrupted"][name] = {"accuracy": value, "count": len(index)}
    for name in sets.ood:
        row["ood"][name] = metrics.detection(own_scores, found[f"ood/{name}"].score)
    return row


def _summary(
    rows: Sequence[Mapping[str, Any]],
    pooled_scores: Mapping[str, Sequence[np.ndarray]],
    sets: EvaluationSets,
) -> dict[str, Any]:
    """Own-class accuracies weighted by samples; everything else the plain mean over clients."""
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
    own_scores = np.concatenate(pooled_scores[""])
    ood: dict[str, Any] = {}
    for name in sets.ood:
        pooled = metrics.detection(own_scores, np.concatenate(pooled_scores[name]))
        macro = {key: metrics.average([row["ood"][name][key] for row in rows]) for key in pooled}
        ood[name] = {**macro, "pooled": pooled}
    return {
        "num_clients": len(rows),
        "accuracy_own": metrics.average([row["accuracy_own"] for row in rows], weights),
        "accuracy_own_macro": metrics.average([row["accuracy_own"] for row in rows]),
        "accuracy_all": metrics.average([row["accuracy_all"] for row in rows]),
        "accuracy_corrupted": metrics.average(list(corrupted.values())) if corrupted else None,
        "corrupted_by_type": {name: metrics.average(values) for name, values in by_type.items()},
        "corrupted": corrupted,
        "cross_alarm": metrics.average(alarms) if alarms else None,
        "ood": ood,
    }
