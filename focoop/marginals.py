"""Masses and settings of semi-unbalanced transport, checked once for every solver."""

import torch
from torch import Tensor

from focoop.errors import ConfigError, MethodError


def check_settings(tau: float, max_steps: int, tolerance: float) -> None:
    """Refuse settings no solver can work with."""
    if not 0.0 < tau < float("inf"):
        raise ConfigError(f"tau must be positive and finite, got {tau}; the default is 0.1")
    if max_steps < 0:
        raise ConfigError(f"max_steps must be 0 or more, got {max_steps}")
    if not tolerance >= 0.0:
        raise ConfigError(f"tolerance must be 0 or more, got {tolerance}")


def masses(
    cost: Tensor, row_mass: Tensor | None, col_prior: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Check cost (C,J) and give row masses (C,) and column priors (J,), uniform where missing."""
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
