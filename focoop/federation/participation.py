"""Who trains in which round, and with which local settings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from focoop.errors import ConfigError
from focoop.federation.client import LocalSettings, learning_rate
from focoop.federation.updates.compression import Payload
from focoop.federation.updates.differential_privacy import Privacy
from focoop.federation.updates.screening import Screen
from focoop.seeds import numpy_generator


@dataclass(frozen=True)
class Schedule:
    """How a federation runs: rounds, participation and the clients' local settings.

    `together` is how many clients train as one batch: faster on a GPU, the same up to rounding.
    `privacy` is what clients do to their updates, `screen` what the server does before its step;
    `payload` is how updates are written on their way up, `down` how shared tensors are going down.
    `secure` says that clients send vectors under masks, which matters for the bytes alone.
    `late` is how many clients, the last ones, join after training, in the last round alone.
    """

    rounds: int
    participation: float
    local: LocalSettings
    lr_schedule: str = "constant"
    together: int = 1
    privacy: Privacy | None = None
    screen: Screen | None = None
    payload: Payload = Payload()
    down: str = "fp32"
    secure: bool = False
    late: int = 0

    def joins(self, round_index: int) -> bool:
        """Say whether a round is that of the clients who join after training.

        Args:
            round_index: The round's number, from 1.

        Returns:
            Whether it is.
        """
        return self.late > 0 and round_index == self.rounds

    def participants(self, num_clients: int, seed: int, round_index: int) -> list[int]:
        """Return the clients of a round: drawn from those who train, or those who join late.

        Args:
            num_clients: Number K of clients.
            seed: The run's seed.
            round_index: The round's number, from 1.

        Returns:
            Their numbers, sorted.
        """
        early = num_clients - self.late
        if self.joins(round_index):
            return list(range(early, num_clients))
        return sample_clients(early, self.participation, seed, round_index)


def sample_clients(
    num_clients: int, participation: float, seed: int, round_index: int
) -> list[int]:
    """Draw the clients of a round: max(1, round(K * participation)) without replacement.

    Args:
        num_clients: Number K of clients.
        participation: Share of clients in a round.
        seed: The run's seed.
        round_index: The round's number.

    Returns:
        Their numbers, sorted.

    Raises:
        ConfigError: The share is not above 0 and at most 1.

    >>> sample_clients(4, 1.0, seed=0, round_index=1)
    [0, 1, 2, 3]
    >>> len(sample_clients(100, 0.1, seed=0, round_index=1))
    10
    """
    if not 0.0 < participation <= 1.0:
        raise ConfigError(f"federation.participation must lie in (0, 1], not {participation}")
    count = num_sampled(num_clients, participation)
    generator = numpy_generator(seed, "participants", round_index)
    return sorted(int(k) for k in generator.choice(num_clients, size=count, replace=False))


def num_sampled(num_clients: int, participation: float) -> int:
    """Return how many clients take part in a round.

    Args:
        num_clients: Number of clients.
        participation: Share of clients in a round.

    Returns:
        Their number.

    >>> num_sampled(10, 0.05), num_sampled(10, 0.55)
    (1, 6)
    """
    return max(1, round(num_clients * participation))


def local_settings(schedule: Schedule, round_index: int) -> LocalSettings:
    """Return what clients train with in a round: its learning rate.

    Clients who join late have one round, at the rate of the first.

    Args:
        schedule: How the federation runs.
        round_index: The round's number.

    Returns:
        Learning rate, epochs and batch size.
    """
    local = schedule.local
    round_index = 1 if schedule.joins(round_index) else round_index
    rate = learning_rate(local.lr, schedule.lr_schedule, round_index, schedule.rounds)
    return replace(local, lr=rate)
