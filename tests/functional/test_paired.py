"""Paired tests over seeds, compared with scipy."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from focoop.functional import paired

NUMBERS = st.floats(-100, 100).map(lambda value: round(value, 3))


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=12))
def test_differences_are_those_of_scipy(pairs: list[tuple[float, float]]) -> None:
    first, second = (list(side) for side in zip(*pairs, strict=True))
    found = paired.difference(first, second)
    steps = np.subtract(first, second)
    assert found.mean == pytest.approx(steps.mean(), abs=1e-9)
    if steps.std() < 1e-6:  # scipy divides by rounding errors here
        return
    expected = stats.ttest_rel(first, second)
    assert found.p == pytest.approx(expected.pvalue, abs=1e-6)
    low, high = expected.confidence_interval(0.95)
    assert found.half_width == pytest.approx((high - low) / 2, rel=1e-6)


@given(st.lists(st.floats(0.0001, 1), min_size=1, max_size=6))
def test_corrected_p_values_are_those_of_all_intersections(chances: list[float]) -> None:
    """Holm's method is the closed test of Bonferroni's: the worst of all sets that hold a test."""
    given_ = {at: paired.Difference(1.0, 1.0, p, 3) for at, p in enumerate(chances)}
    found = paired.corrected(given_)
    sets = [s for n in range(1, len(chances) + 1) for s in combinations(range(len(chances)), n)]
    for at, gap in found.items():
        worst = max(min(1.0, len(s) * min(chances[i] for i in s)) for s in sets if at in s)
        assert gap.p == pytest.approx(worst)


def test_what_is_no_test_is_not_counted() -> None:
    no_tests = {
        "one": paired.Difference(1.0, None, None, 1),
        "same": paired.difference([1, 2], [0, 1]),
    }
    tested = paired.Difference(1.0, 1.0, 0.04, 3)
    assert paired.corrected({**no_tests, "tested": tested}) == {**no_tests, "tested": tested}


def test_a_single_pair_has_no_interval() -> None:
    assert paired.difference([2.0], [1.0]) == paired.Difference(1.0, None, None, 1)


def test_equal_differences_are_certain() -> None:
    assert paired.difference([1.0, 2.0], [1.0, 2.0]).p == 1.0
    assert paired.difference([2.0, 3.0], [1.0, 2.0]).p == 0.0


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(ValueError, match="no pair"):
        paired.difference([], [])
    with pytest.raises(ValueError):
        paired.difference([1.0], [])
