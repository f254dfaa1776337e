"""Evaluate all clients' models, one after the other or on a GPU all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from focoop.errors import DataError
from focoop.federation.evaluation.answers import (
    CHUNK,
    DEVICE_CELLS,
    Outputs,
    answers,
    answers_on_rows,
    chunk_size,
)
from focoop.federation.evaluation.resident import fits
from focoop.federation.evaluation.rows import Evaluation, client_row, summary_of
from focoop.federation.evaluation.sets import EvaluationSets, classes_of
from focoop.federation.evaluation.texts import Encoded, encoded
from focoop.federation.evaluation.together import evaluate_together
from focoop.functional import metrics
from focoop.methods import Method, Params, Task


def evaluate(
    method: Method,
    task: Task,
    params: Callable[[int], Params],
    sets: EvaluationSets,
    *,
    same_for_all: bool = False,
    most: int = CHUNK,
) -> Evaluation:
    """Evaluate all clients' models, on a GPU all at once (`together.py`).

    Args:
        method: The method.
        task: The task.
        params: Gives a client's model.
        sets: The sets to evaluate on.
        same_for_all: Clients have no private tensors, so that one pass answers for all.
        most: Images answered at a time on a CPU.

    Returns:
        Summary and rows of clients.

    Raises:
        DataError: There is nothing to evaluate on.
    """
    if task.device.type == "cuda" and fits(sets):
        together = evaluate_together(
            method,
            task,
            params,
            sets,
            sets.on(task.device, len(task.classes)),
            same_for_all=same_for_all,
            size=partial(chunk_size, most=2**20, room=DEVICE_CELLS),
        )
        if together is not None:
            return Evaluation(summary_of(together[0], together[1], sets), together[0])
    rows: list[dict[str, Any]] = []
    own_scores: list[np.ndarray] = []
    ood_scores: dict[str, list[np.ndarray]] = {name: [] for name in sets.ood}
    for client, outputs in _per_client(method, task, params, sets, same_for_all, most):
        own = sets.test.index[client]
        rows.append(client_row(client, own, outputs, sets))
        own_scores.append(outputs[""].score[own])
        for name, collected in ood_scores.items():
            if not same_for_all or not collected:
                collected.append(outputs[f"ood/{name}"].score)
    if not rows:
        raise DataError("no client has a test image: check the partition and the test split")
    everyone = np.concatenate(own_scores)
    copies = len(rows) if same_for_all else 1
    pooled = {}
    for name in sets.ood:
        scores = np.concatenate(ood_scores.pop(name))
        scores.sort()  # in place: all clients' scores are the largest array of an evaluation
        pooled[name] = metrics.detection(everyone, scores, copies)
    return Evaluation(summary_of(rows, pooled, sets), rows)


def _per_client(
    method: Method,
    task: Task,
    params: Callable[[int], Params],
    sets: EvaluationSets,
    same_for_all: bool,
    most: int,
) -> Iterator[tuple[int, dict[str, Outputs]]]:
    """Answers of every client that has test images."""
    clients = [client for client, own in enumerate(sets.test.index) if len(own)]
    asked = clients[:1] if same_for_all else clients
    ahead = torch.get_num_threads() if task.device.type == "cpu" else 1
    outputs: dict[str, Outputs] = {}
    known: Encoded = {}
    held = classes_of(sets, len(task.classes))
    for first in range(0, len(asked), ahead):
        group = asked[first : first + ahead]
        texts, known = encoded(method, [params(client) for client in group], task, known)
        for client, text in zip(group, texts, strict=True):
            wanted = held if same_for_all else {k: held[k] for k in (client,) if k in held}
            outputs = {"": answers(method, text, sets.test.images, task, wanted, most)}
            if sets.calibration is not None:
                rows = None if same_for_all else sets.calibration.index[client]
                outputs["calibration"] = answers_on_rows(
                    method, text, sets.calibration, task, rows, most
                )
            for name, owned in sets.corrupted.items():
                outputs[f"corrupted/{name}"] = answers(method, text, owned.images, task, most=most)
            for name, images in sets.ood.items():
                outputs[f"ood/{name}"] = answers(method, text, images, task, most=most)
                # Which image has which score is not asked again: sorted once for all clients.
                outputs[f"ood/{name}"].score.sort()
            yield client, outputs
    for client in clients[len(asked) :]:
        yield client, outputs
