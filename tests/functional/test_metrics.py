import math
from itertools import product
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from focoop.errors import ConfigError, DataError, MethodError
from focoop.functional.metrics import (
    accuracy,
    alarm,
    aupr_in,
    aupr_out,
    auroc,
    average,
    detection,
    fpr95,
    fpr95_oodpos,
    threshold_at,
)
from focoop.seeds import numpy_generator

# Few distinct values give many ties, within and between the sets.
tied = st.lists(st.integers(0, 6), min_size=1, max_size=40)
spread = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40)
DETECTION = (auroc, aupr_in, aupr_out, fpr95, fpr95_oodpos)


def labelled(id_scores, ood_scores):
    """OOD is 1, as scikit-learn wants it."""
    labels = np.r_[np.zeros(len(id_scores)), np.ones(len(ood_scores))]
    return labels, np.r_[id_scores, ood_scores].astype(float)


@given(tied | spread, tied | spread)
def test_areas_equal_scikit_learn(id_scores, ood_scores):
    labels, scores = labelled(id_scores, ood_scores)
    assert auroc(id_scores, ood_scores) == pytest.approx(roc_auc_score(labels, scores))
    assert aupr_out(id_scores, ood_scores) == pytest.approx(average_precision_score(labels, scores))
    assert aupr_in(id_scores, ood_scores) == pytest.approx(
        average_precision_score(1 - labels, -scores)
    )


@given(tied | spread, tied | spread)
def test_both_fpr95_equal_the_curves_of_scikit_learn(id_scores, ood_scores):
    labels, scores = labelled(id_scores, ood_scores)
    for ours, positive, sign in ((fpr95, 1 - labels, -1), (fpr95_oodpos, labels, 1)):
        false, true, _ = roc_curve(positive, sign * scores, drop_intermediate=False)
        expected = false[np.argmax(true >= 0.95 - 1e-12)]
        assert ours(id_scores, ood_scores) == pytest.approx(expected)


def test_large_sets_equal_scikit_learn():
    generator = numpy_generator(0, "large")
    inside, outside = generator.normal(0, 1, 5000).round(2), generator.normal(1, 2, 7000).round(2)
    labels, scores = labelled(inside, outside)
    assert auroc(inside, outside) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert aupr_out(inside, outside) == pytest.approx(average_precision_score(labels, scores))


@pytest.mark.parametrize(("id_width", "ood_width"), [(1.5, 0.5), (0.5, 1.5), (1.0, 1.0)])
def test_the_two_fpr95_conventions_equal_their_closed_forms(id_width, ood_width):
    # ID-ness N(2, id_width) for ID, N(0, ood_width) for OOD, on a grid of quantiles.
    grid = (np.arange(10_000) + 0.5) / 10_000
    standard = np.array([NormalDist().inv_cdf(level) for level in grid])
    inside, outside = -(2 + id_width * standard), -(ood_width * standard)
    quantile, share = NormalDist().inv_cdf(0.95), NormalDist().cdf
    kept = share(-(2 - quantile * id_width) / ood_width)
    flagged = share((quantile * ood_width - 2) / id_width)
    assert fpr95(inside, outside) == pytest.approx(kept, abs=1e-3)
    assert fpr95_oodpos(inside, outside) == pytest.approx(flagged, abs=1e-3)
    published = {(1.5, 0.5): (0.82, 0.21), (0.5, 1.5): (0.21, 0.82)}
    if (id_width, ood_width) in published:
        assert (kept, flagged) == pytest.approx(published[id_width, ood_width], abs=0.01)


def test_hand_counted_values():
    inside = np.arange(1, 21)  # 19 of 20 are kept at the threshold 19
    outside = np.array([18, 19, 19, 20, 21, 22, 23, 24, 25, 26])
    assert threshold_at(inside) == 19
    assert fpr95(inside, outside) == 0.3
    assert alarm(inside, outside) == 0.7
    # All 10 OOD images must be caught for 95%: the threshold is 18, and 18, 19, 20 are flagged.
    assert fpr95_oodpos(inside, outside) == 0.15
    # Pairs won: 17.5 + 2*18.5 + 19.5 + 6*20 of 200.
    assert auroc(inside, outside) == pytest.approx((17.5 + 37 + 19.5 + 120) / 200)


def test_perfect_and_reversed_detectors():
    low, high = [0.1, 0.2, 0.3], [0.7, 0.8]
    assert detection(low, high) == {
        "auroc": 1.0,
        "aupr_in": 1.0,
        "aupr_out": 1.0,
        "fpr95": 0.0,
        "fpr95_oodpos": 0.0,
    }
    reverse = detection(high, low)
    assert (reverse["auroc"], reverse["fpr95"], reverse["fpr95_oodpos"]) == (0.0, 1.0, 1.0)
    assert alarm(low, high) == 1.0
    assert alarm(high, low) == 0.0


def test_a_constant_score_earns_nothing():
    same = detection([0.5] * 7, [0.5] * 3)
    assert same == {
        "auroc": 0.5,
        "aupr_in": 0.7,
        "aupr_out": 0.3,
        "fpr95": 1.0,
        "fpr95_oodpos": 1.0,
    }


@pytest.mark.parametrize("count", [1, 5, 19, 20, 21, 40, 60, 100, 140, 1000, 10_000])
def test_the_threshold_keeps_the_least_number_that_is_enough(count):
    threshold = threshold_at(np.arange(count))
    kept = int(threshold) + 1
    assert kept * 100 >= 95 * count > (kept - 1) * 100


def test_rounding_does_not_keep_one_image_more():
    assert 0.55 * 100 > 55
    assert threshold_at(np.arange(1, 101), keep=0.55) == 55


@given(tied, st.sampled_from([0.05, 0.5, 0.8, 0.95, 1.0]))
def test_the_threshold_is_the_smallest_score_that_keeps_enough(scores, keep):
    threshold = threshold_at(scores, keep)
    values = np.array(scores)
    assert np.mean(values <= threshold) >= keep - 1e-12
    lower = values[values < threshold]
    assert not len(lower) or np.mean(values <= lower.max()) < keep


@given(tied | spread, tied | spread)
def test_swapping_the_sets_and_negating_gives_the_mirror_metrics(id_scores, ood_scores):
    inside, outside = np.array(id_scores, dtype=float), np.array(ood_scores, dtype=float)
    assert auroc(outside, inside) == pytest.approx(1 - auroc(inside, outside))
    assert auroc(-outside, -inside) == pytest.approx(auroc(inside, outside))
    assert fpr95(-outside, -inside) == fpr95_oodpos(inside, outside)
    assert aupr_in(-outside, -inside) == aupr_out(inside, outside)


@given(st.lists(st.integers(-20, 20), min_size=1), st.lists(st.integers(-20, 20), min_size=1))
def test_increasing_transforms_change_nothing(id_scores, ood_scores):
    inside, outside = np.array(id_scores, dtype=float), np.array(ood_scores, dtype=float)
    for metric, transform in product(DETECTION, (np.exp, np.arcsinh, lambda x: 3 * x - 7)):
        assert metric(transform(inside), transform(outside)) == metric(inside, outside)
    assert alarm(np.exp(inside), np.exp(outside)) == alarm(inside, outside)


@given(tied, tied, st.randoms(use_true_random=False))
def test_the_order_of_images_changes_nothing(id_scores, ood_scores, random):
    before = detection(id_scores, ood_scores)
    random.shuffle(id_scores)
    random.shuffle(ood_scores)
    assert detection(id_scores, ood_scores) == before


@given(tied | spread, tied | spread, st.integers(1, 30))
def test_copies_count_like_repeated_images(id_scores, ood_scores, copies):
    counted = detection(id_scores, ood_scores, copies)
    repeated = detection(id_scores, np.tile(ood_scores, copies))
    assert counted == pytest.approx(repeated, abs=1e-12)


def test_no_copies_are_refused():
    with pytest.raises(ValueError, match="copies"):
        detection([0.0], [1.0], 0)


def test_infinite_scores_are_ordinary_extremes():
    assert auroc([-math.inf, 0.0], [math.inf]) == 1.0
    assert fpr95([0.0, math.inf], [math.inf]) == 1.0


def test_accuracy_counts():
    assert accuracy(np.array([0, 1, 2]), np.array([0, 2, 2])) == pytest.approx(2 / 3)
    with pytest.raises(DataError, match="no images"):
        accuracy([], [])
    with pytest.raises(ValueError, match="predictions"):
        accuracy([1, 2], [1])


def test_averages_over_clients():
    assert average([0.2, 0.4]) == pytest.approx(0.3)
    assert average([0.2, 0.4], [1, 3]) == pytest.approx(0.35)
    with pytest.raises(DataError, match="no client"):
        average([])
    for weights in ([1.0], [0.0, 0.0]):
        with pytest.raises(ValueError, match="weights"):
            average([0.2, 0.4], weights)


@pytest.mark.parametrize("metric", DETECTION)
def test_broken_scores_are_named(metric):
    with pytest.raises(DataError, match="no ID scores"):
        metric([], [1.0])
    with pytest.raises(DataError, match="no OOD scores"):
        metric([1.0], [])
    with pytest.raises(MethodError, match="1 of 2 ID scores"):
        metric([1.0, math.nan], [1.0])
    with pytest.raises(MethodError, match="1 of 1 OOD scores"):
        metric([1.0], [math.nan])
    with pytest.raises(ValueError, match="vector"):
        metric([[1.0]], [1.0])


def test_alarm_names_its_broken_side():
    with pytest.raises(DataError, match="own ID"):
        alarm([], [1.0])
    with pytest.raises(MethodError, match="other clients' ID"):
        alarm([1.0], [math.nan])
    with pytest.raises(ConfigError, match="keep"):
        alarm([1.0], [1.0], keep=0.0)


def test_every_metric_has_its_direction():
    good, bad = detection([0.1, 0.2], [0.8, 0.9]), detection([0.8, 0.9], [0.1, 0.2])
    lower_is_better = {key for key in good if good[key] < bad[key]}
    assert lower_is_better == {"fpr95", "fpr95_oodpos"}
    assert all(good[key] > bad[key] for key in good.keys() - lower_is_better)
