"""The optimum itself of small semi-unbalanced transport, from a plan that is nearly solved.

At the optimum of the problem in `frank_wolfe` a column draws ``q_j = a_j exp(s_j / tau)`` with
``s_j = max_c (u_c - M_cj)``, from the classes where the maximum lies. Nearly all columns have one
such class, their owner; the few columns of several classes, the ties, join classes to groups. While
ties hold, the potentials of a group move together, and the best move of a group has a closed form:
its columns must draw what its classes send. Along such moves the dual rises until a column meets a
class of another group, which then owns it or ties with it. When all groups are balanced, the masses
of ties follow from those of the rows; a negative one unties its class. When none is negative, the
plan is optimal. All of it is arithmetic on a host, in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Shares of the total: a group as near its mass is balanced, a mass as little below 0 is rounding.
_BALANCED, _NEGATIVE = 1e-13, -1e-12
# Moves at most, per class; problems of trained prompts took up to 1.5.
_MOVES = 4
# The share of a smoothed column from which a class ties with the column's owner.
_SHARED = 0.05
_LEVEL = 1e-12  # heights that rounding explains, in units of the cost


class _Meetings:
    """When columns meet a class that overtakes their owner, while classes rise at their rates."""

    def __init__(self, cost: Floats) -> None:
        self.cost = cost  # (C,J)
        # New memory of this size would take longer than to fill it.
        self.slack, self.closing = np.empty_like(cost), np.empty_like(cost)
        self.away = np.empty(cost.shape, dtype=bool)

    def begin(self, u: Floats, rate: Floats, owner: Ints) -> None:
        """Start anew, from potentials (C,) at time 0, their rates (C,) and the owners (J,)."""
        self.u, self.rate, self.owner = u.copy(), rate, owner
        own = rate[owner]
        self.when = np.full(len(own), np.inf)  # (J,) each column's next meeting
        # A class that overtakes rises, or what it overtakes falls: most others stand still.
        rising, falling = np.flatnonzero(rate > 0.0), np.flatnonzero(own < 0.0)
        if len(rising):
            self.when = self.first(rising, np.arange(len(own)))
        if len(falling):
            every = np.arange(len(rate))
            self.when[falling] = np.minimum(self.when[falling], self.first(every, falling))

    def first(self, rows: Ints, columns: Ints) -> Floats:
        """(M,) when some columns first meet one of some classes; infinity: never."""
        shape, size = (len(rows), len(columns)), len(rows) * len(columns)
        slack, closing, away = (
            buffer.reshape(-1)[:size].reshape(shape)
            for buffer in (self.slack, self.closing, self.away)
        )
        if len(rows) == len(self.rate):
            np.take(self.cost, columns, axis=1, out=slack)
        else:
            np.take(self.cost, rows, axis=0, out=slack)
        owner = self.owner[columns]
        slack -= self.u[rows][:, None]
        slack += self.u[owner] - self.cost[owner, columns]
        np.maximum(slack, 0.0, out=slack)
        np.subtract(self.rate[rows][:, None], self.rate[owner], out=closing)
        np.less_equal(closing, 0.0, out=away)
        np.copyto(closing, 1.0, where=away)
        np.copyto(slack, np.inf, where=away)
        slack /= closing
        found: Floats = slack.min(axis=0)
        return found

    def times(self, column: int) -> Floats:
        """(C,) when a column meets each class; infinity: never."""
        owner = self.owner[column]
        slack = self.u[owner] - self.cost[owner, column] + self.cost[:, column] - self.u
        closing = self.rate - self.rate[owner]
        return np.where(
            closing > 0.0, np.maximum(slack, 0.0) / np.where(closing > 0.0, closing, 1.0), np.inf
        )

    def next(self) -> tuple[float, int, int]:
        """Time, column and class of the next meeting; infinity: there is none."""
        column = int(self.when.argmin())
        return float(self.when[column]), column, int(self.times(column).argmin())

    def overtaken(self, column: int, comer: int, now: float) -> None:
        """A column has another owner from a time on."""
        self.owner[column] = comer
        self.when[column] = max(float(self.times(column).min()), now)


@dataclass
class _Vertex:
    """A point of the dual with its owners and ties, and the problem it belongs to."""

    cost: Floats  # (C,J)
    b: Floats  # (C,) total 1
    a: Floats  # (J,) total 1
    tau: float
    u: Floats  # (C,)
    owner: Ints  # (J,) a class that the column sends for
    ties: dict[int, list[int]] = field(default_factory=dict)  # column -> its classes, two or more

    @cached_property
    def meetings(self) -> _Meetings:
        """What a move meets on its way."""
        return _Meetings(self.cost)

    @cached_property
    def reach(self) -> float:
        """No group needs to move farther at once."""
        return float(self.cost.max() - self.cost.min()) + self.tau

    @property
    def drawn(self) -> Floats:
        """(J,) what the columns draw; the potentials are shifted to a total of 1."""
        columns = np.arange(len(self.a))
        slope = self.u[self.owner] - self.cost[self.owner, columns]
        top = slope.max()
        raw: Floats = self.a * np.exp((slope - top) / self.tau)
        total = float(raw.sum())
        self.u -= top + self.tau * np.log(total)
        raw /= total
        return raw

    def groups(self) -> Ints:
        """(C,) the group of each class, joined by ties; numbered from 0."""
        root = list(range(len(self.b)))

        def find(c: int) -> int:
            while root[c] != c:
                root[c] = root[root[c]]
                c = root[c]
            return c

        for classes in self.ties.values():
            for c in classes[1:]:
                root[find(c)] = find(classes[0])
        return np.unique([find(c) for c in range(len(root))], return_inverse=True)[1]

    def climb(self, most: int) -> int:
        """Move groups, tie and untie until the plan is optimal; the moves taken, -1: too many."""
        for moves in range(most):
            group, drawn = self.groups(), self.drawn
            sent: Floats = np.bincount(group, weights=self.b).astype(np.float64)
            mass: Floats = np.bincount(
                group[self.owner], weights=drawn, minlength=len(sent)
            ).astype(np.float64)
            if np.abs(sent - mass).max() > _BALANCED:
                self.move(group, drawn, sent, mass)
            elif not self.untie(group, drawn):
                return moves
        return -1

    def move(self, group: Ints, drawn: Floats, sent: Floats, mass: Floats) -> None:
        """Shift all groups towards their masses, until all are balanced or a column is tied.

        A column that meets a class of another group on the way is owned by it from then on while
        the dual still rises after it.
        """
        with np.errstate(divide="ignore", invalid="ignore"):  # a group may have no mass
            shift = np.clip(self.tau * np.log(sent / mass), -self.reach, self.reach)
        shift[np.abs(sent - mass) <= _BALANCED] = 0.0
        rate = shift[group]  # (C,)
        meetings = self.meetings
        meetings.begin(self.u, rate, self.owner)
        wanted, passed = float(sent @ shift), False
        while True:
            time, column, comer = meetings.next()
            if time >= 1.0 and not passed:
                self.u += rate
                return
            own = rate[self.owner]
            level = drawn * np.exp(min(time, 1.0) * own / self.tau)
            level /= level.sum()
            rise = wanted - float(level @ own)
            if time >= 1.0 or rise <= 0.0:
                self.u += self.highest(drawn, own, wanted, min(time, 1.0)) * rate
                return
            if column in self.ties or rise <= level[column] * (rate[comer] - own[column]):
                self.u += time * rate
                self.ties.setdefault(column, [int(self.owner[column])]).append(comer)
                return
            # What the column draws is counted from its new owner's height at the start.
            drawn[column] *= np.exp(time * (own[column] - rate[comer]) / self.tau)
            meetings.overtaken(column, comer, time)
            passed = True

    def highest(self, drawn: Floats, own: Floats, wanted: float, most: float) -> float:
        """How far the dual rises along a move whose columns keep their owners."""
        low, high = 0.0, most
        for _ in range(24):
            level = drawn * np.exp(high * own / self.tau)
            rise = wanted * level.sum() - float(level @ own)
            if rise >= 0.0 and high == most:
                return high
            middle = 0.5 * (low + high)
            level = drawn * np.exp(middle * own / self.tau)
            if wanted * level.sum() - float(level @ own) > 0.0:
                low = middle
            else:
                high = middle
        return low

    def masses(self, drawn: Floats) -> dict[tuple[int, int], float]:
        """What each class of a tie sends to its column, from the leaves of the forest inwards."""
        alone = np.ones(len(self.a), dtype=bool)
        alone[list(self.ties)] = False
        left = self.b - np.bincount(self.owner[alone], weights=drawn[alone], minlength=len(self.b))
        need: dict[int, float] = {}  # classes by their number, columns by -1 - theirs
        edges: dict[int, set[int]] = {}
        for column, classes in self.ties.items():
            need[-1 - column] = float(drawn[column])
            for c in classes:
                need[c] = float(left[c])
                edges.setdefault(c, set()).add(-1 - column)
                edges.setdefault(-1 - column, set()).add(c)
        leaves = [node for node, others in edges.items() if len(others) == 1]
        found: dict[tuple[int, int], float] = {}
        while leaves:
            node = leaves.pop()
            if not edges[node]:
                continue
            (other,) = edges[node]
            found[max(node, other), -1 - min(node, other)] = need[node]
            need[other] -= need[node]
            edges[node].clear()
            edges[other].discard(node)
            if len(edges[other]) == 1:
                leaves.append(other)
        return found

    def untie(self, group: Ints, drawn: Floats) -> bool:
        """Take the most negative class of every group out of its tie; whether there was one."""
        found = self.masses(drawn)
        negative = sorted((mass, edge) for edge, mass in found.items() if mass < _NEGATIVE)
        done: set[int] = set()
        for _, (c, column) in negative:
            if int(group[c]) not in done:
                done.add(int(group[c]))
                classes = [other for other in self.ties.pop(column) if other != c]
                self.owner[column] = classes[0]
                if len(classes) > 1:
                    self.ties[column] = classes
        return bool(negative)

    def plan(self) -> Floats:
        """(C,J) the plan of balanced groups."""
        drawn = self.drawn
        found = np.zeros_like(self.cost)
        found[self.owner, np.arange(len(self.a))] = drawn
        for column in self.ties:
            found[:, column] = 0.0
        for (c, column), mass in self.masses(drawn).items():
            found[c, column] = max(mass, 0.0)
        return found


def optimal(
    cost: Tensor, b: Tensor, a: Tensor, tau: float, u: Tensor, share: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Find the optimal plan, from potentials and shares of one that is nearly so.

    Args:
        cost: The cost (C, J).
        b: Row masses (C,), total 1.
        a: Column priors (J,), total 1.
        tau: Price of a column's mass that differs from its prior.
        u: Potentials (C,); without mass minus infinity.
        share: How columns divide their mass among classes (C, J).

    Returns:
        The plan (C, J) and its potentials (C,) in float64; None: too many moves.
    """
    given = (value.detach().double().cpu().numpy() for value in (cost, b, a, u, share))
    costs, rows, prior, potentials, shares = given
    vertex = _first_vertex(costs, rows, prior, tau, potentials, shares)
    if vertex.climb(_MOVES * len(b)) < 0:
        return None
    plan, potential = torch.from_numpy(vertex.plan()), torch.from_numpy(vertex.u)
    return plan.to(cost.device), potential.to(cost.device)


def _first_vertex(
    cost: Floats, b: Floats, a: Floats, tau: float, u: Floats, share: Floats
) -> _Vertex:
    """Guess owners and ties from the shares of a smoothed plan.

    Args:
        cost: The cost (C, J).
        b: Row masses (C,), total 1.
        a: Column priors (J,), total 1.
        tau: Price of a column's mass that differs from its prior.
        u: Potentials (C,).
        share: How columns divide their mass among classes (C, J).

    Returns:
        The point, whose potentials meet its ties.
    """
    vertex = _Vertex(cost, b, a, tau, u.copy(), np.empty(0, dtype=np.int64))
    rows, columns = np.nonzero(share >= _SHARED)
    best = share.argmax(axis=0)
    second = rows != best[columns]
    rows, columns = rows[second], columns[second]
    root = list(range(len(b)))

    def find(c: int) -> int:
        while root[c] != c:
            c = root[c]
        return c

    members = {c: [c] for c in range(len(b))}
    for place in np.argsort(-share[rows, columns]):
        c, column = int(rows[place]), int(columns[place])
        owner = int(best[column])
        one, other = find(owner), find(c)
        if one == other:
            continue
        # The group of the class is moved as a whole until it meets the column's slope.
        moved = members.pop(other)
        vertex.u[moved] += (vertex.u[owner] - cost[owner, column]) - (vertex.u[c] - cost[c, column])
        root[other] = one
        members[one] += moved
        vertex.ties.setdefault(column, [owner]).append(c)
    height = vertex.u[:, None] - cost
    vertex.owner = height.argmax(axis=0)
    for column, classes in list(vertex.ties.items()):
        # Where another class lies higher, the guess was wrong.
        if height[vertex.owner[column], column] > height[classes, column].max() + _LEVEL:
            del vertex.ties[column]
        else:
            vertex.owner[column] = classes[0]
    return vertex
