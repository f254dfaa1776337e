"""In-process federation: one frozen backbone, clients that cost only their prompts."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from focoop.federation.client import ClientData, LocalSettings, learning_rate, make_update, train
from focoop.federation.round import aggregate, num_bytes, sample_clients
from focoop.methods._base import Method, Params, Server, State, Task
from focoop.seeds import torch_generator


class PrivateStore(Protocol):
    """Where private tensors live between rounds; on disk in a run, in memory in a test."""

    def load(self, client: int) -> Params | None:
        """The client's private tensors, or None if it has not trained yet."""

    def save(self, client: int, round_index: int, params: Params) -> None:
        """Keep the client's private tensors of this round."""


class MemoryStore:
    """A private store that forgets at exit."""

    def __init__(self) -> None:
        self.params: dict[int, Params] = {}

    def load(self, client: int) -> Params | None:
        """The client's private tensors, or None."""
        return self.params.get(client)

    def save(self, client: int, round_index: int, params: Params) -> None:
        """Keep them."""
        self.params[client] = params


@dataclass(frozen=True)
class Schedule:
    """How a federation runs: rounds, participation and the clients' local settings."""

    rounds: int
    participation: float
    local: LocalSettings
    lr_schedule: str = "constant"


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


def start(method: Method, task: Task, seed: int) -> State:
    """The state every client and the server begin with."""
    return method.init(task, torch_generator(seed, "init"))


def client_state(initial: State, server: Server, store: PrivateStore, client: int) -> State:
    """A client's model now: the server's shared tensors and its own private ones."""
    private = store.load(client) if initial.private else None
    if private is None:
        return State(server.shared, initial.private)
    where = {name: value.device for name, value in initial.private.items()}
    return State(server.shared, {name: v.to(where[name]) for name, v in private.items()})


def simulate(
    method: Method,
    task: Task,
    clients: Sequence[Callable[[], ClientData]],
    schedule: Schedule,
    store: PrivateStore,
    *,
    seed: int,
    resume: tuple[int, Server] | None = None,
    order: Callable[[list[int]], list[int]] | None = None,
) -> Iterator[RoundResult]:
    """Yield every round from the first, or from the one after `resume` (round, server).

    `clients[k]()` gives client k's data when it is its turn. `order` permutes the execution of a
    round's participants; it never changes a result.
    """
    initial = start(method, task, seed)
    done, server = resume if resume is not None else (0, Server(initial.shared))
    for round_index in range(done + 1, schedule.rounds + 1):
        began = time.perf_counter()
        participants = sample_clients(len(clients), schedule.participation, seed, round_index)
        local = _local_settings(schedule, round_index)
        updates = []
        for client in order(list(participants)) if order else participants:
            data = clients[client]()
            state = client_state(initial, server, store, client)
            generator = torch_generator(seed, "train", round_index, client)
            trained, loss = train(method, state, data, task, local, generator)
            if trained.private and len(data):
                store.save(client, round_index, trained.private)
            updates.append(make_update(client, trained, data, len(task.classes), loss))
        down = num_bytes(server.shared) * len(participants)
        server = aggregate(method, server, updates, task)
        losses = [u.loss * u.num_examples for u in updates if u.num_examples]
        examples = sum(u.num_examples for u in updates)
        yield RoundResult(
            round_index=round_index,
            server=server,
            participants=tuple(participants),
            loss=math.fsum(losses) / examples if examples else math.nan,
            bytes_up=sum(num_bytes(u.shared) + num_bytes({"c": u.class_counts}) for u in updates),
            bytes_down=down,
            seconds=time.perf_counter() - began,
        )


def _local_settings(schedule: Schedule, round_index: int) -> LocalSettings:
    local = schedule.local
    rate = learning_rate(local.lr, schedule.lr_schedule, round_index, schedule.rounds)
    return LocalSettings(local.epochs, local.batch_size, rate, local.momentum, local.weight_decay)
