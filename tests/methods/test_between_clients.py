"""How far clients of the same classes differ, and the shrinkage that asks for."""

import numpy as np
import pytest
import torch
from sklearn.covariance import ledoit_wolf_shrinkage

from focoop.methods._posterior import spread_within
from focoop.methods._sums import alike, oas
from focoop.methods.base import Batch
from focoop.methods.focoop_plus import FOCoOpPlus
from tests.methods.closed_form_toy import (
    contrasts,
    made,
    one_round,
    pooled,
    sent,
    totals_of,
    within,
)
from tests.methods.contract_toy import DIM
from tests.methods.test_focoop_plus import draw


def drawn(kinds: int, each: int, clients: int) -> list[Batch]:
    """Clients of the same two classes; along which axis images vary most goes by kind of client."""
    found = []
    for k in range(clients):
        noise = draw(2 * each, DIM, seed=100 + k) * torch.linspace(0.5, 2.0, DIM)
        noise[:, k % kinds] *= 4.0
        found.append(Batch(noise, None, torch.arange(2 * each) % 2))
    return found


def test_clients_of_one_kind_ask_for_the_shrinkage_that_their_images_do() -> None:
    """Ledoit and Wolf's shrinkage of all images, by an independent implementation."""
    clients = drawn(kinds=1, each=6, clients=60)
    features, labels = pooled(clients)
    expected = ledoit_wolf_shrinkage(contrasts(features, labels), assume_centered=True)
    found = totals_of(made(FOCoOpPlus), clients)
    assert found.between == pytest.approx(expected, rel=0.25)  # of 60 clients: a tenth by chance
    assert spread_within(found)[1] == oas(found.scatter, found.freedom) ** 0.5  # which is more


def test_clients_of_different_kinds_ask_for_more() -> None:
    """Written out client by client; the covariance is shrunk that far."""
    clients = drawn(kinds=3, each=30, clients=3)
    covariances = [within(one.pooled.numpy(), one.labels.numpy()) / 58 for one in clients]
    middle = np.mean(covariances, axis=0)
    error = np.mean([((one - middle) ** 2).sum() for one in covariances]) / 2
    off = middle - np.trace(middle) / DIM * np.eye(DIM)
    found = totals_of(made(FOCoOpPlus), clients)
    assert found.between == pytest.approx(error / (off**2).sum(), rel=1e-6)
    assert spread_within(found)[1] == found.between > oas(found.scatter, found.freedom) ** 0.5


def test_clients_without_a_common_class_are_not_compared() -> None:
    clients = drawn(kinds=3, each=30, clients=3)
    apart = [Batch(one.pooled, None, one.labels * 0 + k) for k, one in enumerate(clients)]
    assert totals_of(made(FOCoOpPlus), apart).between == 0.0
    half = [Batch(one.pooled, None, one.labels * (1 + k)) for k, one in enumerate(clients)]
    same = totals_of(made(FOCoOpPlus), clients).between
    assert 0.0 < totals_of(made(FOCoOpPlus), half).between < same
    assert alike(torch.tensor([[3.0, 1.0, 0.0], [0.0, 1.0, 1.0]])) == pytest.approx(0.25)


def test_a_client_alone_in_a_later_round_leaves_what_was_compared() -> None:
    method = made(FOCoOpPlus)
    server, task = one_round(method, clients := drawn(kinds=3, each=30, clients=3))
    before = server.memory["between"]
    late = method.aggregate(server, sent(method, task, server.shared, clients[:1]), task)
    assert torch.equal(late.memory["between"], before) and before[0] > 0
