"""Closed forms: the sums that clients send are those of pooled images; what a client withholds."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from focoop.clip.base import LabelledFeatures
from focoop.federation.client import make_update
from focoop.federation.rounds import aggregate
from focoop.federation.updates.differential_privacy import Privacy
from focoop.federation.updates.secure_sum import summed
from focoop.methods._closed_form import ClosedForm
from focoop.methods.base import Batch, ClientUpdate, Params, Server
from focoop.methods.fed3r import Fed3R
from focoop.methods.fedlda import FedLDA
from focoop.methods.fedncm import FedNCM
from focoop.methods.focoop_plus import FOCoOpPlus
from focoop.seeds import torch_generator
from tests.methods.closed_form_toy import (
    CLIENTS,
    C,
    alone,
    every,
    images_of,
    made,
    one_round,
    pooled,
    sent,
    task_for,
    totals_of,
    within,
)
from tests.methods.contract_toy import federate, make_task, spread


def test_federated_sums_are_those_of_all_images_in_one_place() -> None:
    features, labels = pooled(CLIENTS)
    found = totals_of(made(FedLDA), CLIENTS)
    counts = np.bincount(labels, minlength=C)
    assert found.images.tolist() == counts.tolist()
    for c in range(C):
        np.testing.assert_allclose(found.means[c], features[labels == c].mean(axis=0), atol=1e-12)
    np.testing.assert_allclose(found.moment, features.T @ features / len(features), atol=1e-12)
    np.testing.assert_allclose(found.scatter, within(features, labels), atol=1e-10)
    np.testing.assert_allclose(found.centre, features.mean(axis=0), atol=1e-12)
    assert found.told == len(features) and found.freedom == len(features) - C


def test_how_images_are_divided_changes_nothing() -> None:
    features, labels = pooled(CLIENTS)
    order = np.random.default_rng(0).permutation(len(labels))
    parts = [
        Batch(torch.from_numpy(features[rows]), None, torch.from_numpy(labels[rows]))
        for rows in np.array_split(order, 5)
    ]
    a, b = totals_of(made(Fed3R), CLIENTS), totals_of(made(Fed3R), parts)
    torch.testing.assert_close(a.scatter, b.scatter, atol=1e-10, rtol=0)
    torch.testing.assert_close(a.means, b.means, atol=1e-12, rtol=0)


@every
def test_secure_sums_and_later_rounds_of_the_same_clients_change_nothing(
    kind: type[ClosedForm],
) -> None:
    method = made(kind)
    plain, task = one_round(method, CLIENTS)
    secure, _ = one_round(method, CLIENTS, summed)
    again = aggregate(method, plain, sent(method, task, plain.shared, CLIENTS), task)
    for name, value in plain.shared.items():
        torch.testing.assert_close(again.shared[name], value, atol=1e-9, rtol=1e-9)
        if kind is FOCoOpPlus and name in ("metric", "classes"):
            continue  # a sum hides how far clients differ, which FOCoOp+ shrinks by
        # Sums in 24 bits after the point; what is solved magnifies their rounding.
        torch.testing.assert_close(secure.shared[name], value, atol=1e-4, rtol=1e-4)


@every
def test_a_later_round_adds_what_a_new_client_brings(kind: type[ClosedForm]) -> None:
    method = made(kind)
    whole, _ = one_round(method, CLIENTS)
    server, task = one_round(method, CLIENTS[:2])
    late = aggregate(method, server, sent(method, task, server.shared, CLIENTS[2:]), task)
    torch.testing.assert_close(late.shared["means"], whole.shared["means"])
    if "moment" in whole.shared:
        torch.testing.assert_close(late.shared["moment"], whole.shared["moment"])


def test_a_client_that_joins_after_two_rounds_leaves_a_weighted_scatter() -> None:
    """Images of the first two clients are told twice, those of the third once: as weights 2 and 1.

    Its class looks unlike all others, so that a moment and means of unequal weights would show.
    """
    method = made(FedLDA)
    task = task_for(method)
    server = Server(method.init(task, torch_generator(0)).shared)
    for asked in (CLIENTS[:2], CLIENTS[:2], CLIENTS[2:]):
        updates = sent(method, task, server.shared, asked)
        totals = method.sums.add(server, updates)[2]
        server = aggregate(method, server, updates, task)
    features, labels = pooled([*CLIENTS[:2], *CLIENTS[:2], *CLIENTS[2:]])
    weighted = within(features, labels)
    expected = weighted / len(labels) * float(totals.images.sum())
    np.testing.assert_allclose(totals.scatter, expected, atol=1e-9)
    assert np.linalg.eigvalsh(totals.scatter.numpy()).min() > -1e-9
    assert float(totals.images.sum()) == pytest.approx(totals.told)


@every
def test_what_is_too_few_is_not_told_and_counts_for_nothing(kind: type[ClosedForm]) -> None:
    """Clients keep classes of fewer than five images: the rest is as if these were not there."""
    method = made(kind, least_images=5)
    rest = [
        Batch(one.pooled[keep], None, one.labels[keep])
        for one in CLIENTS
        for keep in [(torch.bincount(one.labels, minlength=C) >= 5)[one.labels]]
    ]
    assert sum(len(one.labels) for one in rest) == sum(len(one.labels) for one in CLIENTS) - 3
    a, b = totals_of(method, CLIENTS), totals_of(method, rest)
    for name in ("means", "images", "moment"):
        torch.testing.assert_close(getattr(a, name), getattr(b, name), atol=1e-12, rtol=1e-9)
    assert a.told == pytest.approx(b.told)
    task = task_for(method)
    server = method.init(task, torch_generator(0)).shared
    first = CLIENTS[1]
    other = replace(first, pooled=torch.where((first.labels == 0)[:, None], 0.5, first.pooled))
    for name, value in method.measure(server, first, task).items():
        assert torch.equal(value, method.measure(server, other, task)[name]), name


def test_copies_of_an_image_are_one_image() -> None:
    method, task = made(FedLDA, least_images=3), task_for(made(FedLDA))
    server = method.init(task, torch_generator(0)).shared
    one = images_of([1], 4)
    copies = Batch(one.pooled.repeat(6, 1), None, one.labels.repeat(6))
    found = method.measure(server, copies, task)
    assert not found["mean_weight"].any() and not found["means"].any()
    assert not found["moment"].any()


def test_a_spread_of_few_images_is_not_told_but_the_means_are() -> None:
    asked = partial(made, FedLDA, least_images=2)
    method, task = asked(least_freedom=14), task_for(made(FedLDA))
    server = method.init(task, torch_generator(0)).shared
    found = method.measure(server, CLIENTS[0], task)  # 15 images of 2 classes: 13
    assert not found["spread_weight"].any() and found["mean_weight"].sum() > 0
    means, labels = found["means"], CLIENTS[0].labels
    expected = means[labels].T @ means[labels] / len(labels)
    torch.testing.assert_close(found["moment"], expected)
    for tells in (
        asked(least_freedom=13),
        made(FedLDA, least_freedom=14),
    ):  # single images are told
        assert tells.measure(server, CLIENTS[0], task)["spread_weight"].any()


@every
def test_noise_of_differential_privacy_leaves_numbers(kind: type[ClosedForm]) -> None:
    """Clipped and noised sums are not positive any more; answers stay finite."""
    method, privacy = made(kind), Privacy(clip=0.5, noise=1.0, counts="noised", count_noise=2.0)
    task = task_for(method)
    server = Server(method.init(task, torch_generator(0)).shared)
    released = [
        privacy.release(u, server.shared, torch_generator(u.client, "n"), torch_generator(1, "c"))
        for u in sent(method, task, server.shared, CLIENTS)
    ]
    server = aggregate(method, server, released, task)
    assert all(torch.isfinite(value).all() for value in server.shared.values())
    text = method.encode(
        {**server.shared, **alone(method, task), "counts": torch.tensor([1, 0, 2, 0])}, task
    )
    logits = method.logits(text, CLIENTS[0].pooled, None)
    assert torch.isfinite(logits.id).all() and torch.isfinite(method.score(logits, task)).all()


def clipped(updates: list[ClientUpdate], received: Params, clip: float) -> list[ClientUpdate]:
    """Updates as they leave clients under `privacy.clip` alone."""
    release, none = Privacy(clip=clip).release, torch_generator(0)
    return [release(update, received, none, none) for update in updates]


def test_a_clip_shortens_means_towards_nothing_and_changes_no_direction() -> None:
    method = made(FedNCM)
    task = task_for(method)
    server = Server(method.init(task, torch_generator(0)).shared)
    updates = sent(method, task, server.shared, CLIENTS[2:])
    cut = clipped(updates, server.shared, 0.01)
    plain, short = (aggregate(method, server, u, task).shared["means"] for u in (updates, cut))
    held = CLIENTS[2].labels.unique()
    cosines = torch.nn.functional.cosine_similarity(plain[held], short[held])
    torch.testing.assert_close(cosines, torch.ones_like(cosines))


@every
@pytest.mark.parametrize("secure", [False, True])
def test_a_clip_counts_the_same_images(kind: type[ClosedForm], secure: bool) -> None:
    """Else class names, which weigh against numbers of images, would outweigh them."""
    method = made(kind)
    task = task_for(method)
    server = Server(method.init(task, torch_generator(0)).shared)
    updates = sent(method, task, server.shared, CLIENTS)
    both = [updates, clipped(updates, server.shared, 0.5)]
    if secure:
        both = [summed(method, server, some, task)[0] for some in both]
    plain, cut = (method.sums.add(server, some)[2] for some in both)
    # Clients are cut by unlike factors, of which the server knows the mean.
    torch.testing.assert_close(cut.images, plain.images, rtol=0.2, atol=0)
    assert cut.told == pytest.approx(plain.told, rel=0.2)
    assert cut.between is None and cut.noise is None
    cosines = torch.nn.functional.cosine_similarity(plain.means, cut.means)
    torch.testing.assert_close(cosines, torch.ones_like(cosines), atol=0.01, rtol=0)


def test_views_are_no_further_images() -> None:
    """Random crops of an image are rows of training data; sums count the images alone."""
    method = made(FedNCM)
    task = make_task(method)
    outcome = federate(method, task, spread([8]), rounds=1)
    data = outcome.clients[0]()
    doubled = LabelledFeatures(
        torch.cat([data.pooled, -data.pooled]),
        None,
        torch.cat([data.labels, data.labels]),
        num_views=1,
    )
    state = outcome.initial
    sums = make_update(method, 0, state, doubled, task, 0.0).shared["means"]
    assert torch.equal(sums, make_update(method, 0, state, data, task, 0.0).shared["means"])
