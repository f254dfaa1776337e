"""The open-loop steps of Frank-Wolfe for small problems: few operations, no new memory.

Three hundred steps on a cost of 100 x 1000 are a thousand small operations, each of which would
take longer to start than to run. The steps are those of `frank_wolfe.semi_unbalanced`. On a GPU
four operations make a step, and nothing waits: with lengths 1/(i+2) from the product plan the
masses times i+1 are the prior plus all that was received, and a common factor changes no row's
choice. The gaps are measured afterwards, all at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

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


def device_steps(
    cost: Tensor,
    row_mass: Tensor,
    col_prior: Tensor,
    tau: float,
    max_steps: int,
    tolerance: float,
    relative: float,
) -> tuple[list[Tensor], list[Tensor], bool]:
    """Take the steps of `open_loop_steps` on the cost's device, without waiting for it.

    All steps are taken, and those after the gap is met are left out. Rows must send equal masses:
    their sum then does not depend on the order of additions.

    Args:
        cost: The cost (C, J).
        row_mass: Row masses b (C,), all equal.
        col_prior: Column priors a (J,).
        tau: Price of a column's mass that differs from its prior.
        max_steps: Steps at most.
        tolerance: The gap to stop at.
        relative: Share of what was gained over the product plan that is a small enough gap too.

    Returns:
        As `open_loop_steps`, on the host.
    """
    received = col_prior * (row_mass.sum() / col_prior.sum())
    priced = torch.sub(cost, col_prior.log(), alpha=tau)
    logs, reduced = torch.empty_like(received), torch.empty_like(priced)
    chosen = torch.empty(max_steps + 1, len(cost), dtype=torch.int64, device=cost.device)
    for best in chosen:
        torch.log(received, out=logs)
        torch.add(priced, logs, alpha=tau, out=reduced)
        torch.argmin(reduced, 1, out=best)
        received.index_add_(0, best, row_mass)
    host, b, a = (value.cpu().numpy() for value in (cost, row_mass, col_prior))
    steps, met = _needed(chosen.cpu().numpy(), host, b, a, tau, tolerance, relative)
    betas = [torch.tensor(1.0 / (i + 2), dtype=row_mass.dtype) for i in range(steps)]
    return list(chosen[:steps].cpu()), betas, met


def _needed(
    chosen: NDArray[np.int64],
    cost: NDArray[Any],
    b: NDArray[Any],
    a: NDArray[Any],
    tau: float,
    tolerance: float,
    relative: float,
) -> tuple[int, bool]:
    """After how many of the steps (S+1, C) the gap is met, or all S; and whether it is."""
    count, classes = chosen.shape
    share = 1.0 / np.arange(1, count + 1)[:, None]  # (S+1, 1)
    flat = chosen + len(a) * np.arange(count)[:, None]
    to_mass = np.bincount(flat.ravel(), np.tile(b, count), count * len(a)).reshape(count, -1)
    before = np.cumsum(to_mass, axis=0) - to_mass
    mass = share * (a * (b.sum() / a.sum()) + before)
    ratio = np.log(np.maximum(mass / a, np.finfo(cost.dtype).tiny))
    picked = cost[np.arange(classes), chosen]  # (S+1, C)
    product = float(b @ (cost @ (a / a.sum())))
    linear = share[:, 0] * (product + np.cumsum(picked @ b) - picked @ b)
    least = (picked + tau * np.take_along_axis(ratio, chosen, 1)) @ b
    gap = linear + tau * (mass * ratio).sum(1) - least
    gained = product - linear - tau * (mass * ratio - mass + a).sum(1)
    met = ~(gap > np.maximum(relative * gained, tolerance))
    return (int(met.argmax()), True) if met.any() else (count - 1, False)
