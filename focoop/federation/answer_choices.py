"""Evaluate trained models under several scores and priors at once: logits are computed once each.

Which score detects, and how much a client expects of its own classes, is chosen after training. The
same numbers come from one `evaluate` per choice. Here the text tower runs once and the cosines of
images with prompts are computed once, since a prior only shifts the cosines with classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from focoop.federation.evaluation.answers import Outputs, Side, chunk_size
from focoop.federation.evaluation.rows import frontier_of, without_prior
from focoop.federation.evaluation.sets import EvaluationSets, classes_of
from focoop.functional import metrics
from focoop.methods import Logits, Method, Params, Task, Text

if TYPE_CHECKING:
    from torch import Tensor

    from focoop.clip import LabelledFeatures

DETECTION = ("auroc", "fpr95", "fpr95_oodpos")


@dataclass(frozen=True)
class PriorChoice:
    """A prior that a client may have, and the scores to try with it.

    Attributes:
        shift: gives a client's logits with this prior, of those without one.
        scores: methods that differ in their score alone, by the name of the choice.
    """

    shift: Callable[[Logits, int], Logits]
    scores: Mapping[str, Method]


def evaluate_choices(
    method: Method,
    task: Task,
    params: Callable[[int], Params],
    sets: EvaluationSets,
    choices: Sequence[PriorChoice],
) -> dict[str, dict[str, Any]]:
    """Evaluate all clients' models under every choice.

    Args:
        method: The method, without a prior.
        task: The task.
        params: Gives a client's model.
        sets: The sets to evaluate on.
        choices: The choices; names of scores differ between all of them.

    Returns:
        Choice -> the summary that `evaluate` gives, without corrupted sets and without what is
        pooled over clients.
    """
    held = classes_of(sets, len(task.classes))
    rows: dict[str, list[dict[str, Any]]] = {
        name: [] for choice in choices for name in choice.scores
    }
    for client in (client for client, own in enumerate(sets.test.index) if len(own)):
        with torch.no_grad():
            text = method.encode(params(client), task)
            tested = _answers(method, text, sets.test.images, task, choices, client, held)
            strange = {
                name: _answers(method, text, images, task, choices, client, {})
                for name, images in sets.ood.items()
            }
            aside = _aside(sets, client)
            kept = _answers(method, text, aside, task, choices, client, {}) if aside else None
        for place, answers in enumerate(tested):
            others = {name: found[place].scored for name, found in strange.items()}
            calibration = None if kept is None else kept[place].scored
            for name, row in _rows(client, answers, others, calibration, sets).items():
                rows[name].append(row)
    return {name: _summary(found) for name, found in rows.items()}


def _aside(sets: EvaluationSets, client: int) -> LabelledFeatures | None:
    """A client's calibration images, where it has some."""
    if sets.calibration is None or not len(sets.calibration.index[client]):
        return None
    return sets.calibration.images.rows(torch.from_numpy(sets.calibration.index[client]))


@dataclass(frozen=True)
class _Answered:
    """A set under one prior: answers and margins, and scores (N,) under each name."""

    outputs: Outputs
    scored: Mapping[str, np.ndarray]


def _answers(
    method: Method,
    text: Text,
    images: LabelledFeatures,
    task: Task,
    choices: Sequence[PriorChoice],
    client: int,
    held: Mapping[int, np.ndarray],
) -> list[_Answered]:
    """A client's answers on a set, for every prior."""
    size, classes = chunk_size(text, images), len(task.classes)
    labels, device = images.labels.numpy(), task.device
    predicted: list[list[Tensor]] = [[] for _ in choices]
    scored: list[list[Tensor]] = [[] for _ in choices]  # (scores, n) of a chunk
    unbiased: list[Tensor] = []
    sides = {k: Side.of(held[k], labels, classes, device) for k in (client,) if k in held}
    for first in range(0, len(images), size):
        rows = slice(first, first + size)
        patches = None if images.patches is None else images.patches[rows].to(device)
        logits = method.logits(text, images.pooled[rows].to(device), patches)
        unbiased.append(logits.id.argmax(dim=1))
        for side in sides.values():
            side.keep(rows, logits.id)
        for place, choice in enumerate(choices):
            shifted = choice.shift(logits, client)
            predicted[place].append(shifted.id.argmax(dim=1))
            found = [one.score(shifted, task).double() for one in choice.scores.values()]
            scored[place].append(torch.stack(found))
    answered, bare = [], torch.cat(unbiased).cpu().numpy()
    margins = {k: side.margins() for k, side in sides.items()}
    for place, choice in enumerate(choices):
        answers = torch.cat(predicted[place]).cpu().numpy()
        scores = torch.cat(scored[place], dim=1).cpu().numpy()
        by_name = dict(zip(choice.scores, scores, strict=True))
        answered.append(_Answered(Outputs(answers, np.empty(0), bare, margins), by_name))
    return answered


def _rows(
    client: int,
    test: _Answered,
    strange: Mapping[str, Mapping[str, np.ndarray]],
    calibration: Mapping[str, np.ndarray] | None,
    sets: EvaluationSets,
) -> dict[str, dict[str, Any]]:
    """A client's row under each score of a prior; the alarm's threshold as in `evaluate`."""
    own, labels = sets.test.index[client], sets.test.images.labels.numpy()
    others = np.ones(len(labels), dtype=bool)
    others[own] = False
    predicted = test.outputs.predicted
    common = {
        "num_test": len(own),
        "accuracy_own": metrics.accuracy(predicted[own], labels[own]),
        "accuracy_all": metrics.accuracy(predicted, labels),
        **without_prior(client, own, test.outputs, labels),
        "frontier": frontier_of(client, own, test.outputs, labels),
    }
    rows = {}
    for name, values in test.scored.items():
        inside = values[own]
        ood = {key: metrics.detection(inside, found[name]) for key, found in strange.items()}
        if calibration is None:
            threshold = metrics.threshold_at(inside)
        else:
            threshold = metrics.calibrated_threshold(calibration[name])
        alarm = float(np.mean(values[others] > threshold)) if others.any() else None
        rows[name] = {**common, "cross_alarm": alarm, "ood": ood}
    return rows


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Clients' rows averaged as `summary_of` averages them."""
    weights = [float(row["num_test"]) for row in rows]
    alarms = [row["cross_alarm"] for row in rows if row["cross_alarm"] is not None]
    frontiers = [row["frontier"] for row in rows if row["frontier"]]
    return {
        "accuracy_own": metrics.average([row["accuracy_own"] for row in rows], weights),
        "accuracy_all": metrics.average([row["accuracy_all"] for row in rows]),
        "accuracy_own_alone": metrics.average([row["accuracy_own_alone"] for row in rows], weights),
        "accuracy_all_open": metrics.average([row["accuracy_all_open"] for row in rows]),
        "cross_alarm": metrics.average(alarms) if alarms else None,
        "frontier": {
            key: metrics.average([entry[key] for entry in frontiers])
            for key in ("ausuc", "harmonic")
        }
        if frontiers
        else None,
        "ood": {
            name: {
                key: metrics.average([row["ood"][name][key] for row in rows]) for key in DETECTION
            }
            for name in rows[0]["ood"]
        },
    }
