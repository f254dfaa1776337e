"""Partial transport against POT, its marginal conditions and a float64 loop of the scaling."""

import math

import numpy as np
import ot
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from focoop.errors import ConfigError
from focoop.functional.transport.partial_transport import balanced, partial
from focoop.seeds import torch_generator


def make_cost(shape: tuple[int, ...], spread: float = 0.15, seed: int = 0) -> Tensor:
    """1 - cosines as patches and prompts have them, float64."""
    cosines = spread * torch.randn(*shape, generator=torch_generator(seed, "cost")).double()
    return 1.0 - cosines.clamp(-1.0, 1.0)


def published(
    cost: np.ndarray, epsilon: float, mass: float, threshold: float, most: int, capped: bool
) -> tuple[np.ndarray, int]:
    """The scaling of one problem as methods 1.2 writes it, number by number; plan and steps."""
    sources, targets = cost.shape
    kernel = [[math.exp(-cost[p, r] / epsilon) for r in range(targets)] for p in range(sources)]
    u, v = [1.0] * sources, [1.0] * targets
    steps = 0
    while steps < most:
        steps += 1
        for p in range(sources):
            u[p] = 1.0 / sources / sum(kernel[p][r] * v[r] for r in range(targets))
            if capped:
                u[p] = min(u[p], 1.0)
        old = list(v)
        for r in range(targets):
            v[r] = mass / targets / sum(kernel[p][r] * u[p] for p in range(sources))
        if sum(abs(x - y) for x, y in zip(v, old, strict=True)) / targets < threshold:
            break
    plan = [[u[p] * kernel[p][r] * v[r] for r in range(targets)] for p in range(sources)]
    return np.array(plan), steps


@pytest.mark.parametrize("mass", [1.0, 0.8, 0.3])
@pytest.mark.parametrize("epsilon", [0.1, 0.01])
def test_every_problem_of_a_batch_is_the_published_scaling(epsilon: float, mass: float) -> None:
    cost = make_cost((3, 4, 7, 2))
    plans = partial(cost, epsilon=epsilon, mass=mass)
    steps = set()
    for image in range(3):
        for label in range(4):
            slow, taken = published(cost[image, label].numpy(), epsilon, mass, 1e-3, 100, True)
            np.testing.assert_allclose(plans[image, label], slow, rtol=1e-9, atol=1e-15)
            steps.add(taken)
    # Problems of one batch end at different steps, unless all of them meet the limit.
    assert len(steps) > 1 or steps == {100}


@pytest.mark.parametrize("threshold", [1e-3, 1.0, 100.0])
def test_stopping_is_each_problems_own(threshold: float) -> None:
    """The threshold decides where a problem ends; its neighbours do not."""
    cost = torch.cat([make_cost((5, 6, 2)), make_cost((1, 6, 2), spread=0.5)])
    plans = partial(cost, epsilon=0.1, mass=0.8, threshold=threshold)
    for one, plan in zip(cost, plans, strict=True):
        slow, _ = published(one.numpy(), 0.1, 0.8, threshold, 100, True)
        np.testing.assert_allclose(plan, slow, rtol=1e-9, atol=1e-15)
        alone = partial(one, epsilon=0.1, mass=0.8, threshold=threshold)
        torch.testing.assert_close(plan, alone, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("epsilon", [0.1, 0.03])
def test_sinkhorn_is_the_published_scaling_without_a_cap(epsilon: float) -> None:
    cost = make_cost((4, 6, 2))
    plans = balanced(cost, epsilon=epsilon)
    for one, plan in zip(cost, plans, strict=True):
        slow, _ = published(one.numpy(), epsilon, 1.0, 1e-3, 100, False)
        np.testing.assert_allclose(plan, slow, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("targets", [1, 2, 3])
@pytest.mark.parametrize("mass", [0.9, 0.5])
def test_agrees_with_pot_entropic_partial(mass: float, targets: int) -> None:
    cost = make_cost((9, targets))
    ours = partial(cost, epsilon=0.1, mass=mass, threshold=0.0, max_iterations=500)
    a, b = np.full(9, 1 / 9), np.full(targets, mass / targets)
    theirs = ot.partial.entropic_partial_wasserstein(
        a, b, cost.numpy(), reg=0.1, m=b.sum(), numItermax=3000, stopThr=1e-14
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-8)


@pytest.mark.parametrize("solve", [balanced, partial])
def test_full_mass_agrees_with_pot_sinkhorn(solve) -> None:
    cost = make_cost((8, 2))
    ours = solve(cost, epsilon=0.1, threshold=0.0, max_iterations=500)
    theirs = ot.sinkhorn(
        np.full(8, 1 / 8), np.full(2, 0.5), cost.numpy(), reg=0.1, numItermax=2000, stopThr=1e-14
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-9)


def test_small_epsilon_tends_to_the_exact_partial_plan() -> None:
    cost = make_cost((6, 2))
    plan = partial(cost, epsilon=2e-3, mass=0.6, threshold=0.0, max_iterations=2000)
    exact = ot.partial.partial_wasserstein(np.full(6, 1 / 6), np.full(2, 0.3), cost.numpy(), m=0.6)
    best = float((exact * cost.numpy()).sum())
    # The entropic optimum is within epsilon * mass * log(cells) of the exact one.
    assert best - 1e-9 <= float((plan * cost).sum()) <= best + 2e-3 * 0.6 * math.log(12)


@settings(max_examples=15, deadline=None)
@given(
    sources=st.integers(1, 12),
    targets=st.integers(1, 3),
    mass=st.floats(0.05, 1.0),
    epsilon=st.floats(0.1, 1.0),
    seed=st.integers(0, 10**6),
)
@example(sources=6, targets=1, mass=0.845703125, epsilon=0.1, seed=3)  # slow to converge
def test_marginals_hold(sources: int, targets: int, mass: float, epsilon: float, seed: int) -> None:
    cost = make_cost((30, sources, targets), seed=seed)
    plan = partial(cost, epsilon=epsilon, mass=mass, threshold=0.0, max_iterations=1000)
    assert bool((plan >= 0).all())
    assert plan.sum(-2).numpy() == pytest.approx(mass / targets, rel=1e-12)
    assert float(plan.sum(-1).max()) <= (1 + 1e-4) / sources


@pytest.mark.parametrize("mass", [1.0, 0.8])
@pytest.mark.parametrize("epsilon", [0.1, 0.01])
def test_single_precision_suffices(epsilon: float, mass: float) -> None:
    cost = make_cost((20, 5, 49, 2))
    exact = partial(cost, epsilon=epsilon, mass=mass)
    plan = partial(cost.float(), epsilon=epsilon, mass=mass)
    assert plan.dtype == torch.float32
    assert float((plan - exact).abs().max()) * 49 < 3e-4  # in units of a row's mass
    torch.testing.assert_close(plan.sum(-2), torch.full((20, 5, 2), mass / 2), rtol=1e-6, atol=0.0)


def test_costs_over_the_whole_range_at_a_small_epsilon_stay_finite() -> None:
    """Cosines from -1 to 1 at 0.005: exp(-400) has no float32 and v no float32 either."""
    cost = 1.0 - torch.linspace(-1.0, 1.0, 32).view(16, 2)
    for plan in (partial(cost, epsilon=0.005, mass=0.8), balanced(cost, epsilon=0.005)):
        assert bool(torch.isfinite(plan).all())
        assert plan.sum(0).sum().item() == pytest.approx(plan.sum().item())
    half = partial(cost.half(), epsilon=0.1)
    assert half.dtype == torch.float32


def test_no_gradient_enters_the_plan() -> None:
    cost = make_cost((2, 5, 2)).requires_grad_(True)
    assert not partial(cost, epsilon=0.1).requires_grad
    assert not balanced(cost, epsilon=0.1).requires_grad


@pytest.mark.parametrize("solve", [balanced, partial])
def test_vmap_gives_what_a_loop_gives(solve) -> None:
    cost = make_cost((3, 2, 4, 6, 2))
    mapped = torch.func.vmap(lambda one: solve(one, epsilon=0.1))(cost)
    looped = torch.stack([solve(one, epsilon=0.1) for one in cost])
    torch.testing.assert_close(mapped, looped, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("max_iterations", [3, 20, 100])
def test_leaving_early_changes_no_bit(max_iterations: int) -> None:
    cost = make_cost((10, 6, 2)).float()
    options = {"epsilon": 0.5, "mass": 0.6, "max_iterations": max_iterations}
    assert torch.equal(partial(cost, early=True, **options), partial(cost, **options))


def test_leaving_early_saves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, real = [], torch.logsumexp

    def counted(*args, **kwargs):
        calls.append(1)
        return real(*args, **kwargs)

    monkeypatch.setattr(torch, "logsumexp", counted)
    partial(make_cost((4, 6, 2)), epsilon=0.5, mass=0.5, early=True)
    early = len(calls)
    partial(make_cost((4, 6, 2)), epsilon=0.5, mass=0.5)
    assert early < (len(calls) - early) / 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"mass": 0.0}, "mass must be more than 0"),
        ({"mass": 1.1}, "at most 1"),
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"epsilon": math.nan}, "epsilon must be positive"),
        ({"threshold": -1.0}, "threshold must be 0 or more"),
        ({"max_iterations": 0}, "max_iterations must be 1 or more"),
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, float], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        partial(make_cost((4, 2)), **{"epsilon": 0.1, **change})


@pytest.mark.parametrize("cost", [torch.zeros(3), torch.zeros(2, 0, 2), torch.zeros(3, 2).long()])
def test_shapes_that_are_no_cost_are_refused(cost: Tensor) -> None:
    with pytest.raises(ValueError, match="float"):
        partial(cost, epsilon=0.1)
