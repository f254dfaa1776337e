import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focoop.errors import ConfigError, MethodError
from focoop.functional.scores import (
    SCORES,
    Inputs,
    energy,
    gl_mcm,
    id_mass,
    max_softmax_all,
    mcm,
    msp,
    neglabel,
    parity_msp,
    score,
)
from focoop.seeds import torch_generator

SCALES = [1.0, 30.0, 100.0]


def cosines(rows=12, classes=7, prompts=10, patches=4, name="cosines"):
    """Cosines of the size CLIP gives: a common level, small differences between classes."""
    generator = torch_generator(0, name)
    draw = [(rows, classes), (rows, prompts), (rows, patches, classes)]
    return [0.2 + 0.05 * torch.randn(shape, generator=generator) for shape in draw]


def softmax(row, scale):
    """Softmax of a list by plain Python floats."""
    top = max(row)
    powers = [math.exp(scale * (value - top)) for value in row]
    return [power / math.fsum(powers) for power in powers]


def ranks(values):
    return np.argsort(np.asarray(values), kind="stable").tolist()


@pytest.mark.parametrize("scale", SCALES)
def test_softmax_scores_equal_loops(scale):
    id_cos, ood_cos, _ = cosines()
    for row, image in enumerate(id_cos.tolist()):
        others = ood_cos[row].tolist()
        joint = softmax(image + others, scale)
        mass = math.fsum(joint[: len(image)])
        expected = {
            mcm: (mcm(id_cos, 1 / scale), -math.log(max(softmax(image, scale)))),
            msp: (msp(id_cos, scale), -math.log(max(softmax(image, scale)))),
            energy: (
                energy(id_cos, scale),
                -math.log(math.fsum(math.exp(scale * x) for x in image)),
            ),
            max_softmax_all: (
                max_softmax_all(id_cos, ood_cos, scale),
                -math.log(max(joint[: len(image)])),
            ),
            parity_msp: (parity_msp(id_cos, ood_cos, scale), -math.log(max(joint))),
            id_mass: (id_mass(id_cos, ood_cos, scale), math.log((1 - mass) / mass)),
        }
        for function, (values, slow) in expected.items():
            assert float(values[row]) == pytest.approx(slow, abs=1e-9), function.__name__


@pytest.mark.parametrize("groups", [1, 2, 3, 10])
def test_neglabel_equals_a_loop_over_groups(groups):
    id_cos, ood_cos, _ = cosines()
    scale, seed = 30.0, 5
    order = torch.randperm(10, generator=torch_generator(seed, "neglabel")).tolist()
    size = 10 // groups
    values = neglabel(id_cos, ood_cos, scale, groups=groups, seed=seed)
    for row, image in enumerate(id_cos.tolist()):
        shares = []
        for group in range(groups):
            members = [float(ood_cos[row, j]) for j in order[group * size : (group + 1) * size]]
            shares.append(math.fsum(softmax(image + members, scale)[: len(image)]))
        outside = 1 - math.fsum(shares) / groups
        assert 1 / (1 + math.exp(-float(values[row]))) == pytest.approx(outside, abs=1e-9)


def test_one_group_orders_like_id_mass():
    id_cos, ood_cos, _ = cosines(rows=200)
    for scale in (*SCALES, 3000.0):
        plain = id_mass(id_cos, ood_cos, scale)
        torch.testing.assert_close(neglabel(id_cos, ood_cos, scale, groups=1, seed=3), plain)


def test_gl_mcm_equals_a_loop_over_patches():
    id_cos, _, patch_cos = cosines(rows=300)
    values = gl_mcm(id_cos, patch_cos, temperature=0.5, weight=0.3)
    for row in (0, 255, 256, 299):
        whole = max(softmax(id_cos[row].tolist(), 2.0))
        local = max(max(softmax(patch, 2.0)) for patch in patch_cos[row].tolist())
        assert float(values[row]) == pytest.approx((1 - whole) + 0.3 * (1 - local), abs=1e-12)


def test_without_weight_gl_mcm_orders_like_mcm():
    id_cos, _, patch_cos = cosines(rows=200)
    assert ranks(gl_mcm(id_cos, patch_cos, weight=0.0)) == ranks(mcm(id_cos))


@pytest.mark.parametrize("name", sorted(SCORES))
def test_higher_means_more_ood(name):
    known, strange = torch.full((1, 5), 0.1), torch.full((1, 5), 0.1)
    known[0, 2] = 0.4
    prompts_far, prompts_near = torch.full((1, 6), 0.05), torch.full((1, 6), 0.15)
    low = score(name, Inputs(known, 30.0, prompts_far, known[:, None]))
    high = score(name, Inputs(strange, 30.0, prompts_near, strange[:, None]))
    assert float(low) < float(high)


@pytest.mark.parametrize("name", sorted(SCORES))
def test_scores_are_float64_and_ignore_the_order_of_classes(name):
    id_cos, ood_cos, patch_cos = cosines(name="order")
    classes = torch.randperm(7, generator=torch_generator(0, "classes"))
    patches = torch.randperm(4, generator=torch_generator(0, "patches"))
    plain = score(name, Inputs(id_cos, 30.0, ood_cos, patch_cos))
    moved = score(
        name, Inputs(id_cos[:, classes], 30.0, ood_cos, patch_cos[:, patches][..., classes])
    )
    assert plain.dtype == torch.float64
    assert plain.shape == (12,)
    torch.testing.assert_close(moved, plain)


@pytest.mark.parametrize("name", ["mcm", "msp", "max_softmax_all", "parity_msp", "id_mass"])
def test_a_common_shift_of_all_cosines_changes_nothing(name):
    id_cos, ood_cos, _ = (x.double() for x in cosines())
    plain = score(name, Inputs(id_cos, 30.0, ood_cos))
    torch.testing.assert_close(score(name, Inputs(id_cos + 0.1, 30.0, ood_cos + 0.1)), plain)


def test_images_in_half_precision_are_scored_in_double():
    id_cos, _, _ = cosines()
    torch.testing.assert_close(mcm(id_cos.half()), mcm(id_cos.half().double()), rtol=0, atol=0)


def test_near_certain_images_do_not_tie():
    # Probabilities of 1 - 1e-20 and beyond are all 1.0 even in float64.
    margins = torch.linspace(0.4, 0.9, 50)
    id_cos = torch.stack([margins, torch.zeros(50)], dim=1)
    values = msp(id_cos, 100.0)
    assert len(set((1 - (-values).exp()).tolist())) == 1
    assert bool((values.diff() < 0).all())
    odds = id_mass(id_cos, torch.zeros(50, 3), 100.0)
    assert bool((odds.diff() < 0).all())


def test_temperature_one_keeps_images_apart_that_float32_ties():
    generator = torch_generator(0, "ties")
    id_cos = 0.2 + 0.02 * torch.randn(20_000, 100, generator=generator)
    values = mcm(id_cos)
    exact = -id_cos.double().softmax(1).amax(1)
    assert ranks(values) == ranks(exact)
    coarse = -id_cos.softmax(1).amax(1)
    assert len(coarse.unique()) < len(values.unique()) == 20_000


def test_hopeless_images_do_not_overflow():
    value = max_softmax_all(torch.tensor([[-1.0]]), torch.tensor([[1.0]]), 1000.0)
    assert float(value) == pytest.approx(2000.0)


@settings(deadline=None)
@given(
    st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=6),
    st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=6),
    st.floats(0.1, 1000),
)
def test_scores_are_finite_and_within_their_bounds(image, others, scale):
    id_cos, ood_cos = torch.tensor([image]), torch.tensor([others])
    entries = len(image) + len(others)
    assert 0 <= float(mcm(id_cos, 1 / scale)) <= math.log(len(image)) + 1e-9
    assert 0 <= float(parity_msp(id_cos, ood_cos, scale)) <= math.log(entries) + 1e-9
    joint = float(max_softmax_all(id_cos, ood_cos, scale))
    assert joint >= float(msp(id_cos, scale)) - 1e-9
    assert joint >= float(parity_msp(id_cos, ood_cos, scale)) - 1e-9
    assert math.isfinite(float(id_mass(id_cos, ood_cos, scale)))
    assert math.isfinite(float(neglabel(id_cos, ood_cos, scale, groups=len(others))))
    assert math.isfinite(float(energy(id_cos, scale)))


@settings(deadline=None)
@given(st.integers(0, 5), st.floats(0.001, 0.5))
def test_a_closer_ood_prompt_raises_the_scores_that_see_it(prompt, shift):
    id_cos, ood_cos, _ = (x.double() for x in cosines(rows=3, prompts=6))
    nearer = ood_cos.clone()
    nearer[:, prompt] += shift
    for function in (id_mass, max_softmax_all, neglabel):
        assert bool((function(id_cos, nearer, 30.0) > function(id_cos, ood_cos, 30.0)).all())


def test_no_images_give_no_scores():
    for name in SCORES:
        empty = Inputs(torch.zeros(0, 3), 30.0, torch.zeros(0, 2), torch.zeros(0, 4, 3))
        assert score(name, empty).shape == (0,)


def test_missing_kinds_and_unknown_names_are_refused():
    id_cos, ood_cos, patch_cos = cosines()
    for name, entry in SCORES.items():
        if entry.needs_ood:
            with pytest.raises(MethodError, match="OOD prompts"):
                score(name, Inputs(id_cos, 30.0, patch_cos=patch_cos))
        if entry.needs_patches:
            with pytest.raises(MethodError, match="patch"):
                score(name, Inputs(id_cos, 30.0, ood_cos))
        if not entry.needs_ood and not entry.needs_patches:
            assert score(name, Inputs(id_cos, 30.0)).shape == (12,)
    with pytest.raises(ConfigError, match="id_mass"):
        score("idmass", Inputs(id_cos, 30.0, ood_cos))


def test_impossible_arguments_are_refused():
    id_cos, ood_cos, patch_cos = cosines()
    for value in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="temperature"):
            mcm(id_cos, value)
        with pytest.raises(ConfigError, match="temperature"):
            gl_mcm(id_cos, patch_cos, value)
        with pytest.raises(ConfigError, match="scale"):
            id_mass(id_cos, ood_cos, value)
    with pytest.raises(ConfigError, match="1 to 10"):
        neglabel(id_cos, ood_cos, 30.0, groups=11)
    with pytest.raises(ConfigError, match="weight"):
        gl_mcm(id_cos, patch_cos, weight=-1.0)
    with pytest.raises(MethodError, match="OOD"):
        id_mass(id_cos, ood_cos[:, :0], 30.0)
    with pytest.raises(ValueError, match="fit"):
        id_mass(id_cos, ood_cos[1:], 30.0)
    with pytest.raises(ValueError, match="patch"):
        gl_mcm(id_cos, patch_cos[..., 1:])
    with pytest.raises(ValueError, match="cosines"):
        mcm(id_cos[0])


def test_discounted_id_mass_runs_from_energy_to_id_mass() -> None:
    generator = torch.Generator().manual_seed(0)
    id_cos = torch.rand(6, 4, generator=generator)
    ood_cos = torch.rand(6, 3, generator=generator)
    none = id_mass(id_cos, ood_cos, 30.0, ood_weight=0.0)
    assert torch.equal(none, energy(id_cos, 30.0))
    for row in range(6):
        ood = math.log(sum(math.exp(30.0 * float(c)) for c in ood_cos[row]))
        own = math.log(sum(math.exp(30.0 * float(c)) for c in id_cos[row]))
        found = id_mass(id_cos, ood_cos, 30.0, ood_weight=0.3)[row]
        assert float(found) == pytest.approx(0.3 * ood - own, rel=1e-12)
