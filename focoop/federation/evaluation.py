"""Evaluation of every client's model: own classes, all classes, shifted images and detection.

For each client: accuracy on its own test images over all C classes (the paper's ACC), accuracy on
everybody's test images, accuracy under corruption, detection of each OOD set, the cross-client
alarm, the share of other clients' ID images it flags when it keeps 95% of its own, and the frontier
between own and other classes as a bias on its own classes varies (`functional/frontier.py`). Where
there are test images that no client owns, of classes without training images, accuracy on these.
The threshold of the alarm comes from calibration images; without any, from a client's test images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from focoop.clip import LabelledFeatures
from focoop.errors import DataError
from focoop.federation.evaluation_resident import Resident, fits
from focoop.federation.evaluation_texts import Encoded, encoded
from focoop.federation.evaluation_together import evaluate_together
from focoop.functional import frontier, metrics
from focoop.methods import Method, Params, Task, Text
from focoop.threads import side_by_side

if TYPE_CHECKING:
    from torch import Tensor

# Images at a time and core, and cells of logits, scores and patches that these may take together.
CHUNK = 4096
CELLS, DEVICE_CELLS = 2**24, 2**27
# Scores hold a few copies of each logit in float64.
_WIDENED = 8


@dataclass(frozen=True)
class Owned:
    """A labelled set and which of its rows each client owns."""

    images: LabelledFeatures
    index: Sequence[np.ndarray]


@dataclass(frozen=True)
class EvaluationSets:
    """All sets a run is measured on; `corrupted` is keyed by `type@severity`, `ood` by name.

    `calibration` are ID images that no client trains or is tested on. `nobodys` are rows of test
    images that no client owns, where `test` does not tell; None: all that nobody owns there.
    """

    test: Owned
    corrupted: Mapping[str, Owned] = field(default_factory=dict)
    ood: Mapping[str, LabelledFeatures] = field(default_factory=dict)
    calibration: Owned | None = None
    nobodys: np.ndarray | None = None
    # What stays on a device between evaluations, by device and number of classes.
    kept: dict[tuple[torch.device, int], Resident] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def unowned(self) -> np.ndarray:
        """Return the rows of test images that no client owns: nobody trains on their classes."""
        if self.nobodys is not None:
            return self.nobodys
        owned = np.concatenate([*self.test.index, np.zeros(0, np.int64)])
        return np.setdiff1d(np.arange(len(self.test.images)), owned)

    def on(self, device: torch.device, classes: int) -> Resident:
        """Bring the sets to a device; they stay there.

        Args:
            device: The device.
            classes: Number of classes.

        Returns:
            What is there.
        """
        if (device, classes) not in self.kept:
            self.kept[device, classes] = Resident.of(
                self, classes_of(self, classes), classes, device
            )
        return self.kept[device, classes]


@dataclass(frozen=True)
class Outputs:
    """A model's answers on one set: predicted classes and OOD scores (higher: more OOD).

    `sides` are the margins (N,) between own and other classes of the clients that were asked about,
    and whether each image is answered rightly on its side.
    """

    predicted: np.ndarray
    score: np.ndarray
    sides: Mapping[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluation:
    """`summary` for tables and logs, `clients` one row per client with test images."""

    summary: dict[str, Any]
    clients: list[dict[str, Any]]


def answers(
    method: Method,
    text: Text,
    images: LabelledFeatures,
    task: Task,
    own_classes: Mapping[int, np.ndarray] | None = None,
    most: int = CHUNK,
) -> Outputs:
    """Predict and score a set in chunks; predictions run over all C classes.

    Of an image only its class and score are kept, on the device until the set is done, and its
    margin for each client of `own_classes`.

    Args:
        method: The method.
        text: A client's text side.
        images: The images.
        task: The task.
        own_classes: Classes of clients that have some and not all.
        most: Images in a chunk at most.

    Returns:
        Classes, scores and margins.
    """
    count, device = len(images), task.device
    predicted = torch.empty(count, dtype=torch.int32, device=device)
    scored = torch.empty(count, dtype=torch.float64, device=device)
    size = chunk_size(text, images, most)
    sides = {
        client: Side.of(own, images.labels.numpy(), len(task.classes), device)
        for client, own in (own_classes or {}).items()
    }

    @torch.no_grad()
    def answer(chunk: int) -> None:
        rows = slice(chunk * size, (chunk + 1) * size)
        pooled = images.pooled[rows].to(device)
        patches = None if images.patches is None else images.patches[rows].to(device)
        logits = method.logits(text, pooled, patches)
        predicted[rows] = logits.id.argmax(dim=1)
        scored[rows] = method.score(logits, task)
        for side in sides.values():
            side.keep(rows, logits.id)

    side_by_side(answer, -(-count // size), device)
    margins = {client: side.found() for client, side in sides.items()}
    return Outputs(predicted.cpu().numpy(), scored.cpu().numpy(), margins)


@dataclass(frozen=True)
class Side:
    """Margins between a client's own classes and all others, filled chunk by chunk."""

    own: Tensor
    others: Tensor
    labels: Tensor
    is_own: Tensor  # (N,) whether an image is of an own class
    margin: Tensor
    right: Tensor

    @classmethod
    def of(cls, own: np.ndarray, labels: np.ndarray, classes: int, device: torch.device) -> Side:
        """Make room for the margins of all images.

        Args:
            own: The client's classes.
            labels: Classes of the images (N,).
            classes: Number of classes.
            device: Where margins are kept.

        Returns:
            The room.
        """
        held = np.zeros(classes, dtype=bool)
        held[own] = True

        def there(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values).to(device)

        count = len(labels)
        return cls(
            there(np.flatnonzero(held)),
            there(np.flatnonzero(~held)),
            there(labels.astype(np.int64)),
            there(held[labels]),
            torch.empty(count, dtype=torch.float32, device=device),
            torch.empty(count, dtype=torch.bool, device=device),
        )

    def keep(self, rows: slice, logits: Tensor) -> None:
        """Keep the margins of a chunk's images.

        Args:
            rows: Which images they are.
            logits: Their logits (n, C).
        """
        mine = logits.index_select(1, self.own).max(dim=1)
        theirs = logits.index_select(1, self.others).max(dim=1)
        self.margin[rows] = theirs.values - mine.values
        answer = torch.where(self.is_own[rows], self.own[mine.indices], self.others[theirs.indices])
        self.right[rows] = answer == self.labels[rows]

    def found(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all margins and whether each image is answered rightly on its side."""
        return self.margin.cpu().numpy(), self.right.cpu().numpy()


def classes_of(sets: EvaluationSets, num_classes: int) -> dict[int, np.ndarray]:
    """Find the own classes of every client that has some and not all: those of its own test images.

    Args:
        sets: The sets to evaluate on.
        num_classes: Number of classes.

    Returns:
        Classes by client.
    """
    labels = sets.test.images.labels.numpy()
    classes = {client: np.unique(labels[own]) for client, own in enumerate(sets.test.index)}
    present = np.unique(labels)
    return {
        client: own
        for client, own in classes.items()
        if len(own) and len(np.setdiff1d(present, own)) and len(own) < num_classes
    }


def chunk_size(text: Text, images: LabelledFeatures, most: int = CHUNK, room: int = CELLS) -> int:
    """Return how many images are answered at a time, so that cosines stay within `room`.

    Args:
        text: A client's text side.
        images: The images.
        most: Images at most.
        room: Cells at most.

    Returns:
        Their number.
    """
    sides = (text.id, *text.parts.values())
    prompts = sum(side.numel() // max(1, side.shape[-1]) for side in sides if side.dim() > 1)
    cells = _WIDENED * (prompts + (0 if text.ood is None else len(text.ood)))
    if images.patches is not None:
        cells += images.patches.shape[1] * (prompts + images.patches.shape[2])
    return max(1, min(most, room // max(1, cells)))


def evaluate(
    method: Method,
    task: Task,
    params: Callable[[int], Params],
    sets: EvaluationSets,
    *,
    same_for_all: bool = False,
    most: int = CHUNK,
    bias: float = 0.0,
) -> Evaluation:
    """Evaluate all clients' models, on a GPU all at once (`evaluation_together.py`).

    Args:
        method: The method.
        task: The task.
        params: Gives a client's model.
        sets: The sets to evaluate on.
        same_for_all: Clients have no private tensors, so that one pass answers for all.
        most: Images answered at a time on a CPU.
        bias: Is added to a client's own classes for the harmonic mean of its frontier alone.

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
            bias=bias,
        )
        if together is not None:
            return Evaluation(summary_of(together[0], together[1], sets), together[0])
    rows: list[dict[str, Any]] = []
    own_scores: list[np.ndarray] = []
    ood_scores: dict[str, list[np.ndarray]] = {name: [] for name in sets.ood}
    for client, outputs in _per_client(method, task, params, sets, same_for_all, most):
        own = sets.test.index[client]
        rows.append(_client_row(client, own, outputs, sets, bias))
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
                outputs["calibration"] = _some(method, text, sets.calibration, task, rows, most)
            for name, owned in sets.corrupted.items():
                outputs[f"corrupted/{name}"] = answers(method, text, owned.images, task, most=most)
            for name, images in sets.ood.items():
                outputs[f"ood/{name}"] = answers(method, text, images, task, most=most)
                # Which image has which score is not asked again: sorted once for all clients.
                outputs[f"ood/{name}"].score.sort()
            yield client, outputs
    for client in clients[len(asked) :]:
        yield client, outputs


def _some(
    method: Method,
    text: Text,
    owned: Owned,
    task: Task,
    rows: np.ndarray | None,
    most: int,
) -> Outputs:
    """Answers on some rows of a set, at these rows; the others' scores are no numbers."""
    if rows is None:
        return answers(method, text, owned.images, task, most=most)
    found = answers(method, text, owned.images.rows(torch.from_numpy(rows)), task, most=most)
    predicted = np.full(len(owned.images), -1, dtype=found.predicted.dtype)
    score = np.full(len(owned.images), np.nan)
    predicted[rows], score[rows] = found.predicted, found.score
    return Outputs(predicted, score)


def _client_row(
    client: int,
    own: np.ndarray,
    outputs: Mapping[str, Outputs],
    sets: EvaluationSets,
    bias: float,
) -> dict[str, Any]:
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
        "threshold": threshold,
        "num_calibration": len(aside),
        "kept": float(np.mean(own_scores <= threshold)) if calibrated else None,
        "cross_alarm": float(np.mean(test.score[others] > threshold)) if others.any() else None,
        "frontier": frontier_of(client, own, test, labels, bias),
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


def frontier_of(
    client: int, own: np.ndarray, test: Outputs, labels: np.ndarray, bias: float = 0.0
) -> dict[str, Any] | None:
    """Compute a client's frontier.

    Args:
        client: The client's number.
        own: Its classes.
        test: Answers to the test images.
        labels: Classes of the test images.
        bias: The bias of the harmonic mean.

    Returns:
        The frontier; None where it holds all classes, or all that are tested.
    """
    if client not in test.sides:
        return None
    margin, right = test.sides[client]
    other = ~np.isin(labels, labels[own])
    return frontier.frontier(
        frontier.Margins(margin[own], right[own]),
        frontier.Margins(margin[other], right[other]),
        bias,
    )


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
