"""Metrics of many clients at once are those of one at a time: ties, unequal clients, wrong ones."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from focoop.functional import client_metrics as many
from focoop.functional import frontier as one_frontier
from focoop.functional import metrics

FEW = st.integers(-3, 3).map(float)  # ties
WIDE = st.floats(-1e3, 1e3)


def rows(values: list[list[float]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of unequal lengths as one tensor, and which of its cells are theirs."""
    longest = max(map(len, values), default=0) or 1
    padded = torch.full((len(values), longest), 7.5, dtype=torch.float64)
    valid = torch.zeros(len(values), longest, dtype=torch.bool)
    for row, mine in enumerate(values):
        padded[row, : len(mine)] = torch.tensor(mine, dtype=torch.float64)
        valid[row, : len(mine)] = True
    return padded, valid


def clients(least: int) -> st.SearchStrategy[list[list[float]]]:
    cells = st.one_of(FEW, WIDE)
    return st.lists(st.lists(cells, min_size=least, max_size=9), min_size=3, max_size=3)


@settings(max_examples=60, deadline=None)
@given(clients(1), clients(1), st.sampled_from([1, 3]))
def test_detection_is_that_of_each_client(
    inside: list[list[float]], outside: list[list[float]], copies: int
) -> None:
    found = many.detection(many.Sorted.of(*rows(inside)), many.Sorted.of(*rows(outside)), copies)
    limits = many.threshold(many.Sorted.of(*rows(inside)))
    for row, (own, ood) in enumerate(zip(inside, outside, strict=True)):
        expected = metrics.detection(own, ood, copies)
        assert dict(zip(many.DETECTION, found[row].tolist(), strict=True)) == pytest.approx(
            expected, abs=1e-12
        )
        assert float(limits[row]) == metrics.threshold_at(own)


@settings(max_examples=60, deadline=None)
@given(clients(1), clients(1), st.randoms(use_true_random=False))
def test_frontiers_are_those_of_each_client(
    own: list[list[float]], other: list[list[float]], random: object
) -> None:
    draw = np.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined]
    right = [[draw.random(len(mine)) < 0.7 for mine in side] for side in (own, other)]
    sides = []
    for values, answers in zip((own, other), right, strict=True):
        padded, valid = rows(values)
        answered = torch.zeros_like(valid)
        for row, mine in enumerate(answers):
            answered[row, : len(mine)] = torch.from_numpy(mine)
        sides += [many.Sorted.of(padded, valid & answered), valid.sum(dim=1)]
    found = many.frontier(sides[0], sides[1], sides[2], sides[3])  # type: ignore[arg-type]
    for row in range(len(own)):
        expected = one_frontier.frontier(
            one_frontier.Margins(own[row], right[0][row]),
            one_frontier.Margins(other[row], right[1][row]),
        )
        numbers = found[row].tolist()
        told = dict(zip(many.FRONTIER, numbers, strict=False))
        curve = dict(zip(map(str, one_frontier.CURVE), numbers[len(told) :], strict=True))
        assert curve == pytest.approx(expected.pop("curve"), abs=1e-12)
        assert told == pytest.approx(expected, abs=1e-12)
