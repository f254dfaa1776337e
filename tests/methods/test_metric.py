"""FOCoOp+'s metric: what clients measure, what the server makes of it, what is seen."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from focoop.federation.client import ClientData, LocalSettings, make_update, train
from focoop.methods._base import Batch, ClientUpdate, Server, State
from focoop.methods._metric import seen, whitening
from focoop.methods.focoop_plus import FOCoOpPlus
from focoop.seeds import torch_generator
from tests.methods.test_focoop_plus import PLAIN, make_task, params_of
from tests.methods.toy import DIM, C, make_batch

MEASURED = ("centre", "means", "scatter")
SHARED = ("global", "ood", "ood_words", *MEASURED, "metric")


def slow_scatter(pooled: Tensor, labels: Tensor, means: dict[int, Tensor]) -> Tensor:
    """Mean of (h - m_y)(h - m_y)^T, image by image."""
    spread = torch.zeros(DIM, DIM, dtype=torch.float64)
    for h, y in zip(pooled, labels.tolist(), strict=True):
        spread += torch.outer(h - means[y], h - means[y]) / len(pooled)
    return spread


def test_a_client_measures_its_images_and_trains_none_of_it() -> None:
    method = FOCoOpPlus(replace(PLAIN, least_images=1))
    task, batch = make_task(), make_batch(size=9)
    params = params_of()
    private = {n: params[n] for n in ("local", "counts")}
    state = State({n: params[n] for n in SHARED}, private)
    data = ClientData(batch.pooled, None, batch.labels)
    trained, loss = train(method, state, data, task, LocalSettings(1, 9, 0.1), torch_generator(0))
    assert all(torch.equal(trained.shared[n], params[n]) for n in (*MEASURED, "metric"))
    assert not torch.equal(trained.shared["global"], params["global"])
    sent = make_update(method, 0, trained, data, task, loss).shared
    assert torch.equal(sent["metric"], params["metric"])  # the server's own
    torch.testing.assert_close(sent["centre"], sum(batch.pooled) / 9)
    own = {
        c: [h for h, y in zip(batch.pooled, batch.labels, strict=True) if y == c] for c in range(C)
    }
    means = {c: sum(rows) / len(rows) for c, rows in own.items() if rows}
    for c in range(C):
        torch.testing.assert_close(
            sent["means"][c], means.get(c, torch.zeros_like(batch.pooled[0]))
        )
    about = {
        c: params["means"][c] if c != 1 else means.get(c, params["means"][c]) for c in range(C)
    }
    expected = slow_scatter(batch.pooled, batch.labels, about)
    torch.testing.assert_close(sent["scatter"], expected, rtol=1e-12, atol=1e-12)


def test_the_mean_of_too_few_images_is_not_sent() -> None:
    task, params = make_task(), params_of()
    pooled, labels = make_batch(size=6).pooled, torch.tensor([0, 2, 2, 3, 3, 3])
    batch = Batch(pooled, None, labels)
    for least, kept in ((1, ()), (2, (0,)), (3, (0, 2))):
        sent = FOCoOpPlus(replace(PLAIN, least_images=least)).measure(params, batch, task)["means"]
        for c in (0, 2, 3):
            own = pooled[labels == c].mean(dim=0)
            torch.testing.assert_close(sent[c], params["means"][c] if c in kept else own)
        assert not sent[1].any()
    assert FOCoOpPlus.Config().least_images == 2  # the mean of one image is that image


def test_before_anybody_has_sent_a_mean_the_scatter_is_about_the_clients_own() -> None:
    method = FOCoOpPlus(replace(PLAIN, least_images=1))
    task, batch = make_task(), make_batch(size=9)
    measured = method.measure({"means": torch.zeros_like(params_of()["means"])}, batch, task)
    means = {c: measured["means"][c] for c in range(C)}
    expected = slow_scatter(batch.pooled, batch.labels, means)
    torch.testing.assert_close(measured["scatter"], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shrinkage", [1e-6, 0.4, 1.0])
def test_the_metric_makes_the_scatter_round(shrinkage: float) -> None:
    spread = params_of(3)["scatter"]
    metric = whitening(spread, shrinkage)
    size = spread.trace() / DIM
    drawn = (1 - shrinkage) * spread + shrinkage * size * torch.eye(DIM, dtype=torch.float64)
    torch.testing.assert_close(
        metric @ drawn @ metric * DIM, torch.eye(DIM, dtype=torch.float64), atol=1e-9, rtol=0
    )
    torch.testing.assert_close(metric, metric.T)


def test_the_metric_of_nothing_is_plain_and_of_a_broken_scatter_finite() -> None:
    plain = torch.eye(4, dtype=torch.float64)
    for scatter in (
        torch.zeros(4, 4),
        torch.eye(4) / 4,
    ):  # the second is what every run begins with
        torch.testing.assert_close(whitening(scatter, 0.3), plain)
    assert whitening(torch.diag(torch.tensor([1.0, -3.0, 4.0])), 0.5).isfinite().all()
    assert torch.equal(whitening(torch.diag(torch.tensor([1.0, -3.0, 2.0])), 0.5), plain[:3, :3])


def test_what_all_images_share_is_not_seen_but_counts_for_the_distance() -> None:
    params = params_of(2)
    centre, metric = params["centre"], params["metric"]
    along = (centre @ metric) / (centre @ metric).norm()
    features = make_batch(size=5).pooled
    unit, lengths = seen(features, centre, metric, along)
    torch.testing.assert_close(
        unit @ along, torch.zeros(5, dtype=torch.float64), atol=1e-12, rtol=0
    )
    torch.testing.assert_close(unit.norm(dim=1), torch.ones(5, dtype=torch.float64))
    moved, farther = seen(features + 0.7 * centre, centre, metric, along)
    torch.testing.assert_close(moved, unit)
    torch.testing.assert_close(farther, ((features - 0.3 * centre) @ metric).norm(dim=1))
    assert not torch.allclose(farther, lengths)


def test_the_server_averages_over_all_rounds() -> None:
    task, method = make_task(), FOCoOpPlus(PLAIN)
    counts = torch.tensor([[2, 0, 1, 0], [6, 3, 0, 0]])
    clients = [params_of(1), params_of(2)]
    updates = [
        ClientUpdate(k, {n: p[n] for n in SHARED}, int(counts[k].sum()), counts[k], 0.0)
        for k, p in enumerate(clients)
    ]
    server = method.aggregate(Server({n: params_of(0)[n] for n in SHARED}), updates, task)
    for name in ("centre", "scatter"):  # by images
        expected = (3 * clients[0][name] + 9 * clients[1][name]) / 12
        torch.testing.assert_close(server.shared[name], expected)
    made = whitening(server.shared["scatter"], PLAIN.shrinkage)
    torch.testing.assert_close(server.shared["metric"], made)
    again = method.aggregate(server, updates[:1], task).shared
    expected = (12 * server.shared["centre"] + 3 * clients[0]["centre"]) / 15
    torch.testing.assert_close(again["centre"], expected)
    first = (2 * clients[0]["means"][0] + 6 * clients[1]["means"][0]) / 8
    torch.testing.assert_close(again["means"][0], (8 * first + 2 * clients[0]["means"][0]) / 10)
    torch.testing.assert_close(again["means"][3], params_of(0)["means"][3])  # nobody has it
