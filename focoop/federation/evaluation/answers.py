"""What one client's model answers on a set: classes, OOD scores, margins to other classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from focoop.clip import LabelledFeatures
from focoop.federation.evaluation.sets import Owned
from focoop.methods import Method, Task, Text, shifted, split_prior
from focoop.threads import side_by_side

if TYPE_CHECKING:
    from torch import Tensor

# Images at a time and core, and cells of logits, scores and patches that these may take together.
CHUNK = 4096
CELLS, DEVICE_CELLS = 2**24, 2**27
# Scores hold a few copies of each logit in float64.
_COPIES_OF_LOGITS = 8


@dataclass(frozen=True)
class Outputs:
    """A model's answers on one set: predicted classes and OOD scores (higher: more OOD).

    `unbiased` are the classes predicted without the client's prior. `sides` are, without it too,
    the margins (N,) between own and other classes of the clients that were asked about, and whether
    each image is answered rightly on its side.
    """

    predicted: np.ndarray
    score: np.ndarray
    unbiased: np.ndarray
    sides: Mapping[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)


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
    unbiased = torch.empty_like(predicted)
    scored = torch.empty(count, dtype=torch.float64, device=device)
    size = chunk_size(text, images, most)
    sides = {
        client: Side.of(own, images.labels.numpy(), len(task.classes), device)
        for client, own in (own_classes or {}).items()
    }

    bare, prior = split_prior(text)

    @torch.no_grad()
    def answer(chunk: int) -> None:
        rows = slice(chunk * size, (chunk + 1) * size)
        pooled = images.pooled[rows].to(device)
        patches = None if images.patches is None else images.patches[rows].to(device)
        logits = method.logits(bare, pooled, patches)
        unbiased[rows] = logits.id.argmax(dim=1)
        for side in sides.values():
            side.keep(rows, logits.id)
        logits = shifted(logits, prior)
        predicted[rows] = logits.id.argmax(dim=1)
        scored[rows] = method.score(logits, task)

    side_by_side(answer, -(-count // size), device)
    margins = {client: side.margins() for client, side in sides.items()}
    return Outputs(predicted.cpu().numpy(), scored.cpu().numpy(), unbiased.cpu().numpy(), margins)


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

    def margins(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all margins and whether each image is answered rightly on its side."""
        return self.margin.cpu().numpy(), self.right.cpu().numpy()


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
    cells = _COPIES_OF_LOGITS * (prompts + (0 if text.ood is None else len(text.ood)))
    if images.patches is not None:
        cells += images.patches.shape[1] * (prompts + images.patches.shape[2])
    return max(1, min(most, room // max(1, cells)))


def answers_on_rows(
    method: Method, text: Text, owned: Owned, task: Task, rows: np.ndarray | None, most: int
) -> Outputs:
    """Predict and score some rows of a set.

    Args:
        method: The method.
        text: A client's text side.
        owned: The set.
        task: The task.
        rows: The rows; None: all.
        most: Images in a chunk at most.

    Returns:
        Answers for the whole set; beside the rows asked for the class is -1 and the score NaN.
    """
    if rows is None:
        return answers(method, text, owned.images, task, most=most)
    found = answers(method, text, owned.images.rows(torch.from_numpy(rows)), task, most=most)
    predicted = np.full(len(owned.images), -1, dtype=found.predicted.dtype)
    unbiased, score = predicted.copy(), np.full(len(owned.images), np.nan)
    predicted[rows], unbiased[rows], score[rows] = found.predicted, found.unbiased, found.score
    return Outputs(predicted, score, unbiased)
