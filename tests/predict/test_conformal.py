"""Conformal thresholds, p-values and class sets against MAPIE and crepes, and by counting."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from crepes import ConformalClassifier
from hypothesis import given, settings
from hypothesis import strategies as st
from mapie.classification import SplitConformalClassifier
from sklearn.base import BaseEstimator, ClassifierMixin

from focoop.caching import sealed
from focoop.errors import ConfigError, RunError
from focoop.functional import metrics
from focoop.predict import Calibration, SiteCalibration, Sketch, least_images, pooled

finite = st.floats(-1e6, 1e6)
many = st.lists(finite, min_size=1, max_size=150)
KEEPS = (0.5, 0.9, 0.95, 0.99)


@settings(max_examples=40)
@given(many, st.lists(finite, min_size=1, max_size=20))
def test_p_values_are_those_of_crepes(calibration: list[float], new: list[float]) -> None:
    oracle = ConformalClassifier()
    oracle.fit(np.array(calibration))
    expected = oracle.predict_p(np.array(new)[:, None], smoothing=False)[:, 0]
    found = Sketch.of(calibration, exact=len(calibration)).p_values(new)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


class Told(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A fitted classifier whose inputs are its probabilities."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> "Told":
        self.classes_ = np.arange(x.shape[1])
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        return x

    def predict(self, x: np.ndarray) -> np.ndarray:
        return x.argmax(axis=1)


@pytest.mark.parametrize("keep", [0.8, 0.9, 0.95])
def test_class_sets_are_those_of_mapie(keep: float) -> None:
    generator = np.random.default_rng(0)
    chances = generator.dirichlet(np.full(6, 0.4), 300)
    labels = np.array([generator.choice(6, p=row) for row in chances])
    fit, new = slice(0, 150), slice(150, 300)
    told = Told().fit(chances, labels)
    oracle = SplitConformalClassifier(told, confidence_level=keep)
    oracle.conformalize(chances[fit], labels[fit])
    _, expected = oracle.predict_set(chances[new])
    limit = Sketch.of(1 - chances[fit][np.arange(150), labels[fit]], exact=150).threshold(keep)
    np.testing.assert_array_equal(1 - chances[new] <= limit, expected[:, :, 0])


@settings(max_examples=40)
@given(many, st.sampled_from(KEEPS))
def test_a_threshold_is_an_order_statistic(scores: list[float], keep: float) -> None:
    sketch = Sketch.of(scores, exact=len(scores))
    rank = math.ceil(round((len(scores) + 1) * keep, 9))
    assert (rank > len(scores)) == (len(scores) < least_images(keep))
    expected = sorted(scores)[rank - 1] if rank <= len(scores) else math.inf
    assert sketch.threshold(keep) == expected
    if math.isfinite(expected):
        assert metrics.calibrated_threshold(scores, keep) == expected
    assert metrics.calibrated_threshold(scores, keep) == min(expected, max(scores))


@settings(max_examples=40)
@given(many, many, st.sampled_from(KEEPS))
def test_a_sketch_promises_no_more_than_all_scores(
    here: list[float], there: list[float], keep: float
) -> None:
    whole = Sketch.of([*here, *there], exact=len(here) + len(there))
    parts = [Sketch.of(scores, exact=4, blocks=3) for scores in (here, there)]
    joined = pooled(parts)
    assert joined.count == whole.count and all(len(part.values) <= 7 for part in parts)
    assert joined.threshold(keep) >= whole.threshold(keep)
    assert (joined.p_values(here) >= whole.p_values(here) - 1e-12).all()


def test_the_largest_scores_of_a_sketch_are_exact() -> None:
    scores = np.random.default_rng(1).normal(size=5000)
    sketch = Sketch.of(scores)
    assert len(sketch.values) == 64 and sketch.count == 5000
    np.testing.assert_array_equal(sketch.values[-32:], np.sort(scores)[-32:])
    share = np.mean(scores <= sketch.threshold(0.95))
    assert 0.95 <= share <= 0.95 + 2 / 32


@pytest.mark.parametrize(
    ("keep", "count"), [(0.9, 19), (0.95, 19), (0.95, 120), (0.99, 120), (0.9, 1000), (0.99, 1000)]
)
def test_what_is_promised_is_kept_over_100_splits(keep: float, count: int) -> None:
    """Kept shares of 100 splits: their mean lies in the band of its exact distribution."""
    generator, new = np.random.default_rng(count), 500
    kept = []
    for _ in range(100):
        scores = generator.gamma(2.0, size=count + new)
        limit = Sketch.of(scores[:count], exact=count).threshold(keep)
        kept.append(np.mean(scores[count:] <= limit))
    rank = math.ceil(round((count + 1) * keep, 9))
    expected = rank / (count + 1)  # mean of the Beta(rank, count + 1 - rank) of a split's share
    spread = math.sqrt(expected * (1 - expected) / (count + 2) + expected * (1 - expected) / new)
    assert expected >= keep
    assert abs(np.mean(kept) - expected) < 4 * spread / math.sqrt(100)


def test_p_values_of_exchangeable_images_are_no_smaller_than_they_should_be() -> None:
    generator = np.random.default_rng(3)
    values = []
    for _ in range(300):
        scores = generator.normal(size=60)
        values += Sketch.of(scores[:50]).p_values(scores[50:]).tolist()
    for level in (0.05, 0.1, 0.5):
        assert np.mean(np.array(values) <= level) <= level + 4 * math.sqrt(level / 300)


@pytest.mark.parametrize("keep", [0.0, 1.0, -1.0, 1.5])
def test_impossible_shares_are_refused(keep: float) -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        least_images(keep)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        metrics.calibrated_threshold([1.0], keep)
    with pytest.raises(ConfigError, match="finite"):
        Sketch.of([1.0, math.nan])


def test_a_calibration_goes_through_its_file_and_damage_is_named() -> None:
    scores = Sketch.of(range(30))
    site = SiteCalibration.of(30, "own", scores, scores, 0.95)
    small = SiteCalibration.of(3, "own", Sketch.of([1, 2, 3]), scores, 0.95)
    assert small.threshold is None and small.class_threshold == 29.0
    found = Calibration(0.95, 4, {"0": site, "global": small})
    again = Calibration.from_json(found.to_json())
    assert again.to_json() == found.to_json() and again.at(None) is not None
    assert again.at(0).threshold == 29.0 and again.at(7) is None  # type: ignore[union-attr]
    assert Calibration.from_json(replace(found, models="ab").to_json()).models == "ab"
    later = json.dumps(sealed({**json.loads(found.to_json()), "format": 9}))
    with pytest.raises(RunError, match="newer focoop .format 9; this one reads up to"):
        Calibration.from_json(later)
    plain = {key: value for key, value in json.loads(found.to_json()).items() if key != "sum"}
    with pytest.warns(UserWarning, match="no checksum"):
        earlier = Calibration.from_json(json.dumps({**plain, "format": 1}))
    assert earlier.to_json() == found.to_json()
    changed = [found.to_json().replace(*two) for two in (("0.0, 1.0", "9.0, 1.0"), ("29", "28"))]
    unsaid = json.dumps({key: value for key, value in plain.items() if key != "format"})
    for text in ("", "{}", json.dumps(plain), unsaid, *changed):
        with pytest.raises(RunError, match="calibrate again"):
            Calibration.from_json(text)


def test_too_few_images_for_a_threshold_are_told_with_what_they_can_keep() -> None:
    few, some = (Sketch.of(np.arange(count, dtype=np.float64)) for count in (15, 19))
    sites = {
        "0": SiteCalibration.of(4, "pool", few, few, 0.95),
        "global": SiteCalibration.of(19, "own", some, some, 0.95),
    }
    found = Calibration(0.95, 1, sites)
    assert "15 calibration images are too few to keep 0.95" in found.never_unknown(0)
    assert "(19 are needed; 15 can keep 0.93)" in found.never_unknown(0)
    assert least_images(0.93) <= 15 < least_images(0.94)
    assert found.never_unknown(None) == "" == found.never_unknown(7)
