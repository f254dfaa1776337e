"""Class means as posteriors: what images say, with what a class's name predicts as the prior.

All of it is computed from federated sums and the classes' text features, in coordinates in which
images vary by 1 within classes:
    m_c ~ N(mu_c, I / n_c), mu_c ~ N(p_c, I / kappa), p_c predicted from the text feature
    E[mu_c | images] = w_c m_c + (1 - w_c) p_c, w_c = n_c / (n_c + kappa)
kappa comes from how far class means lie from their predictions, beyond what n_c images explain. A
class is predicted from the other classes alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from focoop.methods._metric import NOTHING
from focoop.methods._sums import Totals, oas
from focoop.threads import one_core

if TYPE_CHECKING:
    from torch import Tensor

# Ridges of the text map, in means of the eigenvalues of the Gram matrix.
RIDGES = tuple(10.0 ** (exponent / 8) for exponent in range(-16, 33))
LEAST_VARIANCE = 1 / 16  # of class means about predictions, within 1: a name is 16 images at most
FEWEST = 3  # classes with images from which a map is learned
LEAST_FREE = 0.7  # share of the degrees of freedom of class means that a map leaves free
# What a few classes say of the variance about predictions counts beside this many more of a usual
# variance: a name is then worth four images.
MORE_CLASSES, USUAL_VARIANCE = 5, 1 / 4
# Variance of unit features within a class where nobody can tell it, as with one image a class, and
# the share of all variance that it is at most. Five datasets have 0.45 to 0.71 (training images).
TYPICAL, MOST, DOUBT = 0.6, 0.8, 0.1  # and how far datasets lie from it
LEAST_WORTH = 0.03  # images; a noised class mean that is worth less says nothing
MOST_LEVERAGE = 0.9  # of one image on the covariance; noised sums may ask for more


def spread_within(totals: Totals) -> tuple[Tensor, float]:
    """Covariance of images within classes, and how far to shrink it.

    OAS's shrinkage rho has the least error of the covariance itself. Its inverse, by which images
    are compared, needs more: sqrt(rho), half way (in logarithms) to the plain metric, was best or
    within 0.5 of it on validation images of five datasets at 1 to 8 shots. Where
    clients of the same classes differ in how images vary, as those of different domains do, it is
    what these differences ask for.

    Args:
        totals: what is known of all images.

    Returns:
        (D, D) covariance in float64, a typical one where nobody told how images vary, and the
        shrinkage.
    """
    width = totals.means.shape[1]
    if totals.freedom > 0:
        scatter, lost = totals.scatter, 0.0
        if totals.noise is not None:
            scatter, lost = noised_scatter(totals, totals.noise)
        spread = (scatter / totals.freedom).cpu()
        if float(spread.diagonal().mean()) > NOTHING and lost < 1.0:
            rho = min(1.0, max(oas(scatter, totals.freedom), 1e-6) + lost)
            return spread, max(rho**0.5, totals.between.shrinkage if totals.between else 0.0)
    left = 1.0 - float(totals.centre.square().sum())  # variance of all images, of unit length
    size = min(TYPICAL, MOST * left) if left > 0 and totals.noise is None else TYPICAL
    return torch.eye(width, dtype=torch.float64) * size / width, 1.0


def noised_scatter(totals: Totals, noise: Tensor) -> tuple[Tensor, float]:
    """The scatter within classes as large as it may be, and how far noise asks to shrink it.

    Squares of noised means are too large by their noise, which is put back. Of the size that is
    left no more is believed than noise allows: datasets have a typical one.

    Args:
        totals: what is known of all images.
        noise: (C,) variance of the noise on each number of a class mean.

    Returns:
        (D, D) scatter, and the shrinkage, 0 to 1.
    """
    scatter, width = totals.scatter, totals.means.shape[1]
    scatter.diagonal().add_((totals.images * noise).sum())
    entries, trace = noise_of_scatter(totals, noise)
    lost = lost_to_noise(scatter, entries)
    doubt = trace / (trace + (DOUBT * totals.freedom) ** 2)
    scatter.diagonal().add_(doubt * (TYPICAL * totals.freedom - scatter.trace()) / width)
    return scatter, lost


def noise_of_scatter(totals: Totals, noise: Tensor) -> tuple[float, float]:
    """How far privacy's noise has changed the scatter within classes.

    The scatter is n M - sum_c n_c m_c m_c^T. M has noise of variance v, 2 v on its diagonal. Noise
    of variance v_c on a mean m_c leaves 2 v_c |m_c|^2 / D + v_c^2 on m_c m_c^T in the mean over
    entries.

    Args:
        totals: what is known of all images.
        noise: (C,) v_c.

    Returns:
        Its mean square on the entries, and its variance on the trace.
    """
    width = totals.means.shape[1]
    lengths = (totals.means.square().sum(dim=1) - width * noise).clamp(min=0.0)  # |m_c|^2
    images, moment = totals.images.square(), float(totals.images.sum()) ** 2 * totals.moment_noise
    entries = moment + float((images * noise * (2.0 * lengths / width + noise)).sum())
    trace = 2.0 * width * moment
    trace += float((images * noise * (4.0 * lengths + 2.0 * width * noise)).sum())
    return entries, trace


def lost_to_noise(matrix: Tensor, noise: float) -> float:
    """How far noise asks to shrink a symmetric matrix to a multiple of the unit matrix.

    Args:
        matrix: (D, D) as it came, noise and all.
        noise: mean square of the noise on its entries.

    Returns:
        The share of the noise in what the matrix differs from that multiple (Ledoit & Wolf 2004), 0
        to 1.
    """
    if noise <= 0.0:
        return 0.0
    size = matrix.diagonal().mean()
    apart = float((matrix - size * torch.eye(len(matrix)).to(matrix)).square().mean())
    return 1.0 if apart <= noise else noise / apart


def worth(totals: Totals, metric: Tensor) -> Totals:
    """Count a class mean that privacy has noised as the mean of fewer images.

    In coordinates in which images vary by 1, the mean of n images with noise of variance v on top
    is as uncertain as that of n / (1 + n v) images. A mean that is worth less than `LEAST_WORTH` of
    an image is none: the class is known by its name alone. So are all classes where most are.

    Args:
        totals: what is known of all images.
        metric: (D, D) symmetric, under which images vary by 1 within classes.

    Returns:
        The same sums with these numbers of images; those given where there is no noise.
    """
    if totals.noise is None:
        return totals
    noise = totals.noise * float(metric.square().sum()) / len(metric)
    images = totals.images / (1.0 + totals.images * noise)
    few = images < LEAST_WORTH
    if few[totals.images > 0].double().mean() > 0.5:  # of the rest no map could be learned
        few = torch.ones_like(few)
    images = torch.where(few, 0.0, images)
    share = float(images.sum() / totals.images.sum().clamp(min=1e-9))
    return replace(totals, images=images, told=share * totals.told, fewest=LEAST_WORTH)


def typical_length(totals: Totals, spread: Tensor, shrinkage: float, metric: Tensor) -> float:
    """Length of a typical new image under a metric that was made from the training images.

    New images are longer than the images the metric was made from, which it fits. Leaving an image
    out takes (1 - k) / f of its square from the covariance (k: shrinkage, f: degrees of freedom).
    With q the mean square within classes, the Sherman-Morrison formula makes of it
    q / (1 - (1 - k) q / f).

    Args:
        totals: what is known of all images.
        spread: (D, D) covariance of images within classes.
        shrinkage: k, how far it was shrunk.
        metric: (D, D) symmetric, inverse square root of the shrunk covariance.

    Returns:
        The root of the mean square of |(h - m) metric| over new images h; 1 where nobody has told
        of an image.
    """
    centre, images = totals.centre.cpu(), float(totals.images.sum())
    total = totals.moment.cpu() - centre[:, None] * centre
    square = float(((total @ metric) * metric).sum())
    if square <= 0.0:
        return 1.0
    fitted, new = squares_within(totals, spread, shrinkage, metric)
    # Means of classes were not fitted: of their noise, a share of classes in images, all is in.
    square += totals.freedom / max(images, 1.0) * (new - fitted)
    return math.sqrt(square)


def squares_within(
    totals: Totals, spread: Tensor, shrinkage: float, metric: Tensor
) -> tuple[float, float]:
    """Mean squares of images about their class: of those that made a metric, and of new ones.

    Args:
        totals: what is known of all images.
        spread: (D, D) covariance of images within classes.
        shrinkage: k, how far it was shrunk.
        metric: (D, D) symmetric, inverse square root of the shrunk covariance.

    Returns:
        q over the images, and q / (1 - (1 - k) q / f) over new ones; the same where nobody told how
        images vary.
    """
    fitted = float(((spread @ metric) * metric).sum())
    if totals.freedom <= 0:
        return fitted, fitted
    leverage = min(max((1.0 - shrinkage) * fitted / totals.freedom, 0.0), MOST_LEVERAGE)
    return fitted, fitted / (1.0 - leverage)


def noise_of_means(totals: Totals, within: float, metric: Tensor) -> float:
    """Square by which an image lies off its class for a client that nobody has heard of.

    Args:
        totals: what is known of all images.
        within: mean square of new images about their class (`squares_within`).
        metric: (D, D) symmetric, inverse square root of the covariance within classes.

    Returns:
        `within`, or more where class means of clients that hold the same classes differ by more
        than their images explain: n times the square of the error of a mean of n images.
    """
    between = totals.between
    if between is None:
        return within
    told = float(((between.noise @ metric) * metric).sum())
    return max(within, between.alike * told + (1.0 - between.alike) * within)


@dataclass(frozen=True)
class Posterior:
    """Class means.

    Attributes:
        means: (C, D) posterior means of features; zero for a class without images and prediction.
        predicted: (C, D) what names predict of each class, a class with images left out; its means
            where there is no map.
        weights: (C,) weight of the images in each; 0 for a class known by name alone.
        kappa: how many images weigh as much as the name.
        explained: share of the variance of class means that names predict, classes left out.
        fit: correlation of predictions with true class means, 0 to 1; 0 where there is no map.
    """

    means: Tensor
    predicted: Tensor
    weights: Tensor
    kappa: float
    explained: float
    fit: float = 0.0


def posterior(totals: Totals, texts: Tensor, metric: Tensor) -> Posterior:
    """Posterior class means.

    Args:
        totals: what is known of all images.
        texts: (C, D) text features of the classes.
        metric: (D, D) symmetric, under which images vary by 1 within classes.

    Returns:
        The posterior.
    """
    images, means, centre = totals.images.cpu(), totals.means.cpu(), totals.centre.cpu()
    known, texts = images > 0, texts.double().cpu()
    if not known.any():  # before the first round: zero-shot
        return Posterior(texts, texts, known.double(), 0.0, 0.0)
    if int(known.sum()) < FEWEST:  # too few to learn a map from: images alone
        means = means * known[:, None]
        return Posterior(means, means, known.double(), 0.0, 0.0)
    seen = (means - centre) @ metric
    words = (texts - texts[known].mean(dim=0)) @ metric
    left_out, predicted, explained = text_map(words, seen, known)
    count = float(known.sum())
    off = (seen[known] - left_out).square().mean(dim=1)
    noise = totals.errors.cpu()[known]
    measured = float((off - noise).sum()) + MORE_CLASSES * USUAL_VARIANCE
    variance = max(measured / (count + MORE_CLASSES), LEAST_VARIANCE)
    kappa = 1.0 / variance
    apart = float(seen[known].var(dim=0).mean() - noise.mean())  # what class means vary by
    fit = max(0.0, 1.0 - variance / apart) ** 0.5 if apart > 0 else 0.0
    weights = images / (images + kappa)
    predicted[known] = left_out
    with one_core():  # bits that do not depend on the machine
        prior = centre + torch.linalg.solve(metric, predicted.T).T
    mixed = weights[:, None] * means + (1.0 - weights[:, None]) * prior
    return Posterior(mixed, prior, weights, kappa, explained, fit)


def text_map(
    words: Tensor, means: Tensor, known: Tensor, ridges: tuple[float, ...] = RIDGES
) -> tuple[Tensor, Tensor, float]:
    """Predict class means from text features, by ridge regression towards a multiple of the text.

    The prediction is b + a t_c + B t_c, with b the mean of the known class means, a of least
    squares (or 0, where that predicts better) and B by the ridge of least generalised
    cross-validation, among those that leave `LEAST_FREE` of the freedom: of few classes it would
    often choose a ridge that fits their noise.

    Args:
        words: (C, D) text features about their mean over known classes.
        means: (C, D) class means.
        known: (C,) which classes have images.
        ridges: those to choose from, in means of the eigenvalues of the Gram matrix.

    Returns:
        (known, D) predictions of each known class by b and B of the other known classes, (C, D)
        predictions of all classes from all known ones, and the share of the squares about the mean
        of the others that the former explain.
    """
    text, middle = words[known], means[known].mean(dim=0)
    truth = means[known] - middle
    count = len(text)
    with one_core():
        values, vectors = torch.linalg.eigh(text @ text.T)
    values = values.clamp(min=0.0)
    slope = float((text * truth).sum() / text.square().sum().clamp(min=1e-12))
    factors = torch.tensor(ridges, dtype=torch.float64)
    penalties = factors * values.mean().clamp(min=1e-12)
    filters = values / (values + penalties[:, None])  # (R, known)
    freedom = (count - 1.0 - filters.sum(dim=1)).clamp(min=1e-9)  # one is the mean's
    tight = freedom < LEAST_FREE * (count - 1.0)
    tight[freedom.argmax()] = False  # the largest ridge is always one to choose
    inner = {a: vectors.T @ (truth - a * text) for a in (0.0, slope)}
    errors = {
        a: ((1.0 - filters).square() * rotated.square().sum(dim=1)).sum(dim=1) / freedom.square()
        for a, rotated in inner.items()
    }
    errors = {a: error.masked_fill(tight, math.inf) for a, error in errors.items()}
    a = min(errors, key=lambda a: float(errors[a].min()))
    best = int(errors[a].argmin())
    fitted = vectors @ (filters[best][:, None] * inner[a])
    leverage = 1.0 / count + (vectors.square() * filters[best]).sum(dim=1)  # on b, and on B
    rest = (truth - a * text - fitted) / (1.0 - leverage).clamp(min=1e-9)[:, None]
    dual = vectors @ (inner[a] / (values + penalties[best])[:, None])  # (known, D)
    predicted = middle + a * words + (words @ text.T) @ dual
    others = truth.square().sum() * (count / (count - 1.0)) ** 2  # about the others' mean
    explained = 1.0 - float(rest.square().sum() / others.clamp(min=1e-12))
    return middle + truth - rest, predicted, explained
