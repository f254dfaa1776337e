"""Costs of transport between prompts, brought to a scale that `tau` can be set for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from torch import Tensor

# Largest cost under the scale `quantile`: prompts as far as that draw no mass at any sensible tau,
# and would otherwise be most of what a plan gains over the product plan.
FAR = 10.0


def squared_cost(a: Tensor, b: Tensor, *, chunk: int = 1024) -> Tensor:
    """Return squared Euclidean distances between two sets of points, computed in float64.

    Args:
        a: Points (C, d).
        b: Points (J, d).
        chunk: Points of `b` widened to float64 at a time.

    Returns:
        Distances (C, J) in the type of `a`.

    Raises:
        ValueError: The shapes do not fit each other.

    >>> squared_cost(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[25.,  1.]])
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"points must be (C,d) and (J,d), got {tuple(a.shape)}, {tuple(b.shape)}")
    cost = a.new_empty(len(a), len(b))
    left = a.double()
    left_norm = left.square().sum(1, keepdim=True)
    for first in range(0, len(b), chunk):
        right = b[first : first + chunk].double()
        squares = torch.addmm(left_norm + right.square().sum(1), left, right.T, alpha=-2.0)
        cost[:, first : first + chunk] = squares.clamp_min_(0.0)
    return cost


def rescale(cost: Tensor, by: Literal["max", "quantile"], quantile: float = 0.5) -> Tensor:
    """Rescale a cost in place, so that `tau` can be set for it.

    Row masses are fixed: a constant added to a row changes no plan.

    Args:
        cost: The cost (C, J); it is changed.
        by: `max` divides by the largest entry: one far prompt then makes all others alike.
            `quantile` brings the least entry of each row to 0 and the given quantile of all entries
            to 1, and cuts entries at `FAR`: far prompts, up to a share of 1 - `quantile`, change
            nothing.
        quantile: Which quantile, for `quantile`.

    Returns:
        The same cost.

    >>> rescale(torch.tensor([[1.0, 3.0], [2.0, 5.0]]), "max")
    tensor([[0.2000, 0.6000],
            [0.4000, 1.0000]])
    >>> rescale(torch.tensor([[1.0, 3.0, 900.0], [2.0, 4.0, 902.0]]), "quantile")[:, :2]
    tensor([[0., 1.],
            [0., 1.]])
    """
    if not cost.numel():
        return cost
    top = cost.amax()
    if by == "quantile":
        cost.sub_(cost.amin(dim=1, keepdim=True))
        # A quantile of all cells: `torch.quantile` refuses large tensors, a sorted cell does not.
        rank = max(1, math.ceil(quantile * cost.numel()))
        unit = cost.flatten().kthvalue(rank).values
        top = torch.where(unit > 0, unit, cost.amax())
    cost.div_(torch.where(top > 0, top, torch.ones_like(top)))
    return cost.clamp_(max=FAR)  # under `max` all entries are 1 at most
