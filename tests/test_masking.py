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

from focoop.errors import MethodError
from focoop.masking import GROUP, Masker, Revealed, unmask
from focoop.secure_sum import sum_bytes, threshold_of
from focoop.shamir import FIELD, opened, restore, split


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
    secret, named = opened(0, told, threshold, lambda found: found == 99)
    # Whoever lies in the way is named; those behind enough true shares are not looked at.
    assert secret == 99
    assert named == (liars if liars & set(clients[:threshold]) else set())
    assert restore(shares, threshold, 7) == restore(
        dict(list(shares.items())[spare:]), threshold, 7
    )
    if spare < 3:
        return
    everyone = {k: rng.getrandbits(520) for k in clients}
    with pytest.raises(MethodError, match="client 0's secret do not fit"):
        opened(0, everyone, threshold, lambda found: found == 99)


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
    parties = {k: Masker(k, threshold, rng.getrandbits) for k in vectors}
    keys = {k: party.keys() for k, party in parties.items()}
    packages = {k: party.share(keys) for k, party in parties.items()}
    masked = {
        k: party.mask(vectors[k], {j: packages[j][k] for j in parties if j != k})
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
    vectors = draw_words(5, 7)
    total, _ = protocol(vectors, 3, dropped, late)
    expected = [sum(int(vectors[k][i]) for k in vectors if k not in dropped) for i in range(7)]
    assert [int(x) for x in total] == [x % 2**64 for x in expected]


def test_too_few_opened_shares_lose_the_round_with_a_word() -> None:
    with pytest.raises(MethodError, match="2 clients opened their shares, 3 are needed"):
        protocol(draw_words(5, 2), 3, {0}, {3, 6})


@given(st.integers(1, 10**6), st.floats(0.5, 1.0))
def test_two_groups_cannot_both_open_a_sum(clients: int, share: float) -> None:
    needed = threshold_of(clients, share)
    assert 2 * needed > clients and needed <= clients
    assert needed == clients or needed > share * clients >= needed - 1


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
) -> tuple[dict[int, Masker], dict[int, dict[int, bytes]]]:
    rng = random.Random(2)
    parties = {k: Masker(k, threshold, rng.getrandbits) for k in range(count)}
    keys = {k: party.keys() for k, party in parties.items()}
    return parties, {k: party.share(keys) for k, party in parties.items()}


def test_changed_packages_and_false_keys_are_refused() -> None:
    parties, packages = ready()
    broken = bytes([packages[1][0][0] ^ 1]) + packages[1][0][1:]
    with pytest.raises(MethodError, match="package of client 1 was changed"):
        parties[0].mask(np.zeros(2, np.uint64), {1: broken, 2: packages[2][0]})
    fresh = {k: Masker(k, 2, random.Random(k).getrandbits) for k in range(3)}
    keys = {k: party.keys() for k, party in fresh.items()}
    with pytest.raises(MethodError, match="client 2 sent a key that is none"):
        fresh[0].share(keys | {2: replace(keys[2], mask=1)})
    with pytest.raises(MethodError, match="this one's keys are not among theirs"):
        fresh[0].share(keys | {0: replace(keys[0], mask=4)})
    with pytest.raises(MethodError, match="client 7, which takes no part"):
        parties[0].mask(np.zeros(2, np.uint64), {7: packages[1][0], 2: packages[2][0]})


def test_the_same_question_has_the_same_answer_and_another_none() -> None:
    parties, packages = ready()
    keys = {k: party.keys() for k, party in parties.items()}
    assert parties[0].share(keys) == packages[0]
    with pytest.raises(MethodError, match="asked twice with other keys"):
        parties[0].share({k: keys[k] for k in (0, 1)})
    given = {k: packages[k][0] for k in (1, 2)}
    vector = np.arange(4, dtype=np.uint64)
    first = parties[0].mask(vector, given)
    assert (parties[0].mask(vector, given) == first).all()
    for other_vector, other_given in ((vector + 1, given), (vector, {1: given[1]})):
        with pytest.raises(MethodError, match="asked twice for one sum"):
            parties[0].mask(other_vector.astype(np.uint64), other_given)


def stepped(parties: dict[int, Masker]) -> dict[int, Masker]:
    """The same clients after their processes ended and began again."""
    return {k: Masker.load(json.loads(json.dumps(p.dump()))) for k, p in parties.items()}


def test_a_client_goes_on_from_what_it_kept() -> None:
    vectors = draw_words(4, 5)
    rng = random.Random(3)
    parties = stepped({k: Masker(k, 3, rng.getrandbits) for k in vectors})
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
    with pytest.raises(MethodError, match="asked twice with other lists"):
        stepped(parties)[0].reveal([0, 3, 6])


@pytest.mark.parametrize("part", ["seeds", "keys", "missing"])
def test_false_shares_are_found_and_done_without(part: str) -> None:
    vectors = draw_words(5, 3)
    rng = random.Random(4)
    parties = {k: Masker(k, 3, rng.getrandbits) for k in vectors}
    keys = {k: party.keys() for k, party in parties.items()}
    packages = {k: party.share(keys) for k, party in parties.items()}
    alive = [0, 3, 6, 9]  # 12 has dropped out
    masked = {
        k: parties[k].mask(vectors[k], {j: packages[j][k] for j in parties if j != k})
        for k in alive
    }
    revealed = [parties[k].reveal(alive) for k in alive]

    def lie(told: Revealed) -> Revealed:
        if part == "missing":
            return replace(told, seeds={k: v for k, v in told.seeds.items() if k != 9})
        shares = dict(getattr(told, part))
        shares[min(shares)] += 1
        return replace(told, **{part: shares})

    total, liars = unmask(masked, parties, keys, [lie(revealed[0]), *revealed[1:]], 3)
    assert liars == {0}
    assert (total == np.add.reduce([vectors[k] for k in alive])).all()
    with pytest.raises(MethodError, match="lost"):  # two liars leave two true shares of three
        unmask(masked, parties, keys, [lie(r) for r in revealed[:2]] + revealed[2:], 3)


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
        Masker(0, 4).share({0: parties[0].keys()})


def test_bytes_of_a_sum_are_those_of_its_messages() -> None:
    parties, packages = ready(count=3)
    keys = {k: party.keys() for k, party in parties.items()}
    vectors = {k: np.zeros(10, np.uint64) for k in parties}
    masked = {
        k: p.mask(vectors[k], {j: packages[j][k] for j in parties if j != k})
        for k, p in parties.items()
    }
    revealed = [p.reveal(parties) for p in parties.values()]
    up = sum(2 * GROUP.bit_length() // 8 + len(k.commitment) for k in keys.values())
    everyone = up
    sealed = sum(len(p) for one in packages.values() for p in one.values())
    up += sealed + sum(v.nbytes for v in masked.values())
    up += sum(66 * (len(r.seeds) + len(r.keys)) for r in revealed)
    down = 3 * everyone + sealed + 3 * 1000 + 3 * 3 * 8
    assert sum_bytes(3, 3, 3, 3, words=10, down=1000) == (up, down)
