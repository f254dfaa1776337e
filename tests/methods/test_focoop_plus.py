"""FOCoOp+: posteriors, predictions from names, answers and scores, against slow references."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from focoop.errors import ConfigError
from focoop.methods._metric import whitening
from focoop.methods._posterior import (
    MOST,
    TYPICAL,
    noise_of_means,
    posterior,
    spread_within,
    squares_within,
    text_map,
    typical_length,
)
from focoop.methods._sums import Totals, oas
from focoop.methods._text_weight import with_texts
from focoop.methods.base import ClientUpdate, Logits, Server
from focoop.methods.focoop_plus import BACKGROUND, SURPRISE, FOCoOpPlus
from focoop.seeds import torch_generator
from tests.methods.closed_form_toy import (
    CLIENTS,
    C,
    images_of,
    made,
    one_round,
    pooled,
    sent,
    task_for,
    totals_of,
    within,
)
from tests.methods.contract_toy import DIM

UNIT = torch.eye(DIM, dtype=torch.float64)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch_generator(seed, "plus"), dtype=torch.float64)


@pytest.mark.parametrize("related", [True, False])
def test_predictions_from_names_leave_the_class_out(related: bool) -> None:
    """Against a regression with a constant that is fitted anew without each class."""
    words, count = draw(12, 5), 10
    means = 0.3 + (2.0 * words if related else 0.0) + 0.5 * draw(12, 5, seed=1)
    known = torch.arange(12) < count
    words = words - words[known].mean(dim=0)
    left_out, predicted, explained = text_map(words, means, known, ridges=(0.7,))
    text, truth = words[known].numpy(), means[known].numpy()
    middle = truth.mean(axis=0)
    ridge = 0.7 * float(np.linalg.eigvalsh(text @ text.T).mean())
    slope = (text * (truth - middle)).sum() / (text**2).sum()
    fits, alone = {}, (truth.sum(axis=0) - truth) / (count - 1)
    for a in (0.0, slope):
        rows = []
        for c in range(count):
            rest = np.arange(count) != c
            x, y = text[rest], (truth - a * text)[rest]
            at, of = x.mean(axis=0), y.mean(axis=0)
            b = np.linalg.solve((x - at).T @ (x - at) + ridge * np.eye(5), (x - at).T @ (y - of))
            rows.append(a * text[c] + of + (text[c] - at) @ b)
        fits[a] = np.array(rows)
    chosen = slope if related else min(fits, key=lambda a: ((truth - fits[a]) ** 2).sum())
    np.testing.assert_allclose(left_out, fits[chosen], atol=1e-9)
    error = ((truth - fits[chosen]) ** 2).sum()
    assert explained == pytest.approx(1 - error / ((truth - alone) ** 2).sum())
    assert (explained > 0.5) == related
    inner = truth - middle - chosen * text
    b = np.linalg.solve(text.T @ text + ridge * np.eye(5), text.T @ inner)
    expected = middle + chosen * words.numpy() + words.numpy() @ b
    np.testing.assert_allclose(predicted, expected, atol=1e-9)


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
    found = posterior(totals, texts, UNIT)
    assert found.kappa == pytest.approx(kappa, rel=0.2)
    assert found.weights.tolist() == pytest.approx([4 / (4 + found.kappa)] * 300)
    truth = world(kappa, images=400)[0].means  # of the same classes, nearly exact
    off = (found.means - truth).square().mean()
    assert off < (0.95 if kappa < 1 else 0.75) * (totals.means - truth).square().mean()


def test_names_that_say_nothing_change_no_direction() -> None:
    """Texts unrelated to images: all means shrink alike, and cosines stay as they are."""
    totals, _ = world(1.0, images=4)
    found = posterior(totals, draw(300, DIM, seed=9), UNIT)
    means = [one - totals.centre for one in (found.means, totals.means)]
    assert float(torch.nn.functional.cosine_similarity(*means).min()) > 0.99
    assert found.explained < 0.05


def few(images: int, seed: int) -> tuple[Totals, Tensor]:
    """Sums of a world of seven classes and wide features, in which names are worth one image."""
    texts, truth = draw(7, 64, seed=seed), draw(7, 64, seed=seed + 50)
    features = (texts + truth)[:, None] + draw(7, images, 64, seed=seed + 100)
    counts = torch.full((7,), float(images), dtype=torch.float64)
    flat = features.flatten(0, 1)
    return Totals(features.mean(dim=1), counts, flat.T @ flat / len(flat), len(flat)), texts


@pytest.mark.parametrize("images", [1, 2, 8])
def test_few_classes_say_how_much_their_names_are_worth(images: int) -> None:
    """A map that fits the noise of seven classes would make each name worth many images."""
    unit = torch.eye(64, dtype=torch.float64)
    found = [posterior(*few(images, seed), unit) for seed in range(8)]
    assert max(one.kappa for one in found) < 2.5  # 1 in this world, 4 is usual
    assert max(one.explained for one in found) < 0.8  # 1/2 in this world


def test_a_class_far_from_all_others_is_not_predicted_by_itself() -> None:
    """A name of its own kind has all the leverage of its direction, and says nothing of itself."""
    words, means = 0.01 * draw(5, 8), draw(5, 8, seed=1)
    words[0, 0] += 10.0
    known = torch.ones(5, dtype=torch.bool)
    words = words - words.mean(dim=0)
    before, _, _ = text_map(words, means, known)
    means[0, 1:] += 100.0  # a is of the other column
    after, _, _ = text_map(words, means, known)
    assert torch.isfinite(after).all()
    assert float((after[0] - before[0]).abs().max()) < 10.0


@pytest.mark.parametrize("related", [0.7, 0.0])
def test_words_weigh_as_much_as_names_have_been_right(related: float) -> None:
    """The correlation of predictions and true means, which this world knows."""
    totals, texts = world(1.0, images=4, related=related)
    names = texts if related else draw(300, DIM, seed=9)
    means = world(1.0, images=40, related=related)[0].means  # of the same classes, nearly exact
    truth = means.var(dim=0) - 1 / 40
    noise = float(draw(300, DIM, seed=4).var(dim=0).mean())  # of true means about predictions
    expected = max(0.0, 1 - noise / float(truth.mean())) ** 0.5
    assert posterior(totals, names, UNIT).fit == pytest.approx(expected, abs=0.1)
    assert related or expected < 0.15


def test_foreign_words_change_scores_alone_and_are_no_class() -> None:
    plain, told = made(FOCoOpPlus), made(FOCoOpPlus, foreign=("sea", "mug"))
    (server, task), (other, _) = one_round(plain, CLIENTS), one_round(told, CLIENTS)
    for name, value in server.shared.items():
        torch.testing.assert_close(other.shared[name], value, atol=1e-12, rtol=0)
    both = made(FOCoOpPlus, foreign=(task.classes[0].upper(), "sea"))
    assert both.prepare(task)["foreign"].shape == (1, DIM)
    with pytest.raises(ConfigError, match=r"every word of method\.foreign is a class"):
        made(FOCoOpPlus, foreign=task.classes).prepare(task)
    with pytest.raises(ConfigError, match=r"leave method\.names true"):
        made(FOCoOpPlus, foreign=("sea",), names=False).prepare(task)


def test_a_class_known_by_name_alone_is_answered() -> None:
    """Names predict means in this world: images of classes that nobody has are found by them."""
    totals, texts = world(4.0, images=6, classes=60)
    hidden = torch.arange(60) >= 50
    sums = replace(totals, means=totals.means * ~hidden[:, None], images=totals.images * ~hidden)
    found = posterior(sums, texts, UNIT)
    assert not found.weights[hidden].any() and bool((found.weights[~hidden] > 0).all())
    seen, classes = totals.means[hidden] - sums.centre, found.means - sums.centre
    cosines = torch.nn.functional.normalize(seen) @ torch.nn.functional.normalize(classes).T
    right = cosines.argmax(dim=1) == torch.arange(50, 60)
    assert float(right.double().mean()) >= 0.7


def test_where_nobody_tells_the_spread_it_is_a_typical_one() -> None:
    features = torch.nn.functional.normalize(draw(40, DIM) + 0.5)
    counts = torch.ones(40, dtype=torch.float64)
    totals = Totals(features, counts, features.T @ features / 40, 40.0)  # one image a class
    spread, shrinkage = spread_within(totals)
    variance = float((features - features.mean(dim=0)).square().sum(dim=1).mean())
    assert shrinkage == 1.0
    torch.testing.assert_close(spread, UNIT * min(TYPICAL, MOST * variance) / DIM)
    wide = spread_within(replace(totals, means=0.01 * features))[0]
    torch.testing.assert_close(wide, UNIT * TYPICAL / DIM)
    full = totals_of(made(FOCoOpPlus), CLIENTS)
    spread, shrinkage = spread_within(full)
    np.testing.assert_allclose(spread * full.freedom, within(*pooled(CLIENTS)), atol=1e-9)
    assert shrinkage == pytest.approx(oas(full.scatter, full.freedom) ** 0.5)


@pytest.mark.parametrize("each", [2, 4, 8])
def test_a_typical_length_is_that_of_new_images(each: int) -> None:
    """Over ten draws of 30 classes: images the metric was made from are shorter than new ones."""
    found, fitted, new = [], [], []
    for seed in range(10):
        scales = torch.logspace(-1, 0.5, 24, dtype=torch.float64)
        means = draw(30, 24, seed=7 * seed)
        images = means[:, None] + draw(30, each, 24, seed=7 * seed + 1) * scales
        fresh = means[:, None] + draw(30, 50, 24, seed=7 * seed + 2) * scales
        rows, counts = images.flatten(0, 1), torch.full((30,), float(each), dtype=torch.float64)
        totals = Totals(images.mean(dim=1), counts, rows.T @ rows / len(rows), float(len(rows)))
        spread, shrinkage = spread_within(totals)
        metric = whitening(spread, shrinkage) * 24**0.5
        found.append(typical_length(totals, spread, shrinkage, metric))
        for lengths, some in ((fitted, rows), (new, fresh.flatten(0, 1))):
            seen = (some - totals.centre) @ metric
            lengths.append(float(seen.square().sum(dim=1).mean()) ** 0.5)
    assert np.mean(found) == pytest.approx(np.mean(new), rel=0.02)
    assert np.mean(fitted) < np.mean(new) * 0.99
    nothing = Totals(means * 0, counts * 0, spread * 0, 0.0)
    assert typical_length(nothing, spread, shrinkage, metric) == 1.0


def test_an_image_nearer_than_typical_is_not_more_at_home_for_it() -> None:
    method = made(FOCoOpPlus)
    task = task_for(method)
    lengths = torch.tensor([0.2, 0.9, 1.0, 1.1, 1.5])
    parts = {"against": torch.zeros(5, C), "length": lengths}
    score = method.score(Logits(torch.zeros(5, C), parts=parts), task)
    assert score[0] == score[1] == score[2]
    assert (score[2:].diff() > 0).all()


def test_few_classes_and_none_are_no_special_case() -> None:
    totals, texts = world(1.0, images=3)
    few = replace(totals, images=totals.images * (torch.arange(300) < 2))
    found = posterior(few, texts, UNIT)
    assert found.weights.sum() == 2 and torch.equal(found.means[:2], totals.means[:2])
    assert not found.means[2:].any()
    method = made(FOCoOpPlus)
    task = task_for(method)
    start = method.init(task, torch_generator(0)).shared  # before the first round: zero-shot
    text = method.encode({**start, "counts": torch.zeros(C)}, task)
    logits = method.logits(text, task.anchors, None)
    torch.testing.assert_close(logits.id, task.anchors @ task.anchors.T)
    assert torch.isfinite(method.score(logits, task)).all()


@pytest.mark.parametrize(("names", "foreign"), [(True, ()), (False, ()), (True, ("sea", "mug"))])
def test_answer_and_score_written_out(names: bool, foreign: tuple[str, ...]) -> None:
    method = made(FOCoOpPlus, names=names, open_share=0.4, foreign=foreign)
    server, task = one_round(method, CLIENTS)
    features, labels = pooled(CLIENTS)
    counts, tested = torch.tensor([3, 1, 0, 0]), images_of([0, 1, 2, 3] * 3, 9).pooled
    weight = torch.tensor([0.7])  # the toy's own is too small to be seen
    params = {**server.shared, "counts": counts} | ({"foreign_weight": weight} if foreign else {})
    text = method.encode(params, task)
    logits = method.logits(text, tested, None)
    score = method.score(logits, task)

    centre, freedom = features.mean(axis=0), len(labels) - C
    spread = within(features, labels) / freedom
    rho = oas(torch.from_numpy(spread * freedom), freedom) ** 0.5
    sigma = (1 - rho) * spread + rho * np.trace(spread) / DIM * np.eye(DIM)
    total = features.T @ features / len(labels)
    least = min(rho, BACKGROUND)
    wide = (1 - least) * total + least * np.trace(total) / DIM * np.eye(DIM)
    answers = means = np.stack([features[labels == c].mean(axis=0) for c in range(C)])
    if names:
        values, vectors = np.linalg.eigh(sigma)
        root = torch.from_numpy((vectors * values**-0.5) @ vectors.T)
        totals = totals_of(method, CLIENTS)
        found = posterior(totals, task.anchors, root)
        means = found.means.numpy()
        inside = squares_within(totals, torch.from_numpy(spread), rho, root)[1]
        noise = noise_of_means(totals, inside, root)
        answers = with_texts(totals, found, task.anchors, root, noise).means.numpy()
    if foreign:  # as classes without images
        plain = task.texts([f"a photo of a {word}." for word in (*foreign, *task.classes)])
        texts = plain[: len(foreign)] + (task.anchors - plain[len(foreign) :]).mean(dim=0)
        zeros = torch.zeros(len(texts), dtype=torch.float64)
        more = replace(
            totals,
            means=torch.cat([totals.means, torch.zeros_like(texts)]),
            images=torch.cat([totals.images, zeros]),
        )
        words = posterior(more, torch.cat([task.anchors, texts]), root).means[C:].numpy()
        assert float(server.shared["foreign_weight"]) == pytest.approx(found.fit)
    prior = np.array([0.6 * n / 4 + 0.4 / C for n in (3, 1, 0, 0)])
    prior /= prior.max()

    def product(x: np.ndarray, y: np.ndarray, covariance: np.ndarray) -> float:
        return float(x @ np.linalg.solve(covariance, y))

    def cosine(x: np.ndarray, y: np.ndarray, covariance: np.ndarray) -> float:
        lengths = product(x, x, covariance) * product(y, y, covariance)
        return product(x, y, covariance) / lengths**0.5

    def across(x: np.ndarray) -> np.ndarray:
        """Without the part along the mean image, as the metric sees it."""
        return x - product(x, centre, sigma) / product(centre, centre, sigma) * centre

    inside = np.trace(np.linalg.solve(sigma, spread))
    leverage = (1 - rho) * inside / freedom
    fitted = np.mean([product(x, x, sigma) for x in features - centre])
    typical = (fitted + freedom / len(labels) * (inside / (1 - leverage) - inside)) ** 0.5
    for i, image in enumerate(tested.numpy()):
        mass, off = 0.0, image - centre
        for c in range(C):
            near = cosine(across(off), across(answers[c] - centre), sigma)
            expected = near + np.log(prior[c]) / 20
            assert float(logits.id[i, c]) == pytest.approx(expected, abs=1e-6)
            mass += prior[c] * np.exp(20 * cosine(image, means[c], wide))
        excess = max(0.0, product(off, off, sigma) ** 0.5 / typical - 1)
        expected = -np.log(mass) + SURPRISE * excess
        if foreign:
            other = np.mean([np.exp(20 * cosine(image, word, wide)) for word in words])
            expected += 0.7 * np.log(1 + other / (mass / prior.sum()))
        assert float(score[i]) == pytest.approx(expected, abs=1e-5)


def test_counts_that_are_wrong_dilute_no_mean() -> None:
    """With noised counts a client weighs in on classes it does not hold: by nothing."""
    method = made(FOCoOpPlus)
    task = task_for(method)
    server = Server(method.init(task, torch_generator(0)).shared)
    clients = [images_of([0] * 4 + [1] * 3, 1), images_of([2] * 3, 2)]
    claimed = [torch.tensor([4, 9, 7, 0]), torch.tensor([5, 3, 2, 6])]
    updates = [
        ClientUpdate(u.client, u.shared, u.num_examples, counts, 0.0)
        for u, counts in zip(sent(method, task, server.shared, clients), claimed, strict=True)
    ]
    means = method.aggregate(server, updates, task).shared["means"]
    for c, own in ((0, clients[0]), (1, clients[0]), (2, clients[1])):
        torch.testing.assert_close(means[c], own.pooled[own.labels == c].mean(dim=0))
    assert not means[3].any()
    # A client's change is of the classes it holds alone: the rest takes nothing of privacy.clip.
    change = updates[0].shared["means"] - server.shared["means"]
    assert change.abs().sum(dim=1).nonzero().flatten().tolist() == [0, 1]


@pytest.mark.parametrize(
    ("claims", "off"),
    [
        # Noised: 0 for a class that is held, many for classes that are not.
        ([[0, 9, 7, 0], [30, 3, 7, 60]], 1e-5),
        # None told. Of 3 images an eighth is rounded to none: a 24th of the moment is missing.
        ([[1] * 4, [1] * 4], 0.05),
    ],
)
def test_counts_that_privacy_changed_lose_no_class_and_leave_the_second_moment(
    claims: list[list[int]], off: float
) -> None:
    method = made(FOCoOpPlus, least_images=3, least_freedom=1)
    task = task_for(method)
    server = Server(method.init(task, torch_generator(0)).shared)
    # The second client has one image of class 3, of which it tells nothing: 7 of 8 are measured.
    clients = [images_of([0] * 4 + [1] * 3, 1), images_of([2] * 7 + [3], 2)]
    weights = [max(claims[0][0], 3) + max(claims[0][1], 3), max(claims[1][2], 3)]
    rows = [clients[0].pooled.double().numpy(), clients[1].pooled[:7].double().numpy()]
    expected = sum(w * r.T @ r / 7 for w, r in zip(weights, rows, strict=True)) / sum(weights)
    for _ in range(3):
        updates = [
            replace(u, class_counts=torch.tensor(claim), num_examples=sum(claim))
            for u, claim in zip(sent(method, task, server.shared, clients), claims, strict=True)
        ]
        server = method.aggregate(server, updates, task)
        means = server.shared["means"]
        for c, own in ((0, clients[0]), (1, clients[0]), (2, clients[1])):
            torch.testing.assert_close(means[c], own.pooled[own.labels == c].mean(dim=0))
        assert not means[3].any()
        moment = server.shared["moment"].numpy()
        np.testing.assert_allclose(moment, expected, atol=off * np.trace(expected))


def test_means_that_a_server_chooses_change_nothing_that_is_told() -> None:
    method = made(FOCoOpPlus, least_images=5)
    task = task_for(method)
    plain = method.init(task, torch_generator(0)).shared
    far = {**plain, "means": plain["means"].clone()}
    far["means"][0, 0] = 1e6
    told, other = (method.measure(received, CLIENTS[1], task) for received in (plain, far))
    for name in ("moment", "mean_weight", "spread_weight"):
        assert torch.equal(told[name], other[name]), name
    assert torch.equal(other["means"][0], far["means"][0]) and not other["mean_weight"][0].any()
    assert torch.equal(told["means"][1:], other["means"][1:])
