import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from focoop.errors import ConfigError, MethodError
from focoop.functional.transport import (
    barycentre,
    rescale,
    select_by_mass,
    semi_unbalanced_dual,
    squared_cost,
)
from focoop.functional.transport.marginals import log_ratio
from focoop.seeds import torch_generator

# Costs


def test_cost_equals_loops_and_is_chunk_safe():
    generator = torch_generator(0, "cost")
    a, b = torch.randn(5, 7, generator=generator), torch.randn(11, 7, generator=generator)
    expected = torch.stack([torch.stack([(x - y).pow(2).sum() for y in b]) for x in a])
    torch.testing.assert_close(squared_cost(a, b), expected)
    torch.testing.assert_close(squared_cost(a, b, chunk=3), expected)


def test_cost_keeps_tiny_distances_of_far_points():
    a = torch.full((1, 8192), 30.0)
    b = a.clone()
    b[0, 0] += 1e-2
    shift = float(b[0, 0] - a[0, 0])
    assert float(squared_cost(a, b)[0, 0]) == pytest.approx(shift**2, rel=1e-3)
    assert float(squared_cost(a, a)[0, 0]) == 0.0
    assert float(rescale(squared_cost(a, a), "max")[0, 0]) == 0.0


def test_rescaling_is_in_place_and_leaves_constants_finite():
    cost = 3.0 + torch.rand(4, 6, generator=torch_generator(0, "rescale"), dtype=torch.float64)
    expected = cost / cost.max()
    assert rescale(cost, "max") is cost
    torch.testing.assert_close(cost, expected)
    assert torch.equal(rescale(torch.full((2, 3), 5.0), "max"), torch.ones(2, 3))
    assert rescale(torch.zeros(2, 0), "max").shape == (2, 0)


def test_cost_refuses_points_of_different_width():
    with pytest.raises(ValueError, match="points"):
        squared_cost(torch.zeros(2, 3), torch.zeros(2, 4))


# Refusals


@pytest.mark.parametrize("tau", [-0.1, 0.0, float("nan"), float("inf")])
def test_impossible_tau_is_refused(tau):
    with pytest.raises(ConfigError, match="tau"):
        semi_unbalanced_dual(torch.ones(2, 3), tau=tau)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_diverged_costs_are_refused(value):
    cost = torch.ones(2, 3)
    cost[1, 1] = value
    with pytest.raises(MethodError, match="diverged"):
        semi_unbalanced_dual(cost, tau=0.1)


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
        semi_unbalanced_dual(torch.ones(2, 3), tau=0.1, row_mass=row_mass, col_prior=col_prior)


def test_bad_shapes_are_refused():
    with pytest.raises(ValueError, match="cost"):
        semi_unbalanced_dual(torch.ones(3), tau=0.1)


def test_empty_columns_stay_finite():
    for dtype in (torch.float32, torch.float64):
        ratio = log_ratio(torch.tensor([0.0, 1.0], dtype=dtype), torch.ones(2, dtype=dtype))
        assert ratio.tolist() == pytest.approx([float(np.log(torch.finfo(dtype).tiny)), 0.0])


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


def test_a_quantile_is_no_matter_of_far_costs() -> None:
    cost = 1.0 + torch.rand(5, 40, generator=torch_generator(0, "far"), dtype=torch.float64)
    far = cost.clone()
    far[:, -1] = 1e6
    scaled, with_far = (rescale(one.clone(), "quantile") for one in (cost, far))
    torch.testing.assert_close(with_far[:, :-1], scaled[:, :-1], rtol=0.05, atol=0.0)
    assert float(with_far.max()) == 10.0 and bool((with_far.amin(1) == 0).all())
    assert float(rescale(far.clone(), "max")[:, :-1].max()) < 1e-5
    assert rescale(torch.full((2, 3), 5.0), "quantile").abs().max() == 0.0
    # More than half of all cells at their row's least: the largest cost is the unit.
    assert rescale(torch.tensor([[1.0, 1.0, 1.0, 3.0]]), "quantile").max() == 1.0
