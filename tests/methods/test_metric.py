"""FOCoOp+'s metric: what clients measure, what the server makes of it, what is seen."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from focoop.clip.base import LabelledFeatures
from focoop.federation.client import LocalSettings, make_update, train
from focoop.methods._metric import seen, whitening
from focoop.methods.base import Batch, ClientUpdate, Params, Server, State
from focoop.methods.focoop_plus import WEIGHT, FOCoOpPlus
from focoop.seeds import torch_generator
from tests.methods.test_focoop_plus import PLAIN, make_task, params_of
from tests.methods.toy import DIM, C, make_batch

MEASURED = ("means", "scatter", "mean_weight", "scatter_weight")
SHARED = ("global", "ood", "ood_words", *MEASURED, "centre", "metric")
OPEN = replace(PLAIN, least_images=2, least_freedom=1)


def images_of(*counts: int, seed: int = 0) -> Batch:
    """Unit features of as many images of each class."""
    generator = torch_generator(seed, "images")
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    pooled = torch.randn(len(labels), DIM, generator=generator, dtype=torch.float64) + 0.7
    return Batch(F.normalize(pooled, dim=1), None, labels)


def slow_scatter(pooled: Tensor, labels: Tensor, means: dict[int, Tensor]) -> Tensor:
    """Mean of (h - m_y)(h - m_y)^T, image by image."""
    spread = torch.zeros(DIM, DIM, dtype=torch.float64)
    for h, y in zip(pooled, labels.tolist(), strict=True):
        spread += torch.outer(h - means[y], h - means[y]) / len(pooled)
    return spread


def test_a_client_measures_its_images_and_trains_none_of_it() -> None:
    method, task, batch = FOCoOpPlus(OPEN), make_task(), images_of(3, 4, 2, 0)
    params = params_of()
    params["means"] *= 0.3  # of unit features
    private = {n: params[n] for n in ("local", "counts")}
    state = State({n: params[n] for n in SHARED}, private)
    data = LabelledFeatures(batch.pooled, None, batch.labels)
    trained, loss = train(method, state, data, task, LocalSettings(1, 9, 0.1), torch_generator(0))
    assert all(torch.equal(trained.shared[n], params[n]) for n in (*MEASURED, "centre", "metric"))
    assert not torch.equal(trained.shared["global"], params["global"])
    sent = make_update(method, 0, trained, data, task, loss).shared
    for name in ("metric", "centre"):  # the server's own
        assert torch.equal(sent[name], params[name])
    means = {c: batch.pooled[batch.labels == c].mean(dim=0) for c in range(3)}
    for c in range(C):
        torch.testing.assert_close(sent["means"][c], means.get(c, params["means"][c]))
    assert sent["mean_weight"].flatten().tolist() == [WEIGHT, WEIGHT, WEIGHT, 0.0]
    about = {c: params["means"][c] if c != 1 else means[c] for c in range(3)}
    expected = slow_scatter(batch.pooled, batch.labels, about)
    torch.testing.assert_close(sent["scatter"], expected, rtol=1e-12, atol=1e-12)
    assert sent["scatter_weight"].tolist() == [WEIGHT]


def test_nothing_is_sent_of_a_class_with_too_few_images() -> None:
    task, params, batch = make_task(), params_of(), images_of(2, 0, 3, 4)
    for least, few in ((2, ()), (3, (0,)), (4, (0, 2)), (5, (0, 2, 3))):
        sent = FOCoOpPlus(replace(OPEN, least_images=least)).measure(params, batch, task)
        kept = [c for c in (0, 2, 3) if c not in few]
        for c in range(C):
            own = batch.pooled[batch.labels == c].mean(dim=0)
            torch.testing.assert_close(
                sent["means"][c], own if c in kept else params["means"][c], rtol=0, atol=1e-14
            )
        rows = torch.tensor([label in kept for label in batch.labels.tolist()])
        alone = Batch(batch.pooled[rows], None, batch.labels[rows])
        only = FOCoOpPlus(replace(OPEN, least_images=least)).measure(params, alone, task)
        for name in MEASURED:  # as if the client did not have the others
            torch.testing.assert_close(sent[name], only[name])
        assert (sent["scatter_weight"] > 0).item() == bool(kept)
    config = FOCoOpPlus.Config()
    assert (config.least_images, config.least_freedom) == (5, 16)


def test_copies_and_views_of_an_image_are_no_other_images() -> None:
    method, task, params = FOCoOpPlus(replace(PLAIN, least_images=3)), make_task(), params_of()
    batch = images_of(2, 3, 0, 0)
    copied = Batch(batch.pooled.repeat(4, 1), None, batch.labels.repeat(4))  # shots of few images
    assert method.measure(params, copied, task)["mean_weight"].flatten().tolist() == [
        0.0,
        WEIGHT,
        0.0,
        0.0,
    ]
    views = images_of(2, 3, 0, 0, seed=1)
    data = LabelledFeatures(
        torch.cat([batch.pooled, views.pooled]),
        None,
        torch.cat([batch.labels, views.labels]),
        num_views=1,
    )
    sent = make_update(method, 0, State({n: params[n] for n in SHARED}), data, task, 0.0).shared
    assert not sent["mean_weight"][0] and sent["mean_weight"][1]
    torch.testing.assert_close(sent["means"][1], batch.pooled[2:].mean(dim=0))


def test_a_scatter_of_few_images_is_not_sent() -> None:
    task, params = make_task(), params_of()
    method = FOCoOpPlus(replace(PLAIN, least_images=2, least_freedom=6))
    for counts, sent in (((7, 0, 0, 0), True), ((4, 1, 4, 0), True), ((6, 1, 1, 0), False)):
        found = method.measure(params, images_of(*counts), task)
        assert (found["scatter_weight"].item() == WEIGHT) == sent
        assert torch.equal(found["scatter"], params["scatter"]) != sent


def withheld_sum(sent: Params, counts: Tensor) -> Tensor:
    """The attack on what was sent once: n times the centre less the means that were sent."""
    told = sent["mean_weight"][:, 0] > 0
    total = counts.sum() * sent.get("centre", torch.zeros(DIM, dtype=torch.float64))
    return total - (counts[told, None] * sent["means"][told]).sum(dim=0)


def test_withheld_means_cannot_be_computed_from_what_is_sent() -> None:
    """Centre, means and scatter gave the mean of a class with one image (cosine 0.999999999999)."""
    task, params = make_task(), params_of()
    params = {**params, "means": torch.zeros_like(params["means"])}
    method = FOCoOpPlus(replace(PLAIN, least_images=5, least_freedom=4))
    rest = images_of(0, 6, 5, 8)
    secret = images_of(1, 0, 0, 0, seed=9)
    counts = torch.tensor([1, 6, 5, 8])

    def sent_with(image: Batch) -> Params:
        pooled = torch.cat([rest.pooled, image.pooled])
        batch = Batch(pooled, None, torch.cat([rest.labels, image.labels]))
        data = LabelledFeatures(batch.pooled, None, batch.labels)
        return make_update(method, 0, State({n: params[n] for n in SHARED}), data, task, 0.0).shared

    sent, other = sent_with(secret), sent_with(images_of(1, 0, 0, 0, seed=10))
    # Not a bit of what leaves depends on the image.
    assert all(torch.equal(sent[name], other[name]) for name in (*MEASURED, "centre", "metric"))
    before = {
        **sent,
        "centre": torch.cat([rest.pooled, secret.pooled]).mean(dim=0),
    }  # what was sent once
    assert F.cosine_similarity(withheld_sum(before, counts), secret.pooled[0], dim=0) > 1 - 1e-9
    got = withheld_sum(sent, counts)
    blind = -(counts[1:, None] * sent["means"][1:]).sum(dim=0)  # known to the server anyway
    torch.testing.assert_close(got, blind + counts.sum() * sent["centre"])


def test_means_that_a_server_chooses_single_out_no_class() -> None:
    """A scatter about a far mean of one class was that class's mean, of one image too."""
    task, params = make_task(), params_of()
    method = FOCoOpPlus(replace(PLAIN, least_images=5, least_freedom=4))
    batch = images_of(1, 6, 5, 8)
    far = torch.zeros_like(params["means"])
    far[0, 0] = 1e6
    few = method.measure({**params, "means": far}, batch, task)["scatter"]
    fair = method.measure({**params, "means": torch.zeros_like(far)}, batch, task)["scatter"]
    torch.testing.assert_close(few, fair)  # the class with one image is not in it
    # Of a class whose mean is sent anyway it tells that mean, and the rest stays as it is.
    far = torch.zeros_like(far)
    far[1, 0] = 1e6
    told = method.measure({**params, "means": far}, batch, task)
    mean, axis = told["means"][1], torch.eye(DIM, dtype=torch.float64)[0]
    moved = 6 / 19 * (torch.outer(mean - axis, mean - axis))
    torch.testing.assert_close(told["scatter"] - moved, fair, rtol=1e-9, atol=1e-9)


def test_before_anybody_has_sent_a_mean_the_scatter_is_about_the_clients_own() -> None:
    method, task, batch = FOCoOpPlus(OPEN), make_task(), images_of(3, 2, 4, 2)
    params = {**params_of(), "means": torch.zeros_like(params_of()["means"])}
    measured = method.measure(params, batch, task)
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


def updates_of(
    method: FOCoOpPlus, received: Params, clients: list[Batch], counts: list[Tensor]
) -> list[ClientUpdate]:
    shared = {n: received[n] for n in SHARED}
    found = []
    for k, (batch, held) in enumerate(zip(clients, counts, strict=True)):
        sent = {**shared, **method.measure(received, batch, make_task())}
        found.append(ClientUpdate(k, sent, int(held.sum()), held, 0.0))
    return found


def test_the_server_averages_over_all_rounds() -> None:
    """Means by image over all rounds, of those images alone whose clients had enough of them."""
    method, task = FOCoOpPlus(replace(PLAIN, least_images=3, least_freedom=3)), make_task()
    server = Server({n: params_of(0)[n] for n in SHARED})
    server = replace(server, shared={**server.shared, "means": torch.zeros(C, DIM).double()})
    first = [images_of(3, 4, 1, 0, seed=1), images_of(6, 2, 0, 0, seed=2)]
    later = [images_of(3, 3, 4, 1, seed=3)]
    total, images = {c: torch.zeros(DIM, dtype=torch.float64) for c in range(C)}, [0] * C
    for clients in (first, later):
        counts = [torch.bincount(one.labels, minlength=C) for one in clients]
        updates = updates_of(method, server.shared, clients, counts)
        old = server
        server = method.aggregate(server, updates, task)
        for one in clients:
            for c in range(C):
                rows = one.pooled[one.labels == c]
                if len(rows) >= 3:
                    total[c] += rows.sum(dim=0)
                    images[c] += len(rows)
        assert images[3] == 0 and torch.equal(server.shared["means"][3], old.shared["means"][3])
        for c in range(3):
            mean = total[c] / max(images[c], 1)
            torch.testing.assert_close(server.shared["means"][c], mean)
        centre = sum(total.values()) / sum(images)  # type: ignore[operator]
        torch.testing.assert_close(server.shared["centre"], centre)
        assert not server.shared["mean_weight"].any() and not server.shared["scatter_weight"].any()
    # All clients told their scatter: 8 and 8 images, then 11.
    before = (8 * updates_scatter(method, first[0]) + 8 * updates_scatter(method, first[1])) / 16
    now = updates[0].shared["scatter"]
    torch.testing.assert_close(server.shared["scatter"], (16 * before + 11 * now) / 27)
    made = whitening(server.shared["scatter"], PLAIN.shrinkage)
    torch.testing.assert_close(server.shared["metric"], made)


def updates_scatter(method: FOCoOpPlus, batch: Batch) -> Tensor:
    params = {**params_of(0), "means": torch.zeros(C, DIM).double()}
    return method.measure(params, batch, make_task())["scatter"]


def test_counts_that_are_wrong_dilute_no_mean() -> None:
    """With noised counts a client weighs in on classes it does not hold: by nothing."""
    method, task = FOCoOpPlus(OPEN), make_task()
    server = Server({n: params_of(0)[n] for n in SHARED})
    zeros = torch.zeros(C, DIM).double()
    server = replace(server, shared={**server.shared, "means": zeros})
    batch = images_of(4, 3, 0, 0)
    claimed = [torch.tensor([4, 9, 7, 0]), torch.tensor([5, 3, 2, 6])]
    nothing = images_of(0, 0, 3, 0)
    updates = updates_of(method, server.shared, [batch, nothing], claimed)
    means = method.aggregate(server, updates, task).shared["means"]
    for c, own in ((0, batch), (1, batch), (2, nothing)):
        torch.testing.assert_close(means[c], own.pooled[own.labels == c].mean(dim=0))
    assert not means[3].any()
    # A client's change is of the classes it holds alone: the rest takes nothing of privacy.clip.
    change = updates[0].shared["means"] - server.shared["means"]
    assert change.abs().sum(dim=1).nonzero().flatten().tolist() == [0, 1]
