import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focoop.errors import ConfigError, MethodError
from focoop.functional.transport.costs import squared_cost
from focoop.functional.transport.dual import semi_unbalanced_dual
from focoop.functional.transport.frank_wolfe import select_by_mass, semi_unbalanced
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
    return squared_cost(left.to(dtype), right.to(dtype), normalise=True)


@pytest.mark.parametrize("tau", [0.01, 0.1, 1.0])
def test_value_lies_between_the_bounds_of_frank_wolfe(tau):
    cost, b, a = random_problem()
    slow = semi_unbalanced(
        cost, tau=tau, row_mass=b, col_prior=a, step="exact", tolerance=0, max_steps=600
    )
    fast = semi_unbalanced_dual(cost, tau=tau, row_mass=b, col_prior=a, tolerance=1e-5)
    assert fast.converged
    # The optimum lies in both brackets [objective - gap, objective].
    assert fast.objective - fast.gap <= slow.objective
    assert slow.objective - slow.gap <= fast.objective
    assert fast.gap <= 1e-5 < slow.gap


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
    # A plan of another solver is feasible too, hence never below the reported bound.
    other = semi_unbalanced(
        cost, tau=tau, row_mass=b, col_prior=a, step="exact", tolerance=1e-3, max_steps=200
    )
    assert result.objective - result.gap <= other.objective + 1e-12
    assert other.objective - other.gap <= result.objective + 1e-12
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
    slow = semi_unbalanced(cost, tau=0.1, step="armijo", tolerance=5e-3, max_steps=1000)
    assert fast.objective - fast.gap <= slow.objective
    assert abs(fast.objective - slow.objective) <= 5e-3
    if near:
        for result in (fast, slow):
            assert sorted(select_by_mass(result.mass, near).tolist()) == list(range(near))


def test_chunks_change_nothing():
    cost = prompts(20, 200, 30, torch.float64)
    whole = semi_unbalanced_dual(cost, tau=0.1, tolerance=1e-4)
    parts = semi_unbalanced_dual(cost, tau=0.1, tolerance=1e-4, cells=20 * 7)
    assert parts.steps == whole.steps
    torch.testing.assert_close(parts.plan, whole.plan, rtol=1e-9, atol=1e-15)
    assert parts.gap == pytest.approx(whole.gap, rel=1e-6)


def test_warm_start_needs_fewer_steps_also_with_other_columns():
    cost = prompts(dtype=torch.float64, near=0)
    cold = semi_unbalanced_dual(cost, tau=0.1, tolerance=1e-3)
    noise = torch.rand(cost.shape, generator=torch_generator(0, "moved"), dtype=cost.dtype)
    moved = (cost + 1e-3 * noise)[:, 5:]
    again = semi_unbalanced_dual(moved, tau=0.1, tolerance=1e-3)
    # A constant on all potentials carries no information.
    warm = semi_unbalanced_dual(moved, tau=0.1, tolerance=1e-3, start=cold.potential + 100.0)
    assert warm.converged
    assert warm.steps < again.steps
    assert abs(warm.objective - again.objective) <= 1e-3


def test_a_bad_start_is_left_behind():
    cost, b, a = random_problem()
    wrong = torch.linspace(-50, 50, len(cost), dtype=torch.float64)
    result = semi_unbalanced_dual(cost, tau=0.1, row_mass=b, col_prior=a, start=wrong)
    right = semi_unbalanced_dual(cost, tau=0.1, row_mass=b, col_prior=a, tolerance=1e-5)
    assert result.converged
    assert result.objective == pytest.approx(right.objective, abs=5e-3)


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
    again = semi_unbalanced_dual(
        cost, tau=0.1, row_mass=b, col_prior=a, tolerance=1e-4, start=result.potential
    )
    assert again.converged


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
    for start in (torch.ones(3), torch.tensor([1.0, float("inf")])):
        with pytest.raises(ValueError, match="start"):
            semi_unbalanced_dual(torch.ones(2, 3), tau=0.1, start=start)
