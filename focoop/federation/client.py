"""The client's side of a round: local SGD on a method's loss, the same for every method."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from focoop.clip import LabelledFeatures
from focoop.errors import ConfigError, MethodError
from focoop.federation.sgd import SGD
from focoop.methods import ClientUpdate, Method, Params, State, Task

SCHEDULES = ("constant", "cosine")


@dataclass(frozen=True)
class LocalSettings:
    """How a client trains in one round; `prox` weighs FedProx's mu / 2 |shared - received|^2."""

    epochs: int
    batch_size: int
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox: float = 0.0


def train(
    method: Method,
    state: State,
    data: LabelledFeatures,
    task: Task,
    settings: LocalSettings,
    generator: torch.Generator,
) -> tuple[State, float]:
    """Train all floating tensors of `state` on `data`; returns the new state and the mean loss.

    The optimiser starts anew each round: nothing but `state` survives between rounds.
    """
    if len(data) == 0:
        return state, math.nan
    params: Params = {**state.shared, **state.private}
    if method.closed_form:
        return state, check_loss(mean_loss(method, params, data, task, generator), settings.lr)
    leaves = {
        name: value.detach().clone().requires_grad_(True) if trains(method, name, value) else value
        for name, value in params.items()
    }
    optimiser = SGD(
        [value for value in leaves.values() if value.requires_grad],
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    received = {name: v for name, v in state.shared.items() if trains(method, name, v)}
    losses = []
    for index in batches(len(data), settings, generator):
        noise = method.noise(len(index), task, generator)
        noise = {name: value.to(task.device) for name, value in noise.items()}
        batch = data.rows(index, task.device)
        loss = method.loss(leaves, method.encode(leaves, task), batch, task, noise)
        losses.append(loss.detach())
        if settings.prox > 0:
            loss = loss + settings.prox / 2 * distance(leaves, received)
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
    mean = check_loss(float(torch.stack(losses).mean()), settings.lr)
    trained = {name: value.detach() for name, value in leaves.items()}
    return State(
        shared={name: trained[name] for name in state.shared},
        private={name: trained[name] for name in state.private},
    ), mean


@torch.no_grad()
def mean_loss(
    method: Method, params: Params, data: LabelledFeatures, task: Task, generator: torch.Generator
) -> float:
    """The loss of a model on all of a client's images, where nothing is trained."""
    noise = method.noise(len(data), task, generator)
    noise = {name: value.to(task.device) for name, value in noise.items()}
    batch = data.rows(torch.arange(len(data)), task.device)
    return float(method.loss(params, method.encode(params, task), batch, task, noise))


def batches(count: int, settings: LocalSettings, generator: torch.Generator) -> Iterator[Tensor]:
    """Row numbers of every step: each epoch a new order, the last batch of one may be smaller."""
    for _ in range(settings.epochs):
        order = torch.randperm(count, generator=generator)
        yield from torch.split(order, settings.batch_size)


def distance(params: Params, received: Params) -> Tensor:
    """Scalar |shared - received|^2, FedProx's pull towards what the server sent."""
    parts = [(params[name] - value).square().sum() for name, value in received.items()]
    return torch.stack(parts).sum() if parts else torch.zeros(())


def check_loss(loss: float, lr: float) -> float:
    """The loss itself, or a refusal to go on with prompts that are not numbers."""
    if not math.isfinite(loss):
        raise MethodError(f"training diverged (loss {loss}): lower federation.lr (now {lr:g})")
    return loss


def trains(method: Method, name: str, value: Tensor) -> bool:
    """Whether SGD moves a tensor: not whole numbers, nor what is measured or the server's own."""
    return value.is_floating_point() and name not in method.untrained


def make_update(
    method: Method, client: int, state: State, data: LabelledFeatures, task: Task, loss: float
) -> ClientUpdate:
    """What leaves the client after training: shared tensors, measured ones among them, counts."""
    measured: Params = {}
    if method.untrained and len(data):
        # Views are no other images: what is measured of them would tell more of each.
        images = data.rows(torch.arange(len(data) // (1 + data.num_views)), task.device)
        measured = method.measure(state.shared, images, task)
    return ClientUpdate(
        client=client,
        shared={**state.shared, **measured},
        num_examples=len(data),
        class_counts=data.counts(len(task.classes)),
        loss=loss,
    )


def learning_rate(base: float, schedule: str, round_index: int, rounds: int) -> float:
    """Rate of round `round_index` of `rounds` (from 1): constant, or a half cosine to zero.

    >>> learning_rate(2.0, "cosine", 1, 10)
    2.0
    >>> round(learning_rate(2.0, "cosine", 6, 10), 6)
    1.0
    """
    if schedule == "constant":
        return base
    if schedule == "cosine":
        return base * 0.5 * (1.0 + math.cos(math.pi * (round_index - 1) / rounds))
    raise ConfigError(f"no schedule is called {schedule!r}: choose from {', '.join(SCHEDULES)}")
