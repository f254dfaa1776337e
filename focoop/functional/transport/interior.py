"""Semi-unbalanced transport by an interior point method on the few cells that can hold mass.

The conditions of an optimum of the problem in `frank_wolfe`, for potentials u of classes, slopes s
of columns, a plan p and slacks z of its cells::

    z_cj = M_cj - u_c + s_j >= 0,  p_cj >= 0,  p_cj z_cj = 0,
    sum_j p_cj = b_c,  sum_c p_cj = q_j = a_j exp(s_j / tau).

In place of the third stands ``p_cj z_cj = mu w_j``, with w_j near q_j, and mu is led to 0 by
Newton's steps with a predictor and a corrector. Only cells near a column's best class take part,
and columns with one such class follow it: from a plan that is nearly solved, some thousand cells
are left of a hundred thousand, and a step is a system of one unknown per class. All of it is
arithmetic on a host, in float64; the number of steps hardly depends on how many classes tie.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# The share of the way to the boundary that a step takes.
_INSIDE = 0.995
# A column that draws less, as a share of all mass, follows its best class.
_NO_MASS = 1e-18


@dataclass(frozen=True)
class Problem:
    """Cost (C,J), row masses b (C,) and column priors a (J,), both of total 1, and tau."""

    cost: Floats
    b: Floats
    a: Floats
    tau: float


@dataclass(frozen=True)
class Cells:
    """The cells that may hold mass, column by column, and the columns that follow one class.

    Attributes:
        columns: (K,) the columns of several classes.
        row: (N,) class of each cell.
        place: (N,) its column's place in `columns`; ascending.
        cost: (N,) its cost.
        one, other: (P,) all pairs of cells of one column, each in both orders.
        single: (J-K,) the other columns.
        owner: (J-K,) the class each of them follows.
    """

    columns: Ints
    row: Ints
    place: Ints
    cost: Floats
    one: Ints
    other: Ints
    single: Ints
    owner: Ints

    @classmethod
    def near(cls, problem: Problem, u: Floats, radius: float, most: int) -> Cells:
        """Choose cells by how far their class is below the best one of their column.

        Args:
            problem: The problem.
            u: Potentials (C,).
            radius: Farther cells are left out.
            most: The radius is made smaller until there are not more cells.

        Returns:
            The cells.
        """
        height = u[:, None] - problem.cost
        owner = height.argmax(axis=0)
        best = height[owner, np.arange(len(owner))]
        drawn = problem.a * np.exp((best - best.max()) / problem.tau)
        slack = np.subtract(best, height, out=height)
        chosen = slack <= radius
        while np.count_nonzero(chosen) > most and radius > 0.0:
            radius = 0.7 * radius if radius > 1e-15 else 0.0
            chosen = slack <= radius
        # Every class has a cell, or its potential would be free.
        nearest = slack.argmin(axis=1)
        chosen[np.arange(len(u)), nearest] = True
        several = (chosen.sum(axis=0) > 1) & (drawn > _NO_MASS * drawn.sum())
        several[nearest] |= chosen[:, nearest].sum(axis=0) > 1
        columns, single = np.flatnonzero(several), np.flatnonzero(~several)
        place, row = np.nonzero(chosen[:, columns].T)
        one, other = _pairs(place, len(columns))
        cost = problem.cost[row, columns[place]]
        return cls(columns, row, place, cost, one, other, single, owner[single])


def _pairs(place: Ints, columns: int) -> tuple[Ints, Ints]:
    """All pairs of cells of one column, given the cells' columns in ascending order."""
    count = np.bincount(place, minlength=columns)
    first = np.cumsum(count) - count
    each = count[place]
    one = np.repeat(np.arange(len(place)), each)
    within = np.arange(len(one)) - np.repeat(np.cumsum(each) - each, each)
    other = first[place[one]] + within
    differ = one != other
    return one[differ], other[differ]


@dataclass(frozen=True)
class Point:
    """A point on the way: potentials, slopes, shares p_cj / w_j and slacks of the cells.

    Attributes:
        u: (C,) potentials.
        s: (K,) slopes of the columns of several classes.
        share: (N,) of the cells.
        slack: (N,) of the cells.
        weight: (K,) w.
    """

    u: Floats
    s: Floats
    share: Floats
    slack: Floats
    weight: Floats

    @property
    def mu(self) -> float:
        """Return the mean of shares times slacks, 0 at an optimum."""
        return float(self.share @ self.slack) / max(len(self.share), 1)


def entered(problem: Problem, cells: Cells, u: Floats, share: Floats, mu: float) -> Point:
    """Start in the inside, as near to given potentials and shares as `mu` lets.

    Args:
        problem: The problem.
        cells: The cells that take part.
        u: Potentials (C,).
        share: How columns divide their mass among their cells (N,).
        mu: The products of shares and slacks there, at least.

    Returns:
        The point.
    """
    height = u[cells.row] - cells.cost
    first = np.flatnonzero(np.diff(cells.place, prepend=-1))
    s = np.maximum.reduceat(height, first) if len(first) else np.empty(0)
    slack = s[cells.place] - height
    # Of products that are too small a large share stays and its slack is raised, or the other way.
    large = share >= np.sqrt(mu)
    slack = np.maximum(slack, np.where(large, mu / np.maximum(share, mu), np.sqrt(mu)))
    share = np.where(large, share, np.maximum(share, mu / slack))
    return Point(u, s, share, slack, problem.a[cells.columns] * np.exp(s / problem.tau))


class _System:
    """The linear equations of one step, factorised."""

    def __init__(self, problem: Problem, cells: Cells, point: Point) -> None:
        classes, places, tau = len(problem.b), len(cells.columns), problem.tau
        self.cells, self.point, self.shape = cells, point, (classes, places)
        self.weight = point.weight[cells.place]
        self.mass = point.share * self.weight
        drawn = problem.a[cells.columns] * np.exp(point.s / tau)
        single = problem.a[cells.single] * np.exp(
            (point.u[cells.owner] - problem.cost[cells.owner, cells.single]) / tau
        )
        followed = _sums(cells.owner, single, classes)
        # What is not met yet: slacks (N,), row masses (C,), column masses (K,).
        self.slacks = cells.cost - point.u[cells.row] + point.s[cells.place] - point.slack
        self.rows = problem.b - self.by_row(self.mass) - followed
        self.columns = self.by_column(self.mass) - drawn
        self.ratio = self.mass / point.slack
        self.drawn = drawn / tau
        self.total = self.by_column(self.ratio) + self.drawn
        between = self.ratio[cells.one] * self.ratio[cells.other]
        between /= self.total[cells.place[cells.one]]
        index = cells.row[cells.one] * classes + cells.row[cells.other]
        system = -_sums(index, between, classes**2).reshape(classes, classes)
        # Sums of positive numbers: no difference of large ones on the diagonal.
        own = self.by_row(self.ratio * (self.drawn / self.total)[cells.place]) + followed / tau
        system.flat[:: classes + 1] += own - system.sum(axis=1)
        factor, failed = torch.linalg.cholesky_ex(torch.from_numpy(system))
        self.factor, self.solvable = factor, not int(failed)

    @property
    def missed(self) -> float:
        """The largest of what is not met yet."""
        return max(float(np.abs(part).max(initial=0.0)) for part in
                   (self.slacks, self.rows, self.columns))  # fmt: skip

    def by_row(self, cells: Floats) -> Floats:
        """(N,) -> (C,) sums of the rows."""
        return _sums(self.cells.row, cells, self.shape[0])

    def by_column(self, cells: Floats) -> Floats:
        """(N,) -> (K,) sums of the columns."""
        return _sums(self.cells.place, cells, self.shape[1])

    def solve(self, products: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Changes of u, s, masses and slacks that change mass times slack by `products` (N,)."""
        row, place, ratio = self.cells.row, self.cells.place, self.ratio
        fixed = products / self.point.slack - ratio * self.slacks
        column = (self.columns + self.by_column(fixed)) / self.total
        right = self.rows - self.by_row(fixed - ratio * column[place])
        solved = torch.cholesky_solve(torch.from_numpy(right)[:, None], self.factor)
        u: Floats = solved[:, 0].numpy()
        s = column + self.by_column(ratio * u[row]) / self.total
        slack = self.slacks - u[row] + s[place]
        return u, s, (products - self.mass * slack) / self.point.slack, slack


def stepped(problem: Problem, cells: Cells, point: Point) -> tuple[Point, float] | None:
    """Take one step towards the optimum.

    Args:
        problem: The problem.
        cells: The cells that take part.
        point: Where the step begins.

    Returns:
        The next point and the largest equation that was not met before the step; None where
        rounding ends the way.
    """
    system, mu = _System(problem, cells, point), point.mu
    if not system.solvable:
        return None
    mass, slack, weight = system.mass, point.slack, system.weight
    u, s, more, wider = system.solve(-mass * slack)
    reached = _product(mass, more, slack, wider, weight)
    aim = (reached / mu) ** 3 * mu if mu > 0.0 else 0.0
    u, s, more, wider = system.solve(aim * weight - mass * slack - more * wider)
    length = min(_length(mass, more), _length(slack, wider))
    farthest = max(float(np.abs(u).max(initial=0.0)), float(np.abs(s).max(initial=0.0)))
    if length * farthest > problem.tau:  # exp(s / tau) is not linear any more
        length = problem.tau / farthest
    after = Point(
        point.u + length * u,
        point.s + length * s,
        (mass + length * more) / weight,
        slack + length * wider,
        point.weight,
    )
    return after, system.missed


def _sums(index: Ints, values: Floats, count: int) -> Floats:
    """(count,) sums of the values with the same index."""
    sums: Floats = np.bincount(index, weights=values, minlength=count).astype(np.float64)
    return sums


def _product(mass: Floats, more: Floats, slack: Floats, wider: Floats, weight: Floats) -> float:
    """Mean of shares times slacks after the longest step of each."""
    ahead = mass + _length(mass, more, 1.0) * more
    apart = slack + _length(slack, wider, 1.0) * wider
    return abs(float((ahead * apart / weight).sum())) / max(len(mass), 1)


def _length(value: Floats, change: Floats, inside: float = _INSIDE) -> float:
    """How far a change may go, 1 at most, until a value has lost the share `inside` of itself."""
    worst = float((change / value).min(initial=0.0))
    return 1.0 if worst >= -inside else -inside / worst
