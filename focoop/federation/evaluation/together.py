"""Evaluation of all clients at once on a GPU, with one wait for the host at its end.

Images stay on the device between the evaluations of a run. Prompts of all clients pass through the
tower together, those that clients share once. Classes, scores and margins of all clients on all
sets stay on the device too, and so do sorting, metrics and frontiers
(`functional/client_metrics.py`). What comes back is a few numbers per client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from focoop.clip import LabelledFeatures
from focoop.federation.evaluation.resident import Resident
from focoop.federation.evaluation.texts import encoded_together
from focoop.functional import client_metrics, frontier
from focoop.methods import Method, Params, Task, Text, shifted, split_prior

if TYPE_CHECKING:
    from torch import Tensor

    from focoop.federation.evaluation.sets import EvaluationSets


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers of M models: classes (M, N), scores (M, N'), margins and sides (F, N_test).

    N' rows have scores. F clients have a frontier. `unbiased` (M, N_test) are the classes of the
    test images without the clients' priors, as are margins and sides.
    """

    predicted: Tensor
    unbiased: Tensor
    score: Tensor
    margin: Tensor
    right: Tensor


@torch.no_grad()
def answered(
    method: Method, task: Task, texts: Sequence[Text], there: Resident, size: Callable[..., int]
) -> Answers:
    """Answer all images by all models.

    Args:
        method: The method.
        task: The task.
        texts: The models: one for each client, or one for all.
        there: Images and clients.
        size: Gives how many images may be answered at a time, of a text side and a set.

    Returns:
        The answers, still on the device.
    """
    device, total, tested = task.device, len(there.labels), there.rows[""].stop
    found = Answers(
        torch.empty(len(texts), total, dtype=torch.int32, device=device),
        torch.empty(len(texts), tested, dtype=torch.int32, device=device),
        torch.empty(len(texts), there.scored, dtype=torch.float64, device=device),
        torch.empty(len(there.sides), tested, dtype=torch.float32, device=device),
        torch.empty(len(there.sides), tested, dtype=torch.bool, device=device),
    )
    labels, models = there.labels[:tested], [split_prior(text) for text in texts]
    for rows, pooled, patches in there.pieces(lambda images: size(texts[0], images)):
        here = slice(rows.start, min(rows.stop, tested))
        for model, (text, prior) in enumerate(models):
            unbiased = method.logits(text, pooled, patches)
            logits = shifted(unbiased, prior)
            found.predicted[model, rows] = logits.id.argmax(dim=1).int()
            part = unbiased.id[: max(0, here.stop - here.start)]  # of test images
            if len(part):
                found.unbiased[model, here] = part.argmax(dim=1).int()
            scores = min(rows.stop, there.scored) - rows.start
            if scores > 0:
                whole = method.score(logits, task)
                found.score[model, rows.start : rows.start + scores] = whole[:scores]
            for at, (client, (own, others)) in enumerate(there.sides.items()):
                if len(part) and (client == model or len(texts) == 1):
                    mine = part.index_select(1, own).max(dim=1)
                    theirs = part.index_select(1, others).max(dim=1)
                    found.margin[at, here] = (theirs.values - mine.values).float()
                    answer = torch.where(
                        there.unheld[at, here], others[theirs.indices], own[mine.indices]
                    )
                    found.right[at, here] = answer == labels[here]
    return found


def measured(found: Answers, there: Resident) -> dict[str, Tensor]:
    """Compute all numbers of an evaluation on the device.

    Args:
        found: The answers.
        there: Images and clients.

    Returns:
        Tensors by name: (K,) or (K, n) of clients, (5,) `pooled/...` of all scores; `broken` is not
        0 where a score or a margin is not a number.
    """
    clients, tested = len(there.clients), there.rows[""].stop
    everyone = found.score[:, :tested].expand(clients, -1)
    right = (found.predicted == there.labels).double().expand(clients, -1)
    unbiased = (found.unbiased == there.labels[:tested]).double().expand(clients, -1)
    alone = unbiased.clone()
    alone[there.fronted] = found.right.double()
    own = client_metrics.Sorted.of(everyone.gather(1, there.own), there.valid)
    limit = client_metrics.threshold(own)
    if there.aside is not None and there.calibrated is not None:
        every = found.score.expand(clients, -1)
        aside = client_metrics.Sorted.of(every.gather(1, there.aside), there.calibrated)
        limit = torch.where(aside.counts > 0, client_metrics.calibrated(aside), limit)
    flagged = (everyone > limit[:, None]) & there.others
    numbers = {
        "accuracy_all": right[:, :tested].mean(dim=1),
        "accuracy_own_alone": (alone.gather(1, there.own) * there.valid).sum(dim=1) / own.counts,
        "accuracy_all_open": unbiased.mean(dim=1),
        "accuracy_new": right.index_select(1, there.unowned).mean(dim=1),
        "threshold": limit,
        "kept": own.at_most(limit[:, None])[:, 0] / own.counts,
        "cross_alarm": flagged.sum(dim=1) / there.others.sum(dim=1),
        "broken": found.score.isnan().sum() + found.margin.isnan().sum(),
    }
    if there.sides:
        held = ~there.others.index_select(0, there.fronted)
        sides = [
            client_metrics.Sorted.of(found.margin, found.right & mask)
            for mask in (held, there.unheld)
        ]
        counts = [mask.sum(dim=1) for mask in (held, there.unheld)]
        numbers["frontier"] = client_metrics.frontier(sides[0], counts[0], sides[1], counts[1])
        answered = right[:, :tested].index_select(0, there.fronted)
        shares = [
            (answered * mask).sum(dim=1) / n
            for mask, n in zip((held, there.unheld), counts, strict=True)
        ]
        numbers["harmonic"] = client_metrics.harmonic(*shares)
    for name, (whose, rows, _) in there.owners.items():
        sums = torch.zeros(clients, dtype=torch.float64, device=right.device)
        numbers[f"sum/{name}"] = sums.index_add_(0, whose, right[whose, rows])
    whose, rows, _ = there.owners[""]
    together = client_metrics.Sorted.of(everyone[whose, rows][None])
    copies = clients // len(found.score)
    for name, part in there.rows.items():
        if name.startswith("ood/"):
            scores = found.score[:, part].sort(dim=1).values
            count = torch.full((clients,), scores.shape[1], device=scores.device)
            outside = client_metrics.Sorted(scores.expand(clients, -1).contiguous(), count)
            numbers[name] = client_metrics.detection(own, outside)
            pooled = client_metrics.Sorted.of(scores.reshape(1, -1))
            numbers[f"pooled/{name}"] = client_metrics.detection(together, pooled, copies)[0]
    return numbers


def on_host(numbers: Mapping[str, Tensor]) -> dict[str, Any]:
    """Bring all numbers to the host in one copy.

    Args:
        numbers: Tensors by name.

    Returns:
        Nested lists by name.
    """
    parts = [value.double().reshape(-1) for value in numbers.values()]
    flat = torch.cat(parts).cpu()
    split = torch.split(flat, [len(part) for part in parts])
    return {
        name: part.view(value.shape).tolist()
        for (name, value), part in zip(numbers.items(), split, strict=True)
    }


def rows_of(
    numbers: Mapping[str, Any], there: Resident, sets: EvaluationSets
) -> list[dict[str, Any]]:
    """Make a row of metrics for each client.

    Args:
        numbers: What `measured` found, on the host.
        there: Images and clients.
        sets: The sets.

    Returns:
        A row per client.
    """
    labels, fronts = sets.test.images.labels.numpy(), list(there.sides)
    aside = None if sets.calibration is None else sets.calibration.index
    rows: list[dict[str, Any]] = []
    for at, client in enumerate(there.clients):
        own = sets.test.index[client]
        curve = None
        if at in there.sides:
            found = numbers["frontier"][fronts.index(at)]
            curve = dict(zip(client_metrics.FRONTIER, found, strict=False))
            points = zip(map(str, frontier.CURVE), found[len(curve) :], strict=True)
            curve |= {"curve": dict(points), "harmonic": numbers["harmonic"][fronts.index(at)]}
        alarm = numbers["cross_alarm"][at] if len(own) < len(labels) else None
        calibration = 0 if aside is None else len(aside[client])
        row: dict[str, Any] = {
            "client": client,
            "num_test": len(own),
            "num_classes": len(np.unique(labels[own])),
            "accuracy_own": numbers["sum/"][at] / len(own),
            "accuracy_all": numbers["accuracy_all"][at],
            "accuracy_own_alone": numbers["accuracy_own_alone"][at],
            "accuracy_all_open": numbers["accuracy_all_open"][at],
            "threshold": numbers["threshold"][at],
            "num_calibration": calibration,
            "kept": numbers["kept"][at] if calibration else None,
            "cross_alarm": alarm,
            "frontier": curve,
            "corrupted": {
                name: {"accuracy": numbers[f"sum/corrupted/{name}"][at] / count, "count": count}
                for name in sets.corrupted
                if (count := there.owners[f"corrupted/{name}"][2][at])
            },
            "ood": {
                name: dict(zip(client_metrics.DETECTION, numbers[f"ood/{name}"][at], strict=True))
                for name in sets.ood
            },
        }
        if len(sets.unowned):
            row["accuracy_new"] = numbers["accuracy_new"][at]
        rows.append(row)
    return rows


def evaluate_together(
    method: Method,
    task: Task,
    params: Callable[[int], Params],
    sets: EvaluationSets,
    there: Resident,
    *,
    same_for_all: bool,
    size: Callable[[Text, LabelledFeatures], int],
) -> tuple[list[dict[str, Any]], dict[str, dict[str, float]]] | None:
    """Evaluate all clients' models at once.

    Args:
        method: The method.
        task: The task.
        params: Gives a client's model.
        sets: The sets to evaluate on.
        there: The same sets, on the device.
        same_for_all: Clients have no private tensors, so that one pass answers for all.
        size: Gives how many images may be answered at a time.

    Returns:
        Rows of clients, and metrics of all scores by OOD set. None where a score is not a number,
        or there is nothing to evaluate on: then clients are to be asked one by one, which says why.
    """
    asked = there.clients[:1] if same_for_all else there.clients
    images = (sets.test.images, *sets.ood.values())
    if not asked or not all(len(one) for one in images):
        return None
    with torch.no_grad():
        texts = encoded_together(method, [params(client) for client in asked], task)
        found = answered(method, task, texts, there, size)
        numbers = on_host(measured(found, there))
    if numbers["broken"]:
        return None
    pooled = {
        name: dict(zip(client_metrics.DETECTION, numbers[f"pooled/ood/{name}"], strict=True))
        for name in sets.ood
    }
    return rows_of(numbers, there, sets), pooled
