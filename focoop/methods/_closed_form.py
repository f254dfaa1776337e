"""Closed-form classifiers on federated sums: what `fedncm`, `fedlda`, `fed3r`, `gda_clip` share.

Clients train nothing. Each tells the means of its classes, and where a method needs it one second
moment (`_sums.py`); the server solves for the classifier and sends it back. One round in which all
clients take part is enough; a later one adds what new clients bring. What makes a client's answer
its own is its prior (`_prior.py`) and nothing else.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F

from focoop.fields import setting
from focoop.functional import scores
from focoop.methods._averages import weighted_mean
from focoop.methods._prior import PRIOR, expected, log_prior
from focoop.methods._sums import Sums, Totals
from focoop.methods.base import (
    Batch,
    ClientUpdate,
    Logits,
    Method,
    Params,
    Prompt,
    Server,
    State,
    Task,
    Text,
)

if TYPE_CHECKING:
    from torch import Tensor

APART = 1.0  # log-odds by which a class that nobody has told lies below all others


@dataclass(frozen=True)
class ClosedFormConfig:
    """Settings that all closed-form classifiers have."""

    open_share: float = setting(
        0.3,
        "lambda, share of images expected of any class; 1: no prior, 0: own classes alone",
        low=0,
        high=1,
        grid=(0.1, 0.2, 0.3, 0.4),
        group="engineering",
    )
    least_images: int = setting(
        1,
        "different images of a class below which nothing is sent of them; a site's policy asks for "
        "more",
        low=1,
        high=1_000_000,
        group="engineering",
    )


@dataclass(frozen=True)
class SpreadConfig(ClosedFormConfig):
    """Settings of the classifiers that also measure how images vary."""

    least_freedom: int = setting(
        16,
        "images less classes below which a client's spread is not sent; not asked with "
        "least_images = 1",
        low=1,
        high=1_000_000,
        group="engineering",
    )


class ClosedForm(Method):
    """Measure, add up, solve; a subclass says what is solved and how images are compared."""

    Config = ClosedFormConfig  # type: ignore[assignment]
    config: ClosedFormConfig
    keeps = "class counts"
    closed_form = True
    together = False
    # 1: weights were told once, and clients sent back what the server makes
    revision = 2

    @property
    @abstractmethod
    def sums(self) -> Sums:
        """What clients measure."""

    @property
    @abstractmethod
    def scale(self) -> float:
        """The factor s that makes log-odds of the entries of `Logits.id`."""

    @abstractmethod
    def solve(self, totals: Totals, task: Task, extras: Params) -> tuple[Params, dict[str, float]]:
        """The server's own shared tensors, made of all sums, and numbers for the round's report.

        `extras` holds the means by images of what else clients measured (`also`).
        """

    @abstractmethod
    def model(self, params: Params, task: Task) -> Text:
        """The classifier as `evidence` reads it: `id` (C, D) and its parts."""

    @abstractmethod
    def evidence(self, text: Text, pooled: Tensor) -> Logits:
        """What images (N, D) say of each class, before a client's prior; log-odds over s."""

    @property
    def by_class(self) -> tuple[str, ...]:  # type: ignore[override]
        """What has a row per class."""
        return self.sums.by_class

    @property
    def untrained(self) -> tuple[str, ...]:  # type: ignore[override]
        """What clients measure: nothing is trained."""
        return (*self.sums.names, *self.also)

    also: ClassVar[tuple[str, ...]] = ()  # what clients measure beside the sums

    def first(self, task: Task) -> Params:
        """The tensors of `also` before anybody has measured them."""
        return {}

    def init(self, task: Task, generator: torch.Generator) -> State:
        """Nothing is known of any class."""
        shared = {**self.sums.init(task), **self.first(task)}
        rows, width = task.anchors.shape
        nothing = task.anchors.new_zeros
        totals = Totals(
            nothing(rows, width).double(), nothing(rows).double(), nothing(width, width).double(), 0
        )
        solved, _ = self.solve(totals, task, shared)
        made = {name: value.to(task.anchors) for name, value in solved.items()}
        counts = torch.zeros(rows, dtype=torch.int64, device=task.device)
        return State({**shared, **made}, private={"counts": counts})

    def personalise(self, private: Params, class_counts: Tensor, task: Task) -> Params:
        """The client's own class counts, which make its prior."""
        return {**private, "counts": class_counts}

    def measure(self, params: Params, images: Batch, task: Task) -> Params:
        """What the client tells of its images."""
        return self.sums.measure(params, images)

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Add up what clients told, then solve."""
        shared, memory, totals = self.sums.add(server, updates)
        shared |= {name: weighted_mean(updates, name) for name in self.also}
        solved, report = self.solve(totals, task, shared)
        made = {name: value.to(server.shared[name]) for name, value in solved.items()}
        return Server({**shared, **made}, memory, report)

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        """Nothing is prompted with a context."""
        return {}

    def text(self, params: Params, features: Params, task: Task) -> Text:
        """The classifier and the client's prior."""
        made = self.model(params, task)
        prior = log_prior(params["counts"], self.config.open_share, made.id.dtype) / self.scale
        return Text(made.id, made.ood, {**made.parts, PRIOR: prior})

    def answer_scale(self, task: Task) -> float:
        """Evidence is multiplied by `scale`."""
        return self.scale

    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        """Evidence and prior."""
        return expected(self.evidence(text, pooled), text)

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        """Cross-entropy of the answers: it says how the run goes, and trains nothing."""
        logits = self.logits(text, batch.pooled, batch.patches)
        return F.cross_entropy(self.scale * logits.id, batch.labels)

    def score(self, logits: Logits, task: Task) -> Tensor:
        """ID mass: how little of all evidence, weighed by the prior, speaks for any class."""
        return scores.energy(logits.id, self.scale)


class SpreadForm(ClosedForm):
    """A closed-form classifier of class means and the second moment."""

    Config = SpreadConfig
    config: SpreadConfig

    @property
    def sums(self) -> Sums:
        """Class means and the second moment."""
        config = self.config
        # Where the mean of a single image is sent, its spread tells no more.
        return Sums(config.least_images, config.least_freedom if config.least_images > 1 else 0)


def has_mean(means: Tensor) -> Tensor:
    """(C,) whether anybody has told a mean of this class."""
    return means.abs().sum(dim=1) > 0


def answerable(evidence: Tensor, known: Tensor, apart: float) -> Tensor:
    """Evidence (N, C) in which classes that nobody has told lie below all others.

    Args:
        evidence: of each image for each class.
        known: (C,) which classes somebody has told.
        apart: by how much the others lie below the least of these.

    Returns:
        Evidence (N, C).
    """
    least = torch.where(known, evidence, torch.inf).amin(dim=1, keepdim=True)
    least = torch.where(known.any(), least - apart, torch.zeros_like(least))
    return torch.where(known, evidence, least)
