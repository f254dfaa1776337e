"""Federated sums: class means and the second moment of all clients' images, exact in one round.

Every client sends, of the classes of which it has enough images, their means and one matrix: the
mean of h h^T over these images. Averages weighted by images are then the statistics of all images
in one place, whoever holds them and however classes are shared: the server needs sums alone, so
that secure sums serve as well. What a client does not tell, it sends as it received it, with a
weight of zero; a change that is not sent takes nothing of `privacy.clip`. Weights are reports of
one round, and the server sends zeros. They also tell how far `privacy.clip` has shortened a change
and how much noise `privacy.noise` has added to it (`_weights.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from focoop.methods._averages import class_weighted_mean, weighted_mean
from focoop.methods._between import Between, Told, between_clients, widest
from focoop.methods._metric import class_means, distinct_counts
from focoop.methods._weights import MEASURED, ROUNDING, SENT, exact, left_of, read, told, untold
from focoop.methods.base import Batch, ClientUpdate, Params, Server, Task

if TYPE_CHECKING:
    from torch import Tensor

LEAST_SHARE = 0.05  # of images whose clients measured; less is taken for noise


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
        noise: (C,) variance of what privacy has added to each number of a class mean.
        moment_noise: the same of the moment, which is symmetric, off its diagonal.
        fewest: images that a mean counts as at least: 1, but for noised means (`_posterior.worth`).
    """

    means: Tensor
    images: Tensor
    moment: Tensor
    told: float
    between: Between | None = None
    noise: Tensor | None = None
    moment_noise: float = 0.0
    fewest: float = 1.0

    @property
    def errors(self) -> Tensor:
        """(C,) variance of each mean's error, in variances of one image about its class."""
        return 1.0 / self.images.clamp(min=self.fewest)

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
        return (
            *self.by_class,
            "sent_weight",
            *(("moment", "spread_weight") if self.second else ()),
        )

    def init(self, task: Task) -> Params:
        """The shared tensors before anybody has told anything: zeros."""
        rows, width = task.anchors.shape
        like = task.anchors
        tensors = {"means": like.new_zeros(rows, width), "mean_weight": untold(rows, like=like)}
        tensors["sent_weight"] = untold(like=like)
        if self.second:
            tensors["moment"] = like.new_zeros(width, width)
            tensors["spread_weight"] = untold(like=like)
        return tensors

    def measure(self, params: Params, images: Batch) -> Params:
        """What a client sends of its images (n, D).

        Args:
            params: the shared tensors as it received them.
            images: all its training images.

        Returns:
            `means`, `mean_weight` and `sent_weight`; `moment` and `spread_weight` where they are
            asked for.
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
            "mean_weight": told(MEASURED, enough.to(old)),
            "sent_weight": told(SENT, old.new_ones(())),
        }
        if not self.second:
            return measured
        tells = int((counts[enough] - 1).sum()) >= self.least_freedom
        vectors = images.pooled.double() if tells else own[images.labels]
        moment = vectors.T @ vectors / max(1, len(vectors))
        before = params["moment"].double()
        measured["moment"] = (before + share * (moment - before)).to(old)
        measured["spread_weight"] = told(MEASURED, old.new_tensor(share * tells))
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
        left = left_of(weighted_mean(updates, "sent_weight"))
        updates = [possible_counts(update, self.least_images) for update in updates]
        came = came_of(updates, server.shared, left)
        means, remembered = add_means(server, updates, came)
        noise, most, images = (remembered[name] for name in ("noise", "most", "images"))
        # Of what all rounds brought, the part that is not the same images again.
        different = float(most.sum()) / max(float(images.sum()), 1e-9)
        reports = {n: torch.zeros_like(server.shared[n]) for n in self.names if "weight" in n}
        shared = {"means": means, **reports}
        width = means.shape[1]
        totals = Totals(
            means.double(),
            images * different,
            means.new_zeros(width, width).double(),
            0.0,
            noise=noise if bool(noise.any()) else None,
        )
        if not self.second:
            return shared, remembered, totals
        clients = told_by(server.shared, updates, left)
        found = widest(Between.remembered(server.memory), between_clients(clients))
        moment, told_images, moment_noise = add_moment(server, updates, came)
        remembered |= found.memory() if found else {}
        remembered["told"] = torch.tensor([told_images, moment_noise], dtype=torch.float64)
        totals = replace(
            totals,
            moment=moment.double(),
            told=told_images * different,
            between=found,
            moment_noise=moment_noise,
        )
        return {**shared, "moment": moment}, remembered, totals


@dataclass(frozen=True)
class Came:
    """What has come of a round's clients.

    Attributes:
        counts: (C,) images of each class that these clients have.
        share: (C,) of them, those whose clients measured the class, times `left`.
        left: how much of a change `privacy.clip` has left.
        noise: (C,) variance of the noise on each number of a class mean.
    """

    counts: Tensor
    share: Tensor
    left: float
    noise: Tensor

    @property
    def images(self) -> Tensor:
        """(C,) images that were measured."""
        return self.counts * (self.share / self.left).clamp(max=1.0)


def came_of(updates: Sequence[ClientUpdate], old: Params, left: float) -> Came:
    """Read what has come of a round's clients.

    Args:
        updates: what clients sent, or their sum.
        old: the shared tensors as clients received them.
        left: how much of their changes a clip has left.

    Returns:
        Counts, shares and noise.
    """
    counts = torch.stack([update.class_counts for update in updates]).sum(dim=0).double()
    nothing = torch.zeros_like(old["mean_weight"])
    weight = read(MEASURED, class_weighted_mean(updates, "mean_weight", nothing))
    return Came(counts.to(nothing.device), weight.near(left).clamp(0.0, 1.0), left, weight.noise)


def add_means(server: Server, updates: Sequence[ClientUpdate], came: Came) -> tuple[Tensor, Params]:
    """The class means over all rounds, and what to remember of them.

    Args:
        server: the server before the round.
        updates: what clients sent, or their sum.
        came: what has come.

    Returns:
        (C, D) means; `images` (C,) of all rounds, the `most` (C,) of any, and the variance of the
        `noise` (C,) on a mean.
    """
    old, memory, now = server.shared["means"], server.memory, came.images
    images, most, noise = (
        memory.get(name, torch.zeros_like(now)).to(now) for name in ("images", "most", "noise")
    )
    new = now / (now + images).clamp(min=1e-9)
    part = new / came.share.clamp(min=LEAST_SHARE * came.left)
    fresh = class_weighted_mean(updates, "means", old)
    means = old + (fresh - old) * part[:, None].to(old)
    noise = (1.0 - new).square() * noise + part.square() * came.noise
    return means, {"images": now + images, "most": torch.maximum(now, most), "noise": noise}


def add_moment(
    server: Server, updates: Sequence[ClientUpdate], came: Came
) -> tuple[Tensor, float, float]:
    """The second moment over all rounds.

    Where all clients say that they measured all their images, no count of another class is of
    images, whatever a sum of counts that privacy has changed may say.

    Args:
        server: the server before the round.
        updates: what clients sent, or their sum.
        came: what has come.

    Returns:
        (D, D) moment, the images whose spread is in it, and the variance of its noise.
    """
    old, memory, left = server.shared["moment"], server.memory, came.left
    spread = read(MEASURED, weighted_mean(updates, "spread_weight"))
    share = float(spread.near(left)) / left
    total = float(came.images.sum())
    examples = total if abs(share - 1.0) <= ROUNDING else float(came.counts.sum())
    before = float(memory["images"].sum()) if "images" in memory else 0.0
    told_before, noise = memory["told"].tolist() if "told" in memory else (0.0, 0.0)
    new = total / max(total + before, 1e-9)
    measured = float((came.counts * came.share).sum()) / max(examples, 1e-9)
    step = new / max(measured, LEAST_SHARE * left)
    change = weighted_mean(updates, "moment") - old
    if float(spread.noise) > 0.0:  # a moment is symmetric, and its noise is not
        fresh = float((change - change.T).double().square().mean()) / 4.0
        change, noise = (change + change.T) / 2.0, step**2 * fresh + (1.0 - new) ** 2 * noise
    return old + change * step, told_before + examples * min(max(share, 0.0), 1.0), noise


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
    weight, counts = read(MEASURED, update.shared["mean_weight"].cpu()), update.class_counts
    sure = weight.share.to(counts.device) > 0.5
    if not exact(weight) or not bool(sure.any()):
        return update
    measured = torch.where(sure, counts.clamp(min=least_images), 0)
    others = torch.where(sure, 0, counts)
    spread = update.shared.get("spread_weight")
    share = 0.0 if spread is None else float(read(MEASURED, spread).share)
    if share > LEAST_SHARE:  # else it does not say how much it measured
        left = float(measured.sum()) * (1.0 / min(share, 1.0) - 1.0)
        others = (others * (left / max(float(others.sum()), 1.0))).round().to(counts)
    if torch.equal(measured + others, counts):
        return update
    return replace(
        update, class_counts=measured + others, num_examples=int((measured + others).sum())
    )


def told_by(old: Params, updates: Sequence[ClientUpdate], left: float) -> list[Told]:
    """Return what single clients tell of how their images vary.

    Args:
        old: the shared tensors as clients received them.
        updates: what clients sent.
        left: how much of their changes a clip has left.

    Returns:
        The sums of every client that tells how its images vary; none of a secure sum of several,
        nor of changes that privacy has clipped or noised.
    """
    found = []
    for update in updates:
        weight = read(MEASURED, update.shared["mean_weight"].cpu())
        counts = update.class_counts.cpu().double() * (weight.share > 0.5)
        freedom = float(counts.sum() - (counts > 0).sum())
        share = float(read(MEASURED, update.shared["spread_weight"]).share)
        if share < LEAST_SHARE or freedom < 1 or left < 1.0 or bool(weight.noise.any()):
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
