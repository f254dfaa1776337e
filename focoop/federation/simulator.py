"""In-process federation: one frozen backbone, clients that cost only their prompts."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from focoop.clip import LabelledFeatures
from focoop.federation.parallel import group_size
from focoop.federation.participation import Schedule, local_settings
from focoop.federation.rounds import (
    ClientResult,
    PrivateStore,
    RoundSetup,
    client_round,
    mean_loss_of,
    server_round,
    with_losses,
)
from focoop.federation.traffic import num_bytes, round_bytes
from focoop.federation.updates.compression import Payload, rounded
from focoop.federation.updates.secure_sum import num_words, sum_bytes
from focoop.methods import Method, Params, Server, Task


class MemoryStore:
    """A private store that forgets at exit."""

    def __init__(self) -> None:
        self.params: dict[int, Params] = {}

    def load(self, client: int) -> Params | None:
        """Return a client's private tensors, or None.

        Args:
            client: The client's number.

        Returns:
            Tensors by name, or None.
        """
        return self.params.get(client)

    def save(self, client: int, round_index: int, params: Params) -> None:
        """Keep a client's private tensors.

        Args:
            client: The client's number.
            round_index: Not used.
            params: Tensors by name.
        """
        self.params[client] = params


@dataclass(frozen=True)
class RoundResult:
    """What a round leaves behind."""

    round_index: int
    server: Server
    participants: tuple[int, ...]
    loss: float
    bytes_up: int
    bytes_down: int
    seconds: float


def simulate(
    method: Method,
    task: Task,
    clients: Sequence[Callable[[], LabelledFeatures]],
    schedule: Schedule,
    store: PrivateStore,
    *,
    seed: int,
    resume: tuple[int, Server] | None = None,
    order: Callable[[list[int]], list[int]] | None = None,
) -> Iterator[RoundResult]:
    """Run a federation in this process, round by round.

    Args:
        method: the method.
        task: its task.
        clients: `clients[k]()` gives client k's images when it is its turn.
        schedule: rounds, participation and local settings.
        store: where the clients' private tensors live between rounds.
        seed: the run's seed.
        resume: (round, server) of the last round that is done; None: begin with the first.
        order: permutes in which order a round's participants train; it never changes a result.

    Yields:
        Every round from the first, or from the one after `resume`.
    """
    setup = RoundSetup(method, task, schedule, seed)
    done, server = resume if resume is not None else (0, Server(setup.initial.shared))
    server = replace(server, shared=rounded(server.shared, schedule.down))
    turns: Counter[int] = Counter()  # how often each client took part, those before `resume` too
    for earlier in range(1, done + 1):
        turns.update(schedule.participants(len(clients), seed, earlier))
    for round_index in range(done + 1, schedule.rounds + 1):
        began = time.perf_counter()
        participants = schedule.participants(len(clients), seed, round_index)
        turn = order(list(participants)) if order else participants
        results = _results(setup, round_index, server.shared, turn, clients, store)
        if setup.batched and not order and round_index < schedule.rounds:
            _begin(setup, round_index + 1, clients)  # before the host waits for the device
        updates = with_losses(results, local_settings(schedule, round_index).lr)
        up, down = traffic(method, schedule, server.shared, len(participants), len(task.classes))
        spent: dict[str, float] = {}
        if schedule.privacy is not None:
            turns.update(participants)
            share = len(participants) / len(clients)
            spent = schedule.privacy.spent(max(turns.values()), round_index, share)
        if schedule.joins(round_index) and not method.closed_form:
            # An average over the late clients alone would forget all others.
            server, loss = replace(server, report=spent), mean_loss_of(updates)
        else:
            server, loss = server_round(
                method,
                task,
                server,
                updates,
                screen=schedule.screen,
                down=schedule.down,
                spent=spent,
            )
        yield RoundResult(
            round_index=round_index,
            server=server,
            participants=tuple(participants),
            loss=loss,
            bytes_up=up,
            bytes_down=down,
            seconds=time.perf_counter() - began,
        )


def _begin(
    setup: RoundSetup, round_index: int, clients: Sequence[Callable[[], LabelledFeatures]]
) -> None:
    """Begin the training of a coming round's first group, where that can be done beside a GPU."""
    if setup.trainer.threads is not None:
        turn = setup.schedule.participants(len(clients), setup.seed, round_index)
        group = turn[: setup.schedule.together]
        setup.begin(round_index, group, [len(clients[client]()) for client in group])


def _results(
    setup: RoundSetup,
    round_index: int,
    shared: Params,
    turn: Sequence[int],
    clients: Sequence[Callable[[], LabelledFeatures]],
    store: PrivateStore,
) -> list[ClientResult]:
    """What a round's participants have, as the server reads it, trained group by group."""
    schedule = setup.schedule
    size = schedule.together if setup.batched else group_size(setup.task)
    results: list[ClientResult] = []
    for first in range(0, len(turn), size):
        group = turn[first : first + size]
        data = [clients[client]() for client in group]
        for result in client_round(setup, round_index, shared, group, data, store):
            coins = setup.coins(round_index, result.update.client)
            sent = setup.method.sent(shared)
            arrived = schedule.payload.through(result.update.shared, sent, coins)
            results.append(replace(result, update=replace(result.update, shared=arrived)))
    return results


def traffic(
    method: Method, schedule: Schedule, shared: Params, clients: int, classes: int
) -> tuple[int, int]:
    """Count the bytes of a round in which every client answers: tensors, class counts, keys.

    Args:
        method: The method, which says what clients send.
        schedule: How the federation runs.
        shared: The shared tensors.
        clients: Clients of the round.
        classes: Number of classes.

    Returns:
        Bytes up and bytes down.
    """
    sent = method.sent(shared)
    if schedule.secure:
        down = num_bytes(Payload(schedule.down).form(shared))
        words = num_words(sent, classes)
        return sum_bytes(clients, clients, clients, clients, words, down)
    return round_bytes(
        sent, shared, classes, schedule.payload, schedule.down, asked=clients, answered=clients
    )
