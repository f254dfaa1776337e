import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from focoop.errors import ConfigError
from focoop.scenario.partition import (
    dirichlet,
    iid,
    pathological,
    summary,
    take_shots,
    validation_cut,
)
from focoop.seeds import numpy_generator

BALANCED = np.tile(np.arange(100), 20)


def imbalanced(num_classes):
    """Between 1 and 60 images per class, in random order."""
    generator = numpy_generator(0, "imbalanced")
    labels = np.repeat(np.arange(num_classes), generator.integers(1, 60, num_classes))
    return generator.permutation(labels)


def as_lists(parts):
    return [part.tolist() for part in parts]


# Shots


def test_shots_are_distinct_where_there_are_enough():
    labels = BALANCED
    parts = pathological(100, 10, 0).assign(labels, 0)
    cut = take_shots(parts, labels, 8, seed=0)
    assert cut.repeated == 0
    for part, chosen in zip(parts, cut.indices, strict=True):
        assert len(set(chosen.tolist())) == len(chosen) == 80
        assert set(chosen) <= set(part)
        assert set(np.unique(labels[chosen], return_counts=True)[1]) == {8}


def test_small_cells_give_all_their_images_once():
    labels = imbalanced(12)
    parts = dirichlet(12, 5, 0.3, 1).assign(labels, 1)
    cut = take_shots(parts, labels, 8, seed=4)
    before, after = summary(parts, labels, 12), summary(cut.indices, labels, 12)
    np.testing.assert_array_equal(after, np.minimum(before, 8))
    assert cut.repeated == 0 and 0 < before[before > 0].min() < 8
    assert all(len(set(chosen.tolist())) == len(chosen) for chosen in cut.indices)


def test_repeats_are_drawn_and_counted_where_they_are_asked_for():
    labels = imbalanced(12)
    parts = dirichlet(12, 5, 0.3, 1).assign(labels, 1)
    cut = take_shots(parts, labels, 8, seed=4, repeats=True)
    before, after = summary(parts, labels, 12), summary(cut.indices, labels, 12)
    np.testing.assert_array_equal(after, np.where(before > 0, 8, 0))
    assert cut.repeated == np.maximum(0, 8 - before[before > 0]).sum() > 0
    for part, chosen in zip(parts, cut.indices, strict=True):
        for label in np.unique(labels[part]):
            own, drawn = part[labels[part] == label], chosen[labels[chosen] == label]
            assert len(set(drawn)) == min(8, len(own))
            assert set(drawn) <= set(own)


def test_exactly_enough_images_are_not_repeated():
    cut = take_shots([np.arange(8)], np.zeros(8, dtype=int), 8, seed=0)
    assert (cut.indices[0].tolist(), cut.repeated) == (list(range(8)), 0)


def test_shots_of_a_client_ignore_the_other_clients():
    labels = imbalanced(6)
    first, second = iid(6, 2).assign(labels, 0)
    both = take_shots([first, second], labels, 3, seed=9).indices
    alone = take_shots([first, []], labels, 3, seed=9).indices
    assert both[0].tolist() == alone[0].tolist()
    assert not len(alone[1])
    assert both[0].tolist() != take_shots([first], labels, 3, seed=8).indices[0].tolist()


def test_no_limit_takes_everything():
    cut = take_shots([[2, 0], [1]], [0, 0, 1], None, seed=0)
    assert (as_lists(cut.indices), cut.repeated) == ([[0, 2], [1]], 0)
    with pytest.raises(ConfigError, match="shots"):
        take_shots([[0]], [0], 0, seed=0)


# Validation cut and counts


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.floats(0.05, 0.95))
def test_validation_cut_takes_a_fraction_of_every_class(labels, fraction):
    train, validation = validation_cut(labels, fraction=fraction, seed=0)
    assert sorted([*train, *validation]) == list(range(len(labels)))
    values = np.array(labels)
    for label in set(labels):
        expected = int(fraction * (values == label).sum())
        assert (values[validation] == label).sum() == expected


def test_validation_cut_per_class():
    train, validation = validation_cut(BALANCED, per_class=4, seed=0)
    np.testing.assert_array_equal(np.bincount(BALANCED[validation]), 4)
    np.testing.assert_array_equal(np.bincount(BALANCED[train]), 16)
    again = validation_cut(BALANCED, per_class=4, seed=1)[1]
    assert validation.tolist() != again.tolist()


@pytest.mark.parametrize(
    "settings_",
    [{}, {"per_class": 1, "fraction": 0.5}, {"fraction": 1.0}, {"per_class": 0}, {"per_class": 2}],
)
def test_impossible_validation_cuts_are_refused(settings_):
    with pytest.raises(ConfigError):
        validation_cut([0, 0, 1, 1], seed=0, **settings_)


def test_summary_equals_a_loop():
    labels = imbalanced(7)
    parts = dirichlet(7, 3, 0.5, 0).assign(labels, 0)
    expected = [[sum(labels[i] == c for i in part) for c in range(7)] for part in parts]
    np.testing.assert_array_equal(summary(parts, labels, 7), expected)
    assert summary([], [], 3).shape == (0, 3)
