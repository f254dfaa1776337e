"""Score histograms, ROC and precision-recall curves of a run, and the names near its prompts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from focoop.clip import LabelledFeatures
from focoop.experiments import OpenedRun, open_state
from focoop.methods import Text
from focoop.runs import RunFolder

CLIENTS = 10  # clients whose curves are averaged, at most
BINS = 48  # of a histogram
GRID = np.linspace(0.0, 1.0, 101)  # where curves are drawn
NEAREST = 3  # names beside a learned prompt
PROMPTS = 12  # learned prompts that are listed

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Detection:
    """What a report draws of one run's scores; higher scores mean more OOD.

    Attributes:
        client: The client whose histograms these are.
        edges: (B + 1,) borders of the bins.
        histograms: (B,) share of images in each bin, by set; `own` are the client's test images.
        threshold: The score from which on the run's evaluation takes images for unknown.
        roc: (101,) OOD images found by the share of ID images flagged, mean of clients, by OOD set.
        precision: (101,) precision by recall of OOD images, mean of clients, by OOD set.
        near: Names nearest to each learned prompt: prompt, then (name, cosine) pairs.
    """

    client: int
    edges: Array
    histograms: Mapping[str, Array]
    threshold: float
    roc: Mapping[str, Array]
    precision: Mapping[str, Array]
    near: Mapping[str, list[tuple[str, float]]]


def detection(folder: RunFolder, thresholds: Mapping[int, float]) -> Detection:
    """Ask the models of a run about its test images and OOD sets.

    Args:
        folder: The run; its data is opened and checked.
        thresholds: The evaluated threshold of every client.

    Returns:
        Histograms and curves.
    """
    state = open_state(folder)
    index = state.scenario.sets.test.index
    clients = [client for client, own in enumerate(index) if len(own)][:CLIENTS]
    roc: dict[str, list[Array]] = {name: [] for name in state.scenario.sets.ood}
    precision: dict[str, list[Array]] = {name: [] for name in roc}
    first: dict[str, Array] = {}
    near: dict[str, list[tuple[str, float]]] = {}
    for client in clients:
        text = state.text(client)
        own = _scores(state, text, state.scenario.sets.test.images)[index[client]]
        foreign = {n: _scores(state, text, images) for n, images in state.scenario.sets.ood.items()}
        for name, scores in foreign.items():
            roc[name].append(roc_curve(own, scores))
            precision[name].append(precision_curve(own, scores))
        if not first:
            first, near = {"own": own, **foreign}, _near(state, text)
    edges = bin_edges(first)
    return Detection(
        clients[0],
        edges,
        {name: np.histogram(scores, edges)[0] / len(scores) for name, scores in first.items()},
        thresholds[clients[0]],
        {name: np.mean(curves, axis=0) for name, curves in roc.items()},
        {name: np.mean(curves, axis=0) for name, curves in precision.items()},
        near,
    )


def roc_curve(id_scores: Array, ood_scores: Array) -> Array:
    """Return the share of OOD images found at every share of ID images flagged.

    Args:
        id_scores: (N,) scores of known images.
        ood_scores: (M,) scores of foreign images.

    Returns:
        (101,) shares; the curve between two scores is a straight line, as AUROC counts ties.
    """
    flagged, found = _counts(id_scores, ood_scores)
    return np.interp(GRID, flagged / len(id_scores), found / len(ood_scores))


def precision_curve(id_scores: Array, ood_scores: Array) -> Array:
    """Return the share of flagged images that are OOD at every share of OOD images found.

    Args:
        id_scores: (N,) scores of known images.
        ood_scores: (M,) scores of foreign images.

    Returns:
        (101,) precisions; 1 where nothing is flagged.
    """
    flagged, found = _counts(id_scores, ood_scores)
    share = np.where(found + flagged > 0, found / np.maximum(found + flagged, 1), 1.0)
    return np.interp(GRID, found / len(ood_scores), share)


def _counts(id_scores: Array, ood_scores: Array) -> tuple[Array, Array]:
    """ID and OOD images at or above each threshold, from none to all."""
    thresholds = np.unique(np.concatenate([id_scores, ood_scores]))[::-1]
    sides = []
    for scores in (id_scores, ood_scores):
        above = len(scores) - np.searchsorted(np.sort(scores), thresholds, side="left")
        sides.append(np.concatenate([[0], above]).astype(np.float64))
    return sides[0], sides[1]


def bin_edges(scores: Mapping[str, Array]) -> Array:
    """Return borders of bins that hold all scores; few far ones share the outer bins.

    Args:
        scores: (N,) scores of each set.

    Returns:
        (B + 1,) borders, in order.
    """
    together = np.concatenate(list(scores.values()))
    low, high = np.quantile(together, [0.005, 0.995])
    inner = np.linspace(low, high if high > low else low + 1.0, BINS - 1)
    first, last = min(together.min(), inner[0]), max(together.max(), inner[-1])
    return np.concatenate([[first], inner[1:-1], [last]])


def _scores(state: OpenedRun, text: Text, images: LabelledFeatures) -> Array:
    """(N,) scores of a client's model, in float64."""
    method, task = state.scenario.method, state.scenario.task
    with torch.no_grad():
        parts = [method.score(logits, task).double() for logits in state.answers(text, images)]
    return torch.cat(parts).cpu().numpy()


def _near(state: OpenedRun, text: Text) -> dict[str, list[tuple[str, float]]]:
    """Names of classes and words nearest to the first class prompts and OOD prompts."""
    task, words = state.scenario.task, state.scenario.words
    if text.id.dim() != 2 or text.id.shape[1] != task.anchors.shape[1]:
        return {}
    with torch.no_grad():
        names = [*task.classes, *words]
        plain = torch.cat([task.anchors, task.texts(list(words))]) if words else task.anchors
    prompts = {f"class {name}": row for name, row in zip(task.classes, text.id, strict=True)}
    listed = dict(list(prompts.items())[:PROMPTS])
    if text.ood is not None and text.ood.shape[1:] == text.id.shape[1:]:
        listed |= {f"OOD prompt {i + 1}": row for i, row in enumerate(text.ood[:PROMPTS])}
    near = {}
    for prompt, feature in listed.items():
        cosines = plain.to(feature) @ (feature / feature.norm().clamp(min=1e-12))
        best = cosines.topk(min(NEAREST, len(names)))
        near[prompt] = [
            (names[place], value)
            for place, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
    return near
