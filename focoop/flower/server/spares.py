"""More clients are asked than a round needs; the first that suffice end it.

Which updates count is a function of who had answered by then, never of the order in which they
did: the round's sampled clients first, then its spares in the order they were drawn. Where all
sampled clients are among them the round has the bits of a run without spares.
"""

import math
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Message

from focoop.caching import checksum
from focoop.errors import FederationError
from focoop.federation import sample_clients
from focoop.flower.server.replies import Enough
from focoop.methods import ClientUpdate
from focoop.runs import DRAW, append
from focoop.seeds import numpy_generator


@dataclass(frozen=True)
class Draw:
    """Who is asked in which round, from the run's seed or the server's secret one alone."""

    num_clients: int
    participation: float
    spare: float
    seed: int

    def clients(self, round_index: int) -> tuple[list[int], list[int]]:
        """Draw the clients of a round.

        Args:
            round_index: The round's number.

        Returns:
            The sampled clients, sorted, and the spares, in drawn order.
        """
        names = self.seed, round_index
        sampled = sample_clients(self.num_clients, self.participation, *names)
        return sampled, spare_clients(self.num_clients, sampled, self.spare, *names)

    def turns(self, rounds: int) -> tuple[int, int, float]:
        """Return what privacy has cost; a spare's release reached the server too.

        Args:
            rounds: Rounds so far.

        Returns:
            Turns of the busiest client, rounds, and the share asked in a round.
        """
        asked = [[*sampled, *spares] for sampled, spares in map(self.clients, range(1, rounds + 1))]
        busiest = Counter(client for clients in asked for client in clients)
        share = max(len(clients) for clients in asked) / self.num_clients
        return max(busiest.values()), rounds, share


def secret_seed(folder: Path) -> int:
    """Return the server's own seed for drawing clients, made once for a run and kept in its folder.

    Whoever knows it, or the participants that the run folder names, knows who took part.

    Args:
        folder: The run folder.

    Returns:
        The seed.

    Raises:
        FederationError: The kept seed is damaged.
    """
    path = folder / DRAW
    if not path.exists():  # the run folder's lock is ours: nobody else makes one
        drawn = secrets.token_hex(32)
        draft = path.with_name(f"{DRAW}.draft")
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{drawn} {checksum(drawn)}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    drawn, _, known = path.read_bytes().decode("ascii", "replace").strip().partition(" ")
    whole = re.fullmatch(r"[0-9a-f]{64}", drawn) and known in ("", checksum(drawn))
    if not whole:
        raise FederationError(f"{path} is damaged: start the run again in another folder")
    if not known:  # of an earlier focoop
        append(path, f" {checksum(drawn)}\n".encode())
    return int(drawn, 16)


def spare_clients(
    num_clients: int, sampled: Sequence[int], spare: float, seed: int, round_index: int
) -> list[int]:
    """Draw ceil(spare * sampled) clients beside the sampled ones, or all there are.

    Args:
        num_clients: Number of clients.
        sampled: The sampled clients.
        spare: Share of further clients.
        seed: Seed of the draw.
        round_index: The round's number.

    Returns:
        The spares in drawn order.

    >>> spare_clients(4, [0, 2], 0.5, seed=0, round_index=1) in ([1], [3])
    True
    >>> spare_clients(4, [0, 1, 2, 3], 0.5, seed=0, round_index=1)
    []
    """
    others = sorted(set(range(num_clients)) - set(sampled))
    count = min(len(others), math.ceil(spare * len(sampled)))
    generator = numpy_generator(seed, "spares", round_index)
    return [int(k) for k in generator.permutation(others)[:count]] if count else []


def chosen(
    updates: Sequence[ClientUpdate], sampled: Sequence[int], spares: Sequence[int]
) -> tuple[list[ClientUpdate], list[int]]:
    """Choose the updates that count.

    Args:
        updates: The updates that came.
        sampled: The sampled clients.
        spares: The spares in drawn order.

    Returns:
        The updates by client, and the clients whose update is one too many.
    """
    by_client = {update.client: update for update in updates}
    ranked = [client for client in (*sorted(sampled), *spares) if client in by_client]
    taken = sorted(ranked[: len(sampled)])
    return [by_client[client] for client in taken], sorted(ranked[len(sampled) :])


def suffice(wanted: int, read: Callable[[int, Message], ClientUpdate]) -> Enough:
    """Return a rule that ends a round once enough clients have sent an update that can be used.

    Args:
        wanted: How many.
        read: Reads a client's update.

    Returns:
        The rule.
    """
    seen: dict[int, bool] = {}

    def usable(client: int, reply: Message) -> bool:
        if client not in seen:
            try:
                seen[client] = reply.has_content() and bool(read(client, reply))
            except FederationError:
                seen[client] = False
        return seen[client]

    return lambda replies: sum(usable(k, reply) for k, reply in replies.items()) >= wanted
