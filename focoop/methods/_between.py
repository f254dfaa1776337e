"""How far clients of the same classes differ, and what that says of the next client.

Images of one client have a camera or a style in common. What its images say of a class is then less
certain for the next client than as many independent images would be. Two things are estimated from
the clients' own sums, both by taking clients, not images, for the sample: how far to shrink the
covariance within classes, and how uncertain class means are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from focoop.methods.base import Params

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Told:
    """What a client tells of its images.

    Attributes:
        means: (C, D) its class means.
        counts: (C,) its images of each class; 0 where it tells no mean.
        covariance: (D, D) of its images within classes.
        freedom: degrees of freedom of the covariance, images less classes.
    """

    means: Tensor
    counts: Tensor
    covariance: Tensor
    freedom: float


@dataclass(frozen=True)
class Between:
    """How far clients differ.

    Attributes:
        shrinkage: how far to shrink the covariance within classes; 0, where clients have no class
            in common, to 1.
        alike: how far clients hold the same classes, 0 to 1.
        freedom: degrees of freedom of the clients' covariances together.
        noise: (D, D) covariance of an image about its class as differences of clients' class means
            tell it; that within classes where clients are of one kind.
    """

    shrinkage: float
    alike: float
    freedom: float
    noise: Tensor

    def memory(self) -> Params:
        """The server's memory of it: `between` (3,) and `apart` (D, D)."""
        numbers = [self.shrinkage, self.alike, self.freedom]
        return {"between": torch.tensor(numbers, dtype=torch.float64), "apart": self.noise}

    @classmethod
    def remembered(cls, memory: Params) -> Between | None:
        """What `memory` wrote, or None."""
        if "apart" not in memory:
            return None
        shrinkage, same, freedom = memory["between"].tolist()
        return cls(shrinkage, same, freedom, memory["apart"].double().cpu())


def between_clients(told: Sequence[Told]) -> Between | None:
    """Compare clients.

    Args:
        told: what each of them tells.

    Returns:
        How far they differ; None where less than two tell how images vary, as in secure sums.
    """
    if len(told) < 2:
        return None
    counts = torch.stack([one.counts for one in told])
    same, freedom = alike(counts), sum(one.freedom for one in told)
    return Between(same * shrinkage_between(told), same, freedom, noise_between(told, counts))


def shrinkage_between(told: Sequence[Told]) -> float:
    """How far to shrink the covariance within classes by what clients' own covariances differ.

    Ledoit & Wolf (2004) shrink a covariance S to m I by E|S - E S|^2 / |S - m I|^2. The error of S
    for the next client is estimated from clients' own covariances S_k, of f_k degrees of freedom:
        E|S - E S|^2 = sum_k w_k^2 / (1 - w_k) |S_k - S|^2,  S = sum_k w_k S_k,  w_k = f_k / sum f
    which for clients of the same kind is the error that their images explain. Clients of other
    classes differ for that reason alone: `between_clients` multiplies it by how far they hold the
    same.

    Args:
        told: what two or more clients tell.

    Returns:
        The shrinkage, 0 to 1.
    """
    covariances = torch.stack([one.covariance for one in told])
    freedom = torch.tensor([one.freedom for one in told], dtype=torch.float64)
    weights = freedom / freedom.sum()
    middle = torch.einsum("k,kde->de", weights, covariances)
    errors = (covariances - middle).square().sum(dim=(1, 2))
    error = float((weights.square() / (1.0 - weights) * errors).sum())
    size = middle.diagonal().mean()
    below = float((middle - size * torch.eye(len(middle), dtype=torch.float64)).square().sum())
    return min(1.0, error / below) if below > 0 else 0.0


def noise_between(told: Sequence[Told], counts: Tensor) -> Tensor:
    """Covariance of an image about its class, as differences between clients' class means tell it.

    The mean of a class over clients with shares w_k of its n images has the error
    sum_k w_k^2 / (1 - w_k) r_k r_k^T, r_k how far the client's mean lies from it. Were images
    independent, n times that would be their covariance; where clients differ it is more. What a
    client's classes have in common, such as its light, separates no classes and is taken out of r.

    Args:
        told: what two or more clients tell.
        counts: (K, C) images of every client and class.

    Returns:
        (D, D) mean over classes that several clients hold; zeros where there is none.
    """
    total = counts.sum(dim=0)
    weights = counts / total.clamp(min=1.0)  # (K, C)
    middle = sum(w[:, None] * one.means for w, one in zip(weights, told, strict=True))
    several = (counts > 0).sum(dim=0) > 1
    noise = torch.zeros_like(told[0].covariance)
    for share, one in zip(weights, told, strict=True):
        held = several & (one.counts > 0)
        off, number = (one.means - middle)[held], int(held.sum())
        if number > 1:  # of a single class nobody can tell what it has in common with others
            off = (off - off.mean(dim=0)) * (number / (number - 1)) ** 0.5
        factor = total[held] * share[held].square() / (1.0 - share[held])
        noise += off.T @ (factor[:, None] * off)
    return noise / max(1.0, float(several.sum()))


def alike(counts: Tensor) -> float:
    """How far clients hold the same classes: 1 if in the same shares, 0 if none is shared.

    The overlap sum_c min(p_c, q_c) of a client's classes with those of all others, in the mean over
    images.

    Args:
        counts: (K, C) images of every client and class; each client has some.

    Returns:
        A number from 0 to 1.
    """
    others = counts.sum(dim=0) - counts
    own = counts / counts.sum(dim=1, keepdim=True)
    overlaps = torch.minimum(own, others / others.sum(dim=1, keepdim=True)).sum(dim=1)
    return float((overlaps * counts.sum(dim=1)).sum() / counts.sum())


def widest(before: Between | None, now: Between | None) -> Between | None:
    """Of two answers of `between_clients` the one of more images; the later one of as many."""
    if before is None or now is None:
        return now or before
    return now if now.freedom >= before.freedom else before
