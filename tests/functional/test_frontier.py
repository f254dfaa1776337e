"""The frontier against a walk over all biases, image by image."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from focoop.errors import DataError, MethodError
from focoop.functional.frontier import CURVE, Margins, frontier

answered = st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=1, max_size=25)


def slow_frontier(own, other):
    """(bias, accuracy on other, accuracy on own) image by image, at and between all margins."""
    margins = sorted({m for m, _ in own + other})
    steps = [margins[0] - 1.0]
    for a, b in zip(margins, [*margins[1:], margins[-1] + 2.0], strict=True):
        steps += [a, (a + b) / 2]
    for bias in steps:
        mine = sum(right and margin < bias for margin, right in own) / len(own)
        theirs = sum(right and margin >= bias for margin, right in other) / len(other)
        yield bias, theirs, mine


@given(answered, answered)
def test_frontier_equals_a_walk_over_all_biases(own, other):
    found = frontier(*(Margins(*zip(*images, strict=True)) for images in (own, other)))
    points = list(slow_frontier(own, other))
    between = points[::2]  # off the margins, where images tie
    # The walk goes from all other classes to own classes alone; images that tie move together.
    area = sum(
        (x0 - x1) * (y0 + y1) / 2
        for (_, x0, y0), (_, x1, y1) in zip(between, between[1:], strict=False)
    )
    assert found["ausuc"] == pytest.approx(area, abs=1e-12)

    def harmonic(x, y):
        return 2 * x * y / (x + y) if x + y else 0.0

    assert found["harmonic_best"] == pytest.approx(max(harmonic(x, y) for _, x, y in points))
    best = found["bias"]
    chosen = [
        sum(r and m < best for m, r in own) / len(own),
        sum(r and m >= best for m, r in other) / len(other),
    ]
    assert harmonic(*chosen) == pytest.approx(found["harmonic_best"])
    assert found["own_only"] == points[-1][2] and found["other_only"] == points[0][1]
    for x in CURVE:
        reached = [y for _, theirs, y in points if theirs >= x / 100 - 1e-9]
        assert found["curve"][str(x)] == pytest.approx(max(reached, default=0.0))


@given(answered, answered)
def test_the_area_is_two_accuracies_times_an_auroc(own, other):
    """Both ends of the curve, and how well margins tell own images from others."""
    found = frontier(*(Margins(*zip(*images, strict=True)) for images in (own, other)))
    right = [[m for m, good in images if good] for images in (own, other)]
    expected = found["own_only"] * found["other_only"]
    if expected:
        labels = np.repeat([0, 1], [len(right[0]), len(right[1])])
        expected *= roc_auc_score(labels, np.concatenate(right))
    assert found["ausuc"] == pytest.approx(expected, abs=1e-12)


def test_a_frontier_needs_images_and_numbers():
    good = Margins([0.5], [True])
    with pytest.raises(DataError, match="no own scores"):
        frontier(Margins([], []), good)
    with pytest.raises(MethodError, match="NaN"):
        frontier(good, Margins([math.nan], [True]))
    with pytest.raises(ValueError, match="answers"):
        frontier(good, Margins([1.0, 2.0], [True]))
