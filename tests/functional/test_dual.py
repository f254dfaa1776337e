"""The dual solver: other solvers, the limits of tau, the choices that its gap allows."""

from typing import Any

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focoop.errors import ConfigError, MethodError
from focoop.functional.transport import (
    rescale,
    select_by_mass,
    semi_unbalanced_dual,
    semi_unbalanced_open_loop,
    squared_cost,
)
from focoop.methods._goc import GAP, Consistency
from focoop.seeds import numpy_generator, torch_generator


def random_problem(rows=6, columns=40, seed=0):
    generator = numpy_generator(seed, "dual")
    cost = torch.from_numpy(generator.random((rows, columns)))
    row_mass = torch.from_numpy(generator.dirichlet(np.full(rows, 5.0)))
    col_prior = torch.from_numpy(generator.dirichlet(np.full(columns, 5.0)))
    return cost, row_mass, col_prior


def objective(plan, cost, prior, tau):
    """The objective cell by cell, as the specification writes it."""
    plan, cost = np.asarray(plan), np.asarray(cost)
    total = 0.0
    for column in range(cost.shape[1]):
        mass = float(plan[:, column].sum())
        total += float((cost[:, column] * plan[:, column]).sum())
        total += tau * (mass * np.log(mass / float(prior[column])) - mass + float(prior[column]))
    return total


def prompts(classes=100, count=1000, near=150, dtype=torch.float32):
    """Cost of random contexts of which the first `near` lie close to a class."""
    generator = torch_generator(0, "prompts")
    left = 0.02 * torch.randn(classes, 256, generator=generator)
    right = 0.02 * torch.randn(count, 256, generator=generator)
    owner = torch.arange(near) % classes
    right[:near] = left[owner] + 0.005 * torch.randn(near, 256, generator=generator)
    return rescale(squared_cost(left.to(dtype), right.to(dtype)), "max")


@pytest.mark.parametrize("tau", [0.02, 0.1])
def test_masses_are_those_of_an_independent_solver(tau):
    cvxpy: Any = pytest.importorskip("cvxpy")
    cost, b, a = random_problem(6, 24)
    plan = cvxpy.Variable(cost.shape, nonneg=True)
    price = cvxpy.sum(cvxpy.kl_div(cvxpy.sum(plan, axis=0), a.numpy()))
    task = cvxpy.Problem(
        cvxpy.Minimize(cvxpy.sum(cvxpy.multiply(cost.numpy(), plan)) + tau * price),
        [cvxpy.sum(plan, axis=1) == b.numpy()],
    )
    optimum = float(task.solve(solver=cvxpy.CLARABEL))
    found = semi_unbalanced_dual(cost, tau=tau, row_mass=b, col_prior=a, tolerance=1e-9)
    assert found.converged
    assert found.objective == pytest.approx(optimum, abs=1e-7)
    theirs = torch.from_numpy(plan.value.sum(axis=0))
    for mass in (found.mass, found.drawn):
        torch.testing.assert_close(mass, theirs, atol=2e-4, rtol=0)


def test_agrees_with_a_stiff_unbalanced_solver_of_pot():
    cost, b, a = random_problem()
    ours = semi_unbalanced_dual(cost, tau=0.5, row_mass=b, col_prior=a, tolerance=1e-5)
    theirs = ot.unbalanced.mm_unbalanced(
        b.numpy(), a.numpy(), cost.numpy(), reg_m=np.array([10.0, 0.5]), numItermax=5000
    )
    theirs *= (b.numpy() / theirs.sum(1))[:, None]
    best = objective(theirs, cost, a, 0.5)
    assert ours.objective == pytest.approx(best, abs=1e-3)
    assert ours.objective - ours.gap <= best


def test_large_tau_gives_balanced_transport():
    cost, b, a = random_problem()
    exact = float(ot.emd2(b.numpy(), a.numpy(), cost.numpy()))
    result = semi_unbalanced_dual(cost, tau=1e4, row_mass=b, col_prior=a, tolerance=1e-3)
    assert result.converged
    assert result.objective == pytest.approx(exact, abs=2e-3)
    torch.testing.assert_close(result.mass, a, rtol=1e-2, atol=0)


def test_small_tau_sends_every_class_to_its_nearest_prompt():
    cost, b, a = random_problem()
    result = semi_unbalanced_dual(cost, tau=1e-5, row_mass=b, col_prior=a, tolerance=1e-4)
    nearest = torch.zeros_like(cost)
    nearest[torch.arange(len(cost)), cost.argmin(1)] = b
    torch.testing.assert_close(result.plan, nearest, rtol=0, atol=1e-6)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 8), st.integers(1, 20), st.integers(0, 10_000), st.sampled_from([0.02, 0.3, 5.0])
)
def test_reported_numbers_belong_to_the_plan(rows, columns, seed, tau):
    cost, b, a = random_problem(rows, columns, seed)
    a, b = 3.0 * a, 3.0 * b
    result = semi_unbalanced_dual(cost, tau=tau, row_mass=b, col_prior=a, tolerance=1e-3)
    plan = result.plan
    assert bool((plan >= 0).all())
    torch.testing.assert_close(plan.sum(1), b)
    torch.testing.assert_close(plan.sum(0), result.mass)
    assert result.objective == pytest.approx(objective(plan, cost, a, tau), abs=1e-9)
    assert result.converged
    # Any feasible plan, such as the product of the masses, is never below the reported bound.
    product = objective(torch.outer(b, a / a.sum()), cost, a, tau)
    assert result.objective - result.gap <= product + 1e-12
    index = torch.arange(columns).flip(0)[: columns // 2 + 1]
    torch.testing.assert_close(result.columns(index), plan[:, index])


def test_prior_of_a_slightly_other_total_is_kept():
    cost, b, a = random_problem()
    a = a * 1.0009
    result = semi_unbalanced_dual(cost, tau=0.3, row_mass=b, col_prior=a, tolerance=1e-4)
    assert result.objective == pytest.approx(objective(result.plan, cost, a, 0.3), abs=1e-9)


@pytest.mark.parametrize("near", [0, 150])
def test_same_prompts_are_chosen_as_by_frank_wolfe(near):
    cost = prompts(near=near)
    fast = semi_unbalanced_dual(cost, tau=0.1)
    assert fast.converged
    assert fast.gap <= 5e-3
    assert fast.mass.dtype == torch.float32
    slow = semi_unbalanced_open_loop(cost, tau=0.1, steps=1000)
    assert fast.objective - fast.gap <= slow.objective
    assert abs(fast.objective - slow.objective) <= 5e-3
    if near:
        for result in (fast, slow):
            assert sorted(select_by_mass(result.drawn, near).tolist()) == list(range(near))


def trained(seed, clients=10, words=100):
    """Cost (100, clients x words) as in trained rounds: words near classes, copies that drifted."""
    generator = torch_generator(seed, "trained")
    middle = torch.randn(1, 256, generator=generator)
    classes = middle + 0.5 * torch.randn(100, 256, generator=generator)
    share = torch.rand(words, 1, generator=generator)
    own = share * classes[torch.randint(100, (words,), generator=generator)] + (1 - share) * middle
    own += 0.3 * torch.randn(words, 256, generator=generator)
    drift = 10.0 ** (-2 * torch.rand(words, 1, generator=generator) - 0.5)
    copies = [own + drift * torch.randn(words, 256, generator=generator) for _ in range(clients)]
    return rescale(squared_cost(classes, torch.cat(copies)), "quantile").double()


@pytest.mark.parametrize("seed", range(4))
def test_at_the_default_gap_98_of_100_choices_are_the_converged_ones(seed):
    cost = trained(seed)
    server = Consistency(tau=0.1)
    assert server.gap == GAP
    converged = semi_unbalanced_dual(cost, tau=0.1, tolerance=1e-13, relative=1e-9)
    assert converged.converged
    chosen = []
    for plan in (server.solve(cost), converged):
        mass = plan.drawn * cost.shape[1]
        kept = server.kept(mass, cost, 10, 100).tolist()
        chosen.append((set(select_by_mass(mass, 100).tolist()), set(kept)))
    for ours, theirs in zip(*chosen, strict=True):
        assert len(ours & theirs) >= 98


def test_chunks_change_nothing():
    cost = prompts(20, 200, 30, torch.float64)
    whole = semi_unbalanced_dual(cost, tau=0.1, tolerance=1e-4)
    parts = semi_unbalanced_dual(cost, tau=0.1, tolerance=1e-4, cells=20 * 7)
    assert parts.steps == whole.steps
    torch.testing.assert_close(parts.plan, whole.plan, rtol=1e-9, atol=1e-15)
    assert parts.gap == pytest.approx(whole.gap, rel=1e-6)


def test_a_class_without_mass_sends_nothing():
    cost, b, a = random_problem()
    b[2] = 0.0
    b /= b.sum()
    result = semi_unbalanced_dual(cost, tau=0.1, row_mass=b, col_prior=a, tolerance=1e-5)
    assert result.converged
    assert float(result.plan[2].abs().sum()) == 0.0
    torch.testing.assert_close(result.plan.sum(1), b)
    rest = torch.arange(len(b)) != 2
    without = semi_unbalanced_dual(
        cost[rest], tau=0.1, row_mass=b[rest], col_prior=a, tolerance=1e-5
    )
    assert result.objective == pytest.approx(without.objective, abs=1e-5)


def test_degenerate_costs_are_solved():
    generator = torch_generator(0, "degenerate")
    line = torch.rand(1, 50, generator=generator, dtype=torch.float64)
    same_rows = semi_unbalanced_dual(line.expand(9, 50), tau=0.1, tolerance=1e-6)
    # One class alone: q_j is proportional to exp(-M_j / tau), the value -tau log mean exp(-M/tau).
    torch.testing.assert_close(same_rows.mass, torch.softmax(-line[0] / 0.1, 0))
    closed = -0.1 * float((-line[0] / 0.1).exp().mean().log())
    assert same_rows.objective == pytest.approx(closed, abs=1e-9)
    flat = semi_unbalanced_dual(torch.ones(4, 7), tau=0.1)
    torch.testing.assert_close(flat.plan, torch.full((4, 7), 1 / 28))


def test_too_few_steps_are_said_so():
    cost, b, a = random_problem(30, 200)
    result = semi_unbalanced_dual(
        cost, tau=1.0, row_mass=b, col_prior=a, tolerance=1e-6, max_steps=1
    )
    assert (result.steps, result.converged) == (1, False)
    assert result.gap > 1e-6
    assert result.objective == pytest.approx(objective(result.plan, cost, a, 1.0), abs=1e-9)


def test_impossible_inputs_are_refused():
    with pytest.raises(ConfigError, match="tau"):
        semi_unbalanced_dual(torch.ones(2, 3), tau=0.0)
    with pytest.raises(ConfigError, match="tolerance above 0"):
        semi_unbalanced_dual(torch.ones(2, 3), tau=0.1, tolerance=0.0)
    with pytest.raises(MethodError, match="diverged"):
        semi_unbalanced_dual(torch.full((2, 3), float("nan")), tau=0.1)
    with pytest.raises(ConfigError, match="steps"):
        semi_unbalanced_dual(torch.ones(2, 3), tau=0.1, max_steps=-1)


def test_columns_and_classes_that_cost_alike_draw_alike():
    cost = random_problem(4, 9)[0]
    found = semi_unbalanced_dual(torch.cat([cost, cost], 1), tau=0.1, tolerance=1e-9)
    torch.testing.assert_close(found.drawn[:9], found.drawn[9:], atol=1e-15, rtol=0)
    single = semi_unbalanced_dual(cost, tau=0.1, tolerance=1e-9)
    torch.testing.assert_close(found.drawn[:9], single.drawn / 2, atol=1e-6, rtol=0)
    twins = semi_unbalanced_dual(cost[[0, 0, 1, 2, 3]], tau=0.1, tolerance=1e-9).plan
    torch.testing.assert_close(twins[0], twins[1], atol=1e-12, rtol=0)


def test_a_relative_gap_is_one_of_what_was_gained():
    cost = rescale(torch.rand(8, 60, generator=torch_generator(2, "gap")).double(), "quantile")
    for scale in (1.0, 1e-5):  # an absolute gap would stop the second at its start
        found = semi_unbalanced_dual(cost * scale, tau=0.1 * scale, tolerance=1e-15, relative=1e-6)
        gained = scale * float(cost.mean()) - found.objective
        assert found.converged and found.steps > 0
        assert 0.0 <= found.gap <= 1.0001e-6 * gained
