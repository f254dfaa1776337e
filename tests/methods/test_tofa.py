"""TOFA: posteriors, judged prompts and the mix of both, against slow references in numpy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from focoop.federation.rounds import aggregate
from focoop.federation.updates.secure_sum import summed
from focoop.methods.base import Params, Server, Task
from focoop.methods.tofa import PROMPTS, TOFA, worth_of
from focoop.seeds import torch_generator
from tests.methods.closed_form_toy import (
    CLIENTS,
    C,
    images_of,
    made,
    one_round,
    pooled,
    sent,
    within,
)
from tests.methods.contract_toy import CLASSES, DIM, WORDS, Tower, make_task

TESTED = images_of([0, 1, 2, 3] * 4, 9).pooled


def client(method: TOFA, task: Task, server: Server, k: int) -> Params:
    """All tensors of client k after a round it took part in."""
    private = method.init(task, torch_generator(0)).private
    return {**server.shared, **method.remember(private, CLIENTS[k], task)}


@pytest.mark.parametrize("power", [0.25, 1.0])
def test_a_clients_posterior_is_that_of_images_counted_by_weight(power: float) -> None:
    """All images weigh `power`, the client's own one more: a weighted mean and scatter of them."""
    method = made(TOFA, power=power)
    assert isinstance(method, TOFA)
    server, task = one_round(method, CLIENTS)
    features, labels = pooled([*CLIENTS, CLIENTS[1]])
    weights = np.full(len(labels), power)
    weights[-len(CLIENTS[1].labels) :] = 1.0
    means = np.zeros((C, DIM))
    scatter = np.zeros((DIM, DIM))
    for c in range(C):
        rows, weight = features[labels == c], weights[labels == c]
        means[c] = weight @ rows / weight.sum()
        scatter += (rows - means[c]).T @ (weight[:, None] * (rows - means[c]))
    spread = scatter / weights.sum()
    ratio = DIM / (weights.sum() - 1 + DIM)
    precision = np.linalg.inv((1 - ratio) * spread + ratio * np.trace(spread) / DIM * np.eye(DIM))
    found, metric = method.posterior(client(method, task, server, 1))
    np.testing.assert_allclose(found, means, atol=1e-9)
    np.testing.assert_allclose(metric @ metric, precision, rtol=1e-6, atol=1e-6)


def test_a_client_without_images_of_its_own_has_everybodys_posterior() -> None:
    method = made(TOFA)
    assert isinstance(method, TOFA)
    server, task = one_round(method, CLIENTS)
    private = method.init(task, torch_generator(0)).private
    found, metric = method.posterior({**server.shared, **private})
    features, labels = pooled(CLIENTS)
    np.testing.assert_allclose(found, server.shared["means"], atol=1e-9)
    spread = within(features, labels) / len(labels)
    ratio = DIM / (len(labels) - 1 + DIM)
    shrunk = (1 - ratio) * spread + ratio * np.trace(spread) / DIM * np.eye(DIM)
    np.testing.assert_allclose(metric @ metric, np.linalg.inv(shrunk), rtol=1e-6, atol=1e-6)


def slow_worth(k: int, prompts: np.ndarray, scale: float, c: int, m: int) -> float:
    """A prompt's worth by probabilities, image by image."""
    sure = {0: [], m: []}  # type: dict[int, list[float]]
    for image, label in zip(CLIENTS[k].pooled.numpy(), CLIENTS[k].labels.tolist(), strict=True):
        if label != c:
            continue
        for used in sure:
            texts = prompts[:, 0].copy()
            texts[c] = prompts[c, used]
            odds = np.exp(scale * texts @ image)
            sure[used].append(odds[c] / odds.sum())
    template, other = np.mean(sure[0]), np.mean(sure[m])
    return float(template * np.log(other / template))


def test_prompts_are_judged_by_the_images_of_their_class_over_all_clients() -> None:
    method = made(TOFA)
    server, task = one_round(method, CLIENTS)
    prompts = task.frozen["prompts"].numpy()
    assert prompts.shape == (len(CLASSES), 1 + len(PROMPTS), DIM)
    scale = task.logit_scale
    assert not server.shared["worth"][:, 0].any()
    for c, m in ((0, 1), (1, 3), (3, len(PROMPTS))):
        held = {k: int((one.labels == c).sum()) for k, one in enumerate(CLIENTS)}
        told = [(n, slow_worth(k, prompts, scale, c, m)) for k, n in held.items() if n]
        mean = sum(n * worth for n, worth in told) / sum(n for n, _ in told)
        assert float(server.shared["worth"][c, m]) == pytest.approx(mean, abs=1e-9)


def test_sums_suffice_and_who_is_asked_again_changes_nothing() -> None:
    method = made(TOFA, least_images=5)  # client 1 keeps its three images of class 0
    plain, task = one_round(method, CLIENTS)
    secure, _ = one_round(method, CLIENTS, summed)
    again = aggregate(method, plain, sent(method, task, plain.shared, CLIENTS), task)
    prompts = task.frozen["prompts"]
    alone = worth_of(CLIENTS[0], prompts, task.logit_scale)[0]
    torch.testing.assert_close(plain.shared["worth"][0], alone, atol=1e-9, rtol=0)
    for name, value in plain.shared.items():
        torch.testing.assert_close(secure.shared[name], value, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(again.shared[name], value, atol=1e-9, rtol=1e-9)
    early, _ = one_round(method, CLIENTS[:2])
    late = aggregate(method, early, sent(method, task, early.shared, CLIENTS[2:]), task)
    torch.testing.assert_close(late.shared["worth"], plain.shared["worth"])


def test_the_surer_side_of_an_image_counts_for_more() -> None:
    method = made(TOFA, open_share=1.0)
    assert isinstance(method, TOFA)
    server, task = one_round(method, CLIENTS)
    params = client(method, task, server, 0)
    text = method.encode(params, task)
    found = method.logits(text, TESTED, None).id.numpy()
    means, metric = (value.numpy() for value in method.posterior(params))
    seen, images = means @ metric, TESTED.numpy() @ metric
    gauss = images @ seen.T - (seen**2).sum(axis=1) / 2
    words = TESTED.numpy() @ text.id.numpy().T
    weights = []
    for row, (g, t) in enumerate(zip(gauss, words, strict=True)):
        a, b = (np.exp(one - one.max()) for one in (g, t))
        sure, other = a.max() / a.sum(), b.max() / b.sum()
        weights.append(sure / (sure + other))  # sigmoid of the log of their ratio
        np.testing.assert_allclose(found[row], weights[-1] * g + (1 - weights[-1]) * t, rtol=1e-6)
    assert max(weights) - min(weights) > 0.01


def test_a_class_known_by_name_alone_is_answered_by_its_text() -> None:
    method = made(TOFA, open_share=1.0)
    rest = [
        replace(one, pooled=one.pooled[k], labels=one.labels[k])
        for one in CLIENTS
        for k in [one.labels != 2]
    ]
    server, task = one_round(method, rest)
    assert not server.shared["means"][2].any()
    text = method.encode({**server.shared, **method.init(task, torch_generator(0)).private}, task)
    image: Tensor = task.anchors[2:3]
    assert method.logits(text, image, None).id.isfinite().all()
    better = method.logits(text, torch.cat([image, -image]), None).id[:, 2]
    assert better[0] > better[1]


def test_the_bank_has_the_template_first_and_names_with_spaces() -> None:
    method = TOFA(TOFA.Config())
    task = make_task(method, classes=("apple", "plum"), words=WORDS)
    tower = Tower(torch.float32)
    assert torch.equal(method.prepare(task)["prompts"][:, 0], task.anchors)
    wanted = tower.texts([PROMPTS[1].format("plum")])[0]
    torch.testing.assert_close(method.prepare(task)["prompts"][1, 2], wanted)
