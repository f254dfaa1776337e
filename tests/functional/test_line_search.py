import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from focoop.functional.transport.line_search import Segment, log_ratio
from focoop.seeds import numpy_generator


def random_segment(seed, tau, columns=8):
    generator = numpy_generator(seed, "segment")
    mass, to_mass, prior = (
        torch.from_numpy(generator.dirichlet(np.ones(columns)) + 1e-6) for _ in range(3)
    )
    linear, to_linear = torch.from_numpy(generator.random(2))
    return Segment(linear, to_linear, mass, to_mass, prior, tau)


def value(segment, beta):
    """The objective at beta, up to constants, from scratch."""
    mass = ((1 - beta) * segment.mass + beta * segment.to_mass).numpy()
    prior = segment.prior.numpy()
    linear = (1 - beta) * float(segment.linear) + beta * float(segment.to_linear)
    return linear + segment.tau * float((mass * np.log(mass / prior) - mass).sum())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.01, 0.1, 1.0, 10.0]))
def test_exact_step_equals_a_scalar_minimiser(seed, tau):
    segment = random_segment(seed, tau)
    expected = minimize_scalar(
        lambda beta: value(segment, beta), bounds=(0, 0.9), method="bounded",
        options={"xatol": 1e-9},
    ).x  # fmt: skip
    assert float(segment.exact()) == pytest.approx(expected, abs=2e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.01, 0.1, 1.0, 10.0]))
def test_armijo_takes_the_first_halving_that_lowers_enough(seed, tau):
    segment = random_segment(seed, tau)
    slope = float(
        segment.to_linear
        - segment.linear
        + tau * ((segment.to_mass - segment.mass) * (segment.mass / segment.prior).log()).sum()
    )
    assume(slope < -1e-6)
    start = value(segment, 0.0)
    trials = [0.9 * 0.5**halving for halving in range(30)]
    enough = [beta for beta in trials if value(segment, beta) - start <= 0.25 * slope * beta]
    assert float(segment.armijo(-slope)) == pytest.approx(enough[0])


def test_open_loop_steps_are_the_papers():
    segment = random_segment(0, 0.1)
    assert [float(segment.beta("open_loop", i, 0.0)) for i in range(4)] == pytest.approx(
        [1 / 2, 1 / 3, 1 / 4, 1 / 5]
    )


def test_empty_columns_stay_finite():
    for dtype in (torch.float32, torch.float64):
        ratio = log_ratio(torch.tensor([0.0, 1.0], dtype=dtype), torch.ones(2, dtype=dtype))
        assert ratio.tolist() == pytest.approx([float(np.log(torch.finfo(dtype).tiny)), 0.0])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.01, 0.1, 1.0]))
def test_columns_left_out_have_a_closed_form(seed, tau):
    """A vertex that hits few columns, one of them twice and one by a class without mass."""
    whole = random_segment(seed, tau)
    columns, rows = torch.tensor([5, 2, 5, 7]), torch.tensor([0.5, 0.3, 0.2, 0.0]).double()
    to_mass = torch.zeros_like(whole.mass).index_add(0, columns, rows)
    whole = dataclasses.replace(whole, to_mass=to_mass)
    part = whole.hit(columns, rows)
    assert len(part.mass) == 4
    assert float(part.exact()) == pytest.approx(float(whole.exact()), abs=1e-12)
    slope = float(
        whole.to_linear
        - whole.linear
        + tau * ((whole.to_mass - whole.mass) * (whole.mass / whole.prior).log()).sum()
    )
    assume(slope < -1e-6)
    assert float(part.armijo(-slope)) == float(whole.armijo(-slope))
