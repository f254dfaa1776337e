"""The smoothed dual of semi-unbalanced transport at one potential: value, masses, Newton's step.

The formulas and their symbols are in `dual.py`, whose solver goes from point to point. Columns are
visited in chunks, so that beside the cost nothing of size (C,J) exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from focoop.functional.transport.marginals import chunks, log_ratio

if TYPE_CHECKING:
    from torch import Tensor

TINY, _NOTHING = 1e-30, -70.0  # the exponent of less than that
_KEPT = 2**20  # cells of shares that are kept rather than made again


@dataclass(frozen=True)
class Point:
    """The smoothed dual at a potential u that is shifted so that the total mass is 1.

    Attributes:
        u: The potential (C,).
        value: The smoothed dual at u.
        bound: The true dual at u, which no plan's objective is below.
        rows: Row sums m (C,).
        drawn: Mass q that each column draws (J,).
        share: Shares p of all cells (C, J); None where they are too many to keep.
    """

    u: Tensor
    value: float
    bound: float
    rows: Tensor
    drawn: Tensor
    share: Tensor | None


@dataclass(frozen=True)
class FeasiblePlan:
    """A plan whose row sums are exactly b.

    Attributes:
        point: The point whose rows were rescaled.
        softness: The smoothing eps of that point.
        objective: What the plan costs.
        mass: Its column sums (J,).
    """

    point: Point
    softness: float
    objective: float
    mass: Tensor


@dataclass(frozen=True)
class Problem:
    """A smoothed problem of total mass 1.

    Attributes:
        cost: Cost of moving mass from row c to column j (C, J).
        b: Mass that each row sends (C,), float64.
        a: Mass that each column would like to receive (J,), float64.
        tau: Price of a column's mass that differs from its prior.
        softness: eps, the width of the smoothed maximum over classes.
        cells: Entries of the cost taken at a time; 0: as suits the device.
    """

    cost: Tensor
    b: Tensor
    a: Tensor
    tau: float
    softness: float
    cells: int

    def at(self, u: Tensor) -> Point:
        """Evaluate the smoothed dual, in one pass over the cost.

        Args:
            u: A potential (C,).

        Returns:
            The point at u plus a constant: the best one, which is known in closed form.
        """
        rows = torch.zeros_like(self.b)
        slope, hard = torch.empty_like(self.a), torch.empty_like(self.a)
        parts = list(chunks(self.cost, 1, self.cells))
        for part in parts:
            share, top = _shares(self.cost[:, part], u, self.softness)
            hard[part] = self.softness * top
            # The largest share is exp(top - logsumexp).
            slope[part] = hard[part] - self.softness * share.amax(0).double().log()
            drawn = self.a[part] * (slope[part] / self.tau).exp()
            rows += (share @ drawn.to(share.dtype)).double()
        shift = -self.tau * rows.sum().log()
        mean = (self.b * torch.where(self.b > 0, u, 0.0)).sum()
        # sum_j q_j is 1 after the shift, so that only b.u is left of the value.
        bound = mean - self.tau * torch.logsumexp(self.a.log() + hard / self.tau, 0)
        value, lower = torch.stack([mean + shift, bound]).tolist()
        drawn = self.a * ((slope + shift) / self.tau).exp()
        small = len(parts) == 1 and share.numel() <= _KEPT
        saved_share = share if small else None  # a shift of u changes no share
        return Point(u + shift, value, lower, rows / rows.sum(), drawn, saved_share)

    def shares(self, point: Point, part: slice) -> Tensor:
        """Return the shares of some columns, in a tensor that the caller may write over.

        Args:
            point: A point of this problem.
            part: Which columns.

        Returns:
            Shares (C, M); each column sums to 1.
        """
        if point.share is not None:
            return point.share.clone()
        return shares(self.cost[:, part], point.u, self.softness)

    def gram(self, point: Point) -> Tensor:
        """Compute sum_j q_j p_cj p_kj / sqrt(m_c m_k), the costly part of a Newton step.

        Args:
            point: A point of this problem.

        Returns:
            The matrix (C, C), whose eigenvalues are at most 1.
        """
        total = self.cost.new_zeros(len(self.b), len(self.b))
        alone = point.rows.clone()
        for part in chunks(self.cost, 1, self.cells):
            share = self.shares(point, part)
            # What a class draws alone stands on the diagonal; few columns are left to multiply.
            several = (share.amax(0) < 1.0).nonzero()[:, 0]
            share = share.index_select(1, several)
            drawn = point.drawn[part][several].to(share.dtype)
            alone -= (share @ drawn).double()
            share *= drawn.sqrt()
            total.addmm_(share, share.T)
        root = point.rows.clamp_min(TINY).sqrt()
        gram = total.double()
        gram.diagonal().add_(alone.clamp_min(0.0))
        return gram / root[:, None] / root

    def direction(self, point: Point, gram: Tensor, damping: float) -> Tensor | None:
        """Compute Newton's step for log m = log b: a class far from its mass moves by a log.

        Args:
            point: Where the step starts.
            gram: What `gram` gives there (C, C).
            damping: Added to the diagonal of the system; more of it makes a shorter step.

        Returns:
            The step of u (C,); None where the system is not positive definite.
        """
        rows = point.rows.clamp_min(TINY)
        wanted = torch.where(self.b > 0, (self.b.clamp_min(TINY) / rows).log(), 0.0)
        system = (self.softness / self.tau - 1.0) * gram
        system.diagonal().add_(1.0 + damping)
        factor, failed = torch.linalg.cholesky_ex(system)
        if int(failed):
            return None
        scaled = self.softness * rows.sqrt() * wanted
        return torch.cholesky_solve(scaled[:, None], factor)[:, 0] / rows.sqrt()

    def measure(self, point: Point) -> FeasiblePlan:
        """Rescale the rows of a point's plan to b, and compute what the plan costs.

        Args:
            point: A point of this problem.

        Returns:
            The feasible plan.
        """
        scale = rescaling(self.b, point.rows).to(self.cost.dtype)
        mass, linear = torch.empty_like(self.a), torch.zeros_like(self.a)
        for part in chunks(self.cost, 1, self.cells):
            share = self.shares(point, part)
            share *= scale[:, None]
            mass[part] = share.sum(0).double() * point.drawn[part]
            linear[part] = (share * self.cost[:, part]).sum(0).double() * point.drawn[part]
        divergence = mass * log_ratio(mass, self.a) - mass + self.a
        objective = float((linear + self.tau * divergence).sum())
        return FeasiblePlan(point, self.softness, objective, mass)

    def miss(self, point: Point) -> float:
        """Measure how far the row sums are from b.

        Args:
            point: A point of this problem.

        Returns:
            The mean of |log(b/m)| under b.
        """
        wanted = (self.b.clamp_min(TINY) / point.rows.clamp_min(TINY)).log().abs()
        return float(self.b @ wanted)


def shares(cost: Tensor, u: Tensor, softness: float) -> Tensor:
    """Return how columns divide their mass among classes: softmax_c((u_c - M_cj) / eps).

    Args:
        cost: Columns of the cost (C, M).
        u: Potentials of the classes (C,).
        softness: eps, the width of the smoothed maximum.

    Returns:
        Shares (C, M); each column sums to 1.
    """
    return _shares(cost, u, softness)[0]


def _shares(cost: Tensor, u: Tensor, softness: float) -> tuple[Tensor, Tensor]:
    """Shares (C,M) and the largest exponent of each column (M,) in float64."""
    exponent = torch.sub((u / softness).to(cost.dtype)[:, None], cost, alpha=1.0 / softness)
    top = exponent.amax(0)
    if cost.device.type == "cpu":
        # Numbers below the normal range are no mass, and processors are far slower on them.
        torch.maximum(exponent, top + _NOTHING, out=exponent)
    share = F.threshold(torch.softmax(exponent, 0), TINY, 0.0)
    return share, top.double()


def rescaling(b: Tensor, rows: Tensor) -> Tensor:
    """Return factors that bring row sums to the wanted row masses.

    Args:
        b: Wanted row masses (C,).
        rows: Row sums (C,).

    Returns:
        Factors (C,); 0 for classes without mass.
    """
    return torch.where(b > 0, b / rows.clamp_min(TINY), 0.0)
