"""How far clients of the same classes differ, and the shrinkage that asks for."""

import numpy as np
import pytest
import torch
from sklearn.covariance import ledoit_wolf_shrinkage

from focoop.methods._between import alike
from focoop.methods._posterior import noise_of_means, spread_within
from focoop.methods._sums import oas
from focoop.methods.base import Batch
from focoop.methods.focoop_plus import FOCoOpPlus
from tests.methods.closed_form_toy import (
    C,
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
    assert found.between is not None
    assert found.between.shrinkage == pytest.approx(expected, rel=0.25)  # a tenth by chance
    assert spread_within(found)[1] == oas(found.scatter, found.freedom) ** 0.5  # which is more


def test_clients_of_different_kinds_ask_for_more() -> None:
    """Written out client by client; the covariance is shrunk that far."""
    clients = drawn(kinds=3, each=30, clients=3)
    covariances = [within(one.pooled.numpy(), one.labels.numpy()) / 58 for one in clients]
    middle = np.mean(covariances, axis=0)
    error = np.mean([((one - middle) ** 2).sum() for one in covariances]) / 2
    off = middle - np.trace(middle) / DIM * np.eye(DIM)
    found = totals_of(made(FOCoOpPlus), clients)
    assert found.between is not None
    asked = found.between.shrinkage
    assert asked == pytest.approx(error / (off**2).sum(), rel=1e-6)
    assert spread_within(found)[1] == asked > oas(found.scatter, found.freedom) ** 0.5


def shrinkage(clients: list[Batch]) -> float:
    """What the differences of clients ask for."""
    found = totals_of(made(FOCoOpPlus), clients).between
    assert found is not None
    return found.shrinkage


def test_clients_without_a_common_class_are_not_compared() -> None:
    clients = drawn(kinds=3, each=30, clients=3)
    apart = [Batch(one.pooled, None, one.labels * 0 + k) for k, one in enumerate(clients)]
    assert shrinkage(apart) == 0.0
    half = [Batch(one.pooled, None, one.labels * (1 + k)) for k, one in enumerate(clients)]
    assert 0.0 < shrinkage(half) < shrinkage(clients)
    assert alike(torch.tensor([[3.0, 1.0, 0.0], [0.0, 1.0, 1.0]])) == pytest.approx(0.25)


def test_a_client_alone_in_a_later_round_leaves_what_was_compared() -> None:
    method = made(FOCoOpPlus)
    server, task = one_round(method, clients := drawn(kinds=3, each=30, clients=3))
    before = server.memory["between"]
    late = method.aggregate(server, sent(method, task, server.shared, clients[:1]), task)
    assert torch.equal(late.memory["between"], before) and before[0] > 0


UNIT = torch.eye(DIM, dtype=torch.float64)


def clients_of_classes(apart: float, light: float, each: int = 8) -> list[Batch]:
    """Twelve clients of all classes, whose class means differ, and whose light does."""
    found = []
    for k in range(12):
        labels = torch.arange(C * each) % C
        means = apart * draw(C, DIM, seed=300 + k) + light * draw(1, DIM, seed=400 + k)
        found.append(Batch(means[labels] + draw(C * each, DIM, seed=500 + k), None, labels))
    return found


@pytest.mark.parametrize("light", [0.0, 5.0])
@pytest.mark.parametrize("apart", [0.0, 1.0])
def test_class_means_are_as_uncertain_as_clients_differ(apart: float, light: float) -> None:
    """Images vary by 1 within classes; n images of a class have clients' own 1/8 n in common."""
    totals = totals_of(made(FOCoOpPlus), clients_of_classes(apart, light))
    assert totals.between is not None and totals.between.alike == pytest.approx(1.0)
    expected = (1.0 + 8 * apart**2) * DIM
    found = noise_of_means(totals, float(DIM), UNIT)
    assert found == pytest.approx(expected, rel=0.25)  # of 12 clients and few classes
    assert found >= DIM


def test_noise_of_means_is_that_of_images_where_clients_share_no_class() -> None:
    clients = clients_of_classes(1.0, 1.0)
    apart = [Batch(one.pooled, None, one.labels * 0 + k) for k, one in enumerate(clients[:C])]
    assert noise_of_means(totals_of(made(FOCoOpPlus), apart), 7.0, UNIT) == 7.0
    alone = totals_of(made(FOCoOpPlus), clients[:1])
    assert alone.between is None and noise_of_means(alone, 7.0, UNIT) == 7.0
