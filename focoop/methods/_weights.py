"""Weights that clients send beside sums: what was measured, how far it was cut, how noisy it is.

A client tells every weight in `TIMES` equal numbers. `privacy.clip` shortens all numbers of an
update by one factor, and `privacy.noise` adds noise of one deviation to all of them. So the mean of
the equal numbers is the weight as far as the clip has left it, and their deviation is that of the
noise on everything that came with them. The server reads both from single updates or their sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

TIMES = 16
# Lengths of the weight of what was measured, and of the one that every update has: exact in binary,
# small, so that they take little of `privacy.clip`, and large enough to be read under noise.
MEASURED, SENT = 1 / 8, 1 / 2
SURE = 3.0  # deviations of the noise within which a weight says nothing else than all others
ROUNDING = 1e-4  # of a weight that clients tell without noise
LEAST_LEFT = 0.01  # of a change that was clipped; less is taken for noise


@dataclass(frozen=True)
class Weight:
    """Weights as the server reads them.

    Attributes:
        share: of their length, 1 where all clients measured and none was clipped.
        noise: variance of the noise on each number that came with them; 0 where there is none.
        error: variance of `share` by that noise.
    """

    share: Tensor
    noise: Tensor
    error: Tensor

    def near(self, usual: float) -> Tensor:
        """`share`, drawn to the usual share as far as noise explains the difference.

        Weights that lie `SURE` deviations off or more say something else, and stay as they are.
        """
        off = self.share - usual
        alike = off.abs() <= SURE * self.error.sqrt()
        if not bool((alike & (self.error > 0)).any()):
            return self.share
        spread = (off.square() - self.error)[alike].mean().clamp(min=0.0)  # of true weights
        found: Tensor = torch.where(alike, usual + off * spread / (spread + self.error), self.share)
        return found


def told(length: float, which: Tensor) -> Tensor:
    """Make the numbers in which a client tells weights.

    Args:
        length: of a whole weight.
        which: (...,) the share of each weight that is told, 0 to 1.

    Returns:
        (..., TIMES) numbers.
    """
    one: Tensor = which * (length / TIMES**0.5)
    return one[..., None].expand(*which.shape, TIMES).clone()


def untold(*shape: int, like: Tensor) -> Tensor:
    """Return weights before anybody has told one: zeros (*shape, TIMES)."""
    return like.new_zeros(*shape, TIMES)


def read(length: float, numbers: Tensor) -> Weight:
    """Read weights from the numbers in which clients told them.

    Args:
        length: of a whole weight.
        numbers: (..., TIMES) as they came, or means of several clients.

    Returns:
        The weights.
    """
    one = length / TIMES**0.5
    numbers = numbers.double()
    noise = numbers.var(dim=-1)
    noise = torch.where(noise <= (ROUNDING * one) ** 2, 0.0, noise)
    if bool(noise.any()):
        noise = as_far_as_they_differ(noise)
    return Weight(numbers.mean(dim=-1) / one, noise, noise / TIMES / one**2)


def as_far_as_they_differ(noise: Tensor) -> Tensor:
    """Improve variances that were measured in `TIMES` numbers each by what they have in common.

    The logarithm of such a variance is off by a known one itself. Logarithms that differ by no more
    are one variance; others are drawn to their mean as far as that asks for (James & Stein 1961).

    Args:
        noise: (...,) measured variances; some are 0, where nobody noised anything.

    Returns:
        (...,) variances.
    """
    there = noise > 0
    logs, half = noise[there].log(), torch.tensor((TIMES - 1) / 2.0, dtype=noise.dtype)
    logs = logs + half.log() - torch.special.digamma(half)
    off = float(torch.special.polygamma(1, half))  # variance of each logarithm
    apart = float(logs.var(correction=0))
    own = max(0.0, 1.0 - off / apart) if apart > 0 else 0.0
    noise = noise.clone()
    noise[there] = (logs.mean() + own * (logs - logs.mean())).exp()
    return noise


def left_of(sent: Tensor) -> float:
    """How much of its change `privacy.clip` has left a client, or clients in the mean.

    Args:
        sent: (TIMES,) the weight that every update has, as it came.

    Returns:
        The factor, 1 where nothing was clipped.
    """
    left = float(read(SENT, sent).share)
    return 1.0 if left >= 1.0 - ROUNDING else max(left, LEAST_LEFT)


def exact(weight: Weight) -> bool:
    """Return whether weights came as 0 or 1: neither noised, nor clipped, nor averaged."""
    off = (weight.share - weight.share.round()).abs()
    return not bool(weight.noise.any()) and bool((off <= ROUNDING).all())
