"""Shamir's shares of a secret: any `threshold` of them restore it, fewer tell nothing."""

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations, islice

from focoop.errors import MethodError

FIELD = 2**521 - 1  # a prime above every secret that is shared
# Sets of shares that are tried before a secret is given up.
MOST_TRIES = 2000
Draw = Callable[[int], int]


def opened(
    owner: int, shares: Mapping[int, int], threshold: int, right: Callable[[int], bool]
) -> tuple[int, set[int]]:
    """The secret that is `right`, from any `threshold` shares, and whose shares do not fit it."""
    for points in islice(combinations(sorted(shares), threshold), MOST_TRIES):
        chosen = {k: shares[k] for k in points}
        secret = restore(chosen, threshold)
        if right(secret):
            return secret, {k for k, v in shares.items() if restore(chosen, threshold, k + 1) != v}
    raise MethodError(
        f"the shares of client {owner}'s secret do not fit what it said of it: this round's sum "
        "is lost; leave out the client, or those who hold its shares"
    )


def split(secret: int, clients: Iterable[int], threshold: int, draw: Draw) -> dict[int, int]:
    """Shamir's shares: values at client + 1 of a polynomial whose constant is the secret."""
    # 64 bits beyond the field's size make the remainder uniform for all purposes.
    coefficients = [secret, *(draw(585) % FIELD for _ in range(threshold - 1))]
    return {
        client: sum(c * pow(client + 1, i, FIELD) for i, c in enumerate(coefficients)) % FIELD
        for client in clients
    }


def restore(shares: Mapping[int, int], threshold: int, at: int = 0) -> int:
    """The polynomial's value `at` a point, the secret at 0, by Lagrange from `threshold` shares."""
    points = dict(sorted(shares.items())[:threshold])
    total = 0
    for mine, value in points.items():
        others = [k + 1 for k in points if k != mine]
        top = math.prod(at - x for x in others)
        bottom = math.prod(mine + 1 - x for x in others)
        total += value * top * pow(bottom, -1, FIELD)
    return total % FIELD
