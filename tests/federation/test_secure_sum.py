"""Secure sums: packed updates, and that their sum is all the methods need."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from focoop import methods
from focoop.config import loading
from focoop.errors import ConfigError, MethodError
from focoop.federation.client import make_update, train
from focoop.federation.rounds import aggregate, client_state, start
from focoop.federation.updates.secure_sum import FRACTION, num_words, pack, summed, unpack
from focoop.methods.base import ClientUpdate, Method, Server, Task
from focoop.methods.focoop import FOCoOp, FOCoOpConfig
from focoop.scenario.schedule import check_parties
from focoop.seeds import torch_generator
from tests.methods.contract_toy import LOCAL, SEED, make_clients, make_task, spread


def round_of(name: str, settings: object = None) -> tuple[Method, Task, Server, list[ClientUpdate]]:
    """A method, its task, a server and the updates of three clients after one round."""
    method = methods.create(name, settings)
    task = make_task(method)
    initial = start(method, task, SEED)
    server = Server(initial.shared)
    updates = []
    for k, data in enumerate(make_clients(method, task, [*spread([6, 9]), [1, 1, 1, 2]])):
        images = data()
        counts = images.counts(len(task.classes))
        state = client_state(method, task, initial, server, None, lambda c=counts: c)  # type: ignore[misc]
        trained, loss = train(method, state, images, task, LOCAL, torch_generator(0, "t", k))
        updates.append(make_update(method, k, trained, images, task, loss))
    return method, task, server, updates


AVERAGES = [
    n for n in methods.available() if not n.startswith("focoop") and methods.lookup(n).trains
]


BY_CLASS = [
    ("promptfl", {"class_specific": True}),
    ("fedlocoop", {"class_specific": True}),
    ("fedlapt", {"contexts": "class_specific"}),
    ("focoop", {"goc": False}),
    ("focoop_plus", {}),
]


@pytest.mark.parametrize(("name", "settings"), [*((n, {}) for n in AVERAGES), *BY_CLASS])
def test_sums_suffice_for_every_method_that_averages(
    name: str, settings: dict[str, object]
) -> None:
    method, task, server, updates = round_of(name, methods.lookup(name).Config(**settings))
    plain = aggregate(method, server, updates, task)
    secure = aggregate(method, server, updates, task, summed)
    for key, value in plain.shared.items():
        # Closed forms invert a matrix of sums, which magnifies their rounding.
        exact = 1e-3 if key in method.server_made else 2.0**-FRACTION * 3
        assert torch.allclose(secure.shared[key], value, atol=exact, rtol=1e-6), key
    assert secure.report["summed"] == len(updates)


def test_mean_pool_makes_transport_a_matter_of_sums() -> None:
    settings = FOCoOpConfig(goc_pool="mean", alpha=0.7)
    method, task, server, updates = round_of("focoop", settings)
    plain = aggregate(method, server, updates, task)
    secure = aggregate(method, server, updates, task, summed)
    assert plain.report["transport_gained"] > 0  # the plan is better than the product plan
    for key, value in plain.shared.items():
        assert torch.allclose(secure.shared[key], value, atol=1e-5), key
    mean = sum(u.num_examples * u.shared["ood"].double() for u in updates)
    mean = mean / sum(u.num_examples for u in updates)
    assert torch.allclose(plain.shared["ood"].double(), mean, atol=1e-6)


@pytest.mark.flower
def test_masked_and_plain_sums_of_packed_updates_agree_to_the_bit() -> None:
    pytest.importorskip("cryptography", reason="the extra `flower` is not installed")
    from tests.flower.test_masking import protocol

    method, task, server, updates = round_of("focoop", FOCoOpConfig(goc=False))
    updates = [*updates, replace(updates[0], client=3)]
    packed = {u.client: pack(u, method.by_class, 4) for u in updates}
    total, _ = protocol(packed, 3, {1})
    alive = [u for u in updates if u.client != 1]
    found = unpack(total, server.shared, method.by_class, len(task.classes))
    expected = summed(method, server, alive, task)[0][0]
    assert found.num_examples == expected.num_examples == sum(u.num_examples for u in alive)
    assert torch.equal(found.class_counts, sum(u.class_counts for u in alive))
    for name, value in expected.shared.items():
        assert torch.equal(found.shared[name], value)
    nobody = int((found.class_counts == 0).sum())
    assert nobody == 0 or torch.equal(
        found.shared["global"][found.class_counts == 0],
        server.shared["global"][found.class_counts == 0],
    )


def test_the_mean_loss_is_part_of_the_sum() -> None:
    method, task, server, updates = round_of("promptfl")
    secret = [replace(updates[0], loss=math.nan), *updates[1:]]  # as with noise
    for some in (updates, secret):
        mean = summed(method, server, some, task)[0][0]
        told = [u for u in some if math.isfinite(u.loss)]
        images = sum(u.num_examples for u in told)
        expected = sum(u.num_examples * u.loss for u in told) / images
        assert mean.loss == pytest.approx(expected, abs=2.0**-FRACTION * 3)
    nobody = [replace(u, loss=math.nan) for u in updates]
    assert math.isnan(summed(method, server, nobody, task)[0][0].loss)


def test_a_sum_of_something_else_is_refused() -> None:
    method, task, server, updates = round_of("promptfl")
    total = np.add.reduce([pack(u, method.by_class, 3) for u in updates])
    assert len(total) == num_words(server.shared, len(task.classes))
    noise = np.random.default_rng(0).integers(0, 2**64, len(total), dtype=np.uint64)
    with pytest.raises(MethodError, match="its counts do not add up"):
        unpack(total + noise, server.shared, method.by_class, len(task.classes))


def test_an_update_beyond_the_range_is_refused() -> None:
    _, _, _, updates = round_of("promptfl")
    for bad in (1e30, math.nan):
        far = replace(updates[0], shared={"context": updates[0].shared["context"] * bad})
        with pytest.raises(MethodError, match=r"set privacy\.clip"):
            pack(far, (), 3)


def test_settings_that_need_single_updates_are_refused() -> None:
    with pytest.raises(ConfigError, match="compares single updates"):
        loading.load(
            None, ["privacy.secure_sum=true", "robust.rule=median", "method.name=promptfl"]
        )
    with pytest.raises(ConfigError, match=r"set method\.goc_pool to mean"):
        loading.load(None, ["privacy.secure_sum=true", "method.name=focoop"])
    fine = loading.load(None, ["privacy.secure_sum=true", "method.goc_pool=mean"])
    assert isinstance(FOCoOp(fine.method.settings).config, FOCoOpConfig)


def test_a_run_whose_sums_would_be_of_two_is_refused() -> None:
    fine = loading.load(
        None,
        ["privacy.secure_sum=true", "method.name=promptfl", "federation.participation=0.3"],
    )
    check_parties(fine, 10)
    with pytest.raises(ConfigError, match="2 of 6 clients take part in a round"):
        check_parties(fine, 6)
    check_parties(loading.load(None, []), 1)
