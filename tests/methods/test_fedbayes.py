"""FedBayes: posteriors, predictions from names and images left out, against slow references."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from focoop.federation.rounds import aggregate
from focoop.federation.updates.secure_sum import summed
from focoop.methods._posterior import Basis, Seen, left_out_cosines, posterior, text_map
from focoop.methods._sums import Totals, oas
from focoop.methods.base import Batch, Server, Task
from focoop.methods.fedbayes import SCALES, SHRINKAGES, UNIT, FedBayes
from focoop.methods.fedlda import FedLDA
from focoop.seeds import torch_generator
from tests.methods.contract_toy import DIM, make_task
from tests.methods.test_closed_form import CLIENTS, C, images_of, made, one_round, sent, totals_of


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch_generator(seed, "fedbayes"), dtype=torch.float64)


def rounds(method: FedBayes, count: int, secure: bool = False) -> tuple[Server, Task]:
    task = make_task(method, dtype=torch.float64)
    server = Server(method.init(task, torch_generator(0)).shared)
    for _ in range(count):
        updates = sent(method, task, server.shared, CLIENTS)
        server = aggregate(method, server, updates, task, summed if secure else None)
    return server, task


def test_without_names_and_choice_it_is_fedlda() -> None:
    method = made(FedBayes, names=False, choose=False)
    server, task = rounds(method, 2)
    other, _ = one_round(made(FedLDA), CLIENTS)
    assert server.report["shrinkage"] == pytest.approx(other.report["shrinkage"])
    counts = torch.tensor([3, 0, 1, 0])
    tested = images_of([0, 1, 2, 3] * 5, 9).pooled
    found = [
        one.logits(one.encode({**state.shared, "counts": counts}, task), tested, None).id
        for one, state in ((method, server), (made(FedLDA), other))
    ]
    torch.testing.assert_close(found[0], found[1], atol=1e-7, rtol=0)


@pytest.mark.parametrize("related", [True, False])
def test_predictions_from_names_leave_the_class_out(related: bool) -> None:
    """Against a regression with intercept that is fitted anew without each class."""
    words, count = draw(12, 5), 10
    means = (2.0 * words if related else 0.0) + 0.5 * draw(12, 5, seed=1)
    known = torch.arange(12) < count
    words = words - words[known].mean(dim=0)
    left_out, predicted, explained = text_map(words, means, known, ridges=(0.7,))
    text, truth = words[known].numpy(), means[known].numpy()
    truth = truth - truth.mean(axis=0)
    ridge = 0.7 * float(np.linalg.eigvalsh(text @ text.T).mean())
    slope = (text * truth).sum() / (text**2).sum()
    fits = {}
    for a in (0.0, slope):
        rows = []
        for c in range(count):
            rest = np.arange(count) != c
            x, y = text[rest], (truth - a * text)[rest]
            off, base = x.mean(axis=0), y.mean(axis=0)
            b = np.linalg.solve(
                (x - off).T @ (x - off) + ridge * np.eye(5), (x - off).T @ (y - base)
            )
            rows.append(a * text[c] + (text[c] - off) @ b + base)
        fits[a] = np.array(rows)
    chosen = slope if related else min(fits, key=lambda a: ((truth - fits[a]) ** 2).sum())
    np.testing.assert_allclose(left_out, fits[chosen], atol=1e-9)
    error = ((truth - fits[chosen]) ** 2).sum()
    nothing = sum(((truth[c] - np.delete(truth, c, 0).mean(axis=0)) ** 2).sum() for c in range(10))
    assert explained == pytest.approx(1 - error / nothing)
    assert (explained > 0.5) == related
    b = np.linalg.solve(text.T @ text + ridge * np.eye(5), text.T @ (truth - chosen * text))
    np.testing.assert_allclose(predicted, chosen * words.numpy() + words.numpy() @ b, atol=1e-9)


def world(
    kappa: float, images: int, classes: int = 300, related: float = 1.0
) -> tuple[Totals, Tensor]:
    """Sums of images of a world in which the model is true, with unit covariance within classes."""
    texts = related * draw(classes, DIM, seed=2)
    truth = (
        texts @ (torch.eye(DIM) + 0.2 * draw(DIM, DIM, seed=3))
        + draw(classes, DIM, seed=4) / kappa**0.5
    )
    noise = draw(classes, images, DIM, seed=5)
    features = truth[:, None] + noise
    means = features.mean(dim=1)
    flat = features.flatten(0, 1)
    counts = torch.full((classes,), float(images), dtype=torch.float64)
    return Totals(means, counts, flat.T @ flat / len(flat), len(flat)), texts


@pytest.mark.parametrize("kappa", [0.5, 3.0])
def test_the_weight_of_names_is_estimated(kappa: float) -> None:
    totals, texts = world(kappa, images=4)
    basis = Basis.of(totals)
    found = posterior(totals, texts, basis, 1e-9, totals.centre)
    assert found.kappa == pytest.approx(kappa, rel=0.2)
    assert found.weights.tolist() == pytest.approx([4 / (4 + found.kappa)] * 300)


def test_names_that_say_nothing_change_no_direction() -> None:
    """Texts unrelated to images: all means shrink alike, and cosines stay as they are."""
    totals, _ = world(1.0, images=4)
    found = posterior(totals, draw(300, DIM, seed=9), Basis.of(totals), 0.3, totals.centre)
    seen = Seen(Basis.of(totals), 0.3, totals.centre)(totals.means)
    cosines = torch.nn.functional.cosine_similarity(found.means, seen)
    assert float(cosines.min()) > 0.99 and found.explained < 0.05


def test_one_image_a_class_and_few_classes_are_no_special_case() -> None:
    totals, texts = world(1.0, images=1)
    totals = replace(totals, told=300.0)  # images less classes: nothing is known of the spread
    found = posterior(totals, texts, Basis.of(totals), 1.0, totals.centre)
    assert found.kappa == 2.0 and found.weights.tolist() == pytest.approx([1 / 3] * 300)
    few = replace(totals, images=totals.images * (torch.arange(300) < 2))
    found = posterior(few, texts, Basis.of(few), 1.0, few.centre)
    assert found.weights.sum() == 2 and torch.isfinite(found.means).all()


@pytest.mark.parametrize("shrinkage", [0.2, 0.9])
def test_images_left_out_are_as_if_they_had_not_been_there(shrinkage: float) -> None:
    totals = totals_of(made(FedLDA), CLIENTS)
    basis, texts = Basis.of(totals), draw(C, DIM, seed=7)
    found = posterior(totals, texts, basis, shrinkage, totals.centre)
    seen = Seen(basis, shrinkage, totals.centre)
    batch = CLIENTS[1]
    cosines = left_out_cosines(batch.pooled, batch.labels, totals, found, seen)
    spread = totals.scatter.numpy() / totals.freedom
    size, scale = np.trace(spread) / DIM, (basis.vectors / basis.scales(shrinkage)).numpy()
    means = found.means.numpy() @ scale.T  # back to features about the centre
    for i, label in enumerate(batch.labels.tolist()):
        n, image = float(totals.images[label]), batch.pooled[i].numpy()
        off = image - totals.means[label].numpy()
        rest = spread - n / (n - 1) * np.outer(off, off) / totals.freedom
        inverse = np.linalg.inv((1 - shrinkage) * rest + shrinkage * size * np.eye(DIM))
        moved = means.copy()
        moved[label] -= float(found.weights[label]) * off / (n - 1)
        x = image - totals.centre.numpy()
        for c in range(C):
            expected = x @ inverse @ moved[c]
            expected /= np.sqrt((x @ inverse @ x) * (moved[c] @ inverse @ moved[c]))
            assert float(cosines[i, c]) == pytest.approx(expected, abs=1e-8)


def test_the_second_round_takes_the_shrinkage_of_least_loss() -> None:
    method = made(FedBayes)
    first, task = rounds(method, 1)
    assert first.report["shrinkage"] == pytest.approx(
        oas(totals_of(method, CLIENTS).scatter, totals_of(method, CLIENTS).freedom)
    )
    assert not first.shared["losses"].any()
    second, _ = rounds(method, 2)
    pooled = Batch(
        torch.cat([one.pooled for one in CLIENTS]), None, torch.cat([one.labels for one in CLIENTS])
    )
    losses = method.losses(totals_of(method, CLIENTS), pooled, task)
    assert losses.shape == (1 + len(SHRINKAGES), len(SCALES))
    torch.testing.assert_close(second.shared["losses"] / UNIT, losses)
    best = int(losses.amin(dim=1).argmin())
    tried = (first.report["shrinkage"], *SHRINKAGES)
    assert second.report["shrinkage"] == tried[best]
    secure, _ = rounds(method, 2, secure=True)
    sums = secure.shared["losses"] / UNIT  # in 24 bits after the point
    torch.testing.assert_close(sums, losses, atol=1e-3, rtol=0)
    chosen = min(range(len(tried)), key=lambda i: abs(tried[i] - secure.report["shrinkage"]))
    assert float(losses[chosen].min()) == pytest.approx(float(losses.min()), abs=1e-3)
    assert rounds(made(FedBayes, choose=False), 2)[0].report["shrinkage"] == tried[0]


def test_a_class_known_by_name_alone_is_answered() -> None:
    """Names predict means in this world: images of classes that nobody has are found by them."""
    totals, texts = world(4.0, images=6, classes=60)
    hidden = torch.arange(60) >= 50
    sums = Totals(totals.means * ~hidden[:, None], totals.images * ~hidden, totals.moment, 50 * 6.0)
    # The moment of the classes that are told: unit covariance and their means.
    moment = (sums.means.T @ sums.means + 50 * torch.eye(DIM) * 5 / 6) / 50
    sums = replace(sums, moment=moment)
    found = posterior(sums, texts, Basis.of(sums), 0.1, sums.centre)
    assert not found.weights[hidden].any() and bool((found.weights[~hidden] > 0).all())
    seen = Seen(Basis.of(sums), 0.1, sums.centre)(totals.means[hidden])
    cosines = torch.nn.functional.normalize(seen) @ torch.nn.functional.normalize(found.means).T
    right = cosines.argmax(dim=1) == torch.arange(50, 60)
    assert float(right.double().mean()) >= 0.7


def test_the_score_is_that_of_plain_cosines_or_of_the_metric() -> None:
    server, task = rounds(made(FedBayes), 2)
    counts, tested = torch.tensor([3, 1, 0, 0]), images_of([0, 1, 2, 3], 9).pooled
    features = torch.cat([one.pooled for one in CLIENTS])
    labels = torch.cat([one.labels for one in CLIENTS])
    prior = torch.tensor([0.7 * n / 4 + 0.3 / 4 for n in (3, 1, 0, 0)], dtype=torch.float64)
    prior = prior / prior.max()
    for plain in (True, False):
        method = made(FedBayes, plain_score=plain)
        text = method.encode({**server.shared, "counts": counts}, task)
        logits = method.logits(text, tested, None)
        score = method.score(logits, task)
        for i, image in enumerate(tested):
            mass = 0.0
            for c in range(C):
                mean = features[labels == c].mean(dim=0)
                cosine = image @ mean / mean.norm()
                term = prior[c] * torch.exp(20 * cosine)
                mass += float(term if plain else torch.exp(20 * logits.id[i, c]))
            assert float(score[i]) == pytest.approx(-np.log(mass), abs=1e-6)


def test_losses_are_of_told_images_alone() -> None:
    """A client's images of a class with too few of them are in no loss that it sends."""
    method = made(FedBayes, least_images=5)
    server, task = rounds(method, 1)
    batch = CLIENTS[1]  # three images of class 0
    other = replace(batch, pooled=torch.where((batch.labels == 0)[:, None], 0.25, batch.pooled))
    sums = [method.measure(server.shared, one, task)["losses"] for one in (batch, other)]
    assert torch.equal(sums[0], sums[1]) and bool((sums[0] > 0).all())
