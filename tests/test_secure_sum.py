"""Secure sums: exact totals whoever drops out, what the server may not see, and packed updates."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from focoop import config, methods
from focoop.errors import ConfigError, MethodError
from focoop.federation.client import make_update, train
from focoop.federation.round import aggregate
from focoop.federation.simulator import client_state, start
from focoop.methods._base import ClientUpdate, Method, Server, Task
from focoop.methods.focoop import FOCoOp, FOCoOpConfig
from focoop.secure_sum import (
    FIELD,
    FRACTION,
    GROUP,
    Party,
    pack,
    restore,
    split,
    summed,
    unmask,
    unpack,
)
from focoop.seeds import torch_generator
from tests.methods.contract_toy import LOCAL, SEED, make_clients, make_task, spread


def is_prime(n: int) -> bool:
    """Miller-Rabin with fixed bases."""
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19):
        x = pow(base, odd, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


def test_the_group_is_the_one_of_its_definition_and_safe() -> None:
    one = 1 << (1918 + 64)  # pi by Machin's formula, with 64 bits to spare

    def arctan_of_inverse(x: int) -> int:
        total, term, k, sign = one // x, one // x, 3, -1
        while term:
            term //= x * x
            total, sign, k = total + sign * (term // k), -sign, k + 2
        return total

    pi = 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239)) >> 64
    assert 2**2048 - 2**1984 - 1 + 2**64 * (pi + 124476) == GROUP
    assert is_prime(GROUP)
    assert is_prime(GROUP // 2)
    assert is_prime(FIELD)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**256 - 1), st.integers(2, 5), st.integers(0, 3), st.randoms())
def test_any_threshold_of_shares_restores_a_secret(
    secret: int, threshold: int, more: int, rng: random.Random
) -> None:
    shares = split(secret, range(threshold + more), threshold, rng.getrandbits)
    some = dict(rng.sample(sorted(shares.items()), threshold))
    assert restore(some, threshold) == secret


def test_fewer_shares_fit_every_secret() -> None:
    shares = split(42, range(5), 3, random.Random(0).getrandbits)
    two = {k: shares[k] for k in (1, 3)}
    for guess in (0, 7, 10**50):
        # A third share that makes the secret `guess` always exists: restoring is linear in it.
        missing = (guess - restore(two | {0: 0}, 3)) % FIELD
        unit = restore({0: 1, 1: 0, 3: 0}, 3)
        assert restore(two | {0: missing * pow(unit, -1, FIELD) % FIELD}, 3) == guess


def protocol(
    vectors: dict[int, np.ndarray], threshold: int, dropped: set[int], late: set[int] = frozenset()
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """One sum: `dropped` share keys but send nothing, `late` send but open no shares."""
    rng = random.Random(1)
    parties = {k: Party(k, threshold, rng.getrandbits) for k in vectors}
    keys = {k: party.keys() for k, party in parties.items()}
    packages = {k: party.share(keys) for k, party in parties.items()}
    masked = {
        k: party.mask(vectors[k], {j: packages[j][k] for j in parties if j != k})
        for k, party in parties.items()
        if k not in dropped
    }
    revealed = [parties[k].reveal(masked) for k in sorted(masked) if k not in late]
    return unmask(masked, parties, keys, revealed, threshold), masked


def draw_words(count: int, length: int) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(0)
    return {3 * k: rng.integers(0, 2**64, length, dtype=np.uint64) for k in range(count)}


@pytest.mark.parametrize(
    ("dropped", "late"), [(set(), set()), ({0}, set()), ({3, 12}, set()), ({6}, {9})]
)
def test_the_sum_of_those_who_answered_is_exact(dropped: set[int], late: set[int]) -> None:
    vectors = draw_words(5, 7)
    total, _ = protocol(vectors, 3, dropped, late)
    expected = [sum(int(vectors[k][i]) for k in vectors if k not in dropped) for i in range(7)]
    assert [int(x) for x in total] == [x % 2**64 for x in expected]


def test_too_few_opened_shares_lose_the_round_with_a_word() -> None:
    with pytest.raises(MethodError, match="2 clients opened their shares, 3 are needed"):
        protocol(draw_words(5, 2), 3, {0}, {3, 6})


def test_what_the_server_receives_looks_uniform() -> None:
    zeros = {k: np.zeros(4000, dtype=np.uint64) for k in range(3)}
    total, masked = protocol(zeros, 2, set())
    assert not total.any()
    for vector in masked.values():
        assert stats.kstest(vector.astype(np.float64) / 2.0**64, "uniform").pvalue > 1e-3
    for a, b in pairwise(masked.values()):
        assert not (a == b).any()


def ready(
    threshold: int = 2, count: int = 3
) -> tuple[dict[int, Party], dict[int, dict[int, bytes]]]:
    rng = random.Random(2)
    parties = {k: Party(k, threshold, rng.getrandbits) for k in range(count)}
    keys = {k: party.keys() for k, party in parties.items()}
    return parties, {k: party.share(keys) for k, party in parties.items()}


def test_changed_packages_and_false_keys_are_refused() -> None:
    parties, packages = ready()
    broken = bytes([packages[1][0][0] ^ 1]) + packages[1][0][1:]
    with pytest.raises(MethodError, match="package of client 1 was changed"):
        parties[0].mask(np.zeros(2, np.uint64), {1: broken, 2: packages[2][0]})
    keys = {k: party.keys() for k, party in parties.items()}
    with pytest.raises(MethodError, match="client 2 sent a key that is none"):
        parties[0].share(keys | {2: replace(keys[2], mask=1)})


def test_no_client_opens_both_secrets_of_another() -> None:
    parties, packages = ready()
    parties[0].mask(np.zeros(2, np.uint64), {k: packages[k][0] for k in (1, 2)})
    opened = parties[0].reveal([0, 1])
    assert set(opened.seeds) == {0, 1}
    assert set(opened.keys) == {2}
    with pytest.raises(MethodError, match="asked twice"):
        parties[0].reveal([0, 2])
    with pytest.raises(MethodError, match="fewer than the threshold"):
        parties[1].reveal([1])
    with pytest.raises(MethodError, match="too few"):
        Party(0, 4).share({0: parties[0].keys()})


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
        updates.append(make_update(k, trained, images, len(task.classes), loss))
    return method, task, server, updates


AVERAGES = [
    n for n in methods.available() if not n.startswith("focoop") and methods.lookup(n).trains
]


BY_CLASS = [
    ("promptfl", {"class_specific": True}),
    ("fedlocoop", {"class_specific": True}),
    ("fedlapt", {"contexts": "class_specific"}),
    ("focoop", {"goc": False}),
    ("focoop_plus", {"goc": False}),
]


@pytest.mark.parametrize(("name", "settings"), [*((n, {}) for n in AVERAGES), *BY_CLASS])
def test_sums_suffice_for_every_method_that_averages(
    name: str, settings: dict[str, object]
) -> None:
    method, task, server, updates = round_of(name, methods.lookup(name).Config(**settings))
    plain = aggregate(method, server, updates, task)
    secure = aggregate(method, server, updates, task, summed)
    for key, value in plain.shared.items():
        assert torch.allclose(secure.shared[key], value, atol=2.0**-FRACTION * 3, rtol=1e-6)
    assert secure.report["summed"] == len(updates)


@pytest.mark.parametrize("name", ["focoop", "focoop_plus"])
def test_mean_pool_makes_transport_a_matter_of_sums(name: str) -> None:
    settings = methods.lookup(name).Config(goc_pool="mean", alpha=0.7)  # type: ignore[call-arg]
    method, task, server, updates = round_of(name, settings)
    plain = aggregate(method, server, updates, task)
    secure = aggregate(method, server, updates, task, summed)
    assert plain.report["transport_steps"] > 0
    for key, value in plain.shared.items():
        assert torch.allclose(secure.shared[key], value, atol=1e-5), key
    mean = sum(u.num_examples * u.shared["ood"].double() for u in updates)
    mean = mean / sum(u.num_examples for u in updates)
    assert torch.allclose(plain.shared["ood"].double(), mean, atol=1e-6)


def test_masked_and_plain_sums_of_packed_updates_agree_to_the_bit() -> None:
    method, task, server, updates = round_of("focoop", FOCoOpConfig(goc=False))
    packed = {u.client: pack(u, method.by_class, 3) for u in updates}
    total, _ = protocol(packed, 2, {1})
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


def test_an_update_beyond_the_range_is_refused() -> None:
    _, _, _, updates = round_of("promptfl")
    for bad in (1e30, math.nan):
        far = replace(updates[0], shared={"context": updates[0].shared["context"] * bad})
        with pytest.raises(MethodError, match=r"set privacy\.clip"):
            pack(far, (), 3)


def test_settings_that_need_single_updates_are_refused() -> None:
    with pytest.raises(ConfigError, match="compares single updates"):
        config.load(None, ["privacy.secure_sum=true", "robust.rule=median", "method.name=promptfl"])
    with pytest.raises(ConfigError, match=r"set method\.goc_pool to mean"):
        config.load(None, ["privacy.secure_sum=true", "method.name=focoop"])
    fine = config.load(None, ["privacy.secure_sum=true", "method.goc_pool=mean"])
    assert isinstance(FOCoOp(fine.method.settings).config, FOCoOpConfig)
