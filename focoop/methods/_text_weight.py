"""How much text features count as a classifier of their own, beside class means.

A text feature is used twice. It predicts where the images of a class lie (`_posterior.py`), and it
is a direction along which a vision-language model was trained to tell the class from others, which
is zero-shot classification. In coordinates in which images vary by 1 within classes, a class is
answered along
    v_c = y_c + b u_c,   y_c = (mu_c - m) Sigma^(-1/2),  u_c = (t_c - t) Sigma^(1/2)
so that x v_c adds b times the zero-shot evidence h.t_c to that of the class mean. Fisher's
discriminant of the two tells b: with D_y and D_u how far new images of a class lie along either,
summed over classes, b is the ratio of the entries of V^(-1) (D_y, D_u), V the sums of products of
y and u. All of it comes from the federated sums: a class's images say without bias how far along u
they lie, and along y once what a mean of n images has of their own noise is taken out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from focoop.threads import one_core

if TYPE_CHECKING:
    from torch import Tensor

    from focoop.methods._posterior import Posterior
    from focoop.methods._sums import Totals

# Fisher's weight serves all pairs of classes alike. Answers are lost between like classes, whose
# means say less: validation images of nine sets ask for two to three times as much.
LIKE_CLASSES = 2.0
# Degrees of freedom that count for the posterior being right, in which case texts add nothing.
DOUBT = 400.0
MOST = 100.0  # most length of the text beside that of a class mean: what is left is zero-shot


@dataclass(frozen=True)
class TextWeight:
    """Class means moved by what texts say as a classifier.

    Attributes:
        means: (C, D) means of which (mean - m) Sigma^(-1/2) is v_c.
        share: length of b u_c over that of y_c, in the mean over classes with images.
    """

    means: Tensor
    share: float


def with_texts(
    totals: Totals, found: Posterior, texts: Tensor, metric: Tensor, noise: float
) -> TextWeight:
    """Move posterior class means by the weight that texts deserve as a classifier.

    Args:
        totals: what is known of all images.
        found: posterior class means.
        texts: (C, D) text features of the classes.
        metric: (D, D) symmetric, Sigma^(-1/2), under which images vary by 1 within classes.
        noise: square of how far a new image lies from its class under the metric.

    Returns:
        The moved means. Those given where no name has predicted a class.
    """
    known, weights = found.weights > 0, found.weights
    if found.kappa <= 0:
        return TextWeight(found.means, 0.0)
    centre, texts = totals.centre.cpu(), texts.double().cpu()
    along = torch.nn.functional.normalize(centre @ metric, dim=0)
    with one_core():  # bits that do not depend on the machine
        directions = torch.linalg.solve(metric, (texts - texts[known].mean(dim=0)).T).T
        moves = torch.linalg.solve(metric, directions.T).T  # of a mean, for b = 1
    u = about_their_mean(across_plane(directions, along)[known])
    measured = about_their_mean(across_plane((totals.means.cpu() - centre) @ metric, along)[known])
    y = about_their_mean(across_plane((found.means - centre) @ metric, along)[known])
    share = weights[known][:, None]
    predicted = (y - share * measured) / (1.0 - share).clamp(min=1e-9)
    squares = float(measured.square().sum() - (noise / totals.images.cpu()[known]).sum())
    ours = {
        weight: fisher(
            weight * measured + (1.0 - weight) * predicted,
            u,
            weight * squares + (1.0 - weight) * float((measured * predicted).sum()),
            float((measured * u).sum()),
            y,
            totals.freedom,
        )
        for weight in set(weights.tolist())
    }
    factors = torch.tensor([ours[weight] for weight in weights.tolist()], dtype=torch.float64)
    lengths = float((factors[known][:, None] * u).norm() / y.norm().clamp(min=1e-12))
    return TextWeight(found.means + factors[:, None] * moves, lengths)


def fisher(
    y: Tensor, u: Tensor, along_y: float, along_u: float, truth: Tensor, freedom: float
) -> float:
    """b, the weight of texts beside class means.

    Args:
        y: (C, D) directions of class means.
        u: (C, D) directions of texts.
        along_y: how far new images of a class lie along y, summed over classes, as images tell it.
        along_u: the same along u.
        truth: (C, D) posterior class means, which tell along_y too.
        freedom: degrees of freedom of what images tell of their noise.

    Returns:
        `LIKE_CLASSES` times Fisher's weight, 0 where texts add nothing.
    """
    along_y = (freedom * along_y + DOUBT * float((truth * y).sum())) / (freedom + DOUBT)
    yy, yu, uu = (float((a * b).sum()) for a, b in ((y, y), (y, u), (u, u)))
    if uu <= 0 or yy <= 0:
        return 0.0
    means, texts = uu * along_y - yu * along_u, yy * along_u - yu * along_y
    if texts <= 0:
        return 0.0
    most = MOST * math.sqrt(yy / uu)
    return min(LIKE_CLASSES * texts / means, most) if means > 0 else most


def across_plane(rows: Tensor, along: Tensor) -> Tensor:
    """Return rows (N, D) without their part along a unit direction (D,)."""
    return rows - (rows @ along)[:, None] * along


def about_their_mean(rows: Tensor) -> Tensor:
    """Return rows (N, D) less their mean."""
    return rows - rows.mean(dim=0)
