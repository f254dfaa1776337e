"""Weights that are told several times: what comes back is the weight, its clip and its noise."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from focoop.methods._weights import (
    LEAST_LEFT,
    MEASURED,
    SENT,
    TIMES,
    exact,
    left_of,
    read,
    told,
)
from focoop.seeds import torch_generator

ROWS = 4_000


def with_noise(numbers: torch.Tensor, deviation: torch.Tensor | float, draw: int) -> torch.Tensor:
    generator = torch_generator(draw, "weights")
    return numbers + deviation * torch.randn(numbers.shape, generator=generator)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.floats(0.02, 1))
def test_weights_come_back_as_told_and_as_clipped(shares: list[float], clip: float) -> None:
    which = torch.tensor(shares, dtype=torch.float64)
    sent = told(MEASURED, which)
    assert sent.shape == (len(shares), TIMES)
    torch.testing.assert_close(sent.norm(dim=1), MEASURED * which)  # what they take of a clip
    found = read(MEASURED, clip * sent)
    torch.testing.assert_close(found.share, clip * which)
    assert not found.noise.any() and not found.error.any()


def test_whole_weights_are_exact_and_others_are_not() -> None:
    whole = told(MEASURED, torch.tensor([1.0, 0.0, 1.0]))
    assert exact(read(MEASURED, whole))
    assert not exact(read(MEASURED, 0.7 * whole))
    assert not exact(read(MEASURED, with_noise(whole, 0.1, 0)))


def test_the_clip_is_told_and_is_never_nothing() -> None:
    whole = told(SENT, torch.ones(()))
    assert left_of(whole) == 1.0 and left_of(3 * whole) == 1.0
    assert left_of(0.25 * whole) == pytest.approx(0.25)
    assert left_of(-whole) == LEAST_LEFT


@pytest.mark.parametrize("deviation", [1e-3, 0.1, 10.0])
def test_one_noise_of_many_weights_is_known_well(deviation: float) -> None:
    """Each variance alone is off by a third; what they have in common is off by little."""
    sent = told(MEASURED, torch.ones(ROWS))
    found = read(MEASURED, with_noise(sent, deviation, 1)).noise / deviation**2
    alone = with_noise(sent, deviation, 1).var(dim=1) / deviation**2
    assert float((found - 1).square().mean()) < 0.1 * float((alone - 1).square().mean())
    assert float(found.mean()) == pytest.approx(1.0, rel=0.05)


def test_noises_that_differ_stay_apart() -> None:
    deviation = torch.where(torch.arange(ROWS) < ROWS // 2, 0.01, 1.0)[:, None]
    found = read(MEASURED, with_noise(told(MEASURED, torch.ones(ROWS)), deviation, 2)).noise
    ratio = (found / deviation[:, 0] ** 2).log()
    assert float(ratio.abs().mean()) < 0.4 and abs(float(ratio.mean())) < 0.05


def test_weights_that_noise_alone_moved_are_the_usual_one_and_others_stay() -> None:
    which = (torch.arange(ROWS) % 2).float()
    found = read(MEASURED, with_noise(told(MEASURED, which), 0.02, 3))
    near = found.near(1.0)
    # A weight of 1 is off by 0.02 * 4 / MEASURED / 4 = 0.16 here, one of 0 lies six such below.
    measured = near[which == 1]
    assert float(measured.std()) < 0.06 < 0.15 < float(found.share[which == 1].std())
    assert float(near[which == 0].mean()) == pytest.approx(0.0, abs=0.02)
    clean = read(MEASURED, told(MEASURED, which))
    assert torch.equal(clean.near(1.0), clean.share)


def test_weights_of_clients_that_were_cut_by_unlike_factors_come_nearer_to_them() -> None:
    cut = 0.5 + 0.05 * torch.randn(ROWS, generator=torch_generator(4, "cut"))
    found = read(MEASURED, with_noise(told(MEASURED, cut), 0.006, 4))
    near = found.near(0.5)
    errors = [float((one - cut).square().mean()) for one in (near, found.share, 0.5 + 0 * near)]
    assert errors[0] < 0.75 * min(errors[1:])
