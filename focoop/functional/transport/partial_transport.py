"""Partial optimal transport of many small problems at once: targets are served in full.

Each problem has a cost M (P, R), P sources that hold a = 1/P each and R targets that ask for
b = mass/R each, mass <= 1 (methods 1.2). With K = exp(-M / epsilon) the plan T = diag(u) K diag(v)
minimises ``<M,T> + epsilon sum T (log T - 1)`` over ``T^T 1 = b`` and ``T 1 <= a`` by the scaling
``u = min(a / (K v), 1)``, ``v = b / (K^T u)`` from v = 1. All of it is done on logarithms, where a
small epsilon neither underflows nor overflows, in float32 or float64 and without gradient.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from focoop.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

IN_A_GRAPH = 200  # iterations, each of which is some thirty nodes of an exported graph
# How often `early` looks whether all problems have stopped: looking waits for the device.
LOOK_EVERY = 5


def partial(
    cost: Tensor,
    *,
    epsilon: float,
    mass: float = 1.0,
    threshold: float = 1e-3,
    max_iterations: int = 100,
    early: bool = False,
) -> Tensor:
    """Solve many small problems of partial transport at once.

    A problem stops by itself once `mean_r |v - v_old| < threshold`; the others go on. v grows as
    exp(1 / epsilon), so that for a small epsilon `max_iterations` ends most problems, with row sums
    still above 1/P here and there.

    Args:
        cost: Costs (..., P, R) of P sources and R targets.
        epsilon: Weight of the entropy.
        mass: Share of the sources' mass that targets ask for, at most 1.
        threshold: Change of v at which a problem stops.
        max_iterations: Iterations at most.
        early: Leave the loop when all problems have stopped. The bits are the same, but this is a
            branch on values, which `torch.func.vmap` refuses.

    Returns:
        Plans (..., P, R): columns sum to mass/R, rows to at most 1/P.

    Raises:
        ConfigError: A setting is out of range.

    >>> cost = torch.tensor([[0.0], [0.1], [0.2], [0.3]])
    >>> partial(cost, epsilon=0.01, mass=0.5)[:, 0].round(decimals=4).tolist()
    [0.25, 0.25, 0.0, 0.0]
    """
    if not 0.0 < mass <= 1.0:
        raise ConfigError(f"mass must be more than 0 and at most 1, got {mass}; try 0.8")
    return _scaled(cost, epsilon, mass, 0.0, threshold, max_iterations, early)


def balanced(
    cost: Tensor,
    *,
    epsilon: float,
    threshold: float = 1e-3,
    max_iterations: int = 100,
    early: bool = False,
) -> Tensor:
    """Solve many small problems of balanced transport at once, by Sinkhorn's scaling.

    Args:
        cost: Costs (..., P, R) of P sources and R targets.
        epsilon: Weight of the entropy.
        threshold: Change of v at which a problem stops.
        max_iterations: Iterations at most.
        early: Leave the loop when all problems have stopped.

    Returns:
        Plans (..., P, R): columns sum to 1/R, rows to 1/P once converged.

    >>> balanced(torch.tensor([[0.0, 2.0], [2.0, 0.0]]), epsilon=0.01).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    return _scaled(cost, epsilon, 1.0, math.inf, threshold, max_iterations, early)


def _scaled(
    cost: Tensor,
    epsilon: float,
    mass: float,
    highest: float,
    threshold: float,
    max_iterations: int,
    early: bool,
) -> Tensor:
    """Both scalings; ``highest`` is the largest log u, 0 where rows may stay below their mass."""
    _check(cost, epsilon, threshold, max_iterations)
    exact = cost.detach().to(torch.promote_types(cost.dtype, torch.float32))
    # (P, R, ...): sums over sources and targets then run along whole rows of problems.
    kernel = (-exact / epsilon).movedim((-2, -1), (0, 1)).contiguous()
    sources, targets = kernel.shape[:2]
    log_a, log_b = -math.log(sources), math.log(mass / targets)
    limit = math.log(threshold * targets) if threshold > 0 else -math.inf

    def row_scaling(log_v: Tensor) -> Tensor:
        return (log_a - torch.logsumexp(kernel + log_v, 1, keepdim=True)).clamp(max=highest)

    log_v = before = torch.zeros_like(kernel[0])  # (R, ...)
    stopped = torch.zeros_like(kernel[0, 0], dtype=torch.bool)  # (...)
    if torch.compiler.is_compiling():  # a graph holds every iteration, and cannot look at images
        early = False
        if max_iterations > IN_A_GRAPH:
            raise ConfigError(
                f"max_iterations is {max_iterations}, and a graph holds at most {IN_A_GRAPH}"
            )
    for iteration in range(1, max_iterations + 1):
        update = log_b - torch.logsumexp(kernel + row_scaling(log_v), 0)
        # log sum_r |v - v_old|: v itself may be too large for its type.
        change = torch.logsumexp(update + torch.expm1(log_v - update).abs().log(), 0)
        before = torch.where(stopped, before, log_v)
        log_v = torch.where(stopped, log_v, update)
        stopped = stopped | (change < limit)
        if early and iteration % LOOK_EVERY == 0 and bool(stopped.all()):
            break
    # The last scaling is that of the columns, v = b / (K^T u): a softmax over the sources.
    plan = mass / targets * torch.softmax(kernel + row_scaling(before), 0)
    return plan.movedim((0, 1), (-2, -1))


def _check(cost: Tensor, epsilon: float, threshold: float, max_iterations: int) -> None:
    if cost.ndim < 2 or 0 in cost.shape[-2:] or not cost.is_floating_point():
        raise ValueError(f"cost must be a float (..., P, R) tensor, got {tuple(cost.shape)}")
    if not 0.0 < epsilon < math.inf:
        raise ConfigError(f"epsilon must be positive and finite, got {epsilon}; try 0.1")
    if not threshold >= 0.0:
        raise ConfigError(f"threshold must be 0 or more, got {threshold}; try 0.001")
    if max_iterations < 1:
        raise ConfigError(f"max_iterations must be 1 or more, got {max_iterations}; try 100")
