import dataclasses
from typing import Any

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focoop.functional.transport.costs import squared_cost
from focoop.functional.transport.frank_wolfe import (
    Plan,
    select_by_mass,
    semi_unbalanced,
    semi_unbalanced_entropic,
    two_means,
)
from focoop.functional.transport.open_loop import device_steps, open_loop_steps
from focoop.seeds import numpy_generator, torch_generator


def random_problem(rows=6, columns=15, name="problem"):
    generator = numpy_generator(0, name)
    cost = torch.from_numpy(generator.random((rows, columns)))
    row_mass = torch.from_numpy(generator.dirichlet(np.full(rows, 5.0)))
    col_prior = torch.from_numpy(generator.dirichlet(np.full(columns, 5.0)))
    return cost, row_mass, col_prior


def objective(plan, cost, prior, tau):
    """The objective cell by cell, as the specification writes it."""
    plan, cost, prior = (np.asarray(x, dtype=np.float64) for x in (plan, cost, prior))
    total = 0.0
    for column in range(cost.shape[1]):
        mass = plan[:, column].sum()
        total += float((cost[:, column] * plan[:, column]).sum())
        total += tau * (mass * np.log(mass / prior[column]) - mass + prior[column])
    return total


def planted(dtype=torch.float32):
    """100 classes, 1000 OOD prompts of which the first 150 lie near a class (methods 1.10e)."""
    generator = torch_generator(0, "planted")
    classes = 0.02 * torch.randn(100, 512, generator=generator)
    prompts = 0.02 * torch.randn(1000, 512, generator=generator)
    owner = torch.cat([torch.arange(100), torch.randperm(100, generator=generator)[:50]])
    prompts[:150] = classes[owner] + 0.005 * torch.randn(150, 512, generator=generator)
    return squared_cost(classes.to(dtype), prompts.to(dtype), normalise=True)


# Solvers against independent ones


@pytest.mark.parametrize("tau", [0.05, 0.5])
def test_frank_wolfe_agrees_with_pot_under_a_stiff_class_side(tau):
    cost, b, a = random_problem()
    ours = semi_unbalanced(
        cost, tau=tau, row_mass=b, col_prior=a, step="exact", tolerance=0, max_steps=500
    )
    theirs = ot.unbalanced.mm_unbalanced(
        b.numpy(), a.numpy(), cost.numpy(), reg_m=np.array([10.0, tau]), numItermax=5000
    )
    np.testing.assert_allclose(theirs.sum(1), b, atol=1e-2)
    # Rescaled rows make POT's plan feasible here, hence an upper bound of the optimum.
    theirs *= (b.numpy() / theirs.sum(1))[:, None]
    best = objective(theirs, cost, a, tau)
    assert ours.objective == pytest.approx(best, abs=1e-3)
    assert ours.objective - ours.gap <= best


@pytest.mark.filterwarnings("ignore:If reg_type = entropy")
@pytest.mark.parametrize("tau", [0.05, 1.0])
def test_entropic_equals_pot_with_an_infinite_class_penalty(tau):
    cost, b, a = random_problem()
    ours = semi_unbalanced_entropic(
        cost, tau=tau, epsilon=0.05, row_mass=b, col_prior=a, tolerance=1e-12, max_steps=5000
    )
    theirs = ot.unbalanced.sinkhorn_unbalanced(
        b.numpy(),
        a.numpy(),
        cost.numpy(),
        reg=0.05,
        reg_m=(float("inf"), tau),
        reg_type="entropy",
        numItermax=5000,
        stopThr=1e-13,
    )
    assert ours.converged
    np.testing.assert_allclose(ours.plan.numpy(), theirs, rtol=1e-6, atol=1e-9)
    assert ours.objective == pytest.approx(objective(theirs, cost, a, tau), abs=1e-8)


@pytest.mark.parametrize("step", ["open_loop", "armijo", "exact"])
def test_reported_numbers_belong_to_the_plan(step):
    cost, b, a = random_problem()
    tau = 0.2
    result = semi_unbalanced(
        cost, tau=tau, row_mass=b, col_prior=a, step=step, tolerance=0, max_steps=50
    )
    torch.testing.assert_close(result.plan.sum(1), b, rtol=1e-12, atol=0)
    torch.testing.assert_close(result.plan.sum(0), result.mass)
    assert bool((result.plan >= 0).all())
    assert (result.steps, result.converged) == (50, False)
    assert result.objective == pytest.approx(objective(result.plan, cost, a, tau), abs=1e-12)
    gradient = cost + tau * (result.mass / a).log()
    vertex = torch.zeros_like(cost)
    vertex[torch.arange(len(cost)), gradient.argmin(1)] = b
    assert result.gap == pytest.approx(float(((result.plan - vertex) * gradient).sum()), abs=1e-12)


def test_open_loop_equals_a_dense_loop():
    cost, b, a = random_problem()
    tau = 0.1
    plan = torch.outer(b, a)
    for index in range(40):
        gradient = cost + tau * (plan.sum(0) / a).log()
        vertex = torch.zeros_like(cost)
        vertex[torch.arange(len(cost)), gradient.argmin(1)] = b
        beta = 1 / (index + 2)
        plan = (1 - beta) * plan + beta * vertex
    ours = semi_unbalanced(
        cost, tau=tau, row_mass=b, col_prior=a, step="open_loop", tolerance=0, max_steps=40
    )
    torch.testing.assert_close(ours.plan, plan, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("step", ["open_loop", "armijo", "exact"])
@pytest.mark.parametrize("tau", [0.01, 0.1, 1.0])
def test_gap_bounds_the_distance_to_the_optimum(step, tau):
    cost, b, a = random_problem()
    near = semi_unbalanced_entropic(
        cost, tau=tau, epsilon=0.005, row_mass=b, col_prior=a, max_steps=3000, tolerance=1e-6
    )
    below = near.objective - near.gap  # a dual value: the optimum is at least this
    for max_steps in (0, 3, 30, 150):
        ours = semi_unbalanced(
            cost, tau=tau, row_mass=b, col_prior=a, step=step, tolerance=0, max_steps=max_steps
        )
        assert ours.objective - near.objective <= ours.gap
        assert ours.objective >= below - 1e-12


# Limits


def test_small_tau_sends_every_class_to_its_nearest_prompt():
    cost, b, a = random_problem()
    result = semi_unbalanced(
        cost, tau=1e-6, row_mass=b, col_prior=a, step="armijo", tolerance=1e-7, max_steps=200
    )
    nearest = torch.zeros_like(cost)
    nearest[torch.arange(len(cost)), cost.argmin(1)] = b
    torch.testing.assert_close(result.plan, nearest, rtol=0, atol=1e-5)


def test_large_tau_gives_balanced_transport():
    cost, b, a = random_problem()
    exact = ot.emd2(b.numpy(), a.numpy(), cost.numpy())
    entropic = semi_unbalanced_entropic(
        cost, tau=1e4, epsilon=0.005, row_mass=b, col_prior=a, max_steps=3000, tolerance=1e-9
    )
    torch.testing.assert_close(entropic.mass, a, rtol=0, atol=1e-4)
    assert float((entropic.plan * cost).sum()) == pytest.approx(float(exact), abs=5e-3)
    stiff = semi_unbalanced(cost, tau=20.0, row_mass=b, col_prior=a, tolerance=0, max_steps=2000)
    torch.testing.assert_close(stiff.mass, a, rtol=0.2, atol=0)
    assert stiff.objective == pytest.approx(float(exact), abs=2e-2)
    assert stiff.objective - stiff.gap <= float(exact) + 1e-9


@pytest.mark.parametrize("step", ["open_loop", "armijo", "exact"])
@pytest.mark.parametrize("tau", [0.01, 0.1])
def test_planted_prompts_are_recovered(step, tau):
    result = semi_unbalanced(planted(), tau=tau, step=step, max_steps=300, tolerance=0)
    assert sorted(select_by_mass(result.mass, 150).tolist()) == list(range(150))


def test_planted_prompts_are_recovered_at_the_default_tolerance_and_by_entropy():
    cost = planted()
    result = semi_unbalanced(cost, tau=0.1)
    assert result.converged
    assert result.steps < 300
    assert result.gap <= 5e-3
    entropic = semi_unbalanced_entropic(cost, tau=0.1)
    for mass in (result.mass, entropic.mass):
        assert sorted(select_by_mass(mass, 150).tolist()) == list(range(150))
    assert bool(two_means(entropic.mass)[:150].any())
    assert not bool(two_means(entropic.mass)[150:].any())


# Behaviour of the steps


@pytest.mark.parametrize("step", ["armijo", "exact"])
@pytest.mark.parametrize("tau", [0.01, 0.1, 2.0])
def test_closed_loop_steps_never_raise_the_objective(step, tau):
    cost, b, a = random_problem()
    values = [
        semi_unbalanced(
            cost, tau=tau, row_mass=b, col_prior=a, step=step, tolerance=0, max_steps=steps
        ).objective
        for steps in range(25)
    ]
    assert all(later <= earlier + 1e-12 for earlier, later in zip(values, values[1:], strict=False))
    assert values[-1] < values[0] - 1e-3


@pytest.mark.parametrize("step", ["open_loop", "armijo", "exact"])
@pytest.mark.parametrize("max_steps", [20, 2000])
def test_looking_at_the_gap_less_often_and_chunks_change_nothing(step, max_steps):
    cost, b, a = random_problem()
    settings = {"row_mass": b, "col_prior": a, "step": step, "max_steps": max_steps}
    plain = semi_unbalanced(cost, tau=0.1, tolerance=2e-3, **settings)
    settings |= {"check_every": 7, "cells": 2 * cost.shape[1]}
    rare = semi_unbalanced(cost, tau=0.1, tolerance=2e-3, **settings)
    assert plain.converged == (max_steps == 2000)
    assert (rare.steps, rare.converged) == (plain.steps, plain.converged)
    assert torch.equal(rare.plan, plain.plan)
    assert rare.gap == plain.gap


@pytest.mark.parametrize("step", ["open_loop", "armijo", "exact"])
def test_warm_start_needs_fewer_steps(step):
    cost = planted(torch.float64)
    cold = semi_unbalanced(cost, tau=0.1, step=step, tolerance=4e-3, max_steps=2000)
    moved = cost + 1e-3 * torch.rand(cost.shape, generator=torch_generator(0, "moved"))
    again = semi_unbalanced(moved, tau=0.1, step=step, tolerance=4e-3, max_steps=2000)
    warm = semi_unbalanced(moved, tau=0.1, step=step, tolerance=4e-3, max_steps=2000, start=cold)
    assert warm.converged
    assert warm.steps < again.steps
    torch.testing.assert_close(warm.plan.sum(1), torch.full((100,), 0.01, dtype=torch.float64))


@pytest.mark.parametrize("step", ["open_loop", "armijo", "exact"])
def test_a_bad_start_is_left_behind(step):
    cost, b, a = random_problem()
    wrong = torch.zeros_like(cost)
    wrong[torch.arange(len(cost)), cost.argmax(1)] = 7.0  # the worst vertex, with other row sums
    wrong[0] = 0.0
    result = semi_unbalanced(
        cost, tau=0.1, row_mass=b, col_prior=a, step=step, tolerance=2e-3, max_steps=3000,
        start=wrong,
    )  # fmt: skip
    assert result.converged
    assert bool(torch.isfinite(result.plan).all())
    torch.testing.assert_close(result.plan.sum(1), b)
    best = semi_unbalanced_entropic(cost, tau=0.1, row_mass=b, col_prior=a).objective
    assert result.objective - result.gap <= best
    assert result.objective == pytest.approx(best, abs=4e-3)


def test_half_the_bits_give_the_same_answer():
    double = semi_unbalanced(planted(torch.float64), tau=0.1)
    single = semi_unbalanced(planted(torch.float32), tau=0.1)
    assert single.plan.dtype == torch.float32
    assert single.objective == pytest.approx(double.objective, abs=1e-5)
    torch.testing.assert_close(single.mass.double(), double.mass, rtol=0, atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), st.integers(0, 10_000), st.floats(0.02, 2.0))
def test_relabelling_classes_and_prompts_relabels_the_plan(rows, columns, seed, tau):
    generator = torch_generator(seed, "permutation")
    cost = torch.rand(rows, columns, generator=generator, dtype=torch.float64)
    row = torch.randperm(rows, generator=generator)
    column = torch.randperm(columns, generator=generator)
    plain = semi_unbalanced(cost, tau=tau, step="open_loop", tolerance=0, max_steps=30)
    moved = semi_unbalanced(
        cost[row][:, column], tau=tau, step="open_loop", tolerance=0, max_steps=30
    )
    assert moved.objective == pytest.approx(plain.objective, abs=1e-9)
    torch.testing.assert_close(moved.mass, plain.mass[column], rtol=0, atol=1e-9)
    torch.testing.assert_close(moved.plan, plain.plan[row][:, column], rtol=0, atol=1e-9)


def test_a_class_without_mass_sends_nothing():
    cost, b, a = random_problem()
    b[2] = 0.0
    b /= b.sum()
    for result in (
        semi_unbalanced(cost, tau=0.1, row_mass=b, col_prior=a),
        semi_unbalanced_entropic(cost, tau=0.1, row_mass=b, col_prior=a),
    ):
        assert float(result.plan[2].sum()) == 0.0
        torch.testing.assert_close(result.plan.sum(1), b)


def test_plan_is_frozen():
    result = semi_unbalanced(torch.ones(2, 3), tau=0.1)
    assert isinstance(result, Plan)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.gap = 0.0


@pytest.mark.parametrize("relative", [0.0, 0.05])
@pytest.mark.parametrize("steps", [0, 7, 300])
def test_few_operations_on_a_host_take_the_same_steps(relative: float, steps: int) -> None:
    generator = torch.Generator().manual_seed(steps)
    cost = torch.rand(9, 31, generator=generator, dtype=torch.float64)
    given: dict[str, Any] = {"tau": 0.1, "max_steps": steps, "tolerance": 1e-9}
    found = semi_unbalanced(cost, relative=relative, **given)
    expected = semi_unbalanced(cost, relative=relative, check_every=1, **given)  # in torch
    assert (found.steps, found.converged) == (expected.steps, expected.converged)
    torch.testing.assert_close(found.plan, expected.plan, rtol=1e-9, atol=1e-14)
    assert found.gap == pytest.approx(expected.gap, rel=1e-9)


@pytest.mark.parametrize("relative", [0.0, 0.05])
@pytest.mark.parametrize("steps", [0, 7, 300])
def test_steps_without_waiting_are_those_of_the_host(relative: float, steps: int) -> None:
    generator = torch.Generator().manual_seed(steps)
    cost = torch.rand(9, 31, generator=generator, dtype=torch.float64)
    masses = cost.new_full((9,), 1 / 9), cost.new_full((31,), 1 / 31)
    rules = 0.1, steps, 1e-9, relative
    vertices, betas, met = open_loop_steps(cost, *masses, *rules)
    found, lengths, found_met = device_steps(cost, *masses, *rules)
    assert found_met is met
    assert [vertex.tolist() for vertex in found] == [vertex.tolist() for vertex in vertices]
    assert [float(beta) for beta in lengths] == [float(beta) for beta in betas]
