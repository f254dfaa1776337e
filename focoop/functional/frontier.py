"""The frontier between own and other classes: the trade that a bias on own classes makes.

A client answers its own classes better and others worse the more it favours its own. Every image
changes its answer at one bias, so that sorting margins gives the whole curve exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from focoop.functional.metrics import Floats, checked

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Margins:
    """How far some images are from being answered with one of a client's own classes.

    Attributes:
        margin: (N,) best logit of another class less best logit of an own class. With a bias b on
            own classes an image is answered with an own class where b is larger.
        right: (N,) whether the image is answered rightly on its side: an image of an own class with
            the best own class, an image of another class with the best other class.
    """

    margin: ArrayLike
    right: ArrayLike

    def of_right(self, name: str) -> tuple[Floats, int]:
        """Return the margins of the right answers.

        Args:
            name: What the images are called in messages.

        Returns:
            Margins in ascending order, and the number of all images.

        Raises:
            ValueError: There are not as many margins as answers.
        """
        margin, right = checked(self.margin, name), np.asarray(self.right, dtype=bool)
        if margin.shape != right.shape:
            raise ValueError(f"{margin.shape} margins of {name} images, {right.shape} answers")
        return np.sort(margin[right]), len(margin)


CURVE = tuple(range(0, 101, 5))  # percent of other classes' images, at which a curve is told


def frontier(own: Margins, other: Margins) -> dict[str, Any]:
    """Accuracy on own classes against that on other classes, as a bias b on own classes varies.

    A soft prior with equal counts is such a bias, from b = infinity (`open_share` 0, own classes
    alone) to 0 (`open_share` 1, no prior); methods without a prior need b < 0 to speak of others.

    Args:
        own: margins of the client's own images.
        other: margins of images of classes that the client does not have.

    Returns:
        `ausuc`, the area under the curve, as in generalised zero-shot learning (Chao et al. 2016);
        `harmonic_best`, the largest harmonic mean of both accuracies, at the b that is `bias`;
        `own_only` and `other_only`, the accuracies at the two ends; `curve`, percent of others ->
        largest accuracy on own at no less than that.

    >>> found = frontier(Margins([-2.0, 1.0], [True, True]), Margins([2.0, -1.0], [True, True]))
    >>> found["ausuc"], found["harmonic_best"], found["bias"]
    (0.75, 0.6666666666666666, -1.5)
    """
    mine, count = own.of_right("own")
    theirs, others = other.of_right("other")
    ends = {"own_only": len(mine) / count, "other_only": len(theirs) / others}
    below = np.searchsorted(mine, theirs, side="left").sum(dtype=np.int64)
    ties = np.searchsorted(mine, theirs, side="right").sum(dtype=np.int64) - below
    # Just above an own image's margin that image is won; others at or below it are lost.
    won = np.append(0, np.arange(1, len(mine) + 1)) / count
    retained = np.append(len(theirs), len(theirs) - np.searchsorted(theirs, mine, "right")) / others
    means = harmonic(won, retained)
    best = int(np.argmax(means))
    least = np.array(CURVE) / 100 - 1e-9
    # `retained` falls: places with enough.
    reached = np.searchsorted(-retained, -least, side="right")
    return {
        "ausuc": float(below + 0.5 * ties) / (count * others),
        "harmonic_best": float(means[best]),
        "bias": _between(mine, theirs, best),
        **ends,
        "curve": {
            str(x): float(won[at - 1]) if at else 0.0
            for x, at in zip(CURVE, reached.tolist(), strict=True)
        },
    }


def harmonic(a: ArrayLike, b: ArrayLike) -> Any:
    """Return the harmonic mean of shares, 0 where both are 0.

    Args:
        a: shares.
        b: shares of the same shape.

    Returns:
        means of that shape.
    """
    one, other = np.asarray(a), np.asarray(b)
    both = one + other
    return 2.0 * one * other / np.where(both > 0, both, 1.0)


def _between(mine: Floats, theirs: Floats, won: int) -> float:
    """A bias that wins the first ``won`` of the own images, half way to what comes next."""
    if won == 0:
        first = [values[0] for values in (mine, theirs) if len(values)]
        return float(min(first)) - 1.0 if first else 0.0
    here = mine[won - 1]
    later = [values[values > here][:1] for values in (mine, theirs)]
    following = np.concatenate(later)
    return float(here + (following.min() - here) / 2 if len(following) else here + 1.0)
