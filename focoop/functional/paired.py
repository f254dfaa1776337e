"""Paired comparison of methods over seeds: mean difference, 95% interval and p-value."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

INTERVAL = 0.95
Key = TypeVar("Key", bound=Hashable)
_PIECES = 2000  # of Simpson's rule; its error is below 1e-12 here


@dataclass(frozen=True)
class Difference:
    """Mean of paired differences.

    Attributes:
        mean: The mean.
        half_width: Half the width of its 95% interval; None for a single pair.
        p: Two-sided p-value of Student's paired t-test; None for a single pair.
        pairs: Number of pairs.
    """

    mean: float
    half_width: float | None
    p: float | None
    pairs: int


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Compare two methods by the differences of equal seeds.

    Args:
        first: Results of one method.
        second: Results of the other, in the same order of seeds.

    Returns:
        First less second.

    Raises:
        ValueError: The numbers of results differ, or there are none.

    >>> result = difference([3.0, 4.0, 5.0], [1.0, 2.0, 2.0])
    >>> round(result.mean, 3), round(result.half_width, 3), round(result.p, 4)
    (2.333, 1.434, 0.0198)
    """
    steps = [a - b for a, b in zip(first, second, strict=True)]
    if not steps:
        raise ValueError("there is no pair to compare")
    mean = math.fsum(steps) / len(steps)
    if len(steps) == 1:
        return Difference(mean, None, None, 1)
    freedom = len(steps) - 1
    square = math.fsum((step - mean) ** 2 for step in steps) / freedom
    error = math.sqrt(square / len(steps))
    if error == 0.0:
        return Difference(mean, 0.0, 1.0 if mean == 0.0 else 0.0, len(steps))
    return Difference(mean, error * critical(freedom), two_sided(mean / error, freedom), len(steps))


def corrected(differences: Mapping[Key, Difference]) -> dict[Key, Difference]:
    """Correct p-values for their number by Holm's method.

    The chance that one of them or more is below a level, where no methods differ, is at most it.

    Args:
        differences: What is tested together; pairs without a deviation are no tests.

    Returns:
        The same differences, with larger p-values.

    >>> once, twice = Difference(1.0, 1.0, 0.02, 3), Difference(1.0, 1.0, 0.03, 3)
    >>> [found.p for found in corrected({"a": once, "b": twice}).values()]
    [0.04, 0.04]
    """
    tested = {key: found.p for key, found in differences.items() if found.half_width and found.p}
    most, corrected_p = 0.0, {}
    for place, key in enumerate(sorted(tested, key=lambda key: tested[key] or 0.0)):
        most = max(most, min(1.0, (len(tested) - place) * (tested[key] or 0.0)))
        corrected_p[key] = most
    return {key: replace(one, p=corrected_p.get(key, one.p)) for key, one in differences.items()}


def two_sided(t: float, freedom: int) -> float:
    """Return P(|T| > |t|) of Student's t distribution.

    The integral runs over the angle atan(T / sqrt(freedom)), whose density is proportional to
    cos^(freedom - 1).

    Args:
        t: The statistic.
        freedom: Degrees of freedom, at least 1.

    Returns:
        The probability.

    >>> round(two_sided(2.776445, 4), 4), round(two_sided(0.0, 4), 4)
    (0.05, 1.0)
    """
    high, power = math.atan(abs(t) / math.sqrt(freedom)), freedom - 1
    norm = math.sqrt(math.pi) / 2
    norm *= math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2))
    step = high / _PIECES
    total = math.fsum(
        (1 if i in (0, _PIECES) else 4 if i % 2 else 2) * math.cos(i * step) ** power
        for i in range(_PIECES + 1)
    )
    return max(0.0, 1.0 - total * step / 3 / norm)


@cache
def critical(freedom: int) -> float:
    """Return the t at which `two_sided` is 0.05.

    Args:
        freedom: Degrees of freedom, at least 1.

    Returns:
        The quantile, by bisection.

    >>> round(critical(4), 3)
    2.776
    """
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > 1 - INTERVAL else (low, middle)
    return low
