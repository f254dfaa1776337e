"""Class means as posteriors: what images say, with what a class's name predicts as the prior.

All of it is computed from federated sums and the classes' text features, in the eigenbasis of the
covariance within classes, where shrinkage k is a rescaling of coordinates:
    S = V diag(v) V^T, coordinates x -> x V / sqrt((1 - k) v + k mean(v)): within classes variance 1
    m_c ~ N(mu_c, I / n_c), mu_c ~ N(p_c, I / kappa), p_c predicted from the text feature
    E[mu_c | images] = w_c m_c + (1 - w_c) p_c, w_c = n_c / (n_c + kappa)
kappa comes from how far class means lie from their predictions, beyond what n_c images explain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from focoop.methods._sums import Totals
from focoop.threads import one_core

if TYPE_CHECKING:
    from torch import Tensor

# Ridges of the text map, in means of the eigenvalues of the Gram matrix.
RIDGES = tuple(10.0 ** (exponent / 8) for exponent in range(-16, 33))
LEAST_VARIANCE = 1e-6  # of class means about their predictions, within classes 1
# kappa where nobody has two images of a class, so that it cannot be estimated: about what five
# datasets have at two images (geometric mean 2.3, from training images alone).
UNKNOWN_SPREAD = 2.0


@dataclass(frozen=True)
class Basis:
    """The covariance within classes by its eigenvalues (D,) and eigenvectors (D, D), float64."""

    values: Tensor
    vectors: Tensor

    @classmethod
    def of(cls, totals: Totals) -> Basis:
        """Of the covariance that the sums give; the unit matrix where they tell no spread."""
        width = totals.means.shape[1]
        spread = (totals.scatter / max(totals.freedom, 1.0)).cpu()
        size = float(spread.diagonal().mean())
        if totals.freedom <= 0 or size <= 0:
            unit = torch.eye(width, dtype=torch.float64)
            return cls(unit[0] * 0 + 1.0, unit)
        with one_core():  # bits that do not depend on the machine
            values, vectors = torch.linalg.eigh(spread)
        return cls(values.clamp(min=0.0), vectors)

    def scales(self, shrinkage: float) -> Tensor:
        """(D,) factors of coordinates at a shrinkage k in (0, 1]."""
        drawn = (1.0 - shrinkage) * self.values + shrinkage * self.values.mean()
        return drawn.rsqrt()


@dataclass(frozen=True)
class Posterior:
    """Class means at one shrinkage, in its coordinates.

    Attributes:
        means: (C, D) posterior means, about the mean of the classes with images.
        weights: (C,) weight of the images in each; 0 for a class known by name alone.
        kappa: how many images weigh as much as the text.
        explained: share of the variance of class means that the text predicts, classes left out.
    """

    means: Tensor
    weights: Tensor
    kappa: float
    explained: float


def posterior(
    totals: Totals, texts: Tensor, basis: Basis, shrinkage: float, centre: Tensor
) -> Posterior:
    """Posterior class means.

    Args:
        totals: what is known of all images.
        texts: (C, D) text features of the classes.
        basis: of the covariance within classes.
        shrinkage: k in (0, 1].
        centre: (D,) what is taken off image features.

    Returns:
        The posterior.
    """
    known = totals.images.cpu() > 0
    scale = basis.scales(shrinkage)

    def seen(features: Tensor) -> Tensor:
        return (features.double().cpu() @ basis.vectors) * scale

    images = totals.images.cpu()
    means = seen(totals.means.cpu() - centre.cpu())
    if int(known.sum()) < 3:  # too few to learn a map from: images alone
        return Posterior(means, known.double(), 0.0, 0.0)
    texts = texts.cpu()
    words = seen(texts - texts[known].mean(dim=0))
    left_out, predicted, explained = text_map(words, means, known)
    kappa = UNKNOWN_SPREAD
    if totals.freedom > 0:
        off = (means[known] - left_out).square().mean(dim=1)
        variance = float((off - 1.0 / images[known]).mean())
        kappa = 1.0 / max(variance, LEAST_VARIANCE)
    weights = images / (images + kappa)
    prior = predicted.clone()
    prior[known] = left_out
    mixed = weights[:, None] * means + (1.0 - weights[:, None]) * prior
    return Posterior(mixed, weights, kappa, explained)


def text_map(
    words: Tensor, means: Tensor, known: Tensor, ridges: tuple[float, ...] = RIDGES
) -> tuple[Tensor, Tensor, float]:
    """Predict class means from text features, by ridge regression towards a multiple of the text.

    The prediction is a t_c + B t_c, with a of least squares (or 0, where that predicts better) and
    B by the ridge of least generalised cross-validation.

    Args:
        words: (C, D) text features about their mean over known classes.
        means: (C, D) class means about their mean.
        known: (C,) which classes have images.
        ridges: those to choose from, in means of the eigenvalues of the Gram matrix.

    Returns:
        (known, D) predictions of each known class from the others, (C, D) predictions of all
        classes from all known ones, and the share of variance that the former explain.
    """
    text, truth = words[known], means[known]
    truth = truth - truth.mean(dim=0)
    count = len(text)
    with one_core():
        values, vectors = torch.linalg.eigh(text @ text.T)
    values = values.clamp(min=0.0)
    slope = float((text * truth).sum() / text.square().sum().clamp(min=1e-12))
    factors = torch.tensor(ridges, dtype=torch.float64)
    penalties = factors * values.mean().clamp(min=1e-12)
    filters = values / (values + penalties[:, None])  # (R, known)
    freedom = (count - 1.0 - filters.sum(dim=1)).clamp(min=1e-9)  # one is the mean's
    inner = {a: vectors.T @ (truth - a * text) for a in (0.0, slope)}
    errors = {
        a: ((1.0 - filters).square() * rotated.square().sum(dim=1)).sum(dim=1) / freedom.square()
        for a, rotated in inner.items()
    }
    a = min(errors, key=lambda a: float(errors[a].min()))
    best = int(errors[a].argmin())
    fitted = vectors @ (filters[best][:, None] * inner[a])
    leverage = (vectors.square() * filters[best]).sum(dim=1) + 1.0 / count
    rest = (truth - a * text - fitted) / (1.0 - leverage).clamp(min=1e-9)[:, None]
    dual = vectors @ (inner[a] / (values + penalties[best])[:, None])  # (known, D)
    predicted = a * words + (words @ text.T) @ dual
    nothing = float((truth / (1.0 - 1.0 / count)).square().sum())
    error = float(rest.square().sum())
    return truth - rest, predicted, 1.0 - error / max(nothing, 1e-12)


def left_out_cosines(
    images: Tensor, labels: Tensor, totals: Totals, estimate: Posterior, seen: Seen
) -> Tensor:
    """Cosines of images with all classes, each as if it had not been in the sums.

    The mean of an image's class and the covariance are those without the image, by one step of
    Sherman and Morrison; the predictions from text stay.

    Args:
        images: (n, D) features; labels: (n,) of classes with two images or more.
        labels: their classes.
        totals: what is known of all images, these among them.
        estimate: the posterior at a shrinkage.
        seen: how images are seen at it.

    Returns:
        (n, C).
    """
    counts = totals.images.cpu()[labels]
    x = seen(images)
    r = x - seen(totals.means)[labels]
    beta = (1.0 - seen.shrinkage) / max(totals.freedom, 1.0) * counts / (counts - 1.0)
    # What the image adds to its class.
    own = (estimate.weights[labels] / (counts - 1.0))[:, None] * r
    rows = torch.arange(len(labels))
    rr = r.square().sum(dim=1)
    gain = (beta / (1.0 - beta * rr).clamp(min=1e-6))[:, None]
    xr = (x * r).sum(dim=1, keepdim=True)
    xm, rm = x @ estimate.means.T, r @ estimate.means.T
    mm = estimate.means.square().sum(dim=1).repeat(len(labels), 1)
    mm[rows, labels] -= 2.0 * (own * estimate.means[labels]).sum(dim=1) - own.square().sum(dim=1)
    xm[rows, labels] -= (own * x).sum(dim=1)
    rm[rows, labels] -= (own * r).sum(dim=1)
    length = x.square().sum(dim=1, keepdim=True) + gain * xr.square()
    return (xm + gain * xr * rm) / (length * (mm + gain * rm.square())).clamp(min=1e-12).sqrt()


@dataclass(frozen=True)
class Seen:
    """Image features (n, D) as coordinates at a shrinkage."""

    basis: Basis
    shrinkage: float
    centre: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """(n, D) in float64 on the CPU."""
        moved = features.double().cpu() - self.centre.double().cpu()
        return (moved @ self.basis.vectors) * self.basis.scales(self.shrinkage)
