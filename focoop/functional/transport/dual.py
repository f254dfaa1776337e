"""Semi-unbalanced transport through its dual, which has one unknown per class and no plan to store.

At the optimum of the problem in `frank_wolfe` every column draws mass, so its slope is ``s_j =
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
from focoop.functional.transport.exact import optimal
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

# Mean |log(b/m)| below which a plan with rescaled rows is worth measuring, below which a smoothed
# problem on the way counts as solved, and one as smooth as the tolerance.
_WORTH_MEASURING = 0.3
# First smoothing, as a share of the cost's range: Newton's method starts well there.
_SMOOTH = 5e-3
_MAX_DAMPING = 1e8
# Gap from which the optimum itself is looked for, as a share of the gain; and later ones, as shares
# of that, where it was too early.
_EARLY, _LATER = 1e-3, (0.1, 1e-3, 1e-5)


@dataclass(frozen=True)
class DualPlan:
    """A transport plan given by its potentials; cells are computed when they are asked for.

    `gap` belongs to this very plan and bounds `objective - optimum`. `potential` can start the next
    solve of a problem with the same classes, whatever its number of columns.
    """

    cost: Tensor  # (C,J), not a copy
    potential: Tensor  # (C,) u, float64
    scale: Tensor  # (C,) b/m, float64
    drawn: Tensor  # (J,) q before rows are rescaled, float64
    softness: float
    mass: Tensor  # (J,) column sums
    gap: float
    objective: float
    steps: int
    converged: bool
    gained: float  # what the product plan costs more
    cells: Tensor | None = None  # (C,J) the plan itself, where it was solved exactly

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
        if self.cells is not None:
            return self.cells[:, index]
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
    start: Tensor | None = None,
    cells: int = 0,
    exact: bool = False,
    misses: tuple[float, float] = (0.03, 1e-3),
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
        start: The `potential` (C,) of an earlier solve.
        cells: Entries of the cost taken at a time; 0: as suits the device.
        exact: Find the optimum itself, up to rounding (`exact.py`), from a gap of a thousandth of
            the gain or, where that was too early, from smaller ones; for costs in float64 of up to
            some 100,000 cells, since the whole plan is made. The answer is the same from any start.
        misses: Share of the rows' mass that a smoothed problem may still misplace when the solver
            leaves it for a sharper one: on the way, and at the last.

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
    check_settings(tau, max_steps, tolerance)
    if not tolerance > 0.0:
        raise ConfigError("the dual solver needs a tolerance above 0; try 1e-6")
    total = b.sum()
    # Scaled to total 1, the problem keeps its cost per unit of mass.
    low, high = torch.stack(cost.aminmax()).tolist()
    softness = min(max(tolerance, _SMOOTH * (high - low)), tau)
    problem = Problem(cost, b / total, a / a.sum(), tau, softness, cells)
    product = float(problem.b @ (cost @ problem.a.to(cost.dtype)).double())
    wanted = least = tolerance / float(total)
    floor = 64 * torch.finfo(cost.dtype).eps * max(abs(low), abs(high), TINY)
    point = problem.at(_first_potential(start, cost, problem.b, high - low))
    bound, damping, steps = point.bound, 1e-3, 0
    best: FeasiblePlan | None = None
    aims = _tries(relative) if exact else [relative]
    while True:
        bound = max(bound, point.bound)
        miss = problem.miss(point)
        last = steps >= max_steps or problem.softness < floor
        if miss <= _WORTH_MEASURING or last:
            measured = problem.measure(point)
            best = measured if best is None or measured.objective < best.objective else best
            gap, gained = best.objective - bound, product - best.objective
            wanted = max(least, aims[0] * gained)
            if gap <= wanted or last:
                # Where nothing is gained many plans are best: the even one stays.
                found = (
                    _exactly(problem, best, steps, product, b, a) if exact and gap > least else None
                )
                if found is not None:
                    return found
                if last or gap <= least or len(aims) == 1:
                    break
                aims = aims[1:]
                wanted = max(least, aims[0] * gained)
        on_the_way, at_last = misses
        solved = miss <= (at_last if problem.softness <= wanted else on_the_way)
        moved, damping = (None, damping) if solved else _climb(problem, point, damping)
        if moved is None:  # solved, or as far as rounding lets it: the smoothing is left
            problem = replace(problem, softness=problem.softness / 4)
            moved = problem.at(point.u)
        point, steps = moved, steps + 1
    wanted = max(least, relative * (product - best.objective))
    return _finish(problem, best, bound, steps, wanted, product, b, a)


def _tries(relative: float) -> list[float]:
    """Gaps at which the optimum is looked for, as shares of the gain, down to the wanted one."""
    first = max(_EARLY, relative)
    return sorted({first, *(first * part for part in _LATER), min(first, relative)}, reverse=True)


def _exactly(
    problem: Problem, near: FeasiblePlan, steps: int, product: float, b: Tensor, a: Tensor
) -> DualPlan | None:
    """The optimal plan, from one that is nearly so; None where it was not found.

    All of it happens on the host: a device waits for two copies to it and gets three back.
    """
    cost, total = problem.cost, float(b.sum())
    optimum = optimal(cost, problem.b, problem.a, problem.tau, near.point.u, near.softness)
    if optimum is None:
        return None
    plan, mass, u = (
        torch.from_numpy(value).to(cost.device) for value in (optimum.plan, optimum.mass, optimum.u)
    )
    best = replace(near, point=replace(near.point, u=u), objective=optimum.objective, mass=mass)
    steps += optimum.steps
    found = _finish(problem, best, optimum.bound, steps, math.inf, product, b, a)
    return replace(found, cells=(total * plan).to(cost.dtype))


def _first_potential(start: Tensor | None, cost: Tensor, b: Tensor, spread: float) -> Tensor:
    """Each class at its nearest prompt, or the start moved down until no slope exceeds 0."""
    nearest = cost.amin(1).double()
    if start is not None:
        if start.shape != b.shape or not bool(torch.isfinite(start[b > 0]).all()):
            raise ValueError(f"start must hold {len(b)} finite potentials, one per class")
        given = start.to(nearest)
        # At an optimum no two potentials differ by more than the cost's range.
        middle = given[b > 0].median()
        given = given.clamp(middle - spread, middle + spread)
        nearest = given - (given - nearest)[b > 0].amax()
    return nearest.masked_fill(b == 0, float("-inf"))


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
    product: float,
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
        total * (product - best.objective),
    )
