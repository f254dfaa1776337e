"""Split conformal prediction from scores of held-out images, alone or pooled as sketches.

With n calibration scores that are exchangeable with a new one, the new score is at most the
ceil((n + 1) keep)-th smallest of them with probability `keep` or more. Below n = keep / (1 - keep)
there is no such score: 19 images for 0.95.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from focoop.errors import ConfigError

Floats = NDArray[np.float64]
EXACT = 32  # largest scores that a sketch keeps one by one
BLOCKS = 32  # stretches of equal count that stand for all others


def least_images(keep: float) -> int:
    """Return how many calibration images a guarantee needs.

    Args:
        keep: Share of ID images to keep, or coverage of class sets.

    Returns:
        The smallest n with ceil((n + 1) keep) <= n.

    Raises:
        ConfigError: The share is not between 0 and 1.

    >>> [least_images(keep) for keep in (0.9, 0.95, 0.99)]
    [9, 19, 99]
    """
    if not 0.0 < keep < 1.0:
        raise ConfigError(f"the share to keep must lie between 0 and 1, got {keep}; usual: 0.95")
    count = max(1, math.floor(keep / (1.0 - keep)) - 1)
    while _rank(count, keep) > count:
        count += 1
    return count


def _rank(count: int, keep: float) -> int:
    """ceil((n + 1) keep), undisturbed by the last bits of a decimal share."""
    return math.ceil(round((count + 1) * keep, 9))


@dataclass(frozen=True)
class Sketch:
    """Scores of calibration images, ascending, each standing for `weights` images.

    A score stands for itself and for smaller ones, so that thresholds and p-values of a sketch are
    never smaller than those of all scores: what is promised to be kept is kept.

    Attributes:
        values: (m,) scores in ascending order.
        weights: (m,) number of images that each stands for.
    """

    values: Floats
    weights: NDArray[np.int64]

    @classmethod
    def of(cls, scores: ArrayLike, *, exact: int = EXACT, blocks: int = BLOCKS) -> Sketch:
        """Make a sketch of scores: the largest one by one, the others in blocks.

        Args:
            scores: Scores (n,), finite.
            exact: How many of the largest are kept as they are.
            blocks: Into how many blocks the others are divided; each is told by its largest score.

        Returns:
            The sketch; all scores where there are no more than `exact + blocks`.

        Raises:
            ConfigError: A score is not a number.
        """
        ordered = np.sort(np.asarray(scores, dtype=np.float64).ravel())
        if not np.isfinite(ordered).all():
            raise ConfigError("calibration scores must be finite numbers")
        few = len(ordered) <= exact + blocks
        counts = [1] * len(ordered)
        if not few:
            sizes = [len(part) for part in np.array_split(ordered[: len(ordered) - exact], blocks)]
            counts = [*sizes, *[1] * exact]
        ends = np.cumsum(np.array(counts, dtype=np.int64))
        return cls(ordered[ends - 1], np.array(counts, dtype=np.int64))

    @property
    def count(self) -> int:
        """Return the number of images."""
        return int(self.weights.sum())

    def threshold(self, keep: float) -> float:
        """Return the score that a new image does not exceed with probability `keep` or more.

        Args:
            keep: The probability.

        Returns:
            The threshold; infinity where there are too few images (`least_images`).

        >>> Sketch.of(range(1, 20)).threshold(0.95), Sketch.of(range(1, 19)).threshold(0.95)
        (19.0, inf)
        """
        least_images(keep)
        rank = _rank(self.count, keep)
        if rank > self.count:
            return math.inf
        place = int(np.searchsorted(np.cumsum(self.weights), rank))
        return float(self.values[place])

    def p_values(self, scores: ArrayLike) -> Floats:
        """Return for each score the share of images that look at least as foreign.

        Args:
            scores: New scores (N,).

        Returns:
            (1 + number of calibration scores >= score) / (n + 1), shape (N,).

        >>> Sketch.of([1.0, 2.0, 3.0]).p_values([0.0, 2.0, 9.0]).tolist()
        [1.0, 0.75, 0.25]
        """
        below = np.append(0, np.cumsum(self.weights))
        place = np.searchsorted(self.values, np.asarray(scores, dtype=np.float64), side="left")
        return np.asarray((1.0 + self.count - below[place]) / (self.count + 1.0))

    def to_dict(self) -> dict[str, Any]:
        """Return the sketch as plain values."""
        return {"values": self.values.tolist(), "weights": self.weights.tolist()}

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Sketch:
        """Read what `to_dict` gave.

        Args:
            tree: The plain values.

        Returns:
            The sketch.
        """
        values = np.asarray(tree["values"], dtype=np.float64)
        weights = np.asarray(tree["weights"], dtype=np.int64)
        if values.shape != weights.shape or values.ndim != 1 or (np.diff(values) < 0).any():
            raise ValueError("a sketch must be ascending values with as many weights")
        return cls(values, weights)


def pooled(sketches: Iterable[Sketch]) -> Sketch:
    """Join the sketches of several clients: what a server makes of what sites send.

    Args:
        sketches: The sketches.

    Returns:
        One sketch of all images.

    >>> pooled([Sketch.of([3.0, 1.0]), Sketch.of([2.0])]).values.tolist()
    [1.0, 2.0, 3.0]
    """
    parts = list(sketches)
    values = np.concatenate([np.zeros(0), *[part.values for part in parts]])
    weights = np.concatenate([np.zeros(0, np.int64), *[part.weights for part in parts]])
    order = np.argsort(values, kind="stable")
    return Sketch(values[order], weights[order])
