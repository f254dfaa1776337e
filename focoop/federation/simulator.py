"""In-process federation: one frozen backbone, clients that cost only their prompts."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from focoop.federation.batched_training import BatchedTrainer, on_host
from focoop.federation.client import (
    ClientData,
    LocalSettings,
    check_loss,
    learning_rate,
    make_update,
)
from focoop.federation.parallel import group_size, train_each
from focoop.federation.rounds import Screen, aggregate, num_bytes, sample_clients
from focoop.federation.updates.compression import Payload, rounded
from focoop.federation.updates.differential_privacy import Privacy
from focoop.federation.updates.secure_sum import num_words, sum_bytes
from focoop.methods import ClientUpdate, Method, Params, Server, State, Task
from focoop.seeds import torch_generator

# A loss that is still on the device, until the round ends.
UNKNOWN = 0.0


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
    """How a federation runs: rounds, participation and the clients' local settings.

    `together` is how many clients train as one batch: faster on a GPU, the same up to rounding.
    `privacy` is what clients do to their updates, `screen` what the server does before its step;
    `payload` is how updates are written on their way up, `down` how shared tensors are going down.
    `secure` says that clients send vectors under masks, which matters for the bytes alone.
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


def client_state(
    method: Method,
    task: Task,
    initial: State,
    server: Server,
    private: Params | None,
    class_counts: Callable[[], Tensor],
) -> State:
    """A client's model now: the server's shared tensors and its own private ones.

    `private` is what it kept of earlier rounds; None before its first, when its class counts may
    shape what it starts from.
    """
    if not initial.private:
        return State(server.shared)
    if private is None:
        first = method.personalise(initial.private, class_counts(), task)
        return State(server.shared, {n: v.to(task.device) for n, v in first.items()})
    return State(server.shared, {n: v.to(task.device) for n, v in private.items()})


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
    server = replace(server, shared=rounded(server.shared, schedule.down))
    trainer = BatchedTrainer(method, task, schedule.local)
    turns: Counter[int] = Counter()  # how often each client took part, those before `resume` too
    for earlier in range(1, done + 1):
        turns.update(sample_clients(len(clients), schedule.participation, seed, earlier))
    for round_index in range(done + 1, schedule.rounds + 1):
        began = time.perf_counter()
        participants = sample_clients(len(clients), schedule.participation, seed, round_index)
        local = local_settings(schedule, round_index)
        turn = order(list(participants)) if order else participants
        batched = method.together and schedule.together > 1
        size = schedule.together if batched else group_size(task)
        updates: list[ClientUpdate] = []
        losses: list[Tensor | float | None] = []
        for start_at in range(0, len(turn), size):
            group = turn[start_at : start_at + size]
            data = [clients[client]() for client in group]
            states = [
                client_state(
                    method,
                    task,
                    initial,
                    server,
                    store.load(client) if initial.private else None,
                    partial(images.counts, len(task.classes)),
                )
                for client, images in zip(group, data, strict=True)
            ]
            generators = [torch_generator(seed, "train", round_index, k) for k in group]
            if batched:
                results: Sequence[tuple[State, Tensor | float]] = trainer.train(
                    states, data, local.lr, generators
                )
            else:
                results = train_each(method, states, data, task, local, generators)
            for client, images, (trained, loss) in zip(group, data, results, strict=True):
                if trained.private and len(images):
                    store.save(client, round_index, trained.private)
                losses.append(loss if len(images) else None)
                update = make_update(method, client, trained, images, task, UNKNOWN)
                if schedule.privacy is not None:
                    update = schedule.privacy.release(
                        update,
                        server.shared,
                        torch_generator(seed, "privacy", round_index, client),
                        torch_generator(seed, "counts", client),
                    )
                coins = torch_generator(seed, "payload", round_index, client)
                shared = schedule.payload.through(update.shared, server.shared, coins)
                updates.append(replace(update, shared=shared))
        up, down = traffic(schedule, server.shared, len(participants), len(task.classes))
        updates = with_losses(updates, losses, local.lr)
        server = aggregate(method, server, updates, task, schedule.screen)
        server = replace(server, shared=rounded(server.shared, schedule.down))
        if schedule.privacy is not None:
            turns.update(participants)
            share = len(participants) / len(clients)
            spent = schedule.privacy.spent(max(turns.values()), round_index, share)
            server = replace(server, report={**server.report, **spent})
        examples = sum(u.num_examples for u in updates)
        total = math.fsum(u.loss * u.num_examples for u in updates if u.num_examples)
        yield RoundResult(
            round_index=round_index,
            server=server,
            participants=tuple(participants),
            loss=total / examples if examples else math.nan,
            bytes_up=up,
            bytes_down=down,
            seconds=time.perf_counter() - began,
        )


def with_losses(
    updates: Sequence[ClientUpdate], losses: Sequence[Tensor | float | None], lr: float
) -> list[ClientUpdate]:
    """Updates with their losses, for which the host waits only now; refuses those that diverged.

    A client without images has none, and what privacy hid stays hidden.
    """
    numbers = iter(on_host([loss for loss in losses if loss is not None]))
    found = []
    for update, loss in zip(updates, losses, strict=True):
        number = math.nan if loss is None else check_loss(next(numbers), lr)
        found.append(replace(update, loss=number) if update.loss == UNKNOWN else update)
    return found


def traffic(schedule: Schedule, shared: Params, clients: int, classes: int) -> tuple[int, int]:
    """Bytes up and down of a round all of whose clients answer: tensors, class counts, keys."""
    down = num_bytes(Payload(schedule.down).form(shared))
    if schedule.secure:
        words = num_words(shared, classes)
        return sum_bytes(clients, clients, clients, clients, words, down)
    up = num_bytes(schedule.payload.form(shared)) + num_bytes({"c": torch.empty(classes).long()})
    return clients * up, clients * down


def local_settings(schedule: Schedule, round_index: int) -> LocalSettings:
    """What clients train with in a round: its learning rate."""
    local = schedule.local
    rate = learning_rate(local.lr, schedule.lr_schedule, round_index, schedule.rounds)
    return replace(local, lr=rate)
