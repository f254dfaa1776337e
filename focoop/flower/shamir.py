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


def restore_secret(
    owner: int, shares: Mapping[int, int], threshold: int, right: Callable[[int], bool]
) -> tuple[int, set[int]]:
    """Restore a secret and find false shares.

    Where the first shares give it, the others are not looked at.

    Args:
        owner: The client whose secret it is, for messages.
        shares: Shares by client.
        threshold: How many shares restore it.
        right: Says whether a number is the secret.

    Returns:
        The secret, and the clients whose shares were false.

    Raises:
        FederationError: It cannot be restored.
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
    """Go through sets of clients: the first ones, then without one of them, without two, and so on.

    Args:
        clients: The clients.
        threshold: Size of a set.

    Yields:
        Sets.
    """
    for count in range(len(clients) - threshold + 1):
        for out in combinations(clients[: threshold + count], count):
            yield [k for k in clients if k not in out][:threshold]


def split(secret: int, clients: Iterable[int], threshold: int, draw: Draw) -> dict[int, int]:
    """Split a secret: shares are values at client + 1 of a polynomial whose constant is the secret.

    Args:
        secret: The secret.
        clients: The clients.
        threshold: How many shares restore it.
        draw: Draws the other coefficients.

    Returns:
        Shares by client.
    """
    # 64 bits beyond the field's size make the remainder uniform for all purposes.
    coefficients = [secret, *(draw(585) % FIELD for _ in range(threshold - 1))]
    shares = {}
    for client in clients:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * (client + 1) + coefficient) % FIELD
        shares[client] = value
    return shares


def restore(shares: Mapping[int, int], threshold: int, at: int = 0) -> int:
    """Return the polynomial's value at a point, the secret at 0, by Lagrange's formula.

    Args:
        shares: Shares by client.
        threshold: How many are used.
        at: The point.

    Returns:
        The value.
    """
    points = tuple(sorted(shares)[:threshold])
    pairs = zip(points, weights(points, at), strict=True)
    return sum(shares[k] * weight for k, weight in pairs) % FIELD


@lru_cache(maxsize=256)
def weights(points: tuple[int, ...], at: int) -> tuple[int, ...]:
    """Return Lagrange's weights of clients' shares; the same for all secrets of a round.

    Args:
        points: The clients' points.
        at: The point of the value.

    Returns:
        The weights.
    """
    factors = []
    for mine in points:
        others = [k + 1 for k in points if k != mine]
        top = math.prod(at - x for x in others)
        factors.append(top * pow(math.prod(mine + 1 - x for x in others), -1, FIELD) % FIELD)
    return tuple(factors)
