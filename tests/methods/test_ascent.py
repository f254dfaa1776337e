"""The ascent of Bi-level OOD Separations: what it raises, what it pays, where it stops."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from focoop.methods._bos import Ascent, Outer, Separation, Side, row_norms, separation_loss
from focoop.methods.base import Batch, Text
from focoop.methods.focoop import FOCoOp, FOCoOpConfig
from focoop.seeds import torch_generator
from tests.methods.toy import make_batch, make_params, make_task, step_loss

CLASSES, WORDS, WIDTH, IMAGES = 5, 4, 8, 6


def rows(count: int, seed: int) -> Tensor:
    drawn = torch.randn(count, WIDTH, generator=torch_generator(seed, count), dtype=torch.float64)
    return F.normalize(drawn, dim=-1)


def a_side(seed: int, scale: float, weight: float, ids: bool) -> Side:
    """Class or OOD rows among images, all drawn at random."""
    labels = torch.randint(CLASSES, (IMAGES,), generator=torch_generator(seed, "labels"))
    separation = Separation(Batch(rows(IMAGES, seed), None, labels), scale, weight)
    pair = rows(CLASSES, seed), rows(WORDS, seed)
    return Side(separation, *(pair if ids else pair[::-1]), ids=ids)


def trained_side(ids: bool) -> Side:
    """Rows after 60 steps of descent on the loss itself: images know their class."""
    labels = torch.arange(IMAGES) % CLASSES
    batch = Batch(rows(IMAGES, 3), None, labels)
    leaves = [rows(count, 3).requires_grad_() for count in (CLASSES, WORDS)]
    for _ in range(60):
        text = Text(*(F.normalize(leaf, dim=-1) for leaf in leaves))
        loss = separation_loss(text, batch, 10.0, 1.0).mean()
        slopes = torch.autograd.grad(loss, leaves)
        leaves = [
            (leaf - 0.1 * slope).detach().requires_grad_()
            for leaf, slope in zip(leaves, slopes, strict=True)
        ]
    pair = [F.normalize(leaf.detach(), dim=-1) for leaf in leaves]
    return Side(Separation(batch, 10.0, 1.0), *(pair if ids else pair[::-1]), ids=ids)


def climbed(side: Side, ascent: Ascent, start: Tensor) -> list[float]:
    """The objective after 0, 1, ... steps."""
    found = []
    for steps in range(ascent.steps + 1):
        noise = replace(ascent, steps=steps).climb(side.value, side.slope, start)
        if ascent.radius > 0:
            assert float(row_norms(noise).max()) <= ascent.radius * (1 + 1e-12)
        found.append(float(side.value(noise) - ascent.price(noise)))
    return found


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1.0, 10.0, 100.0]),
    weight=st.sampled_from([0.0, 1.0]),
    radius=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    tau=st.sampled_from([0.0, 0.1, 1.0, 10.0]),
    normalised=st.booleans(),
    ids=st.booleans(),
)
def test_no_step_lowers_the_objective(
    seed: int, scale: float, weight: float, radius: float, tau: float, normalised: bool, ids: bool
) -> None:
    side = a_side(seed, scale, weight, ids)
    start = 0.02 * torch.randn(side.rows.shape, generator=torch_generator(seed)).double()
    ascent = Ascent(radius, 1.0, 4, tau, normalised)
    values = climbed(side, ascent, start)
    assert all(b >= a - 1e-12 for a, b in zip(values, values[1:], strict=False))


@pytest.mark.parametrize("tau", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("ids", [True, False], ids=["class rows", "OOD rows"])
@pytest.mark.parametrize(
    "state", [lambda ids: a_side(1, 10.0, 1.0, ids), trained_side], ids=["random", "trained"]
)
def test_every_step_raises_the_objective(
    state: Callable[[bool], Side], ids: bool, tau: float
) -> None:
    side = state(ids)
    slopes = len(side.rows) * row_norms(side.slope(torch.zeros_like(side.rows)))
    values = climbed(side, Ascent(0.3, 1.0, 4, tau), torch.zeros_like(side.rows))
    if float(slopes.max()) > tau:
        assert all(b > a for a, b in zip(values, values[1:], strict=False))
    else:  # moving costs more than it brings: the start is the maximum
        assert values == [values[0]] * 5


@pytest.mark.slow
@pytest.mark.parametrize("ids", [True, False], ids=["class rows", "OOD rows"])
def test_four_steps_come_close_to_the_maximum_and_beat_random_directions(ids: bool) -> None:
    side, ascent = a_side(2, 10.0, 1.0, ids), Ascent(0.3, 1.0, 4, 0.1)
    start = torch.zeros_like(side.rows)
    values = climbed(side, ascent, start)
    best = climbed(side, replace(ascent, steps=60), start)[-1]
    assert values[-1] - values[0] > 0.9 * (best - values[0])
    for seed in range(20):
        other = torch.randn(side.rows.shape, generator=torch_generator(seed, "other")).double()
        turned = replace(ascent, rule="random").climb(side.value, side.slope, start, other)
        found = ascent.climb(side.value, side.slope, start)
        torch.testing.assert_close(row_norms(turned), row_norms(found))
        assert float(side.value(turned) - ascent.price(turned)) < values[-1]


@pytest.mark.parametrize("ids", [True, False], ids=["class rows", "OOD rows"])
def test_a_row_moves_where_its_gain_exceeds_the_price(ids: bool) -> None:
    """R |dL/deps_r| against tau, whatever the other rows do: the paper's price of one prompt."""
    side = a_side(4, 10.0, 1.0, ids)
    start = torch.zeros_like(side.rows)
    gains = len(side.rows) * row_norms(side.slope(start))[:, 0]
    tau = float(gains.median()) * 1.01
    noise = Ascent(1e-4, 1.0, 1, tau).climb(side.value, side.slope, start)
    assert ((row_norms(noise)[:, 0] > 0) == (gains > tau)).all()
    assert 0 < int((gains > tau).sum()) < len(gains)


def test_the_steps_of_algorithm_2_can_end_where_they_began() -> None:
    """What a price far above the gain does to steps that are taken whatever they do."""
    side = a_side(5, 1.0, 1.0, False)
    start = torch.full_like(side.rows, 1e-3)
    values = climbed(side, Ascent(1.0, 0.4, 4, 100.0, rule="alg2"), start)
    assert values[1] < values[0] and values[3] < values[2]
    steady = climbed(side, Ascent(1.0, 0.4, 4, 100.0), start)
    assert steady[1] > steady[0] and max(values) < steady[-1]


def test_the_proximal_step_maximises_its_model() -> None:
    """<g, e> - |e - e0|^2 / (2 t) - price over the ball, against many feasible points."""
    generator = torch_generator(0, "proximal")
    start = 0.2 * torch.randn(3, WIDTH, generator=generator, dtype=torch.float64)
    slope = torch.randn(3, WIDTH, generator=generator, dtype=torch.float64)
    ascent = Ascent(0.5, 0.3, 1, 2.0, normalised=False)
    start = ascent.capped(start)

    def model(noise: Tensor) -> Tensor:
        step = (noise - start).square().sum(1) / (2 * ascent.step_size)
        price = ascent.tau * noise.norm(dim=1)
        return (noise * slope).sum(1) - step - price / len(noise)

    best = ascent.proximal(start, slope, torch.tensor(1.0))
    for near in (1e-3, 1e-2, 0.3):
        for _ in range(200):
            draw = torch.randn(best.shape, generator=generator, dtype=torch.float64)
            assert bool((model(ascent.capped(best + near * draw)) <= model(best) + 1e-12).all())


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), factor=st.sampled_from([1e-3, 0.3, 20.0]))
def test_a_relative_width_means_the_same_on_any_scale(seed: int, factor: float) -> None:
    """Losses in another unit have the same weights, so that no logit scale needs its own width."""
    losses = torch.rand(7, generator=torch_generator(seed), dtype=torch.float64) + 0.01
    torch.testing.assert_close(Outer(0.5)(factor * losses), factor * Outer(0.5)(losses))
    slopes = [torch.func.grad(Outer(0.5))(scaled) for scaled in (losses, factor * losses)]
    torch.testing.assert_close(*slopes)
    torch.testing.assert_close(slopes[0], (losses / (0.5 * losses.mean())).softmax(0))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), radius=st.sampled_from([0.01, 0.1, 1.0]))
def test_lengths_are_in_units_of_the_spread(seed: int, radius: float) -> None:
    """Twice as spread classes, twice as long perturbations; a price in the same unit."""
    anchors = rows(CLASSES, seed)
    task = replace(make_task(), anchors=anchors)
    middle = anchors.mean(dim=0)
    spread = math.sqrt(sum(float((row - middle).norm()) ** 2 for row in anchors) / CLASSES)
    assert task.spread == pytest.approx(spread, rel=1e-12)
    method = FOCoOp(FOCoOpConfig(ood_radius=radius, tau_ood=0.3))
    ascent = method.ascent_of("ood", task)
    assert ascent.radius == pytest.approx(radius * spread)
    noise = rows(WORDS, seed) * ascent.radius
    assert float(ascent.price(noise)) == pytest.approx(0.3 * radius)


@pytest.mark.parametrize(
    ("switch", "changes"),
    [
        ({"ascent": "none"}, True),
        ({"ascent": "random"}, True),
        ({"ascent": "alg2"}, True),
        ({"outer": "soft_maximum"}, True),
        ({"tau_ood": 0.0, "tau_id": 0.0}, True),
        ({"detection_weight": 0.0}, True),
        ({"bos": False}, True),
        ({}, False),
    ],
)
def test_every_switch_changes_the_loss_by_itself(switch: dict[str, object], changes: bool) -> None:
    task, params, batch = make_task(), make_params(), make_batch()
    base = FOCoOpConfig(tau_ood=0.5, tau_id=0.5, id_radius=0.1, ood_radius=0.3)
    plain = float(step_loss(FOCoOp(base), params, batch, task))
    other = float(step_loss(FOCoOp(replace(base, **switch)), params, batch, task))  # type: ignore[arg-type]
    assert (not math.isclose(plain, other, rel_tol=1e-9)) == changes
