"""Semi-unbalanced optimal transport: classes send a fixed mass, OOD prompts receive what they draw.

The problem (methods 1.10e, 4.3 A-1), with cost M (C,J), row mass b (C,), column prior a (J,):
``min <M,pi> + tau * sum_j [q_j log(q_j/a_j) - q_j + a_j]`` over pi >= 0 with ``pi 1 = b``, where
``q = pi^T 1``. At any feasible pi the Frank-Wolfe gap equals primal minus dual value, so it bounds
the distance to the optimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import torch

from focoop.errors import ConfigError
from focoop.functional.transport.line_search import Segment, Step, log_ratio
from focoop.functional.transport.marginals import (
    CPU_CELLS,
    check_settings,
    inner,
    masses,
    nearest,
)
from focoop.functional.transport.open_loop import device_steps, open_loop_steps

if TYPE_CHECKING:
    from torch import Tensor

# Masses are added up as multiples of 2^-52 of their total.
_BITS = 52
# Every so many steps the host asks whether the gap is met; a GPU must not wait for each answer.
CHECK_EVERY = {"cpu": 1, "cuda": 16}


@dataclass(frozen=True)
class Plan:
    """A transport plan with its objective and how far from the optimum it can be.

    `gap` belongs to this very plan and bounds `objective - optimum`. `steps` counts the steps of
    this solve; `converged` says whether its stopping rule was met (Frank-Wolfe: the gap, entropic:
    the change of the potentials).
    """

    plan: Tensor  # (C,J)
    mass: Tensor  # (J,) column sums
    gap: float
    objective: float
    steps: int
    converged: bool


def semi_unbalanced(
    cost: Tensor,
    *,
    tau: float,
    row_mass: Tensor | None = None,
    col_prior: Tensor | None = None,
    step: Step = "open_loop",
    max_steps: int = 300,
    tolerance: float = 5e-3,
    relative: float = 0.0,
    start: Plan | Tensor | None = None,
    check_every: int = 0,
    cells: int = 0,
) -> Plan:
    """Solve semi-unbalanced transport by Frank-Wolfe steps from the product plan b a^T.

    Args:
        cost: Cost of moving mass from row c to column j (C, J).
        tau: Price of a column's mass that differs from its prior.
        row_mass: Mass that each row sends (C,); None: uniform.
        col_prior: Mass that each column would like to receive (J,); None: uniform.
        step: Rule for the step length: `open_loop` is the paper's 1/(i+2); `armijo` halves the step
            until the objective falls enough; `exact` minimises along the segment.
        max_steps: Steps at most.
        tolerance: The solver stops at this gap between the objective and a lower bound.
        relative: Share of what was gained over b a^T that is a small enough gap too.
        start: A plan of the same shape to start from; its rows are rescaled to `row_mass`. The
            open-loop rule then begins at the i whose step is the best along the first segment.
        check_every: Steps between two looks at the gap; 0: as suits the device.
        cells: Entries of the cost taken at a time; 0: as suits the device.

    Returns:
        The plan.

    Raises:
        ConfigError: A setting is out of range.

    >>> cost = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]], dtype=torch.float64)
    >>> result = semi_unbalanced(cost, tau=0.1, step="exact", tolerance=1e-6)
    >>> result.converged, result.plan.argmax(1).tolist()
    (True, [0, 1])
    >>> torch.testing.assert_close(result.plan.sum(1), torch.full((2,), 0.5, dtype=torch.float64))
    """
    b, a = masses(cost, row_mass, col_prior)
    check_settings(tau, max_steps, tolerance)
    if step not in get_args(Step):
        raise ConfigError(f"step {step!r} is unknown; use one of {', '.join(get_args(Step))}")
    here = cost.device.type == "cpu"
    few = cost.numel() <= CPU_CELLS and not (check_every or cells) and (here or row_mass is None)
    if step == "open_loop" and start is None and few:
        take = open_loop_steps if here else device_steps
        vertices, betas, met = take(cost, b, a, tau, max_steps, tolerance, relative)
        plan = _assemble((b[:, None] * (a / a.sum())).cpu(), b.cpu(), vertices, betas)
        return _finish(plan.to(cost.device), cost, b, a, tau, len(betas), met)
    first = None if start is None else _first_plan(start, b, a)
    mass = a * (b.sum() / a.sum()) if first is None else first.sum(0)
    product = b @ (cost @ (a / a.sum()))
    linear = product if first is None else inner(cost, first, cells)
    vertices, betas = [], []
    going: list[Tensor] = []
    offset = 0
    every = check_every or CHECK_EVERY.get(cost.device.type, 1)
    while True:
        slope = tau * log_ratio(mass, a)
        least, best = nearest(cost, slope, cells)
        gap = linear + mass @ slope - b @ least
        gained = product - linear - tau * (mass * log_ratio(mass, a) - mass + a).sum()
        ahead = gap > torch.clamp(relative * gained, min=tolerance)
        if len(betas) >= max_steps or (len(betas) % every == 0 and not bool(ahead)):
            break
        to_mass = _received(best, b, len(a))
        to_linear = b @ cost.gather(1, best[:, None])[:, 0]
        segment = Segment(linear, to_linear, mass, to_mass, a, tau)
        segment = segment if step == "open_loop" else segment.hit(best, b)
        if start is not None and step == "open_loop" and not betas:
            offset = max(0, int(1.0 / max(float(segment.exact()), 1e-4)) - 2)
        # Where the host looks only now and then, the steps after the last one have length 0.
        beta = segment.beta(step, offset + len(betas), gap) * ahead
        mass, linear = torch.lerp(mass, to_mass, beta), torch.lerp(linear, to_linear, beta)
        vertices.append(best)
        betas.append(beta)
        going.append(ahead)
    steps = int(torch.stack(going).sum()) if going else 0
    plan = b[:, None] * (a / a.sum()) if first is None else first
    plan = _assemble(plan, b, vertices[:steps], betas[:steps])
    return _finish(plan, cost, b, a, tau, steps, not bool(ahead))


def semi_unbalanced_entropic(
    cost: Tensor,
    *,
    tau: float,
    epsilon: float = 0.01,
    row_mass: Tensor | None = None,
    col_prior: Tensor | None = None,
    max_steps: int = 1000,
    tolerance: float = 1e-6,
) -> Plan:
    """Solve semi-unbalanced transport with an entropy term, by Sinkhorn scaling in the log domain.

    Args:
        cost: Cost of moving mass from row c to column j (C, J).
        tau: Price of a column's mass that differs from its prior.
        epsilon: Weight of the entropy.
        row_mass: Mass that each row sends (C,); None: uniform.
        col_prior: Mass that each column would like to receive (J,); None: uniform.
        max_steps: Steps at most.
        tolerance: The solver stops when no column potential moves by more, in units of the cost;
            where costs differ by less than 1, in units of their range: 1e-6 is no small change
            beside costs of 1e-9.

    Returns:
        The plan; `gap` and `objective` are those of the problem without entropy.

    Raises:
        ConfigError: A setting is out of range.

    >>> cost = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    >>> semi_unbalanced_entropic(cost, tau=0.1).mass
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    b, a = masses(cost, row_mass, col_prior)
    check_settings(tau, max_steps, tolerance)
    if not 0.0 < epsilon < float("inf"):
        raise ConfigError(f"epsilon must be positive and finite, got {epsilon}; try 0.01")
    kernel = -cost / epsilon
    log_b, log_a, power = b.log(), a.log(), tau / (tau + epsilon)
    log_v = torch.zeros_like(a)
    unit = min(float(cost.amax() - cost.amin()), 1.0) or 1.0
    converged, steps = False, 0
    while steps < max_steps and not converged:
        log_u = log_b - torch.logsumexp(kernel + log_v, 1)
        update = power * (log_a - torch.logsumexp(kernel + log_u[:, None], 0))
        converged = float((update - log_v).abs().max()) * epsilon <= tolerance * unit
        log_v, steps = update, steps + 1
    # The last scaling is that of the rows: their marginal is the hard one.
    plan = b[:, None] * torch.softmax(kernel + log_v, 1)
    return _finish(plan, cost, b, a, tau, steps, converged)


def barycentre(plan: Tensor, points: Tensor, fallback: Tensor, *, min_mass: float = 0.0) -> Tensor:
    """Return the mean of points under each row of a plan, rows divided by their mass.

    Frank-Wolfe leaves a remnant of its start in every cell: give a share of the row mass as
    `min_mass`, such as 0.01/C, to ignore it.

    Args:
        plan: Mass from each row to each point (C, M).
        points: The points (M, d).
        fallback: What rows without mass get (C, d).
        min_mass: Rows with at most this mass count as without.

    Returns:
        Means (C, d).

    Raises:
        ValueError: The shapes do not fit each other.

    >>> plan = torch.tensor([[0.1, 0.3], [0.0, 0.0]])
    >>> barycentre(plan, torch.tensor([[0.0], [4.0]]), torch.tensor([[9.0], [9.0]]))
    tensor([[3.],
            [9.]])
    """
    fits = plan.ndim == 2 and plan.shape[1] == len(points)
    if not fits or fallback.shape != (len(plan), points.shape[1]):
        raise ValueError(
            f"plan {tuple(plan.shape)}, points {tuple(points.shape)} and fallback "
            f"{tuple(fallback.shape)} must be (C,M), (M,d) and (C,d)"
        )
    mass = plan.sum(1, keepdim=True)
    enough = mass > min_mass
    shares = plan / torch.where(enough, mass, torch.ones_like(mass))
    return torch.where(enough, shares.to(points.dtype) @ points, fallback)


def row_entropy(plan: Tensor) -> Tensor:
    """Return how evenly each row of a plan is spread: its entropy over log J.

    Args:
        plan: The plan (C, J).

    Returns:
        Numbers (C,) in [0, 1]; 1 is a uniform row.

    >>> row_entropy(torch.tensor([[0.25, 0.25], [0.5, 0.0]])).tolist()
    [1.0, 0.0]
    """
    shares = plan / plan.sum(1, keepdim=True).clamp_min(torch.finfo(plan.dtype).tiny)
    entropy: Tensor = torch.special.entr(shares).sum(1)
    return entropy / math.log(max(plan.shape[1], 2))


def select_by_mass(mass: Tensor, count: int, *, largest: bool = True) -> Tensor:
    """Return the indices of the largest or smallest masses.

    Args:
        mass: Masses (J,).
        count: How many indices.
        largest: The largest masses, or else the smallest.

    Returns:
        Indices (count,) in order of their mass; of equal masses the lower index comes first.

    Raises:
        ConfigError: There are fewer masses than `count`.

    >>> select_by_mass(torch.tensor([0.2, 0.5, 0.2, 0.1]), 2).tolist()
    [1, 0]
    >>> select_by_mass(torch.tensor([0.2, 0.5, 0.2, 0.1]), 3, largest=False).tolist()
    [3, 0, 2]
    """
    if not 0 <= count <= len(mass):
        raise ConfigError(f"cannot select {count} of {len(mass)} prompts; use 0 to {len(mass)}")
    return torch.sort(mass, descending=largest, stable=True).indices[:count]


def two_means(mass: Tensor) -> Tensor:
    """Split masses into a lower and an upper cluster by exact one-dimensional 2-means.

    Args:
        mass: Masses (J,).

    Returns:
        A mask (J,) of the upper cluster; empty where all masses are equal. Of equally good splits
        the one with the larger upper cluster is taken.

    Raises:
        ValueError: `mass` is not a vector, or is empty.

    >>> two_means(torch.tensor([0.1, 0.9, 0.2, 0.8])).tolist()
    [False, True, False, True]
    """
    if mass.ndim != 1:
        raise ValueError(f"masses must be a vector, got shape {tuple(mass.shape)}")
    values, order = torch.sort(mass.double(), stable=True)
    upper = torch.zeros(len(mass), dtype=torch.bool, device=mass.device)
    if len(mass) < 2 or values[0] == values[-1]:
        return upper
    # Between-cluster scatter n1*n2*(m1-m2)^2, largest where the scatter within is least.
    below = torch.arange(1, len(mass), device=mass.device, dtype=torch.float64)
    above = len(mass) - below
    sums = values.cumsum(0)
    difference = sums[:-1] / below - (sums[-1] - sums[:-1]) / above
    cut = int((below * above * difference.square()).argmax()) + 1
    upper[order[cut:]] = True
    return upper


def _first_plan(start: Plan | Tensor, b: Tensor, a: Tensor) -> Tensor:
    """The start with its rows rescaled to b; those without mass are replaced by ``b a^T``'s."""
    product = b[:, None] * (a / a.sum())
    given = start.plan if isinstance(start, Plan) else start
    if given.shape != product.shape:
        raise ValueError(f"start is {tuple(given.shape)}, the cost {tuple(product.shape)}")
    given = given.to(product)
    rows = given.sum(1, keepdim=True)
    if not bool(torch.isfinite(given).all()) or bool((given < 0).any()):
        raise ValueError("start has negative or non-finite entries")
    shares = given / rows.clamp_min(torch.finfo(b.dtype).tiny)
    return torch.where(rows > 0, shares * b[:, None], product)


def _received(best: Tensor, b: Tensor, columns: int) -> Tensor:
    """Masses (J,) where each row sends its b_c to column best_c.

    They are summed as whole numbers, which no order of additions changes, on any device.
    """
    unit = b.sum().double() / 2**_BITS
    total = torch.zeros(columns, dtype=torch.int64, device=b.device)
    total.index_add_(0, best, (b.double() / unit).round().to(torch.int64))
    return torch.mul(total, unit).to(b.dtype)


def _assemble(first: Tensor, b: Tensor, vertices: list[Tensor], betas: list[Tensor]) -> Tensor:
    """Build the plan from the steps' vertices; each step touches one distinct cell per row."""
    if not betas:
        return first
    steps = torch.stack(betas).double()
    remaining = torch.cat([(1.0 - steps).flip(0).cumprod(0).flip(0), steps.new_ones(1)])
    weights = (remaining[1:] * steps).to(b.dtype)
    plan = first * remaining[0].to(b.dtype)
    rows = torch.arange(len(b), device=b.device)
    if plan.device.type == "cpu":  # one call, which adds in the order of the steps
        cells = torch.stack(vertices) + plan.shape[1] * rows
        plan.view(-1).index_add_(0, cells.view(-1), (weights[:, None] * b).view(-1))
    else:
        for vertex, weight in zip(vertices, weights, strict=True):
            plan[rows, vertex] += weight * b
    # Rounding of many additions is taken out of the hard marginal.
    total = plan.sum(1)
    return plan * torch.where(total > 0, b / total.clamp_min(torch.finfo(b.dtype).tiny), b)[:, None]


def _finish(
    plan: Tensor, cost: Tensor, b: Tensor, a: Tensor, tau: float, steps: int, converged: bool
) -> Plan:
    """Measure the plan itself, not the running sums of the solver."""
    mass = plan.sum(0)
    linear = inner(cost, plan)
    ratio = log_ratio(mass, a)
    gap = float(linear + tau * (mass @ ratio) - b @ nearest(cost, tau * ratio)[0])
    objective = float(linear + tau * (mass * ratio - mass + a).sum())
    return Plan(plan, mass, max(gap, 0.0), objective, steps, converged)
