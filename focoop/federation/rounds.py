"""One round of a federation: the clients' side and the server's side, written once.

`client_round` and `server_round` are what the simulator, a Flower site, the Flower server and a
site's dry run call. Around them these differ in how tensors travel and who may take part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from focoop.clip import LabelledFeatures
from focoop.errors import MethodError
from focoop.federation.batched_training import BatchedTrainer, Begun, on_host
from focoop.federation.client import check_loss, make_update, remembered
from focoop.federation.contract import check_shared
from focoop.federation.parallel import train_each
from focoop.federation.participation import Schedule, local_settings
from focoop.federation.updates.compression import rounded
from focoop.federation.updates.differential_privacy import Privacy
from focoop.federation.updates.screening import Screen
from focoop.methods import ClientUpdate, Method, Params, Server, State, Task
from focoop.seeds import torch_generator

if TYPE_CHECKING:
    import torch

# What a client does to its update before it leaves; also given the tensors it received.
Release = Callable[[ClientUpdate, Params], ClientUpdate]
# The loss of an update that was computed on a device which the host has not waited for.
PENDING = 0.0


class PrivateStore(Protocol):
    """Where private tensors live between rounds; on disk in a run, in memory in a test."""

    def load(self, client: int) -> Params | None:
        """Return a client's private tensors, or None if it has not trained yet.

        Args:
            client: The client's number.

        Returns:
            Tensors by name, or None.
        """

    def save(self, client: int, round_index: int, params: Params) -> None:
        """Keep a client's private tensors of a round.

        Args:
            client: The client's number.
            round_index: The round's number.
            params: Tensors by name.
        """


@dataclass(frozen=True, eq=False)
class RoundSetup:
    """What all rounds of a run have in common, at the server and at every client."""

    method: Method
    task: Task
    schedule: Schedule
    seed: int

    @cached_property
    def initial(self) -> State:
        """Return the state that every client and the server begin with."""
        return start(self.method, self.task, self.seed)

    @cached_property
    def trainer(self) -> BatchedTrainer:
        """Return what trains many clients as one batch.

        It keeps its recorded steps between rounds.
        """
        return BatchedTrainer(self.method, self.task, self.schedule.local)

    @cached_property
    def begun(self) -> dict[tuple[int, tuple[int, ...]], Begun]:
        """Return the trainings that were begun ahead, by their round and clients."""
        return {}

    def begin(self, round_index: int, clients: Sequence[int], sizes: Sequence[int]) -> None:
        """Begin a coming round: its first noise is drawn while a GPU trains or a server works.

        Args:
            round_index: The round's number.
            clients: Numbers of the clients that train first.
            sizes: Number of images of each of them.
        """
        generators = [torch_generator(self.seed, "train", round_index, k) for k in clients]
        begun = self.trainer.begin(sizes, generators)
        if begun is not None:
            self.begun.clear()  # whatever was begun and not gone on with
            self.begun[round_index, tuple(clients)] = begun

    @property
    def batched(self) -> bool:
        """Return whether clients train as one batch, which changes results by rounding."""
        method = self.method
        return method.together and not method.closed_form and self.schedule.together > 1

    def coins(self, round_index: int, client: int) -> torch.Generator:
        """Return the generator that rounds a client's update where it is written in fewer bytes.

        Args:
            round_index: The round's number.
            client: The client's number.

        Returns:
            The generator.
        """
        return torch_generator(self.seed, "payload", round_index, client)


@dataclass(frozen=True)
class ClientResult:
    """What a client has after its part of a round.

    `update` may leave the client, `private` may not. `loss` () is the mean loss while it is still
    on the device; None where `update.loss` holds it already.
    """

    update: ClientUpdate
    private: Params
    loss: Tensor | None = None


def start(method: Method, task: Task, seed: int) -> State:
    """Draw the state every client and the server begin with.

    Args:
        method: The method.
        task: The task.
        seed: The run's seed.

    Returns:
        The state.
    """
    return method.init(task, torch_generator(seed, "init"))


def client_state(
    method: Method,
    task: Task,
    initial: State,
    server: Server,
    private: Params | None,
    class_counts: Callable[[], Tensor],
) -> State:
    """Make a client's present model: the server's shared tensors and the client's private ones.

    Args:
        method: The method.
        task: The task.
        initial: The state everybody began with.
        server: The server.
        private: What the client kept of earlier rounds; None before its first round.
        class_counts: Gives its class counts (C,), which may shape what it starts from.

    Returns:
        The state.
    """
    if not initial.private:
        return State(server.shared)
    if private is None:
        first = method.personalise(initial.private, class_counts(), task)
        return State(server.shared, {n: v.to(task.device) for n, v in first.items()})
    return State(server.shared, {n: v.to(task.device) for n, v in private.items()})


def client_round(
    setup: RoundSetup,
    round_index: int,
    shared: Params,
    clients: Sequence[int],
    data: Sequence[LabelledFeatures],
    store: PrivateStore | None,
    release: Release | None = None,
) -> list[ClientResult]:
    """Train some clients for one round, keep their private tensors and make their updates.

    Args:
        setup: what all rounds of the run have in common.
        round_index: the round, from 1.
        shared: the tensors that the server sent.
        clients: numbers of the clients, which name their random numbers.
        data: the images of each of them.
        store: where private tensors live between rounds; None: nothing is read or kept.
        release: what each client does to its update if the run asks for privacy; by default the
            noise is drawn from the run's seed (`seeded_release`).

    Returns:
        One result for each client, in the order given.

    Raises:
        MethodError: the training of a client diverged.
    """
    method, task, schedule = setup.method, setup.task, setup.schedule
    local = local_settings(schedule, round_index)
    server, private_store = Server(shared), store if setup.initial.private else None
    states = [
        client_state(
            method,
            task,
            setup.initial,
            server,
            private_store.load(client) if private_store is not None else None,
            partial(images.counts, len(task.classes)),
        )
        for client, images in zip(clients, data, strict=True)
    ]
    generators = [torch_generator(setup.seed, "train", round_index, k) for k in clients]
    results: list[tuple[State, Tensor | float]]
    if setup.batched:
        begun = setup.begun.pop((round_index, tuple(clients)), None)
        results = [*setup.trainer.train(states, data, local.lr, generators, begun)]
    else:
        results = [*train_each(method, states, data, task, local, generators)]
    client_results = []
    for client, images, (trained, loss) in zip(clients, data, results, strict=True):
        if private_store is not None and len(images):
            trained = remembered(method, trained, images, task)
            private_store.save(client, round_index, trained.private)
        pending = loss if isinstance(loss, Tensor) and len(images) else None
        known = PENDING if pending is not None else math.nan if isinstance(loss, Tensor) else loss
        update = make_update(method, client, trained, images, task, known)
        if schedule.privacy is not None:
            if release is None:
                update = seeded_release(schedule.privacy, setup.seed, round_index, update, shared)
            else:
                update = release(update, shared)
        client_results.append(ClientResult(update, trained.private, pending))
    return client_results


def seeded_release(
    privacy: Privacy, seed: int, round_index: int, update: ClientUpdate, received: Params
) -> ClientUpdate:
    """Return an update as it may leave its client, under noise that the run's seed decides.

    Such noise is for study: whoever knows the seed can take it away again.

    Args:
        privacy: Clipping and noise.
        seed: The run's seed.
        round_index: The round's number.
        update: The update.
        received: What the server sent.

    Returns:
        The update.
    """
    noise = torch_generator(seed, "privacy", round_index, update.client)
    return privacy.release(update, received, noise, torch_generator(seed, "counts", update.client))


def with_losses(results: Sequence[ClientResult], lr: float) -> list[ClientUpdate]:
    """The updates with their losses, for which the host waits only now, once for all of them.

    Args:
        results: what `client_round` returned.
        lr: the round's learning rate, for the message of an error.

    Returns:
        The updates. What privacy hides stays hidden.

    Raises:
        MethodError: the training of a client diverged.
    """
    numbers = iter(on_host([result.loss for result in results if result.loss is not None]))
    updates = []
    for result in results:
        update = result.update
        if result.loss is not None:
            number = check_loss(next(numbers), lr)
            update = replace(update, loss=number) if update.loss == PENDING else update
        updates.append(update)
    return updates


def server_round(
    method: Method,
    task: Task,
    server: Server,
    updates: Sequence[ClientUpdate],
    *,
    screen: Screen | None = None,
    down: str = "fp32",
    spent: Mapping[str, float] | None = None,
) -> tuple[Server, float]:
    """The server's part of a round: the method's step, then what the round's report says of it.

    Args:
        method: the method.
        task: its task.
        server: the server before the round.
        updates: the updates that count, in any order.
        screen: refuses, changes or sums updates before the method's step.
        down: how shared tensors are written on their way down; they are rounded to it here, so
            that server and clients hold the same.
        spent: further entries of the report, such as the epsilon of the run so far.

    Returns:
        The server after the round, and the mean loss over all images; NaN without any.

    Raises:
        MethodError: a client sent two updates, or the method changed names, shapes or types of the
            shared tensors.
    """
    server = aggregate(method, server, updates, task, screen)
    report = {**server.report, **(spent or {})}
    server = replace(server, shared=rounded(server.shared, down), report=report)
    return server, mean_loss_of(updates)


def mean_loss_of(updates: Sequence[ClientUpdate]) -> float:
    """Average clients' losses over all their images.

    Args:
        updates: The updates.

    Returns:
        The mean loss; NaN without any image.
    """
    examples = sum(update.num_examples for update in updates)
    total = math.fsum(u.loss * u.num_examples for u in updates if u.num_examples)
    return total / examples if examples else math.nan


def aggregate(
    method: Method,
    server: Server,
    updates: Sequence[ClientUpdate],
    task: Task,
    screen: Screen | None = None,
) -> Server:
    """Take the method's server step over updates sorted by client; empty clients do not count.

    A round in which nobody held an image leaves the server as it was.

    Args:
        method: The method.
        server: The server.
        updates: The updates.
        task: The task.
        screen: May refuse, change or sum the updates first (`updates/screening.py`,
            `updates/secure_sum.py`).

    Returns:
        The server after the step.

    Raises:
        MethodError: A client sent two updates, or the step changed names, shapes or types of the
            shared tensors.
    """
    present = sorted((u for u in updates if u.num_examples > 0), key=lambda u: u.client)
    clients = [update.client for update in present]
    if len(set(clients)) != len(clients):
        raise MethodError(f"a client sent two updates in one round: {clients}")
    report: dict[str, float] = {}
    if present and screen is not None:
        present, report = screen(method, server, present, task)
    if not present:
        return Server(server.shared, server.memory, report)
    result = method.aggregate(server, present, task)
    check_shared(method, result.shared, server.shared)
    return replace(result, report={**result.report, **report}) if report else result
