"""Checks of masses and settings that all semi-unbalanced solvers share, and sums by chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from focoop.errors import ConfigError, MethodError

if TYPE_CHECKING:
    from torch import Tensor

# Cells of the cost worked on at a time: a few MB stay in a CPU's cache, a GPU wants long kernels.
CPU_CELLS, GPU_CELLS = 2**21, 2**26


def check_settings(tau: float, steps: int) -> None:
    """Refuse settings with which no solver can work.

    Args:
        tau: Price of a column's mass that differs from its prior; must be positive.
        steps: Steps at most; 0 or more.

    Raises:
        ConfigError: A setting is out of range.
    """
    if not 0.0 < tau < float("inf"):
        raise ConfigError(f"tau must be positive and finite, got {tau}; the default is 0.1")
    if steps < 0:
        raise ConfigError(f"steps must be 0 or more, got {steps}; try 300")


def masses(
    cost: Tensor, row_mass: Tensor | None, col_prior: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Check a problem and return its row masses and column priors.

    Args:
        cost: The cost (C, J).
        row_mass: Row masses (C,); None: uniform.
        col_prior: Column priors (J,); None: uniform.

    Returns:
        Row masses (C,) and column priors (J,), each with sum 1 where they were None.

    Raises:
        MethodError: The cost holds values that are not finite.
        ValueError: The shapes do not fit each other.
    """
    if cost.ndim != 2 or 0 in cost.shape or not cost.is_floating_point():
        raise ValueError(f"cost must be a non-empty float (C,J) tensor, got {tuple(cost.shape)}")
    # NaN passes through both extremes: no mask of the size of the cost is made.
    if not bool(torch.isfinite(torch.stack(cost.aminmax())).all()):
        raise MethodError("transport cost has NaN or infinite entries: the prompts diverged")
    classes, prompts = cost.shape
    b = cost.new_full((classes,), 1 / classes) if row_mass is None else row_mass.to(cost)
    a = cost.new_full((prompts,), 1 / prompts) if col_prior is None else col_prior.to(cost)
    if b.shape != (classes,) or a.shape != (prompts,):
        raise ValueError(
            f"masses {tuple(b.shape)}, {tuple(a.shape)} do not fit {classes}x{prompts}"
        )
    if not bool((b >= 0).all()) or not bool((a > 0).all()):
        raise ValueError("row masses must be 0 or more and column priors positive")
    total_b, total_a = float(b.sum()), float(a.sum())
    if not 0.0 < total_b < float("inf") or abs(total_a - total_b) > 1e-3 * total_b:
        raise ValueError(f"row masses sum to {total_b}, column priors to {total_a}: must be equal")
    return b, a


def chunks(cost: Tensor, dim: int, cells: int = 0) -> Iterator[slice]:
    """Cut a cost into ranges whose cells fit the device's share of memory.

    Args:
        cost: The cost (C, J).
        dim: The dimension along which it is cut.
        cells: Entries in one range at most; 0: as suits the device.

    Yields:
        Ranges of at least one row or column.
    """
    cells = cells or (CPU_CELLS if cost.device.type == "cpu" else GPU_CELLS)
    width = max(1, cells // cost.shape[1 - dim])
    for first in range(0, cost.shape[dim], width):
        yield slice(first, min(first + width, cost.shape[dim]))


def log_ratio(mass: Tensor, prior: Tensor) -> Tensor:
    """Return log(q/a), with underflowed q held at the smallest normal number.

    Args:
        mass: q, what each column receives (J,).
        prior: a, what it would like to receive (J,).

    Returns:
        Finite logarithms (J,).

    >>> log_ratio(torch.tensor([0.5, 0.0]), torch.tensor([0.5, 0.5])).isfinite().tolist()
    [True, True]
    """
    return (mass / prior).clamp_min(torch.finfo(mass.dtype).tiny).log()
