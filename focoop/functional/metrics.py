"""Metrics of accuracy and OOD detection, in float64 and as shares of 1; higher score = more OOD.

One decision rule throughout: an image is kept as ID when its score is at most the threshold, and
flagged as OOD when it is above. Images that tie with a threshold always count against the detector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from focoop.errors import ConfigError, DataError, MethodError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Floats = NDArray[np.float64]


def accuracy(predicted: ArrayLike, labels: ArrayLike) -> float:
    """Return the share of predictions that equal their label.

    Args:
        predicted: Predicted classes (N,).
        labels: True classes (N,).

    Returns:
        A share from 0 to 1.

    Raises:
        DataError: There are no images.
        ValueError: The shapes differ.

    >>> accuracy([1, 2, 2, 0], [1, 2, 0, 0])
    0.75
    """
    predictions, wanted = np.asarray(predicted), np.asarray(labels)
    if predictions.shape != wanted.shape or predictions.ndim != 1:
        raise ValueError(
            f"predictions {predictions.shape} and labels {wanted.shape} must be equal (N,)"
        )
    if not len(wanted):
        raise DataError("accuracy of no images: the test set of this client or split is empty")
    return float(np.mean(predictions == wanted))


def auroc(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return the chance that an OOD image scores above an ID image; ties count one half.

    Args:
        id_scores: Scores of ID images (N,).
        ood_scores: Scores of OOD images (M,).

    Returns:
        The area under the ROC curve, from 0 to 1.

    >>> auroc([0.1, 0.2, 0.3], [0.3, 0.4])
    0.9166666666666666
    """
    return _Ranks.of(id_scores, ood_scores).auroc()


def aupr_in(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return the average precision at finding ID images, the most ID-like first.

    Images with equal scores count as one step.

    Args:
        id_scores: Scores of ID images (N,).
        ood_scores: Scores of OOD images (M,).

    Returns:
        The area under the precision-recall curve, from 0 to 1.

    >>> aupr_in([0.1, 0.3], [0.2])
    0.8333333333333333
    """
    return _Ranks.of(id_scores, ood_scores).aupr_in()


def aupr_out(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return the average precision at finding OOD images, the most OOD-like first.

    Args:
        id_scores: Scores of ID images (N,).
        ood_scores: Scores of OOD images (M,).

    Returns:
        The area under the precision-recall curve, from 0 to 1.

    >>> aupr_out([0.1, 0.3], [0.2])
    0.5
    """
    return _Ranks.of(id_scores, ood_scores).aupr_out()


def threshold_at(id_scores: ArrayLike, keep: float = 0.95) -> float:
    """Return the smallest threshold that keeps at least a given share of the ID images.

    Args:
        id_scores: Scores of ID images (N,).
        keep: The share to keep, above 0 and at most 1.

    Returns:
        The threshold: an image is kept where its score is at most this.

    Raises:
        ConfigError: The share is not above 0 and at most 1.

    >>> threshold_at([0.4, 0.1, 0.3, 0.2], keep=0.75)
    0.3
    """
    inside = np.sort(checked(id_scores, "ID"))
    return float(inside[_needed(len(inside), keep) - 1])


def calibrated_threshold(scores: ArrayLike, keep: float = 0.95) -> float:
    """Return the threshold that keeps a new ID image with a given probability (split conformal).

    Args:
        scores: Scores (n,) of ID images that are not used otherwise.
        keep: The probability, above 0 and below 1.

    Returns:
        The ceil((n + 1) keep)-th smallest score; the largest where n is too small for that (below
        19 for 0.95), which keeps a new image with probability n / (n + 1).

    Raises:
        ConfigError: The probability is not between 0 and 1.

    >>> calibrated_threshold(range(1, 40)), calibrated_threshold([2.0, 1.0])
    (38.0, 2.0)
    """
    if not 0.0 < keep < 1.0:
        raise ConfigError(f"keep must lie between 0 and 1, got {keep}")
    ordered = np.sort(checked(scores, "calibration"))
    rank = ceil(round((len(ordered) + 1) * keep, 9))
    return float(ordered[min(rank, len(ordered)) - 1])


def fpr95(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return the share of OOD images accepted when at least 95% of the ID images are kept.

    This is the convention of MCM, LoCoOp and NegLabel, with ID as positive. The paper's is
    `fpr95_oodpos`.

    Args:
        id_scores: Scores of ID images (N,).
        ood_scores: Scores of OOD images (M,).

    Returns:
        A share from 0 to 1; lower is better.

    >>> fpr95(range(20), [10, 18, 19, 30])
    0.5
    """
    return _Ranks.of(id_scores, ood_scores).fpr95()


def fpr95_oodpos(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Return the share of ID images flagged when at least 95% of the OOD images are caught.

    This is the convention of OpenOOD and of the default score of the paper's code: OOD is positive.

    Args:
        id_scores: Scores of ID images (N,).
        ood_scores: Scores of OOD images (M,).

    Returns:
        A share from 0 to 1; lower is better.

    >>> fpr95_oodpos([0, 1, 2, 30], range(1, 21))
    0.5
    """
    return _Ranks.of(id_scores, ood_scores).fpr95_oodpos()


def alarm(own_scores: ArrayLike, other_scores: ArrayLike, keep: float = 0.95) -> float:
    """Return the share of other clients' ID images that a client flags as OOD.

    Args:
        own_scores: Scores of the client's own ID images (N,), which set the threshold.
        other_scores: Scores of the other clients' ID images (M,).
        keep: Share of the own images that the threshold keeps.

    Returns:
        A share from 0 to 1; lower is better.

    >>> alarm(range(20), [5, 18, 19, 20])
    0.5
    """
    own = checked(own_scores, "the client's own ID")
    other = checked(other_scores, "the other clients' ID")
    return float(np.mean(other > threshold_at(own, keep)))


def detection(id_scores: ArrayLike, ood_scores: ArrayLike, copies: int = 1) -> dict[str, float]:
    """Return all detection metrics of one ID and one OOD set.

    Scores are sorted once for all metrics, and not again where they are in order.

    Args:
        id_scores: Scores of ID images (N,).
        ood_scores: Scores of OOD images (M,).
        copies: How many times every OOD image counts, where one model's scores stand for those of
            many clients.

    Returns:
        Values by the names of the metrics.

    Raises:
        ValueError: `copies` is less than 1.

    >>> detection([0.0, 0.1], [0.9, 1.0])
    {'auroc': 1.0, 'aupr_in': 1.0, 'aupr_out': 1.0, 'fpr95': 0.0, 'fpr95_oodpos': 0.0}
    >>> detection([0.1, 0.3], [0.2], copies=2) == detection([0.1, 0.3], [0.2, 0.2])
    True
    """
    if copies < 1:
        raise ValueError(f"copies must be 1 or more, got {copies}")
    ranks = _Ranks.of(id_scores, ood_scores, copies)
    return {
        "auroc": ranks.auroc(),
        "aupr_in": ranks.aupr_in(),
        "aupr_out": ranks.aupr_out(),
        "fpr95": ranks.fpr95(),
        "fpr95_oodpos": ranks.fpr95_oodpos(),
    }


def average(values: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """Return the mean of a metric over clients.

    Args:
        values: One value per client.
        weights: One weight per client, such as its number of images; None weighs all alike.

    Returns:
        The mean.

    Raises:
        DataError: There is no value.
        ValueError: Weights do not fit the values.

    >>> average([0.5, 1.0]), average([0.5, 1.0], weights=[3, 1])
    (0.75, 0.625)
    """
    if not len(values):
        raise DataError("no client has a value for this metric")
    if weights is not None and (len(weights) != len(values) or not sum(weights) > 0):
        raise ValueError(f"{len(values)} values need as many weights with a positive sum")
    return float(np.average(np.asarray(values, dtype=np.float64), weights=weights))


@dataclass(frozen=True)
class _Ranks:
    """Both sets in ascending order; every metric is a count of images below a score."""

    inside: Floats
    outside: Floats
    copies: int = 1

    @classmethod
    def of(cls, id_scores: ArrayLike, ood_scores: ArrayLike, copies: int = 1) -> _Ranks:
        inside, outside = checked(id_scores, "ID"), checked(ood_scores, "OOD")
        return cls(_ordered(inside), _ordered(outside), copies)

    def auroc(self) -> float:
        # The shorter set is looked up in the longer; pairs are counted twice, ties once.
        few, many = self.inside, self.outside
        if len(few) <= len(many):
            above = len(many) * len(few) * 2 - _at_most(many, few) - _below(many, few)
        else:
            above = _at_most(few, many) + _below(few, many)
        return above / (2.0 * len(few) * len(many))

    def aupr_in(self) -> float:
        return _average_precision(self.inside, self.outside, 1, self.copies)

    def aupr_out(self) -> float:
        return _average_precision(-self.outside[::-1], -self.inside[::-1], self.copies, 1)

    def fpr95(self) -> float:
        threshold = self.inside[_needed(len(self.inside), 0.95) - 1]
        return float(np.searchsorted(self.outside, threshold, side="right")) / len(self.outside)

    def fpr95_oodpos(self) -> float:
        threshold = self.outside[len(self.outside) - _needed(len(self.outside), 0.95)]
        caught = np.searchsorted(self.inside, threshold, side="left")
        return float(len(self.inside) - caught) / len(self.inside)


def _at_most(ordered: Floats, values: Floats) -> int:
    """Pairs with an entry of ``ordered`` at most as large as a value."""
    return int(np.searchsorted(ordered, values, side="right").sum(dtype=np.int64))


def _below(ordered: Floats, values: Floats) -> int:
    return int(np.searchsorted(ordered, values, side="left").sum(dtype=np.int64))


def _average_precision(positive: Floats, negative: Floats, copies: int, others: int) -> float:
    """Sum over distinct positive scores, lowest first, of recall gained times precision.

    Both sets ascend; each positive counts ``copies`` times, each negative ``others`` times.
    """
    last = np.flatnonzero(np.append(positive[1:] != positive[:-1], True))
    hits = (last + 1) * copies
    missed = np.searchsorted(negative, positive[last], side="right") * others
    gained = np.diff(last, prepend=-1)
    return float((gained * (hits / (hits + missed))).sum() / len(positive))


def _ordered(values: Floats) -> Floats:
    return values if bool((values[:-1] <= values[1:]).all()) else np.sort(values)


def _needed(count: int, keep: float) -> int:
    """Smallest number of ``count`` images that is at least the share ``keep``."""
    if not 0.0 < keep <= 1.0:
        raise ConfigError(f"the share to keep must be above 0 and at most 1, got {keep}; try 0.95")
    # 0.95 * count can exceed a whole number by a rounding error.
    return max(1, ceil(keep * count - 1e-9))


def checked(scores: ArrayLike, name: str) -> Floats:
    """A vector of scores in float64, or a refusal of what is empty, not a vector or NaN.

    Args:
        scores: (N,) numbers.
        name: of which images they are, for the message.

    Returns:
        (N,) float64.

    Raises:
        ValueError: they are not a vector.
        DataError: there are none.
        MethodError: some are NaN.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"{name} scores must be a vector, got shape {values.shape}")
    if not len(values):
        raise DataError(f"there are no {name} scores: that set of images is empty")
    broken = int(np.isnan(values).sum())
    if broken:
        raise MethodError(
            f"{broken} of {len(values)} {name} scores are NaN: the model diverged (lower "
            "federation.lr), or the score itself divides by 0"
        )
    return values
