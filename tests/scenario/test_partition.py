import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from focoop.errors import ConfigError, DataError
from focoop.scenario.partition import (
    Partition,
    by_domain,
    dirichlet,
    iid,
    overlap,
    pathological,
    summary,
)
from focoop.seeds import numpy_generator

BALANCED = np.tile(np.arange(100), 20)


def imbalanced(num_classes, seed=0):
    """Between 1 and 60 images per class, in random order."""
    generator = numpy_generator(seed, "imbalanced")
    labels = np.repeat(np.arange(num_classes), generator.integers(1, 60, num_classes))
    return generator.permutation(labels)


def as_lists(parts):
    return [part.tolist() for part in parts]


# Matrices


def test_iid_and_non_overlap_matrices():
    np.testing.assert_array_equal(iid(3, 4).matrix, np.full((4, 3), 0.25))
    matrix = pathological(100, 10, seed=0).matrix
    assert set(matrix.ravel()) == {0.0, 1.0}
    np.testing.assert_array_equal(matrix.sum(0), 1)
    np.testing.assert_array_equal(matrix.sum(1), 10)
    assert not np.array_equal(matrix, pathological(100, 10, seed=1).matrix)


def test_left_over_classes_go_to_the_first_clients():
    np.testing.assert_array_equal(pathological(17, 5, seed=3).holds().sum(1), [4, 4, 3, 3, 3])


@given(st.integers(1, 30), st.integers(1, 25), st.data())
def test_overlap_deals_distinct_classes_evenly(num_classes, num_clients, data):
    per_client = data.draw(st.integers(1, num_classes))
    partition = overlap(num_classes, num_clients, per_client, seed=data.draw(st.integers(0, 99)))
    np.testing.assert_array_equal(partition.holds().sum(1), per_client)
    holders = partition.holds().sum(0)
    even, rest = divmod(num_clients * per_client, num_classes)
    assert sorted(holders) == [even] * (num_classes - rest) + [even + 1] * rest
    for label, count in enumerate(holders):
        own = partition.matrix[partition.matrix[:, label] > 0, label]
        np.testing.assert_allclose(own, 1 / count if count else 1)


def test_overlap_of_the_paper_has_equal_holders():
    np.testing.assert_array_equal(overlap(100, 100, 20, seed=21).holds().sum(0), 20)
    np.testing.assert_array_equal(overlap(200, 100, 20, seed=21).holds().sum(0), 10)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_dirichlet_has_the_moments_of_its_law(alpha):
    clients = 10
    matrix = dirichlet(20_000, clients, alpha, seed=0).matrix
    np.testing.assert_allclose(matrix.sum(0), 1)
    mean, variance = 1 / clients, (clients - 1) / (clients**2 * (clients * alpha + 1))
    np.testing.assert_allclose(matrix.mean(1), mean, atol=5 * np.sqrt(variance / 20_000))
    np.testing.assert_allclose(matrix.var(1), variance, rtol=0.1)


def test_dirichlet_class_counts_are_near_the_published_ones():
    labels = np.tile(np.arange(100), 500)
    means = {}
    for alpha in (0.1, 0.5, 5.0):
        parts = dirichlet(100, 10, alpha, seed=21).assign(labels, seed=21)
        means[alpha] = (summary(parts, labels, 100) > 0).sum(1).mean()
    # Methods 2.2: mean 47.2, 87 to 92, 100 with another generator.
    assert 42 < means[0.1] < 52
    assert 85 < means[0.5] < 94
    assert means[5.0] == 100


def test_matrices_are_frozen_and_checked():
    partition = iid(2, 2)
    with pytest.raises(ValueError, match="read-only"):
        partition.matrix[0, 0] = 1
    source = np.eye(2)
    copied = Partition(source)
    source[0, 0] = 9
    assert copied.matrix[0, 0] == 1
    for matrix in ([[0.5], [0.4]], [[1.5], [-0.5]], [[np.nan]], [1.0], np.zeros((0, 3))):
        with pytest.raises(ConfigError):
            Partition(np.array(matrix))


# Assignment


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=12, max_size=80),
    st.sampled_from(["iid", "dirichlet", "pathological", "overlap"]),
    st.integers(0, 1000),
)
def test_every_image_goes_to_exactly_one_client(labels, kind, seed):
    partition = {
        "iid": lambda: iid(6, 5),
        "dirichlet": lambda: dirichlet(6, 5, 0.3, seed),
        "pathological": lambda: pathological(6, 5, seed),
        "overlap": lambda: overlap(6, 5, 4, seed),
    }[kind]()
    parts = partition.assign(labels, seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert all(part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    counts = summary(parts, labels, 6)
    quotas = partition.matrix * np.bincount(labels, minlength=6)
    assert (np.abs(counts - quotas) < 1 + 1e-6).all()
    assert not counts[~partition.holds()].any()


def test_balanced_counts_equal_closed_forms():
    for client, part in enumerate(as_lists(pathological(100, 10, 0).assign(BALANCED, 0))):
        own = np.flatnonzero(pathological(100, 10, 0).matrix[client])
        assert part == np.flatnonzero(np.isin(BALANCED, own)).tolist()
    counts = summary(overlap(100, 100, 20, 0).assign(BALANCED, 0), BALANCED, 100)
    np.testing.assert_array_equal(counts, overlap(100, 100, 20, 0).holds())
    counts = summary(iid(100, 10).assign(BALANCED, 0), BALANCED, 100)
    np.testing.assert_array_equal(counts, 2)


def test_train_and_test_get_the_same_shares():
    partition = dirichlet(100, 10, 0.5, seed=1)
    train, test = np.tile(np.arange(100), 500), np.tile(np.arange(100), 100)
    big = summary(partition.assign(train, 1), train, 100) / 500
    small = summary(partition.assign(test, 2), test, 100) / 100
    assert np.abs(big - small).max() <= 1 / 500 + 1 / 100
    np.testing.assert_allclose(big, partition.matrix, atol=1 / 500)


def test_no_client_is_favoured_by_rounding():
    labels = np.repeat(np.arange(100), 15)  # 1.5 images for each of 10 clients
    sizes = [len(part) for part in iid(100, 10).assign(labels, 0)]
    assert sizes == [150] * 10
    labels = np.repeat(np.arange(100), 3)
    sizes = [len(part) for part in iid(100, 10).assign(labels, 0)]
    assert sizes == [30] * 10


def test_sets_sorted_by_severity_give_every_client_a_mix():
    labels = np.tile(np.arange(10), 500)  # five severities of 1000 images, one after another
    severity = np.repeat(np.arange(5), 1000)
    for part in overlap(10, 20, 4, 0).assign(labels, 0):
        shares = np.bincount(severity[part], minlength=5) / len(part)
        assert shares.min() > 0.1


def test_assignment_is_deterministic_and_depends_on_the_seed():
    labels = imbalanced(20)
    partition = iid(20, 4)
    assert as_lists(partition.assign(labels, 5)) == as_lists(partition.assign(labels, 5))
    assert as_lists(partition.assign(labels, 5)) != as_lists(partition.assign(labels, 6))
    for make in (lambda seed: dirichlet(20, 4, 0.5, seed), lambda seed: overlap(20, 4, 3, seed)):
        np.testing.assert_array_equal(make(1).matrix, make(1).matrix)
        assert not np.array_equal(make(1).matrix, make(2).matrix)


def test_classes_that_nobody_holds_are_left_out():
    partition = overlap(10, 2, 3, seed=0)
    parts = partition.assign(np.tile(np.arange(10), 4), 0)
    assert [len(part) for part in parts] == [12, 12]


# Domains


def test_domains_go_to_their_clients():
    domains = imbalanced(4)
    for client, part in enumerate(by_domain(domains)):
        assert part.tolist() == np.flatnonzero(domains == client).tolist()
    two = by_domain(domains, 2)
    assert set(domains[two[0]]) == {0, 2}
    assert set(domains[two[1]]) == {1, 3}
    labels = np.repeat([3, 5], 20)
    five = by_domain(labels, 5, seed=1)
    assert [set(labels[part]) for part in five] == [{3}, {5}, {3}, {5}, {3}]
    assert sorted(np.concatenate(five).tolist()) == list(range(40))
    assert as_lists(five) == as_lists(by_domain(labels, 5, seed=1))


def test_impossible_domains_are_refused():
    with pytest.raises(DataError, match="domain"):
        by_domain([])
    with pytest.raises(ConfigError, match="fewer clients"):
        by_domain([0, 1], 3)


# Refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pathological(5, 6, 0), "set partition.clients to 5"),
        (lambda: overlap(5, 2, 6, 0), "1 to 5"),
        (lambda: overlap(5, 2, 0, 0), "1 to 5"),
        (lambda: dirichlet(5, 2, 0.0, 0), "alpha"),
        (lambda: dirichlet(5, 2, -1.0, 0), "alpha"),
        (lambda: dirichlet(5, 2, float("nan"), 0), "alpha"),
        (lambda: iid(5, 0), "num_clients"),
        (lambda: iid(0, 5), "num_classes"),
        (lambda: iid(2, 5).assign([0, 1, 1], 0), "at most 3 clients"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("labels", [[0, 2], [-1, 0], [0.5, 1.0], [[0, 1]]])
def test_labels_that_do_not_fit_are_refused(labels):
    with pytest.raises(DataError, match="labels"):
        iid(2, 1).assign(labels, 0)
