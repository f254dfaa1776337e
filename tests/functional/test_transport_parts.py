import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from focoop.errors import ConfigError, MethodError
from focoop.functional.transport.costs import rescale, squared_cost
from focoop.functional.transport.dual import semi_unbalanced_dual
from focoop.functional.transport.frank_wolfe import (
    barycentre,
    select_by_mass,
    semi_unbalanced,
    semi_unbalanced_entropic,
    two_means,
)
from focoop.seeds import torch_generator

# Costs


def test_cost_equals_loops_and_is_chunk_safe():
    generator = torch_generator(0, "cost")
    a, b = torch.randn(5, 7, generator=generator), torch.randn(11, 7, generator=generator)
    expected = torch.stack([torch.stack([(x - y).pow(2).sum() for y in b]) for x in a])
    torch.testing.assert_close(squared_cost(a, b), expected)
    torch.testing.assert_close(squared_cost(a, b, chunk=3), expected)
    torch.testing.assert_close(squared_cost(a, b, normalise=True), expected / expected.max())


def test_cost_keeps_tiny_distances_of_far_points():
    a = torch.full((1, 8192), 30.0)
    b = a.clone()
    b[0, 0] += 1e-2
    shift = float(b[0, 0] - a[0, 0])
    assert float(squared_cost(a, b)[0, 0]) == pytest.approx(shift**2, rel=1e-3)
    assert float(squared_cost(a, a)[0, 0]) == 0.0
    assert float(squared_cost(a, a, normalise=True)[0, 0]) == 0.0


def test_cost_is_filled_client_by_client():
    generator = torch_generator(0, "clients")
    a = torch.randn(5, 7, generator=generator)
    clients = [torch.randn(n, 7, generator=generator) for n in (2, 4, 3)]
    cost, first = torch.full((5, 9), float("nan")), 0
    for prompts in clients:
        part = cost[:, first : first + len(prompts)]
        assert squared_cost(a.double(), prompts, out=part) is part
        first += len(prompts)
    assert torch.equal(cost, squared_cost(a, torch.cat(clients)))
    with pytest.raises(ValueError, match="out"):
        squared_cost(a, clients[0], out=cost)


@pytest.mark.parametrize("by", ["max", "range"])
def test_rescaling_is_in_place_and_leaves_constants_finite(by):
    cost = 3.0 + torch.rand(4, 6, generator=torch_generator(0, "rescale"), dtype=torch.float64)
    low = float(cost.min()) if by == "range" else 0.0
    expected = (cost - low) / (float(cost.max()) - low)
    assert rescale(cost, by) is cost
    torch.testing.assert_close(cost, expected)
    constant = rescale(torch.full((2, 3), 5.0), by)
    assert torch.equal(constant, torch.full((2, 3), 0.0 if by == "range" else 1.0))
    assert rescale(torch.zeros(2, 0), by).shape == (2, 0)


def test_cost_refuses_points_of_different_width():
    with pytest.raises(ValueError, match="points"):
        squared_cost(torch.zeros(2, 3), torch.zeros(2, 4))


# Refusals


@pytest.mark.parametrize("tau", [-0.1, 0.0, float("nan"), float("inf")])
def test_impossible_tau_is_refused(tau):
    for solve in (semi_unbalanced, semi_unbalanced_entropic):
        with pytest.raises(ConfigError, match="tau"):
            solve(torch.ones(2, 3), tau=tau)


def test_other_impossible_settings_are_refused():
    cost = torch.ones(2, 3)
    with pytest.raises(ConfigError, match="open_loop"):
        semi_unbalanced(cost, tau=0.1, step="newton")
    with pytest.raises(ConfigError, match="max_steps"):
        semi_unbalanced(cost, tau=0.1, max_steps=-1)
    with pytest.raises(ConfigError, match="tolerance"):
        semi_unbalanced(cost, tau=0.1, tolerance=float("nan"))
    with pytest.raises(ConfigError, match="epsilon"):
        semi_unbalanced_entropic(cost, tau=0.1, epsilon=0.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_diverged_costs_are_refused(value):
    cost = torch.ones(2, 3)
    cost[1, 1] = value
    with pytest.raises(MethodError, match="diverged"):
        semi_unbalanced(cost, tau=0.1)


@pytest.mark.parametrize(
    ("row_mass", "col_prior"),
    [
        (torch.ones(3) / 3, None),
        (None, torch.ones(2) / 2),
        (torch.tensor([1.5, -0.5]), None),
        (None, torch.tensor([0.5, 0.5, 0.0])),
        (torch.ones(2), torch.ones(3) / 3),
        (torch.zeros(2), torch.ones(3) / 3),
    ],
)
def test_masses_that_do_not_fit_are_refused(row_mass, col_prior):
    with pytest.raises(ValueError, match="mass"):
        semi_unbalanced(torch.ones(2, 3), tau=0.1, row_mass=row_mass, col_prior=col_prior)


def test_bad_shapes_and_starts_are_refused():
    with pytest.raises(ValueError, match="cost"):
        semi_unbalanced(torch.ones(3), tau=0.1)
    with pytest.raises(ValueError, match="start"):
        semi_unbalanced(torch.ones(2, 3), tau=0.1, start=torch.ones(3, 2))
    with pytest.raises(ValueError, match="start"):
        semi_unbalanced(torch.ones(2, 3), tau=0.1, start=-torch.ones(2, 3))


# Selection and barycentres


def test_barycentre_equals_weighted_means_and_keeps_rows_without_mass():
    generator = torch_generator(0, "barycentre")
    plan = torch.rand(4, 5, generator=generator)
    plan[2] = 0.0
    plan[3] *= 1e-6
    points = torch.randn(5, 3, generator=generator)
    fallback = torch.randn(4, 3, generator=generator)
    result = barycentre(plan, points, fallback)
    for row in (0, 1, 3):
        expected = np.average(points.double().numpy(), axis=0, weights=plan[row].double().numpy())
        np.testing.assert_allclose(result[row], expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(result[2], fallback[2])
    assert torch.equal(barycentre(plan, points, fallback, min_mass=1e-3)[3], fallback[3])
    with pytest.raises(ValueError, match="plan"):
        barycentre(plan, points[:4], fallback)


@given(st.lists(st.integers(0, 4), max_size=12), st.booleans(), st.data())
def test_selection_equals_a_sort_by_value_then_index(masses, largest, data):
    count = data.draw(st.integers(0, len(masses)))
    sign = -1 if largest else 1
    expected = sorted(range(len(masses)), key=lambda index: (sign * masses[index], index))[:count]
    chosen = select_by_mass(torch.tensor(masses, dtype=torch.float32), count, largest=largest)
    assert chosen.tolist() == expected


def test_selecting_more_than_there_are_is_refused():
    with pytest.raises(ConfigError, match="0 to 3"):
        select_by_mass(torch.ones(3), 4)


@given(st.lists(st.integers(0, 50), min_size=2, max_size=9).filter(lambda x: len(set(x)) > 1))
def test_two_means_is_optimal_among_all_splits(values):
    mass = torch.tensor(values, dtype=torch.float64)
    upper = two_means(mass)
    assert float(mass[upper].min()) > float(mass[~upper].max())

    def within(mask):
        return sum(float((mass[part] - mass[part].mean()).square().sum()) for part in (mask, ~mask))

    cuts = [mass > cut for cut in sorted(set(values))[:-1]]
    assert within(upper) <= min(within(cut) for cut in cuts) + 1e-9


def test_equal_masses_have_no_upper_cluster():
    assert not bool(two_means(torch.full((4,), 0.25)).any())
    assert not bool(two_means(torch.ones(1)).any())
    with pytest.raises(ValueError, match="vector"):
        two_means(torch.ones(2, 2))


def test_a_quantile_is_no_matter_of_far_costs() -> None:
    cost = 1.0 + torch.rand(5, 40, generator=torch_generator(0, "far"), dtype=torch.float64)
    far = cost.clone()
    far[:, -1] = 1e6
    scaled, with_far = (rescale(one.clone(), "quantile") for one in (cost, far))
    torch.testing.assert_close(with_far[:, :-1], scaled[:, :-1], rtol=0.05, atol=0.0)
    assert float(with_far.max()) == 10.0 and bool((with_far.amin(1) == 0).all())
    ranged = rescale(far.clone(), "range")
    assert float(ranged[:, :-1].max()) < 1e-5
    assert rescale(torch.full((2, 3), 5.0), "quantile").abs().max() == 0.0
    # More than half of all cells at their row's least: the largest cost is the unit.
    assert rescale(torch.tensor([[1.0, 1.0, 1.0, 3.0]]), "quantile").max() == 1.0


def test_the_entropic_solver_does_not_call_a_start_converged_where_costs_are_tiny() -> None:
    cost = torch.rand(6, 30, generator=torch_generator(1, "tiny"), dtype=torch.float64)
    tiny = semi_unbalanced_entropic(1e-9 * cost, tau=1e-10, epsilon=1e-11, max_steps=2000)
    plain = semi_unbalanced_entropic(cost, tau=0.1, epsilon=0.01, max_steps=2000)
    # The same problem in other units: as many steps, the same plan.
    assert tiny.steps == plain.steps > 1 and tiny.converged
    torch.testing.assert_close(tiny.plan, plain.plan, rtol=1e-6, atol=1e-12)
    rough = semi_unbalanced_entropic(1e-9 * cost, tau=0.1, epsilon=0.01)
    assert rough.steps > 1


@pytest.mark.parametrize("solver", ["dual", "armijo"])
def test_a_relative_gap_is_one_of_what_was_gained(solver: str) -> None:
    cost = rescale(
        torch.rand(8, 60, generator=torch_generator(2, "gap"), dtype=torch.float64), "quantile"
    )
    for scale in (1.0, 1e-5):  # an absolute gap would stop the second at its start
        settings = {"tau": 0.1 * scale, "tolerance": 1e-15, "relative": 1e-3, "max_steps": 5000}
        if solver == "dual":
            found = semi_unbalanced_dual(cost * scale, **settings)
        else:
            found = semi_unbalanced(cost * scale, step="armijo", **settings)
        gained = scale * float(cost.mean()) - found.objective
        assert found.converged and found.steps > 0
        assert 0.0 <= found.gap <= 1.0001e-3 * gained
