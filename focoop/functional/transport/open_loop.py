"""Semi-unbalanced transport by the paper's Frank-Wolfe: hard classes, steps of length 1/(i+2).

The problem, with cost M (C,J), all rows sending b_c = 1/C and all columns priced against a_j = 1/J:
``min <M,pi> + tau * sum_j [q_j log(q_j/a_j) - q_j + a_j]`` over pi >= 0 with ``pi 1 = b``, where
``q = pi^T 1``. At any feasible pi the Frank-Wolfe gap equals primal minus dual value, so it bounds
the distance to the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from focoop.functional.transport.marginals import check_settings, log_ratio, masses

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Plan:
    """A transport plan whose cells are all stored; `gap` bounds `objective - optimum`."""

    cost: Tensor  # (C,J), not a copy
    plan: Tensor  # (C,J)
    drawn: Tensor  # (J,) column sums
    gap: float
    objective: float
    steps: int

    def columns(self, index: Tensor | slice) -> Tensor:
        """Return some columns of the plan.

        Args:
            index: Which columns.

        Returns:
            The columns (C, M).
        """
        return self.plan[:, index]


def semi_unbalanced_open_loop(cost: Tensor, *, tau: float, steps: int = 300) -> Plan:
    """Take Frank-Wolfe's steps of length 1/(i+2) from the product plan, all that are asked for.

    The gap is measured once, at the end: nothing on the way waits for a GPU.

    Args:
        cost: Cost of moving mass from row c to column j (C, J).
        tau: Price of a column's mass that differs from its prior.
        steps: How many steps; 0 returns the product plan.

    Returns:
        The plan.

    Raises:
        ConfigError: A setting is out of range.

    >>> cost = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]], dtype=torch.float64)
    >>> result = semi_unbalanced_open_loop(cost, tau=0.1)
    >>> result.gap < 0.01, result.plan.argmax(1).tolist()
    (True, [0, 1])
    """
    b, a = masses(cost, None, None)
    check_settings(tau, steps)
    plan, mass, one = b[:, None] * a, a, torch.ones_like(b)
    rows = torch.arange(len(cost), device=cost.device)
    for i in range(steps):
        best = (cost + tau * log_ratio(mass, a)).argmin(1)
        # Whole numbers: their sum is the same in any order of additions.
        hits = torch.zeros_like(a).index_add_(0, best, one)
        mass = torch.lerp(mass, hits / len(cost), 1 / (i + 2))
        plan *= 1 - 1 / (i + 2)
        plan[rows, best] += b / (i + 2)
    slope = tau * log_ratio(plan.sum(0), a)
    gap = float((plan * (cost + slope)).sum() - b @ (cost + slope).amin(1))
    objective = float((plan * cost).sum() + plan.sum(0) @ slope)  # both masses sum to 1
    return Plan(cost, plan, plan.sum(0), max(gap, 0.0), objective, steps)
