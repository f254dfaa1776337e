"""Drift: does a stream hold more foreign images, or fewer, than calibration lets expect?

A calibrated threshold flags a known share of the images that a model was calibrated for. How many
of a window of images it flags then follows a beta-binomial law: binomial, widened by what the
calibration images leave unknown. A count outside its band says that the stream has changed. Only
counts are kept.
"""

import math
import threading
from collections import deque
from dataclasses import dataclass

WINDOW, PIECE = 1000, 50  # images looked back at, and images counted as one
FEWEST = 50  # images before anything is said
LEVEL = 0.001  # chance that a window of unchanged images lies outside the band


@dataclass(frozen=True)
class Drift:
    """What the window says.

    Attributes:
        images: images in the window.
        flagged: those taken for foreign.
        expected: the share that calibration lets expect.
        low: the smallest count inside the band.
        high: the largest count inside the band.
        state: `unknown` (no calibration), `too few`, `as calibrated`, `more foreign` or
            `fewer foreign`.
    """

    images: int
    flagged: int
    expected: float | None
    low: int
    high: int
    state: str


class DriftCounter:
    """Counts flagged images in a sliding window; several threads may count.

    Args:
        expected: The share of flagged images that calibration promises; None without calibration.
        calibrated_on: Calibration images; 0 where not known, which leaves a binomial band.
    """

    def __init__(self, expected: float | None, calibrated_on: int = 0) -> None:
        self._expected, self._calibrated_on = expected, calibrated_on
        self._pieces: deque[tuple[int, int]] = deque(maxlen=WINDOW // PIECE)
        self._open = (0, 0)  # images and flagged of the piece that is not full
        self._lock = threading.Lock()

    def count(self, flagged: bool) -> None:
        """Count one image.

        Args:
            flagged: Whether it was taken for foreign.
        """
        with self._lock:
            images, found = self._open
            self._open = (images + 1, found + flagged)
            if self._open[0] == PIECE:
                self._pieces.append(self._open)
                self._open = (0, 0)

    def look(self) -> Drift:
        """Return what the window says."""
        with self._lock:
            pieces = [*self._pieces, self._open]
        images, flagged = (sum(column) for column in zip(*pieces, strict=True))
        if self._expected is None:
            return Drift(images, flagged, None, 0, images, "unknown")
        low, high = band(images, self._expected, self._calibrated_on)
        if images < FEWEST:
            state = "too few"
        elif flagged > high:
            state = "more foreign"
        else:
            state = "fewer foreign" if flagged < low else "as calibrated"
        return Drift(images, flagged, self._expected, low, high, state)


def band(
    images: int, share: float, calibrated_on: int = 0, level: float = LEVEL
) -> tuple[int, int]:
    """Find the counts between which all but `level` of the windows lie.

    Args:
        images: Images in a window.
        share: The share that is expected to be flagged.
        calibrated_on: Calibration images that the threshold was taken from; 0: no end of them.
        level: The chance of a count outside, half of it on each side.

    Returns:
        The smallest and the largest count inside.

    >>> band(1000, 0.05)
    (29, 74)
    >>> band(1000, 0.05, 200)
    (11, 121)
    """
    below, low, high = 0.0, 0, images
    for count in range(images + 1):
        chance = math.exp(_log_chance(count, images, share, calibrated_on))
        if below <= level / 2 and below + chance > level / 2:
            low = count
        below += chance
        if below >= 1 - level / 2:
            high = count
            break
    return low, high


def _log_chance(count: int, images: int, share: float, calibrated_on: int) -> float:
    """Logarithm of the chance of a count: binomial, or beta-binomial after a finite calibration."""
    ways = _log_ways(images, count)
    if not calibrated_on:
        if share in (0.0, 1.0):
            return 0.0 if count == share * images else -math.inf
        return ways + count * math.log(share) + (images - count) * math.log1p(-share)
    # The share that a threshold truly flags: Beta(a, b) over draws of the calibration images.
    a = max(share * (calibrated_on + 1), 1e-9)
    b = max((1 - share) * (calibrated_on + 1), 1e-9)
    return ways + _log_beta(count + a, images - count + b) - _log_beta(a, b)


def _log_ways(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
