"""Texts as a classifier beside class means: the weight, against drawn images and true means."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from focoop.methods._posterior import Posterior, posterior, squares_within
from focoop.methods._sums import Totals
from focoop.methods._text_weight import LIKE_CLASSES, fisher, with_texts
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


def test_the_weight_is_fishers_for_drawn_images() -> None:
    """A discriminant of two evidences, fitted to new images of pairs of classes."""
    truth, y, u = (draw(30, 8, seed=seed) for seed in (1, 2, 3))
    y, u = truth + 0.7 * y, 0.5 * truth + u
    truth, y, u = (rows - rows.mean(dim=0) for rows in (truth, y, u))
    weight = fisher(y, u, float((truth * y).sum()), float((truth * u).sum()), truth, 1e12)
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
    assert weight == pytest.approx(LIKE_CLASSES * best[1] / best[0], rel=0.03)


def test_sums_tell_the_weight_that_true_means_do() -> None:
    """Four images of a class say how far new ones lie along their own mean, noise taken out."""
    totals, texts, truth = world(said=0.7)
    found, means, _ = moved(totals, texts)
    known = replace(totals, means=truth)  # exact means: no noise is in them
    exact = with_texts(known, found, texts, METRIC, noise=0.0).means
    parts = [(one - found.means).norm() for one in (means, exact)]
    assert float(parts[0]) > 0 and float(parts[0] / parts[1]) == pytest.approx(1.0, abs=0.15)


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
