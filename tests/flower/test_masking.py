"""Masks: exact totals whoever drops out, what the server may not see, false shares found."""

import json
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

pytest.importorskip("cryptography", reason="the extra `flower` is not installed")

from focoop.errors import FederationError
from focoop.federation.updates.secure_sum import (
    IDENTITY_BYTES,
    SIGNATURE_BYTES,
    sum_bytes,
    threshold_of,
)
from focoop.flower.mask_keys import SECRET_BITS, agreed, public_of, stream
from focoop.flower.masking import Masker, Revealed, unmask
from focoop.flower.shamir import FIELD, restore, restore_secret, split


def test_the_field_of_shares_is_prime_and_above_every_secret() -> None:
    # Lucas and Lehmer: 2^p - 1 is prime if and only if s_(p - 2) = 0, s_0 = 4, s -> s^2 - 2.
    found = 4
    for _ in range(519):
        found = (found * found - 2) % FIELD
    assert found == 0 and 2**521 - 1 == FIELD > 2**SECRET_BITS


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**256 - 1), st.integers(2, 5), st.integers(0, 3), st.randoms())
def test_any_threshold_of_shares_restores_a_secret(
    secret: int, threshold: int, more: int, rng: random.Random
) -> None:
    shares = split(secret, range(threshold + more), threshold, rng.getrandbits)
    some = dict(rng.sample(sorted(shares.items()), threshold))
    assert restore(some, threshold) == secret


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 4), st.integers(0, 3), st.data())
def test_liars_are_done_without_while_enough_true_shares_are_left(
    threshold: int, spare: int, data: st.DataObject
) -> None:
    rng = random.Random(data.draw(st.integers(0, 10**6)))
    clients = [3 * k + 1 for k in range(threshold + spare)]
    shares = split(99, clients, threshold, rng.getrandbits)
    liars = set(rng.sample(clients, data.draw(st.integers(0, spare))))
    told = {k: rng.getrandbits(520) if k in liars else v for k, v in shares.items()}
    secret, named = restore_secret(0, told, threshold, lambda found: found == 99)
    # Whoever lies in the way is named; those behind enough true shares are not looked at.
    assert secret == 99
    assert named == (liars if liars & set(clients[:threshold]) else set())
    assert restore(shares, threshold, 7) == restore(
        dict(list(shares.items())[spare:]), threshold, 7
    )
    if spare < 3:
        return
    everyone = {k: rng.getrandbits(520) for k in clients}
    with pytest.raises(FederationError, match="client 0's secret do not fit"):
        restore_secret(0, everyone, threshold, lambda found: found == 99)


def test_fewer_shares_fit_every_secret() -> None:
    shares = split(42, range(5), 3, random.Random(0).getrandbits)
    two = {k: shares[k] for k in (1, 3)}
    for guess in (0, 7, 10**50):
        # A third share that makes the secret `guess` always exists: restoring is linear in it.
        missing = (guess - restore(two | {0: 0}, 3)) % FIELD
        unit = restore({0: 1, 1: 0, 3: 0}, 3)
        assert restore(two | {0: missing * pow(unit, -1, FIELD) % FIELD}, 3) == guess


def protocol(
    vectors: dict[int, np.ndarray],
    threshold: int,
    dropped: set[int],
    late: set[int] = frozenset(),
    contexts: dict[int, bytes] | None = None,
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """One sum: `dropped` share keys but send nothing, `late` send but open no shares.

    `contexts` are what clients were asked, where it was not the same.
    """
    rng = random.Random(1)
    parties = {k: Masker(k, threshold, draw=rng.getrandbits) for k in vectors}
    keys = {k: party.keys() for k, party in parties.items()}
    packages = {k: party.share(keys) for k, party in parties.items()}
    masked = {
        k: party.mask(
            vectors[k], {j: packages[j][k] for j in parties if j != k}, (contexts or {}).get(k, b"")
        )
        for k, party in parties.items()
        if k not in dropped
    }
    revealed = [parties[k].reveal(masked) for k in sorted(masked) if k not in late]
    total, liars = unmask(masked, parties, keys, revealed, threshold)
    assert not liars
    return total, masked


def draw_words(count: int, length: int) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(0)
    return {3 * k: rng.integers(0, 2**64, length, dtype=np.uint64) for k in range(count)}


@pytest.mark.parametrize(
    ("dropped", "late"), [(set(), set()), ({0}, set()), ({3, 12}, set()), ({6}, {9})]
)
def test_the_sum_of_those_who_answered_is_exact(dropped: set[int], late: set[int]) -> None:
    vectors = draw_words(7, 7)
    total, _ = protocol(vectors, 5, dropped, late)
    expected = [sum(int(vectors[k][i]) for k in vectors if k not in dropped) for i in range(7)]
    assert [int(x) for x in total] == [x % 2**64 for x in expected]


def test_too_few_opened_shares_lose_the_round_with_a_word() -> None:
    with pytest.raises(FederationError, match="3 clients opened their shares, 4 are needed"):
        protocol(draw_words(5, 2), 4, {0}, {3})


@given(st.integers(1, 10**6), st.floats(2 / 3, 1.0))
def test_two_groups_that_open_a_sum_share_more_than_a_third(clients: int, share: float) -> None:
    needed = threshold_of(clients, share)
    assert 3 * needed > 2 * clients and needed <= clients
    assert 3 * (2 * needed - clients) > clients
    assert needed == clients or needed > share * clients >= needed - 1


def test_what_the_server_receives_looks_uniform() -> None:
    zeros = {k: np.zeros(4000, dtype=np.uint64) for k in range(3)}
    total, masked = protocol(zeros, 3, set())
    assert not total.any()
    for vector in masked.values():
        assert stats.kstest(vector.astype(np.float64) / 2.0**64, "uniform").pvalue > 1e-3
    for a, b in pairwise(masked.values()):
        assert not (a == b).any()


def ready(
    threshold: int = 3, count: int = 4
) -> tuple[dict[int, Masker], dict[int, dict[int, bytes]]]:
    rng = random.Random(2)
    parties = {k: Masker(k, threshold, draw=rng.getrandbits) for k in range(count)}
    keys = {k: party.keys() for k, party in parties.items()}
    return parties, {k: party.share(keys) for k, party in parties.items()}


def test_changed_packages_and_false_keys_are_refused() -> None:
    parties, packages = ready()
    sealed = packages[1][0]
    given = {2: packages[2][0], 3: packages[3][0]}
    for broken in (bytes([sealed[0] ^ 1]) + sealed[1:], sealed[:-1], packages[1][2], b""):
        with pytest.raises(FederationError, match="package of client 1 was changed"):
            parties[0].mask(np.zeros(2, np.uint64), {1: broken, **given})
    fresh = {k: Masker(k, 3, draw=random.Random(k).getrandbits) for k in range(3)}
    keys = {k: party.keys() for k, party in fresh.items()}
    # 0, 1 and a point of order 8: with them everybody agrees on the same.
    order_8 = bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800")
    for none in (bytes(32), b"\1" + bytes(31), order_8, b"short"):
        with pytest.raises(FederationError, match="client 2 sent a key that is none"):
            fresh[0].share(keys | {2: replace(keys[2], mask=none)})
    with pytest.raises(FederationError, match="keys came back changed"):
        fresh[0].share(keys | {0: replace(keys[0], mask=keys[1].mask)})
    with pytest.raises(FederationError, match="two clients sent the same key"):
        fresh[0].share(keys | {2: replace(keys[2], mask=keys[1].channel)})
    with pytest.raises(FederationError, match="keys are not among those"):
        fresh[0].share({**{k: keys[k] for k in (1, 2)}, 3: keys[1]})
    with pytest.raises(FederationError, match="client 7, which takes no part"):
        parties[0].mask(np.zeros(2, np.uint64), {7: packages[1][0], **given})


def test_the_primitives_are_those_of_the_standards() -> None:
    # RFC 7748, section 6.1: both secrets, a public key, what they agree on.
    alice = 0x77076D0A7318A57D3C16C17251B26645DF4C2F87EBC0992AB177FBA51DB92C2A
    bob = 0x5DAB087E624A8A4B79E17F8B83800EE66F3BB1292618B6FD1C2F8B27FF88E0EB
    known = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    common = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert public_of(bob).hex() == known
    assert agreed(public_of(bob), alice).hex() == agreed(public_of(alice), bob).hex() == common
    # RFC 8439, appendix A.1, test vector 1.
    first = np.frombuffer(bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28"), dtype="<u8")
    assert (stream(bytes(32), 2) == first).all()


def test_a_set_of_two_is_refused() -> None:
    """Server and client 1 would know client 0's vector: the sum less client 1's own."""
    victim, colluder = Masker(0, 2), Masker(1, 2)
    keys = {0: victim.keys(), 1: colluder.keys()}
    with pytest.raises(FederationError, match="2 clients sent keys, .* sums of 3 or more"):
        victim.share(keys)
    assert Masker(0, 2, least=0).least == 3  # no setting lowers it
    # A set that shrinks to two after the keys, or after the vectors.
    parties, packages = ready(count=3)
    with pytest.raises(FederationError, match="2 clients are left"):
        parties[0].mask(np.zeros(2, np.uint64), {1: packages[1][0]})
    parties[0].mask(np.zeros(2, np.uint64), {k: packages[k][0] for k in (1, 2)})
    with pytest.raises(FederationError, match="2 clients answered"):
        parties[0].reveal([0, 1])
    with pytest.raises(FederationError, match="not of this sum's clients"):
        parties[0].reveal([0, 1, 9])  # an invented third
    wary = Masker(0, 4, least=5)
    four = {k: Masker(k, 4).keys() for k in range(1, 4)} | {0: wary.keys()}
    with pytest.raises(FederationError, match="sums of 5 or more"):
        wary.share(four)


def test_a_threshold_that_two_groups_can_reach_is_refused() -> None:
    parties = {k: Masker(k, 4) for k in range(6)}
    keys = {k: party.keys() for k, party in parties.items()}
    with pytest.raises(FederationError, match="4 among 6 clients is not above two thirds"):
        parties[0].share(keys)


def test_a_client_that_was_given_other_tensors_spoils_the_sum() -> None:
    """Once a server could mark one client's tensors and find the mark in the sum."""
    vectors = {k: np.arange(50, dtype=np.uint64) for k in range(4)}
    fair, _ = protocol(vectors, 3, set())
    assert (fair == 4 * vectors[0]).all()
    marked, _ = protocol(vectors, 3, set(), contexts={2: b"other tensors"})
    assert not (marked == fair).any()
    assert stats.kstest(marked.astype(np.float64) / 2.0**64, "uniform").pvalue > 1e-3


def test_the_same_question_has_the_same_answer_and_another_none() -> None:
    parties, packages = ready()
    keys = {k: party.keys() for k, party in parties.items()}
    assert parties[0].share(keys) == packages[0]
    with pytest.raises(FederationError, match="asked twice with other keys"):
        parties[0].share({k: keys[k] for k in (0, 1)})
    given = {k: packages[k][0] for k in (1, 2, 3)}
    vector = np.arange(4, dtype=np.uint64)
    first = parties[0].mask(vector, given)
    assert (parties[0].mask(vector, given) == first).all()
    for asked in ((vector + np.uint64(1), given), (vector, {1: given[1]}), (vector, given, b"x")):
        with pytest.raises(FederationError, match="asked twice for one sum"):
            parties[0].mask(*asked)


def stepped(parties: dict[int, Masker]) -> dict[int, Masker]:
    """The same clients after their processes ended and began again."""
    return {k: Masker.load(json.loads(json.dumps(p.dump()))) for k, p in parties.items()}


def test_a_client_goes_on_from_what_it_kept() -> None:
    vectors = draw_words(4, 5)
    rng = random.Random(3)
    parties = stepped({k: Masker(k, 3, draw=rng.getrandbits) for k in vectors})
    keys = {k: party.keys() for k, party in parties.items()}
    parties = stepped(parties)
    packages = {k: party.share(keys) for k, party in parties.items()}
    parties = stepped(parties)
    alive = [k for k in parties if k != 3]
    masked = {
        k: parties[k].mask(vectors[k], {j: packages[j][k] for j in parties if j != k})
        for k in alive
    }
    parties = stepped(parties)
    revealed = [parties[k].reveal(alive) for k in alive]
    total, _ = unmask(masked, parties, keys, revealed, 3)
    assert (total == np.add.reduce([vectors[k] for k in alive])).all()
    with pytest.raises(FederationError, match="asked twice with other lists"):
        stepped(parties)[0].reveal([0, 3, 6, 9])


@pytest.mark.parametrize("part", ["seeds", "keys", "missing"])
def test_false_shares_are_found_and_done_without(part: str) -> None:
    vectors = draw_words(7, 3)
    rng = random.Random(4)
    parties = {k: Masker(k, 5, draw=rng.getrandbits) for k in vectors}
    keys = {k: party.keys() for k, party in parties.items()}
    packages = {k: party.share(keys) for k, party in parties.items()}
    alive = [0, 3, 6, 9, 12, 15]  # 18 has dropped out
    masked = {
        k: parties[k].mask(vectors[k], {j: packages[j][k] for j in parties if j != k})
        for k in alive
    }
    revealed = [parties[k].reveal(alive) for k in alive]

    def lie(told: Revealed) -> Revealed:
        if part == "missing":
            return replace(told, seeds={k: v for k, v in told.seeds.items() if k != 9})
        shares = dict(getattr(told, part))
        shares[min(shares)] += 1 + told.client  # equal lies may cancel each other
        return replace(told, **{part: shares})

    total, liars = unmask(masked, parties, keys, [lie(revealed[0]), *revealed[1:]], 5)
    assert liars == {0}
    assert (total == np.add.reduce([vectors[k] for k in alive])).all()
    with pytest.raises(FederationError, match="lost"):  # two liars leave four true shares of five
        unmask(masked, parties, keys, [lie(r) for r in revealed[:2]] + revealed[2:], 5)


def test_no_client_opens_both_secrets_of_another() -> None:
    parties, packages = ready()
    parties[0].mask(np.zeros(2, np.uint64), {k: packages[k][0] for k in (1, 2, 3)})
    opened = parties[0].reveal([0, 1, 2])
    assert set(opened.seeds) == {0, 1, 2}
    assert set(opened.keys) == {3}
    with pytest.raises(FederationError, match="asked twice"):
        parties[0].reveal([0, 2, 3])
    with pytest.raises(FederationError, match="1 clients answered"):
        parties[1].reveal([1])


def test_bytes_of_a_sum_are_those_of_its_messages() -> None:
    parties, packages = ready(count=3)
    keys = {k: party.keys().signed(b"s" * SIGNATURE_BYTES) for k, party in parties.items()}
    vectors = {k: np.zeros(10, np.uint64) for k in parties}
    masked = {
        k: p.mask(vectors[k], {j: packages[j][k] for j in parties if j != k})
        for k, p in parties.items()
    }
    revealed = [p.reveal(parties) for p in parties.values()]
    told = [(k.mask, k.channel, k.commitment, k.signature) for k in keys.values()]
    up = sum(len(part) for one in told for part in one)
    everyone = up + 3 * IDENTITY_BYTES
    sealed = sum(len(p) for one in packages.values() for p in one.values())
    up += sealed + sum(v.nbytes for v in masked.values())
    up += sum(66 * (len(r.seeds) + len(r.keys)) for r in revealed)
    down = 3 * everyone + sealed + 3 * 1000 + 3 * 3 * 8
    assert sum_bytes(3, 3, 3, 3, words=10, down=1000) == (up, down)
