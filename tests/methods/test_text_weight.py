"""Texts as a classifier beside class means: the weight, against drawn images and true means."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from focoop.methods._posterior import Posterior, posterior, squares_within
from focoop.methods._sums import Totals
from focoop.methods._text_weight import (
    DOUBT,
    LIKE_CLASSES,
    MOST,
    fisher,
    told_by_images,
    with_texts,
)
from focoop.methods.focoop_plus import FOCoOpPlus
from tests.methods.closed_form_toy import CLIENTS, made, one_round, task_for, totals_of
from tests.methods.test_focoop_plus import draw

WIDTH = 96
SCALES = torch.logspace(-0.5, 0.5, WIDTH, dtype=torch.float64)  # of images within classes
METRIC = torch.diag(1 / SCALES)
CLASSES, EACH = 120, 4


def world(said: float, seed: int = 0) -> tuple[Totals, Tensor, Tensor]:
    """Sums, texts and true means of a world in which texts are weights of a noisy classifier.

    `said` is how much a text has of the best weights of its class, Sigma^(-1) mu_c; the rest is
    noise. There are fewer classes than a map from texts to means has
    directions, so that it learns a part of it only.
    """
    truth = 0.5 * draw(CLASSES, WIDTH, seed=seed) * SCALES
    texts = said * truth / SCALES.square() + 0.5 * draw(CLASSES, WIDTH, seed=seed + 1) / SCALES
    images = truth[:, None] + draw(CLASSES, EACH, WIDTH, seed=seed + 2) * SCALES
    rows, counts = images.flatten(0, 1), torch.full((CLASSES,), float(EACH), dtype=torch.float64)
    totals = Totals(images.mean(dim=1), counts, rows.T @ rows / len(rows), float(len(rows)))
    return totals, texts, truth


def moved(totals: Totals, texts: Tensor) -> tuple[Posterior, Tensor, float]:
    """The posterior, the moved means, and the length of the texts' part."""
    found = posterior(totals, texts, METRIC)
    made_of = with_texts(totals, found, texts, METRIC, noise=float(WIDTH))
    return found, made_of.means, made_of.share


def right(means: Tensor, totals: Totals, truth: Tensor) -> float:
    """Share of new images that are answered rightly by cosines under the metric."""
    new = truth[:, None] + draw(len(truth), 40, WIDTH, seed=99) * SCALES
    seen = (new.flatten(0, 1) - totals.centre) @ METRIC
    answers = seen @ torch.nn.functional.normalize((means - totals.centre) @ METRIC).T
    labels = torch.arange(len(truth)).repeat_interleave(40)
    return float((answers.argmax(dim=1) == labels).double().mean())


def toy_evidence() -> tuple[Tensor, Tensor, Tensor]:
    """True means of 30 classes, noisy ones, and texts that have half of the truth."""
    truth, y, u = (draw(30, 8, seed=seed) for seed in (1, 2, 3))
    rows = (truth, truth + 0.7 * y, 0.5 * truth + u)
    truth, y, u = (one - one.mean(dim=0) for one in rows)
    return truth, y, u


def fishers(truth: Tensor, y: Tensor, u: Tensor) -> float:
    """The method's weight, less what it adds for like classes."""
    along_y, along_u = (float((truth * one).sum()) for one in (y, u))
    return fisher(y, u, along_y, along_u) / LIKE_CLASSES


def test_the_weight_is_fishers_for_drawn_images() -> None:
    """A discriminant of two evidences, fitted to new images of pairs of classes."""
    truth, y, u = toy_evidence()
    generator, differences, products = np.random.default_rng(0), [], []
    for a in range(30):
        for b in range(30):
            if a == b:
                continue
            evidence = np.stack([(y[a] - y[b]).numpy(), (u[a] - u[b]).numpy()])
            ours, theirs = (
                (truth[c].numpy() + generator.standard_normal((400, 8))) @ evidence.T
                for c in (a, b)
            )
            differences.append(ours.mean(axis=0) - theirs.mean(axis=0))
            products.append(np.cov(ours.T))
    best = np.linalg.solve(np.mean(products, axis=0), np.mean(differences, axis=0))
    assert fishers(truth, y, u) == pytest.approx(best[1] / best[0], rel=0.03)


def test_fishers_weight_answers_most_new_images() -> None:
    """Gaussian classes alike to each other: no other weight on a grid answers clearly more."""
    truth, y, u = toy_evidence()
    new = (0.6 * truth[:, None] + draw(30, 2000, 8, seed=9)).flatten(0, 1)
    labels = torch.arange(30).repeat_interleave(2000)
    right = {}
    for times in (0.0, 0.3, 1.0, 3.0, 10.0):
        rows = torch.nn.functional.normalize(y + times * fishers(truth, y, u) * u)
        right[times] = float(((new @ rows.T).argmax(dim=1) == labels).double().mean())
    assert right[1.0] == max(right.values())
    assert right[1.0] > right[0.0] + 0.01 and right[1.0] > right[10.0] + 0.01


@pytest.mark.parametrize("count", [5, 30])
@pytest.mark.parametrize("weight", [0.0, 0.6])
def test_how_far_new_images_lie_along_means_is_told_without_bias(count: int, weight: float) -> None:
    """Few classes too, whose mean has much of the noise of each; predictions from the others."""
    errors, each = [], 3
    for seed in range(300):
        truth, texts = 0.7 * draw(count, 24, seed=seed), draw(count, 24, seed=1000 + seed)
        measured = truth + draw(count, 24, seed=2000 + seed) / each**0.5
        others = (measured.sum(dim=0) - measured) / (count - 1)
        predicted = others + 0.2 * texts
        y = weight * measured + (1.0 - weight) * predicted
        expected = float(((truth - truth.mean(dim=0)) * (y - y.mean(dim=0))).sum())
        rows = (one - one.mean(dim=0) for one in (measured, y))
        weights, noise = torch.full((count,), weight), torch.full((count,), 24 / each)
        errors.append(told_by_images(*rows, weights, noise) - expected)
    assert abs(np.mean(errors)) < 4 * np.std(errors) / len(errors) ** 0.5
    assert np.std(errors) / len(errors) ** 0.5 < 24 / each / 8  # a class's noise would be seen


def written_out(totals: Totals, found: Posterior, texts: Tensor, noise: float) -> list[float]:
    """b of classes with images and of others, by sums over pairs, from the module's definitions."""
    metric, known = METRIC.numpy(), (found.weights > 0).numpy()
    centre, rows = totals.centre.numpy(), []
    unit = centre @ metric / np.linalg.norm(centre @ metric)
    off = texts.numpy() - texts.numpy()[known].mean(axis=0)
    sides = [(one.numpy() - centre) @ metric for one in (totals.means, found.means)]
    sides += [(found.predicted.numpy() - centre) @ metric, off @ np.linalg.inv(metric)]
    for one in sides:
        rows.append((one - np.outer(one @ unit, unit))[known])
    m, y, predicted, u = rows

    def pairs(a: np.ndarray, b: np.ndarray) -> float:
        total = 0.0
        for i in range(len(a)):
            total += float(((a[i] - a) * (b[i] - b)).sum())
        return total / (2 * len(a))

    factors, f = [], totals.freedom
    images, weights = (one.numpy()[known] for one in (totals.images, found.weights))
    for one, shares in ((y, weights), (predicted, 0 * weights)):
        told = pairs(m, one)
        for n, w in zip(images, shares, strict=True):
            told -= (w - 1 / len(m)) * noise / n
        along = (f * told + DOUBT * pairs(y, one)) / (f + DOUBT)
        v = np.array([[pairs(one, one), pairs(one, u)], [pairs(one, u), pairs(u, u)]])
        best = np.linalg.solve(v, [along, pairs(m, u)])
        most = MOST * np.sqrt(v[0, 0] / v[1, 1])  # texts alone, where means speak against it
        factors.append(LIKE_CLASSES * best[1] / best[0] if best[0] > 0 else most)
        assert best[1] > 0
    return factors


def test_weights_of_classes_with_unlike_numbers_of_images_are_as_written_out() -> None:
    totals, texts, _ = world(said=0.7)
    images = (4.0 + torch.arange(CLASSES).double() % 5) * (torch.arange(CLASSES) > 9)
    totals = replace(totals, images=images, told=float(images.sum()))
    found, means, _ = moved(totals, texts)
    inverse = torch.linalg.inv(METRIC)
    full = (texts - texts[10:].mean(dim=0)) @ inverse @ inverse
    factors = ((means - found.means) * full).sum(dim=1) / full.square().sum(dim=1)
    known, new = written_out(totals, found, texts, noise=float(WIDTH))
    assert new > 10 * known > 0
    expected = torch.where(images > 0, known, new)
    np.testing.assert_allclose(factors.numpy(), expected.numpy(), rtol=1e-6)


def test_one_text_for_all_classes_moves_nothing() -> None:
    """Equal up to rounding: what is left of them about their mean is no direction."""
    totals, texts, _ = world(said=1.0)
    found = posterior(totals, texts, METRIC)
    one = torch.nn.functional.normalize(texts[:1], dim=1)
    for seed in range(8):
        same = one + 1e-9 * draw(CLASSES, WIDTH, seed=seed)
        weight = with_texts(totals, found, same, METRIC, noise=float(WIDTH))
        assert torch.equal(weight.means, found.means) and weight.share == 0.0


def test_a_count_that_privacy_has_changed_moves_no_other_class() -> None:
    """A class of a thousandth of an image has no more noise than one image has."""
    totals, texts, _ = world(said=0.7)
    found, means, _ = moved(totals, texts)
    images = totals.images.clone()
    images[0] = 1e-3
    later = with_texts(replace(totals, images=images), found, texts, METRIC, noise=float(WIDTH))
    before, now = ((one - found.means)[1:].norm() for one in (means, later.means))
    assert float(now / before) == pytest.approx(1.0, abs=0.1)


def test_sums_tell_the_weight_that_true_means_do() -> None:
    """Four images of a class say how far new ones lie along their own mean, noise taken out."""
    totals, texts, truth = world(said=0.7)
    found, means, _ = moved(totals, texts)
    inverse = torch.linalg.inv(METRIC)
    off = texts - texts.mean(dim=0)
    b = ((means - found.means) @ METRIC).norm() / (off @ inverse).norm()
    along = torch.nn.functional.normalize(totals.centre @ METRIC, dim=0)
    seen = ((found.means - totals.centre) @ METRIC, off @ inverse, truth @ METRIC)
    rows = (one - (one @ along)[:, None] * along for one in seen)
    y, u, t = (one - one.mean(dim=0) for one in rows)
    yy, ty, tu = (float((p * q).sum()) for p, q in ((y, y), (t, y), (t, u)))
    told = (totals.freedom * ty + DOUBT * yy) / (totals.freedom + DOUBT)
    exact = fisher(y, u, told, tu)
    assert float(b) > 0 and float(b / exact) == pytest.approx(1.0, abs=0.15)


def test_texts_that_classify_add_right_answers() -> None:
    totals, texts, truth = world(said=1.0)
    found, means, share = moved(totals, texts)
    assert share > 0.1
    assert right(means, totals, truth) > right(found.means, totals, truth) + 0.02


@pytest.mark.parametrize("seed", [0, 10, 20])
def test_texts_that_say_nothing_take_no_right_answers(seed: int) -> None:
    totals, texts, truth = world(said=0.0, seed=seed)
    found, means, share = moved(totals, texts)
    assert share < 0.1
    assert right(means, totals, truth) > right(found.means, totals, truth) - 0.003


def test_many_images_need_no_texts() -> None:
    totals, texts, truth = world(said=0.7)
    _, _, share = moved(totals, texts)
    many = replace(totals, means=truth, images=totals.images * 250, told=totals.told * 250)
    assert moved(many, texts)[2] < share / 4


def test_a_class_known_by_name_alone_leans_on_its_text_the_most() -> None:
    totals, texts, truth = world(said=1.0)
    hidden = torch.arange(CLASSES) < 30
    sums = replace(totals, means=totals.means * ~hidden[:, None], images=totals.images * ~hidden)
    found, means, _ = moved(sums, texts)
    texts_part = (means - found.means).norm(dim=1) / (texts - texts.mean(dim=0)).norm(dim=1)
    assert float(texts_part[hidden].min()) > 2 * float(texts_part[~hidden].max())
    own = replace(sums, images=totals.images)  # for the centre alone
    assert right(means, own, truth) > right(found.means, own, truth) + 0.02


def test_without_a_map_nothing_is_moved() -> None:
    totals, texts, _ = world(said=1.0)
    for images in (0.0, torch.arange(CLASSES) < 2):  # before the first round, and two classes
        sums = replace(totals, images=totals.images * images)
        found, means, share = moved(sums, texts)
        assert torch.equal(means, found.means) and share == 0.0


def test_the_server_sends_answers_beside_class_means() -> None:
    """`answers` are the moved means; without names both are the images' own."""
    method = made(FOCoOpPlus)
    server, task = one_round(method, CLIENTS)
    metric = server.shared["metric"]
    totals = totals_of(method, CLIENTS)
    assert server.report["text"] >= 0.0
    assert server.shared["answers"].shape == server.shared["classes"].shape
    within = squares_within(totals, torch.linalg.inv(metric @ metric), 1.0, metric)
    assert within[0] == pytest.approx(metric.shape[0])
    plain, _ = one_round(made(FOCoOpPlus, names=False), CLIENTS)
    torch.testing.assert_close(plain.shared["answers"], plain.shared["classes"])
    start = method.init(task_for(method), torch.Generator()).shared
    torch.testing.assert_close(start["answers"], start["classes"])
    assert task.anchors.shape == start["answers"].shape
