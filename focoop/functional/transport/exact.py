"""The optimum itself of small semi-unbalanced transport, from a plan that is nearly solved.

At the optimum of the problem in `frank_wolfe` a column draws ``q_j = a_j exp(s_j / tau)`` with
``s_j = max_c (u_c - M_cj)``, from the classes where the maximum lies. Most columns have one such
class; columns of several, the ties, join classes to groups. `interior` finds which cells tie. Then
all else follows: the potentials of a group differ by costs, their common height has a closed form,
because the group's columns draw what its classes send, and the masses of ties are those that fill
the rows. Where many plans do, columns divide their mass as evenly as they can. So the answer
depends on which cells tie, to the last bit, and not on where the search began.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch

from focoop.functional.transport.interior import (
    Cells,
    Floats,
    Ints,
    Point,
    Problem,
    entered,
    stepped,
)

if TYPE_CHECKING:
    from torch import Tensor

# Least width at which the search begins, as a share of the cost's range.
_WIDTH = 1e-4
# How far below the best class of a column a cell may be to take part, in widths; and once mu is
# `_NEARER` widths, wider where others turn out to be needed.
_FAR, _NEAR, _NEARER = 40.0, (2.0, 20.0, 200.0), 1e-2
# Cells that take part at most, where there are many: for each class and each column.
_CROWD, _MANY = 4, 4096
# Where the way ends: mean of shares times slacks, and steps at most before and after that.
# A way on which mu is not smaller after so many steps leads nowhere.
_END, _STEPS, _SOON = 1e-20, 25, 8
# A cell ties whose share is so many times its slack: the first of these that explains the rows.
_TIED = (1e4, 1.0, 1e7)
# Under exact potentials cells tie whose slack is rounding, and where these do not fill the rows,
# those whose slack is hardly more; as shares of the cost's range.
_LEVELS = (4e-15, 2e-11)
# A gap that is rounding, as a share of the cost's range.
_PROVED = 1e-11
# Steps at most that divide the masses of ties, and the mass that may be missing in a row then.
_DIVISIONS, _BALANCED = 40, 1e-15


@dataclass(frozen=True)
class Optimum:
    """An optimal plan, on the host in float64.

    Attributes:
        plan: (C, J) the plan.
        mass: (J,) its column sums.
        u: (C,) its potentials; minus infinity for classes without mass.
        objective: of the plan.
        bound: what no plan is below; the objective up to rounding.
        steps: how many steps the search took.
    """

    plan: Floats
    mass: Floats
    u: Floats
    objective: float
    bound: float
    steps: int


def optimal(
    cost: Tensor, b: Tensor, a: Tensor, tau: float, u: Tensor, softness: float
) -> Optimum | None:
    """Find the optimal plan, from potentials of one that is nearly so.

    Args:
        cost: The cost (C, J).
        b: Row masses (C,), total 1.
        a: Column priors (J,), total 1.
        tau: Price of a column's mass that differs from its prior.
        u: Potentials (C,); anything for classes without mass.
        softness: Width of the smoothed maximum that the potentials belong to.

    Returns:
        The optimum; None where no plan was proved optimal.
    """
    small = torch.cat([b.double(), u.double(), a.double()]).cpu().numpy()
    rows, potential, prior = np.split(small, [len(b), 2 * len(b)])
    costs = cost.detach().double().cpu().numpy()
    sends = np.flatnonzero(rows > 0.0)
    problem = Problem(np.ascontiguousarray(costs[sends]), rows[sends], prior, tau)
    found = _search(problem, potential[sends], softness)
    if found is None:
        return None
    part, heights, steps = found
    mass = part.sum(axis=0)
    ratio = np.maximum(mass / prior, np.finfo(np.float64).tiny)  # far columns underflow
    divergence = mass * np.log(ratio) - mass + prior
    objective = float((part * problem.cost).sum() + tau * divergence.sum())
    slope = (heights[:, None] - problem.cost).max(axis=0)
    top = float(slope.max())
    drawn = float((prior * np.exp((slope - top) / tau)).sum())
    bound = float(problem.b @ heights) - top - tau * float(np.log(drawn))
    if not objective - bound <= _PROVED * max(float(np.ptp(problem.cost)), tau):
        return None
    plan, whole = np.zeros_like(costs), np.full(len(rows), -np.inf)
    plan[sends], whole[sends] = part, heights
    return Optimum(plan, mass, whole, objective, bound, steps)


def _search(problem: Problem, u: Floats, softness: float) -> tuple[Floats, Floats, int] | None:
    """Lead to the optimum: plan (C,J), potentials (C,) and steps."""
    wide, steps = max(softness, _WIDTH * float(np.ptp(problem.cost))), 0
    for near in _NEAR:
        cells, point, more = _approached(problem, u, softness, wide, near)
        steps += more
        if point.mu > _NEARER * _NEARER * wide:
            return None
        # Where the best plan of these cells is not the best of all, more take part.
        for level, least in product(_LEVELS, _TIED):
            found = _settled(problem, cells, point, least, level)
            if found is not None:
                return *found, steps
    return None


def _approached(
    problem: Problem, u: Floats, softness: float, wide: float, near: float
) -> tuple[Cells, Point, int]:
    """The end of the way from potentials that belong to a softness: cells, point and steps."""
    crowd = max(_CROWD * sum(problem.cost.shape), _MANY)
    cells = Cells.near(problem, u, max(_FAR, near) * wide, crowd)
    point = entered(problem, cells, u, _smoothed(cells, u, softness), wide)
    point, before = _led(problem, cells, point, _NEARER * wide)
    shares = np.zeros_like(problem.cost)
    shares[cells.owner, cells.single] = 1.0
    shares[cells.row, cells.columns[cells.place]] = point.share
    # Nearer the optimum fewer cells can hold mass, and others than it seemed at first may.
    cells = Cells.near(problem, point.u, near * wide, crowd)
    share = shares[cells.row, cells.columns[cells.place]]
    point = entered(problem, cells, point.u, share, _NEARER * wide)
    point, after = _led(problem, cells, point, _END)
    return cells, point, before + after


def _smoothed(cells: Cells, u: Floats, softness: float) -> Floats:
    """(N,) how columns divide their mass among their cells under a smoothed maximum."""
    if not len(cells.row):
        return np.empty(0)
    height = u[cells.row] - cells.cost
    first = np.flatnonzero(np.diff(cells.place, prepend=-1))
    part = np.exp((height - np.maximum.reduceat(height, first)[cells.place]) / softness)
    return part / np.add.reduceat(part, first)[cells.place]


def _led(problem: Problem, cells: Cells, point: Point, end: float) -> tuple[Point, int]:
    """Step until mu is small and the equations are met, or rounding ends the way, or it is none."""
    begun = point.mu
    for steps in range(_STEPS):
        if steps >= _SOON and point.mu > begun:
            return point, steps
        after = stepped(problem, cells, point)
        if after is None:
            return point, steps
        point, missed = after
        if point.mu <= end and (missed <= 1e-12 or end > 1e-9):
            return point, steps + 1
    return point, _STEPS


def _settled(
    problem: Problem, cells: Cells, point: Point, least: float, level: float
) -> tuple[Floats, Floats] | None:
    """The plan and its potentials that a point at the end of the way implies; None: it misses them.

    The potentials are first those of the surest ties, then those of all cells that tie under them,
    in the order of the cells: the same ties give the same bits.
    """
    ties = np.flatnonzero(point.share > least * point.slack)
    sure = ties[np.argsort(point.slack[ties] / point.share[ties], kind="stable")]
    u, _ = _levelled(problem, point.u, cells.row[sure], cells.columns[cells.place[sure]])
    reach = max(float(np.ptp(problem.cost)), problem.tau)
    row, column = _tied(problem, u, level * reach)
    exact, slope = _levelled(problem, u, row, column)
    if np.abs(exact - u).max() > max(_LEVELS) * reach:
        return None
    plan = _divided(problem, slope, row, column, u)
    return None if plan is None else (plan, exact)


def _tied(problem: Problem, u: Floats, level: float) -> tuple[Ints, Ints]:
    """Rows and columns of the cells at the top of columns that have several such cells."""
    height = u[:, None] - problem.cost
    tied = height >= height.max(axis=0) - level
    tied &= tied.sum(axis=0) > 1
    row, column = np.nonzero(tied)
    return row.astype(np.int64), column.astype(np.int64)


def _levelled(problem: Problem, u: Floats, row: Ints, column: Ints) -> tuple[Floats, Floats]:
    """Potentials (C,) at which given cells tie and every group sends what its columns draw.

    Of cells that contradict each other the first ones count. A column's slope (J,) is that of its
    first cell, of columns without any that of the best class under `u`.
    """
    classes, columns = problem.cost.shape
    height, group = np.zeros(classes), np.arange(classes)
    head: dict[int, tuple[int, float]] = {}
    cost = problem.cost[row, column].tolist()
    for c, j, m in zip(row.tolist(), column.tolist(), cost, strict=True):
        first, least = head.setdefault(j, (c, m))
        if group[first] != group[c]:
            members = group == group[c]
            height[members] += (height[first] - least) - (height[c] - m)
            group[members] = group[first]
    owner = (u[:, None] - problem.cost).argmax(axis=0)
    owner[list(head)] = [c for c, _ in head.values()]
    slope = height[owner] - problem.cost[owner, np.arange(columns)]
    own = group[owner]
    top = np.full(classes, -np.inf)
    np.maximum.at(top, own, slope)
    with np.errstate(divide="ignore", invalid="ignore"):  # numbers of no group, a group of no mass
        drawn = problem.a * np.exp((slope - top[own]) / problem.tau)
        mass = np.bincount(own, weights=drawn, minlength=classes)
        sent = np.bincount(group, weights=problem.b, minlength=classes)
        shift = problem.tau * np.log(sent / mass) - top
    shift = np.where(np.isfinite(shift), shift, u)
    return height + shift[group], slope + shift[own]


def _divided(problem: Problem, slope: Floats, row: Ints, column: Ints, u: Floats) -> Floats | None:
    """The plan (C,J) of slopes (J,) and ties; None where no division of ties fills the rows.

    Columns j draw q_j. Those of several classes divide it by shares x that fill the rows. Of many
    such shares those of least ``sum_j q_j |x_j|^2`` are taken: with a number per class, x_j is the
    point of the simplex nearest to the numbers of the column's classes.
    """
    owner = (u[:, None] - problem.cost).argmax(axis=0)
    drawn = problem.a * np.exp(slope / problem.tau)
    plan = np.zeros_like(problem.cost)
    plan[owner, np.arange(len(owner))] = drawn
    plan[:, column] = 0.0
    left = problem.b - plan.sum(axis=1)
    if not len(row):
        return plan if np.abs(left).max() <= _BALANCED else None
    order = np.lexsort((row, column))
    row, column = row[order], column[order]
    columns, place = np.unique(column, return_inverse=True)
    share = _even_shares(row, place, drawn[columns], left)
    if share is None:
        return None
    plan[row, column] = share * drawn[column]
    return plan


def _even_shares(row: Ints, place: Ints, drawn: Floats, left: Floats) -> Floats | None:
    """Shares (N,) of cells, given column by column, that fill rows; None: there are none.

    Newton's method on the dual ``left . y - sum_j q_j phi_j(y)``, whose slope is what the rows lack
    under the shares nearest to y.
    """
    classes, columns = len(left), len(drawn)
    count = np.bincount(place, minlength=columns)
    first = np.cumsum(count) - count
    slot = np.arange(len(place)) - first[place]
    weight = drawn[place]
    y = np.zeros(classes)

    def nearest(y: Floats) -> tuple[Floats, Floats]:
        """Shares (N,) and what the rows lack (C,)."""
        values = np.full((columns, int(count.max())), -np.inf)
        values[place, slot] = y[row]
        ranked = -np.sort(-values, axis=1)
        total = np.cumsum(np.where(np.isfinite(ranked), ranked, 0.0), axis=1) - 1.0
        rank = np.arange(1, ranked.shape[1] + 1)
        used = (ranked * rank > total).sum(axis=1)
        cut = total[np.arange(columns), used - 1] / used
        share = np.maximum(y[row] - cut[place], 0.0)
        return share, left - np.bincount(row, weights=share * weight, minlength=classes)

    share, lack = nearest(y)
    for _ in range(_DIVISIONS):
        worst = float(np.abs(lack).max())
        if worst <= _BALANCED:
            return share
        if np.abs(y).max() > 1e8:
            return None
        active = share > 0.0
        inside = np.bincount(place[active], minlength=columns)
        pull = np.zeros((columns, classes))
        pull[place[active], row[active]] = 1.0
        system = -(pull.T * (drawn / np.maximum(inside, 1))) @ pull
        own = np.bincount(row[active], weights=weight[active], minlength=classes)
        system.flat[:: classes + 1] += own + 1e-10 * max(float(own.max()), 1e-300)
        step = np.linalg.solve(system, lack)
        length = 1.0
        for _ in range(30):
            moved = nearest(y + length * step)
            # The slope of the dual along the step is still upwards, or the rows lack less.
            if float(moved[1] @ step) >= 0.0 or float(np.abs(moved[1]).max()) < 0.5 * worst:
                break
            length *= 0.5
        y = y + length * step
        share, lack = moved
    return None
