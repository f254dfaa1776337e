"""The paper's Frank-Wolfe: against dense loops, other solvers, and its own gap."""

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focoop.errors import ConfigError
from focoop.functional.transport import (
    rescale,
    select_by_mass,
    semi_unbalanced_dual,
    semi_unbalanced_open_loop,
    squared_cost,
)
from focoop.seeds import torch_generator


def random_cost(rows=6, columns=15, seed=0):
    return torch.rand(rows, columns, generator=torch_generator(seed, "cost"), dtype=torch.float64)


def objective(plan, cost, tau):
    """The objective cell by cell, as the specification writes it."""
    plan, cost = np.asarray(plan), np.asarray(cost)
    prior, total = 1 / plan.shape[1], 0.0
    for column in range(plan.shape[1]):
        mass = float(plan[:, column].sum())
        total += float((cost[:, column] * plan[:, column]).sum())
        total += tau * (mass * np.log(mass / prior) - mass + prior)
    return total


def planted(dtype=torch.float32):
    """100 classes, 1000 OOD prompts of which the first 150 lie near a class."""
    generator = torch_generator(0, "planted")
    classes = 0.02 * torch.randn(100, 512, generator=generator)
    prompts = 0.02 * torch.randn(1000, 512, generator=generator)
    owner = torch.cat([torch.arange(100), torch.randperm(100, generator=generator)[:50]])
    prompts[:150] = classes[owner] + 0.005 * torch.randn(150, 512, generator=generator)
    return rescale(squared_cost(classes.to(dtype), prompts.to(dtype)), "max")


def test_steps_are_those_of_a_dense_loop():
    cost, tau = random_cost(), 0.1
    rows, columns = cost.shape
    plan = torch.full_like(cost, 1 / (rows * columns))
    for index in range(40):
        gradient = cost + tau * (plan.sum(0) * columns).log()
        vertex = torch.zeros_like(cost)
        vertex[torch.arange(rows), gradient.argmin(1)] = 1 / rows
        beta = 1 / (index + 2)
        plan = (1 - beta) * plan + beta * vertex
    ours = semi_unbalanced_open_loop(cost, tau=tau, steps=40)
    torch.testing.assert_close(ours.plan, plan, rtol=1e-10, atol=1e-14)
    assert ours.steps == 40
    none = semi_unbalanced_open_loop(cost, tau=tau, steps=0)
    torch.testing.assert_close(none.plan, torch.full_like(cost, 1 / (rows * columns)))


@pytest.mark.parametrize("tau", [0.05, 0.5])
def test_agrees_with_pot_under_a_stiff_class_side(tau):
    cost = random_cost()
    b, a = np.full(6, 1 / 6), np.full(15, 1 / 15)
    ours = semi_unbalanced_open_loop(cost, tau=tau, steps=3000)
    theirs = ot.unbalanced.mm_unbalanced(
        b, a, cost.numpy(), reg_m=np.array([10.0, tau]), numItermax=5000
    )
    # Rescaled rows make POT's plan feasible here, hence an upper bound of the optimum.
    theirs *= (b / theirs.sum(1))[:, None]
    best = objective(theirs, cost, tau)
    assert ours.objective == pytest.approx(best, abs=2e-3)
    assert ours.objective - ours.gap <= best


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 10_000), st.floats(0.02, 2.0))
def test_reported_numbers_belong_to_the_plan(rows, columns, seed, tau):
    cost = random_cost(rows, columns, seed)
    found = semi_unbalanced_open_loop(cost, tau=tau, steps=30)
    assert bool((found.plan >= 0).all())
    torch.testing.assert_close(found.plan.sum(1), cost.new_full((rows,), 1 / rows))
    torch.testing.assert_close(found.plan.sum(0), found.drawn)
    assert torch.equal(found.columns(slice(0, 1)), found.plan[:, :1])
    assert found.objective == pytest.approx(objective(found.plan, cost, tau), abs=1e-12)
    gradient = cost + tau * (found.drawn * columns).log()
    vertex = torch.zeros_like(cost)
    vertex[torch.arange(rows), gradient.argmin(1)] = 1 / rows
    gap = float(((found.plan - vertex) * gradient).sum())
    assert found.gap == pytest.approx(gap, abs=1e-12)
    # The gap bounds the distance to the optimum, which the dual knows from below.
    best = semi_unbalanced_dual(cost, tau=tau, tolerance=1e-6)
    assert found.objective - found.gap <= best.objective + 1e-12
    assert best.objective - best.gap <= found.objective + 1e-12


def test_small_and_large_tau_are_the_limits():
    cost = random_cost()
    nearest = torch.zeros_like(cost)
    nearest[torch.arange(6), cost.argmin(1)] = 1 / 6
    found = semi_unbalanced_open_loop(cost, tau=1e-6, steps=2000)
    torch.testing.assert_close(found.plan, nearest, rtol=0, atol=1e-3)
    balanced = float(ot.emd2(np.full(6, 1 / 6), np.full(15, 1 / 15), cost.numpy()))
    stiff = semi_unbalanced_open_loop(cost, tau=20.0, steps=5000)
    assert stiff.objective == pytest.approx(balanced, abs=2e-2)
    assert stiff.objective - stiff.gap <= balanced + 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tau", [0.01, 0.1])
def test_planted_prompts_are_recovered(tau, dtype):
    found = semi_unbalanced_open_loop(planted(dtype), tau=tau)
    assert found.plan.dtype == dtype
    assert sorted(select_by_mass(found.drawn, 150).tolist()) == list(range(150))


def test_impossible_settings_are_refused():
    with pytest.raises(ConfigError, match="tau"):
        semi_unbalanced_open_loop(torch.ones(2, 3), tau=0.0)
    with pytest.raises(ConfigError, match="steps"):
        semi_unbalanced_open_loop(torch.ones(2, 3), tau=0.1, steps=-1)
