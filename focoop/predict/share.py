"""Estimate from unlabelled images how many are of other clients' classes, to set the dial."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from focoop.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

AUTO = "auto"  # the position of the dial that is estimated from the images themselves
_STEPS = 1000  # at most; some tens are taken
_SETTLED = 1e-6


def likely_share(own: Tensor, every: Tensor) -> float:
    """Return the likeliest share of images that are of any class rather than of a client's own.

    With A(x) the evidence of own classes and B(x) that of all, the likelihood of the images,
    sum_x log((1 - share) A(x) + share B(x)), has one maximum. It is found by
    expectation-maximisation (Saerens, Latinne & Decaestecker 2002).

    Args:
        own: (N,) log A.
        every: (N,) log B.

    Returns:
        The share, 0 to 1.

    >>> never, always = torch.full((4,), -50.0), torch.zeros(4)
    >>> round(likely_share(never, always), 3), round(likely_share(always, never), 3)
    (1.0, 0.0)
    """
    ratio = (own - every).double().clamp(-60.0, 60.0).exp()
    share = 0.5
    for _ in range(_STEPS):
        before, share = share, float((share / ((1.0 - share) * ratio + share)).mean())
        if abs(share - before) < _SETTLED:
            break
    return min(max(share, 0.0), 1.0)


def position(open_share: float | str | None) -> float | None:
    """Return a position of the dial that is no text.

    Args:
        open_share: The position, or None: as the method was set up.

    Returns:
        The same.

    Raises:
        ConfigError: It is a text, or no number from 0 to 1.
    """
    if open_share is None:
        return None
    if isinstance(open_share, str) or not math.isfinite(open_share) or not 0 <= open_share <= 1:
        raise ConfigError(f"open_share is a number from 0 to 1, or {AUTO!r}; got {open_share!r}")
    return float(open_share)


def total_odds(odds: Tensor, prior: Tensor) -> Tensor:
    """Return the log of what classes explain together under a prior.

    Args:
        odds: (N, C) log-odds of classes.
        prior: (C,) log of the prior, up to a constant.

    Returns:
        (N,) logs, for a prior whose sum is 1.
    """
    return torch.logsumexp(odds + torch.log_softmax(prior, dim=0), dim=1)
