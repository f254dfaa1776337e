"""How much text features count as a classifier of their own, beside class means.

A text feature is used twice. It predicts where the images of a class lie (`_posterior.py`), and it
is a direction along which a vision-language model was trained to tell the class from others, which
is zero-shot classification. In coordinates in which images vary by 1 within classes, a class is
answered along
    v_c = y_c + b u_c,   y_c = (mu_c - m) Sigma^(-1/2),  u_c = (t_c - t) Sigma^(1/2)
so that x v_c adds b times the zero-shot evidence h.t_c to that of the class mean. Between two
classes new images are x v_a - x v_b apart in the mean, with the variance |v_a - v_b|^2. The b of
the largest square of the one over the other, each summed over pairs of classes, is Fisher's:
    b = (yy D_u - yu D_y) / (uu D_y - yu D_u),  D_y, D_u = sum_c E[x | c] y_c, sum_c E[x | c] u_c
with yy, yu, uu the sums of products of y and u, all about their means over classes.

All of it comes from the federated sums. The class means of images stand for E[x | c]: D_u has no
error on average, and D_y none once the noise that they share with y is taken out. Texts that say
nothing of the images have D_u = yu = 0 on average, and then b = 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from focoop.threads import one_core

if TYPE_CHECKING:
    from torch import Tensor

    from focoop.methods._posterior import Posterior
    from focoop.methods._sums import Totals

# Fisher's weight serves all pairs of classes alike. Answers are lost between like classes, whose
# means say less: validation images of nine sets ask for two to three times as much.
LIKE_CLASSES = 2.0
# D_y as images tell it is a small difference of large numbers. What posterior means say of
# themselves counts beside it like this many degrees of freedom of images within classes.
DOUBT = 400.0
MOST = 100.0  # most length of the text beside that of a class mean: what is left is zero-shot
SAME = 1e-12  # squares of texts about their mean, in all squares, that are rounding errors


@dataclass(frozen=True)
class TextWeight:
    """Class means moved by what texts say as a classifier.

    Attributes:
        means: (C, D) means of which (mean - m) Sigma^(-1/2) is v_c.
        share: length of b u_c over that of y_c, over classes with images.
    """

    means: Tensor
    share: float


def with_texts(
    totals: Totals, found: Posterior, texts: Tensor, metric: Tensor, noise: float
) -> TextWeight:
    """Move posterior class means by the weight that texts deserve as a classifier.

    Classes with images have one weight. Classes known by name alone have another: the one that is
    right where all classes are predicted. A weight for each class by its number of images would
    answer some by other evidence than their rivals.

    Args:
        totals: what is known of all images.
        found: posterior class means.
        texts: (C, D) text features of the classes.
        metric: (D, D) symmetric, Sigma^(-1/2), under which images vary by 1 within classes.
        noise: square of how far a new image lies from its class under the metric.

    Returns:
        The moved means. Those given where no name has predicted a class, or all texts are the same.
    """
    centre, texts, known = totals.centre.cpu(), texts.double().cpu(), found.weights > 0
    about = texts - texts[known].mean(dim=0)
    if found.kappa <= 0 or float(about[known].square().sum()) <= SAME * float(known.sum()):
        return TextWeight(found.means, 0.0)
    with one_core():  # bits that do not depend on the machine
        directions = torch.linalg.solve(metric, about.T).T
        moves = torch.linalg.solve(metric, directions.T).T  # of a mean, for b = 1
    along = F.normalize(centre @ metric, dim=0)
    rows = ((one.cpu() - centre) @ metric for one in (totals.means, found.means, found.predicted))
    measured, y, predicted, u = (
        about_their_mean(across_plane(one, along)[known]) for one in (*rows, directions)
    )
    errors = noise * totals.errors.cpu()[known]
    along_u, freedom = inner(measured, u), totals.freedom
    factors = []
    for one, weights in ((y, found.weights[known]), (predicted, torch.zeros_like(errors))):
        told = told_by_images(measured, one, weights, errors)
        along_y = (freedom * told + DOUBT * inner(y, one)) / (freedom + DOUBT)
        factors.append(fisher(one, u, along_y, along_u))
    length = factors[0] * float(u.norm() / y.norm().clamp(min=1e-12))
    each = known.double() * factors[0] + (~known).double() * factors[1]  # (C,)
    return TextWeight(found.means + each[:, None] * moves, length)


def told_by_images(measured: Tensor, y: Tensor, weights: Tensor, errors: Tensor) -> float:
    """D_y, how far new images of a class lie along y, as class means of images tell it.

    A class mean has its noise in common with y: w times where y is made of it, less 1 / C times,
    which is in the mean of y over classes, by predictions from other classes too.

    Args:
        measured: (C, D) class means of images, about their mean.
        y: (C, D) posterior means, or what names predict, about their mean.
        weights: (C,) weights w of a class's images in its y.
        errors: (C,) squares of the noise of class means.

    Returns:
        The sum over classes.
    """
    return inner(measured, y) - float(((weights - 1.0 / len(y)) * errors).sum())


def fisher(y: Tensor, u: Tensor, along_y: float, along_u: float) -> float:
    """b, the weight of texts beside class means.

    Args:
        y: (C, D) directions of class means, about their mean.
        u: (C, D) directions of texts, about their mean; not all zero.
        along_y: D_y, how far new images lie along y.
        along_u: D_u, the same along u.

    Returns:
        `LIKE_CLASSES` times Fisher's weight, 0 where texts add nothing, `MOST` at most.
    """
    yy, yu, uu = inner(y, y), inner(y, u), inner(u, u)
    means, texts = uu * along_y - yu * along_u, yy * along_u - yu * along_y
    if texts <= 0:
        return 0.0
    most = MOST * math.sqrt(yy / uu)
    return min(LIKE_CLASSES * texts / means, most) if means > 0 else most


def inner(a: Tensor, b: Tensor) -> float:
    """Return the sum of products of two tensors of one shape."""
    return float((a * b).sum())


def across_plane(rows: Tensor, along: Tensor) -> Tensor:
    """Return rows (N, D) without their part along a unit direction (D,)."""
    return rows - (rows @ along)[:, None] * along


def about_their_mean(rows: Tensor) -> Tensor:
    """Return rows (N, D) less their mean."""
    return rows - rows.mean(dim=0)
