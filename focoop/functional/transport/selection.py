"""What calibration takes of a plan: prompts with most or least mass, and barycentres of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from focoop.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


def barycentre(plan: Tensor, points: Tensor, fallback: Tensor, *, min_mass: float = 0.0) -> Tensor:
    """Return the mean of points under each row of a plan, rows divided by their mass.

    Frank-Wolfe leaves a remnant of its start in every cell: give a share of the row mass as
    `min_mass`, such as 0.01/C, to ignore it.

    Args:
        plan: Mass from each row to each point (C, M).
        points: The points (M, d).
        fallback: What rows without mass get (C, d).
        min_mass: Rows with at most this mass count as without.

    Returns:
        Means (C, d).

    Raises:
        ValueError: The shapes do not fit each other.

    >>> plan = torch.tensor([[0.1, 0.3], [0.0, 0.0]])
    >>> barycentre(plan, torch.tensor([[0.0], [4.0]]), torch.tensor([[9.0], [9.0]]))
    tensor([[3.],
            [9.]])
    """
    fits = plan.ndim == 2 and plan.shape[1] == len(points)
    if not fits or fallback.shape != (len(plan), points.shape[1]):
        raise ValueError(
            f"plan {tuple(plan.shape)}, points {tuple(points.shape)} and fallback "
            f"{tuple(fallback.shape)} must be (C,M), (M,d) and (C,d)"
        )
    mass = plan.sum(1, keepdim=True)
    enough = mass > min_mass
    shares = plan / torch.where(enough, mass, torch.ones_like(mass))
    return torch.where(enough, shares.to(points.dtype) @ points, fallback)


def select_by_mass(mass: Tensor, count: int, *, largest: bool = True) -> Tensor:
    """Return the indices of the largest or smallest masses.

    Args:
        mass: Masses (J,).
        count: How many indices.
        largest: The largest masses, or else the smallest.

    Returns:
        Indices (count,) in order of their mass; of equal masses the lower index comes first.

    Raises:
        ConfigError: There are fewer masses than `count`.

    >>> select_by_mass(torch.tensor([0.2, 0.5, 0.2, 0.1]), 2).tolist()
    [1, 0]
    >>> select_by_mass(torch.tensor([0.2, 0.5, 0.2, 0.1]), 3, largest=False).tolist()
    [3, 0, 2]
    """
    if not 0 <= count <= len(mass):
        raise ConfigError(f"cannot select {count} of {len(mass)} prompts; use 0 to {len(mass)}")
    return torch.sort(mass, descending=largest, stable=True).indices[:count]
