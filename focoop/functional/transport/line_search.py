"""Step lengths of Frank-Wolfe on the semi-unbalanced problem of `frank_wolfe`.

Along a segment the objective is linear in the cost and convex in the column sums. Columns that the
vertex leaves out all shrink by 1 - beta and have a closed form together, so that a trial costs O(C)
for the at most C columns it hits. Nothing is copied to the host.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from torch import Tensor

Step = Literal["open_loop", "armijo", "exact"]

# A closed-loop step of 1 would empty columns, where the gradient is infinite.
_MAX_BETA = 0.9
# Decrease demanded by Armijo's rule, as a share of the slope.
_ARMIJO = 0.25
_HALVINGS = 30


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


@dataclass(frozen=True)
class Segment:
    """The line from the current plan to a vertex, along which the objective needs only column sums.

    >>> half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    >>> one = torch.tensor(1.0, dtype=torch.float64)
    >>> end = torch.tensor([1.0, 0.0], dtype=torch.float64)
    >>> segment = Segment(one, 0 * one, half, end, half, tau=1.0)
    >>> round(float(segment.exact()), 4)  # log((1 + beta) / (1 - beta)) = 2
    0.7616
    """

    linear: Tensor
    to_linear: Tensor
    mass: Tensor  # (J,)
    to_mass: Tensor  # (J,)
    prior: Tensor
    tau: float
    weight: Tensor | None = None  # (J,) how often a column counts; None: once
    left: Tensor | None = None  # () mass of the columns left out, and the sum of q log(q/a) there
    left_entropy: Tensor | None = None

    def hit(self, columns: Tensor, row_mass: Tensor) -> Segment:
        """Return the same segment, given by the columns that the rows of the vertex hit.

        Args:
            columns: The column that each row hits (C,); one may be hit many times.
            row_mass: Mass of each row (C,).

        Returns:
            The segment.
        """
        to_mass = self.to_mass[columns]
        weight = row_mass / to_mass.clamp_min(torch.finfo(to_mass.dtype).tiny)
        out = self.mass * (self.to_mass == 0)
        return replace(
            self,
            mass=self.mass[columns],
            to_mass=to_mass,
            prior=self.prior[columns],
            weight=weight * (to_mass > 0),
            left=out.sum(),
            left_entropy=out @ log_ratio(self.mass, self.prior),
        )

    def beta(self, step: Step, index: int, gap: Tensor | float) -> Tensor:
        """Return the step length under a rule.

        Args:
            step: The rule: `open_loop`, `armijo` or `exact`.
            index: i, the number of the step.
            gap: The Frank-Wolfe gap; -gap is the slope at 0.

        Returns:
            A scalar from 0 to 1.
        """
        if step == "exact":
            return self.exact()
        if step == "armijo":
            return self.armijo(gap)
        return self.linear.new_tensor(1.0 / (index + 2))

    def armijo(self, gap: Tensor | float) -> Tensor:
        """Return the first of 0.9 * 2^-k that lowers the objective enough.

        Args:
            gap: The Frank-Wolfe gap; -gap is the slope at 0.

        Returns:
            A scalar; 0 where no step lowers the objective.
        """
        betas = _MAX_BETA * 0.5 ** torch.arange(
            _HALVINGS, dtype=self.mass.dtype, device=self.mass.device
        )
        change = betas * (self.to_linear - self.linear) + self.tau * self._kl_change(betas)
        enough = change <= -_ARMIJO * gap * betas
        first = enough.to(torch.uint8).argmax()
        return torch.where(enough.any(), betas[first], torch.zeros_like(betas[0]))

    def exact(self) -> Tensor:
        """Return where the derivative changes sign, found by three nested grids."""
        low = self.mass.new_zeros(())
        width = self.mass.new_tensor(_MAX_BETA)
        grid = torch.arange(1, 65, dtype=self.mass.dtype, device=self.mass.device) / 64
        for _ in range(3):
            betas = low + width * grid
            ratio = log_ratio(self.masses(betas), self.prior)
            slope = ratio @ self._counted(self.to_mass - self.mass)
            if self.left is not None and self.left_entropy is not None:
                slope = slope - self.left * torch.log1p(-betas) - self.left_entropy
            slope = self.to_linear - self.linear + self.tau * slope
            # The derivative grows with beta: count the grid points before its zero.
            low, width = low + width * (slope < 0).sum().clamp(max=63) / 64, width / 64
        return low + 0.5 * width

    def masses(self, betas: Tensor) -> Tensor:
        """Return the column sums along the segment.

        Args:
            betas: Step lengths (B,).

        Returns:
            Column sums (B, J).
        """
        return torch.lerp(self.mass, self.to_mass, betas[:, None])

    def _kl_change(self, betas: Tensor) -> Tensor:
        """KL at each beta minus KL at 0, summed column by column so that small steps survive."""
        mass = self.masses(betas)
        now = self.mass * log_ratio(self.mass, self.prior) - self.mass
        change = self._counted(mass * log_ratio(mass, self.prior) - mass - now).sum(1)
        if self.left is None or self.left_entropy is None:
            return change
        shrunk = (1.0 - betas) * torch.log1p(-betas) + betas
        return change + self.left * shrunk - betas * self.left_entropy

    def _counted(self, values: Tensor) -> Tensor:
        return values if self.weight is None else values * self.weight
