"""Shamir's shares of a secret: any `threshold` of them restore it, fewer tell nothing."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import combinations, islice

from focoop.errors import FederationError

FIELD = 2**521 - 1  # a prime above every secret that is shared
# Sets of shares that are tried before a secret is given up: all single liars of 2,000 clients.
MOST_TRIES = 2000
Draw = Callable[[int], int]


def opened(
    owner: int, shares: Mapping[int, int], threshold: int, right: Callable[[int], bool]
) -> tuple[int, set[int]]:
    """The secret that is `right`, from any `threshold` shares, and who was in its way.

    Where the first shares give it, the others are not looked at.
    """
    for tries, points in enumerate(islice(sets(sorted(shares), threshold), MOST_TRIES)):
        chosen = {k: shares[k] for k in points}
        secret = restore(chosen, threshold)
        if right(secret):
            others = shares.items() if tries else ()
            return secret, {k for k, v in others if restore(chosen, threshold, k + 1) != v}
    raise FederationError(
        f"the shares of client {owner}'s secret do not fit what it said of it: this round's sum "
        "is lost; leave out the client, or those who hold its shares"
    )


def sets(clients: list[int], threshold: int) -> Iterator[list[int]]:
    """Sets of `threshold` clients: the first ones, then without one of them, without two, ..."""
    for count in range(len(clients) - threshold + 1):
        for out in combinations(clients[: threshold + count], count):
            yield [k for k in clients if k not in out][:threshold]


def split(secret: int, clients: Iterable[int], threshold: int, draw: Draw) -> dict[int, int]:
    """Shamir's shares: values at client + 1 of a polynomial whose constant is the secret."""
    # 64 bits beyond the field's size make the remainder uniform for all purposes.
    coefficients = [secret, *(draw(585) % FIELD for _ in range(threshold - 1))]
    found = {}
    for client in clients:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * (client + 1) + coefficient) % FIELD
        found[client] = value
    return found


def restore(shares: Mapping[int, int], threshold: int, at: int = 0) -> int:
    """The polynomial's value `at` a point, the secret at 0, by Lagrange from `threshold` shares."""
    points = tuple(sorted(shares)[:threshold])
    pairs = zip(points, weights(points, at), strict=True)
    return sum(shares[k] * weight for k, weight in pairs) % FIELD


@lru_cache(maxsize=256)
def weights(points: tuple[int, ...], at: int) -> tuple[int, ...]:
    """Lagrange's weights of the shares of these clients; the same for all secrets of a round."""
    found = []
    for mine in points:
        others = [k + 1 for k in points if k != mine]
        top = math.prod(at - x for x in others)
        found.append(top * pow(math.prod(mine + 1 - x for x in others), -1, FIELD) % FIELD)
    return tuple(found)
