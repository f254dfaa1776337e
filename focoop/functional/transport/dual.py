"""Semi-unbalanced transport through its dual, which has one unknown per class and no plan to store.

At the optimum of the problem in `open_loop` every column draws mass, so its slope is ``s_j =
max_c (u_c - M_cj)`` and the dual is concave in u (C,) alone: ``max_u  b.u - tau * sum_j a_j
(exp(s_j / tau) - 1)``. The maximum over classes is smoothed, ``s_j = eps * log sum_c exp((u_c -
M_cj) / eps)``; then column j draws ``q_j = a_j exp(s_j / tau)`` and shares it by ``p_cj =
softmax_c((u_c - M_cj) / eps)``. Newton's method finds the u whose row sums ``m_c = sum_j q_j p_cj``
are b. Rows rescaled to b give a feasible plan, the true dual at u a lower bound: their difference
is the gap. `smoothed.py` computes these numbers at one u; here is the way from u to u.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from focoop.errors import ConfigError
from focoop.functional.transport.marginals import check_settings, masses
from focoop.functional.transport.smoothed import (
    TINY,
    FeasiblePlan,
    Point,
    Problem,
    rescaling,
    shares,
)

if TYPE_CHECKING:
    from torch import Tensor

# First smoothing, as a share of the cost's range: Newton's method starts well there.
_SMOOTH = 1e-3
# Most that a smoothed problem's rows may miss their masses by, in the mean of |log(b/m)|.
_MISS = 1e-2
_MAX_DAMPING = 1e8


@dataclass(frozen=True)
class DualPlan:
    """A transport plan given by its potentials; cells are computed when they are asked for.

    `gap` belongs to this very plan and bounds `objective - optimum`. What columns draw at the
    potentials is far nearer to the optimum than the plan's column sums `mass`, whose rows were
    rescaled: choose prompts by `drawn`.
    """

    cost: Tensor  # (C,J), not a copy
    potential: Tensor  # (C,) u, float64
    scale: Tensor  # (C,) b/m, float64
    drawn: Tensor  # (J,) q before rows are rescaled, float64
    softness: float
    mass: Tensor  # (J,) column sums of the plan
    gap: float
    objective: float
    steps: int
    converged: bool

    @property
    def plan(self) -> Tensor:
        """Return the whole plan (C, J), which is as large as the cost."""
        return self.columns(slice(None))

    def columns(self, index: Tensor | slice) -> Tensor:
        """Return some columns of the plan.

        Args:
            index: Which columns.

        Returns:
            The columns (C, M).
        """
        part = shares(self.cost[:, index], self.potential, self.softness)
        part *= self.scale.to(part.dtype)[:, None]
        return part * self.drawn[index].to(part.dtype)


def semi_unbalanced_dual(
    cost: Tensor,
    *,
    tau: float,
    row_mass: Tensor | None = None,
    col_prior: Tensor | None = None,
    max_steps: int = 100,
    tolerance: float = 5e-3,
    relative: float = 0.0,
    cells: int = 0,
) -> DualPlan:
    """Solve semi-unbalanced transport by damped Newton steps on the dual.

    This is made for many more columns than rows: a step costs C * C * J products, whatever the plan
    looks like.

    Args:
        cost: Cost of moving mass from row c to column j (C, J).
        tau: Price of a column's mass that differs from its prior.
        row_mass: Mass that each row sends (C,); None: uniform.
        col_prior: Mass that each column would like to receive (J,); None: uniform.
        max_steps: Newton steps at most.
        tolerance: The solver stops at this gap between the objective and a lower bound.
        relative: Share of what was gained over the product plan b a^T that is a small enough gap
            too: a gap of 5e-3 says nothing where 4e-3 is all there is to gain.
        cells: Entries of the cost taken at a time; 0: as suits the device.

    Returns:
        The plan.

    Raises:
        ConfigError: A setting is out of range.

    >>> cost = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]], dtype=torch.float64)
    >>> result = semi_unbalanced_dual(cost, tau=0.1, tolerance=1e-6)
    >>> result.converged, result.plan.argmax(1).tolist()
    (True, [0, 1])
    >>> torch.testing.assert_close(result.plan.sum(1), torch.full((2,), 0.5, dtype=torch.float64))
    """
    b, a = (mass.double() for mass in masses(cost, row_mass, col_prior))
    check_settings(tau, max_steps)
    if not tolerance > 0.0:
        raise ConfigError("the dual solver needs a tolerance above 0; try 1e-6")
    total = b.sum()
    # Scaled to total 1, the problem keeps its cost per unit of mass.
    low, high = torch.stack(cost.aminmax()).tolist()
    softness = min(max(tolerance, _SMOOTH * (high - low)), tau)
    problem = Problem(cost, b / total, a / a.sum(), tau, softness, cells)
    product = float(problem.b @ (cost @ problem.a.to(cost.dtype)).double())
    least = tolerance / float(total)
    floor = 64 * torch.finfo(cost.dtype).eps * max(abs(low), abs(high), TINY)
    # Masses that are off by a share cost its square times tau.
    unit = max(high - low, tau)
    near = min(0.5 * math.sqrt(max(relative * (high - low), least) / unit), _MISS)
    # Each class begins at its nearest prompt.
    point = problem.at(cost.amin(1).double().masked_fill(problem.b == 0, float("-inf")))
    before, bound, damping, steps = None, point.bound, 1e-3, 0
    best: FeasiblePlan | None = None
    while True:
        while problem.miss(point) > near and steps < max_steps:
            moved, damping = _climb(problem, point, damping)
            if moved is None:  # as far as rounding lets it
                break
            point, steps = moved, steps + 1
        bound, measured = max(bound, point.bound), problem.measure(point)
        best = measured if best is None or measured.objective < best.objective else best
        wanted = max(least, relative * (product - best.objective))
        if best.objective - bound <= wanted or steps >= max_steps or problem.softness < floor:
            return _finish(problem, best, bound, steps, wanted, b, a)
        # Half the smoothing; potentials are nearly linear in it.
        ahead = point.u if before is None else 1.5 * point.u - 0.5 * before
        before = point.u
        problem = replace(problem, softness=problem.softness / 2)
        point = problem.at(torch.where(problem.b > 0, ahead, before))


def _climb(problem: Problem, point: Point, damping: float) -> tuple[Point | None, float]:
    """A step that raises the smoothed dual, damped as far as needed; None where rounding ends it.

    Under heavy damping the step of every class has the sign of b - m, the gradient's.
    """
    gram = problem.gram(point)
    slack = 8 * torch.finfo(problem.cost.dtype).eps * (abs(point.value) + problem.tau)
    while damping <= _MAX_DAMPING:
        step = problem.direction(point, gram, damping)
        if step is not None:
            moved = problem.at(point.u + step)
            if moved.value >= point.value - slack:
                return moved, max(damping / 10, 1e-9)
        damping = max(damping * 10, 1e-6)
    return None, 1e-3


def _finish(
    problem: Problem,
    best: FeasiblePlan,
    bound: float,
    steps: int,
    wanted: float,
    b: Tensor,
    a: Tensor,
) -> DualPlan:
    """Bring the best plan back from masses of total 1."""
    total = float(b.sum())
    ratio = float(a.sum()) / total
    # The divergence is one from a, not from a brought to the total of b.
    offset = total * problem.tau * (ratio - 1.0 - math.log(ratio))
    gap = max(total * (best.objective - bound), 0.0)
    return DualPlan(
        problem.cost,
        best.point.u,
        rescaling(b, best.point.rows),
        best.point.drawn,
        best.softness,
        (total * best.mass).to(problem.cost.dtype),
        gap,
        total * best.objective + offset,
        steps,
        gap <= total * wanted,
    )
