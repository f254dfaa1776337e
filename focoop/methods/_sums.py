"""Federated sums: class means and the second moment of all clients' images, exact in one round.

Every client sends, of the classes of which it has enough images, their means and one matrix: the
mean of h h^T over these images. Averages weighted by images are then the statistics of all images
in one place, whoever holds them and however classes are shared: the server needs sums alone, so
that secure sums serve as well. What a client does not tell, it sends as it received it, with a
weight of zero; a change that is not sent takes nothing of `privacy.clip`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from focoop.methods._averages import class_weighted_mean, weighted_mean
from focoop.methods._between import Between, Told, between_clients, widest
from focoop.methods._metric import class_means, distinct_counts
from focoop.methods.base import Batch, ClientUpdate, Params, Server, Task

if TYPE_CHECKING:
    from torch import Tensor

# What a client sends as the weight of a row it has measured: exact in binary, and small, so that it
# takes little of `privacy.clip`.
WEIGHT = 1 / 16
LEAST_SHARE = 0.05  # of images whose clients measured; less is taken for noise
ROUNDING = 1e-4  # of a share that clients tell without noise


@dataclass(frozen=True)
class Totals:
    """What the server knows of all images so far.

    Attributes:
        means: (C, D) mean feature of each class; zero where nobody has told it.
        images: (C,) images behind each mean. A client that is asked twice brings the same images
            twice: classes share the images of the rounds that brought most of each in the
            proportion in which all rounds brought them, as means and moment do.
        moment: (D, D) mean of h h^T over these images; zeros where it is not asked for.
        told: images whose spread within classes is in `moment`.
        between: how far clients of the same classes differ; nothing where that cannot be told.
    """

    means: Tensor
    images: Tensor
    moment: Tensor
    told: float
    between: Between | None = None

    @property
    def centre(self) -> Tensor:
        """(D,) mean of all images; zero where there are none."""
        return (self.images[:, None] * self.means).sum(dim=0) / self.images.sum().clamp(min=1e-9)

    @property
    def scatter(self) -> Tensor:
        """(D, D) sum of (h - mu_y)(h - mu_y)^T over all images; zeros where nobody told it."""
        total = self.images.sum()
        if self.told <= 0:
            return torch.zeros_like(self.moment)
        between = self.means.T @ (self.images[:, None] * self.means)
        spread = total * self.moment - between
        return (spread + spread.T) / 2

    @property
    def freedom(self) -> float:
        """Degrees of freedom of `scatter`: images less classes."""
        return max(0.0, self.told - float((self.images > 0).sum()))


@dataclass(frozen=True)
class Sums:
    """What clients measure and how the server adds it up.

    Attributes:
        least_images: different images of a class below which a client tells nothing of them.
        least_freedom: images less classes below which a client does not tell how images vary within
            classes: with fewer, that and the means tell single images.
        second: whether the second moment is asked for.
    """

    least_images: int
    least_freedom: int
    second: bool = True

    @property
    def by_class(self) -> tuple[str, ...]:
        """Shared tensors that are averaged class by class."""
        return ("means", "mean_weight")

    @property
    def names(self) -> tuple[str, ...]:
        """All shared tensors that clients measure."""
        return (*self.by_class, *(("moment", "spread_weight") if self.second else ()))

    def init(self, task: Task) -> Params:
        """The shared tensors before anybody has told anything: zeros."""
        rows, width = task.anchors.shape
        zeros = task.anchors.new_zeros
        tensors = {"means": zeros(rows, width), "mean_weight": zeros(rows, 1)}
        if self.second:
            tensors |= {"moment": zeros(width, width), "spread_weight": zeros(1)}
        return tensors

    def measure(self, params: Params, images: Batch) -> Params:
        """What a client sends of its images (n, D).

        Args:
            params: the shared tensors as it received them.
            images: all its training images.

        Returns:
            `means` and `mean_weight`; `moment` and `spread_weight` where they are asked for.
        """
        old = params["means"]
        counts = distinct_counts(images, len(old))
        enough = counts >= self.least_images
        usable = enough[images.labels]
        share = float(usable.double().mean())
        images = Batch(images.pooled[usable], None, images.labels[usable])
        own = class_means(images, len(old))
        measured = {
            "means": torch.where(enough[:, None], own.to(old), old),
            "mean_weight": WEIGHT * enough[:, None].to(old),
        }
        if not self.second:
            return measured
        tells = int((counts[enough] - 1).sum()) >= self.least_freedom
        vectors = images.pooled.double() if tells else own[images.labels]
        moment = vectors.T @ vectors / max(1, len(vectors))
        before = params["moment"].double()
        measured["moment"] = (before + share * (moment - before)).to(old)
        measured["spread_weight"] = torch.full_like(params["spread_weight"], WEIGHT * share * tells)
        return measured

    def add(self, server: Server, updates: Sequence[ClientUpdate]) -> tuple[Params, Params, Totals]:
        """Add a round's updates to what earlier rounds told.

        A round weighs as many images as were measured in it. Rows that clients left as they were
        take no part: the change is divided by the share of images whose clients did measure.

        Args:
            server: the server before the round.
            updates: what clients sent, or their sum.

        Returns:
            The measured shared tensors, the server's memory, and what is known of all images.
        """
        old, memory = server.shared, server.memory
        updates = [possible_counts(update, self.least_images) for update in updates]
        counts = torch.stack([update.class_counts for update in updates]).sum(dim=0).double()
        counts = counts.to(old["means"].device)
        fresh = class_weighted_mean(updates, "means", old["means"])
        weight = class_weighted_mean(updates, "mean_weight", torch.zeros_like(old["mean_weight"]))
        share = (weight.double()[:, 0] / WEIGHT).clamp(0.0, 1.0)  # (C,)
        now = counts * share
        before = memory.get("images", torch.zeros_like(now)).to(now)
        part = now / (now + before).clamp(min=1e-9) / share.clamp(min=LEAST_SHARE)
        means = old["means"] + (fresh - old["means"]) * part[:, None].to(old["means"])
        most = torch.maximum(now, memory.get("most", torch.zeros_like(now)).to(now))
        remembered = {"images": now + before, "most": most}
        # Of what all rounds brought, the part that is not the same images again.
        different = float(most.sum()) / max(float((now + before).sum()), 1e-9)
        shared = {"means": means, "mean_weight": WEIGHT * (most > 0)[:, None].to(means)}
        width = means.shape[1]
        moment, spread_images = means.new_zeros(width, width), 0.0
        between: Between | None = None
        if self.second:
            between = widest(Between.remembered(memory), between_clients(told_by(old, updates)))
            remembered |= between.memory() if between else {}
            moment, told_now = self._moment(old, updates, float(counts.sum()), now, before)
            told = told_now + float(memory.get("told", torch.zeros(())))
            remembered["told"] = torch.tensor(told, dtype=torch.float64)
            spread_images = told * different
            known = WEIGHT * spread_images / max(float(most.sum()), 1e-9)
            shared |= {"moment": moment, "spread_weight": moment.new_full((1,), known)}
        images = (now + before) * different
        totals = Totals(means.double(), images, moment.double(), spread_images, between)
        return shared, remembered, totals

    def _moment(
        self,
        old: Params,
        updates: Sequence[ClientUpdate],
        examples: float,
        now: Tensor,
        before: Tensor,
    ) -> tuple[Tensor, float]:
        """The second moment over all rounds, and the images whose spread this round told.

        Where all clients say that they measured all their images, no count of another class is of
        images, whatever a sum of counts that privacy has changed may say.
        """
        fresh = weighted_mean(updates, "moment")
        told = float(weighted_mean(updates, "spread_weight").double() / WEIGHT)
        total = float(now.sum())
        examples = total if abs(told - 1.0) <= ROUNDING else examples
        step = total / max(total + float(before.sum()), 1e-9)
        step /= max(total / max(examples, 1e-9), LEAST_SHARE)
        moment = old["moment"] + (fresh - old["moment"]) * step
        return moment, examples * min(max(told, 0.0), 1.0)


def possible_counts(update: ClientUpdate, least_images: int) -> ClientUpdate:
    """Return an update whose class counts are possible ones, given what its client measured.

    A client measures a class of which it has `least_images` or more, and says how much of all its
    images that is. Exact counts agree with both. Those that privacy has changed may not: without
    this, a class whose noised count is 0 would be lost, and noise on the counts of classes that a
    client does not hold would be taken for images that it did not measure.

    Args:
        update: What a client sent. Of one with noised weights nothing is concluded.
        least_images: Different images of a class from which on clients measure it.

    Returns:
        The update, or one with more images of measured classes and fewer of others.
    """
    weight, counts = update.shared["mean_weight"][:, 0].cpu(), update.class_counts
    told = (weight == WEIGHT).to(counts.device)
    if not bool(((weight == 0.0) | (weight == WEIGHT)).all()) or not bool(told.any()):
        return update
    measured = torch.where(told, counts.clamp(min=least_images), 0)
    others = torch.where(told, 0, counts)
    share = float(update.shared.get("spread_weight", torch.zeros(1))) / WEIGHT
    if share > LEAST_SHARE:  # else it does not say how much it measured
        left = float(measured.sum()) * (1.0 / min(share, 1.0) - 1.0)
        others = (others * (left / max(float(others.sum()), 1.0))).round().to(counts)
    if torch.equal(measured + others, counts):
        return update
    return replace(
        update, class_counts=measured + others, num_examples=int((measured + others).sum())
    )


def told_by(old: Params, updates: Sequence[ClientUpdate]) -> list[Told]:
    """Return what single clients tell of how their images vary.

    Args:
        old: the shared tensors as clients received them.
        updates: what clients sent.

    Returns:
        The sums of every client that tells how its images vary; none of a secure sum of several.
    """
    found = []
    for update in updates:
        measured = update.shared["mean_weight"][:, 0].cpu() > WEIGHT / 2
        counts = update.class_counts.cpu().double() * measured
        freedom = float(counts.sum() - (counts > 0).sum())
        share = float(update.shared["spread_weight"]) / WEIGHT
        if share < LEAST_SHARE or freedom < 1:
            continue
        before, means = old["moment"].double().cpu(), update.shared["means"].double().cpu()
        moment = before + (update.shared["moment"].double().cpu() - before) / share
        scatter = counts.sum() * moment - means.T @ (counts[:, None] * means)
        found.append(Told(means, counts, scatter / freedom, freedom))
    return found


def oas(scatter: Tensor, freedom: float) -> float:
    """Oracle Approximating Shrinkage (Chen et al. 2010): how far to draw a covariance to m I.

    Args:
        scatter: (D, D) sum of squares and products about class means, in float64.
        freedom: its degrees of freedom n.

    Returns:
        rho in [0, 1] of (1 - rho) S + rho m I with S = scatter / n, m the mean of its diagonal.
    """
    if freedom <= 0:
        return 1.0
    spread = scatter / freedom
    size, square = float(spread.diagonal().mean()), float(spread.square().mean())
    below = (freedom + 1.0) * (square - size**2 / len(spread))
    return 1.0 if below <= 0 else min(1.0, (square + size**2) / below)
