"""The open-loop steps of Frank-Wolfe on a host, for small problems: few operations, no new memory.

Three hundred steps on a cost of 100 x 1000 are a thousand small operations, each of which would
take longer to start than to run. The steps are those of `frank_wolfe.semi_unbalanced`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor


def open_loop_steps(
    cost: Tensor,
    row_mass: Tensor,
    col_prior: Tensor,
    tau: float,
    max_steps: int,
    tolerance: float,
    relative: float,
) -> tuple[list[Tensor], list[Tensor], bool]:
    """Take steps of length 1/(i+2) from the product plan until the gap is small enough.

    Args:
        cost: The cost (C, J) on the host.
        row_mass: Row masses b (C,).
        col_prior: Column priors a (J,).
        tau: Price of a column's mass that differs from its prior.
        max_steps: Steps at most.
        tolerance: The gap to stop at.
        relative: Share of what was gained over the product plan that is a small enough gap too.

    Returns:
        The column that each row sends to (C,) in every step, the steps' lengths, and whether the
        gap is met.
    """
    costs, b, a = cost.numpy(), row_mass.numpy(), col_prior.numpy()
    rows, least_mass = np.arange(len(b)), np.finfo(costs.dtype).tiny
    mass = a * (b.sum() / a.sum())
    product = linear = float(b @ (costs @ (a / a.sum())))
    reduced = np.empty_like(costs)
    vertices: list[Tensor] = []
    betas: list[Tensor] = []
    while True:
        ratio = np.log(np.maximum(mass / a, least_mass))
        np.add(costs, tau * ratio, out=reduced)
        best = reduced.argmin(axis=1)
        gap = linear + tau * float(mass @ ratio) - float(b @ reduced[rows, best])
        gained = product - linear - tau * float((mass * ratio - mass + a).sum())
        met = not gap > max(relative * gained, tolerance)
        if met or len(betas) >= max_steps:
            return vertices, betas, met
        beta = 1.0 / (len(betas) + 2)
        to_mass = np.bincount(best, weights=b, minlength=len(a)).astype(costs.dtype)
        mass = mass + beta * (to_mass - mass)
        linear += beta * (float(b @ costs[rows, best]) - linear)
        vertices.append(torch.from_numpy(best))
        betas.append(row_mass.new_tensor(beta))
