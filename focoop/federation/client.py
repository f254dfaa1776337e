"""The client's side of a round: local SGD on a method's loss, the same for every method."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from focoop.clip import LabelledFeatures
from focoop.errors import ConfigError, MethodError
from focoop.federation.sgd import SGD
from focoop.methods import ClientUpdate, Method, Params, State, Task, unread_text

if TYPE_CHECKING:
    from torch import Tensor

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
    """Train all floating tensors of a client's state on its images.

    The optimiser starts anew each round: nothing but the state survives between rounds.

    Args:
        method: The method.
        state: Shared and private tensors.
        data: The client's images.
        task: The task.
        settings: Learning rate, epochs and batch size.
        generator: Draws the order of the images and the method's noise.

    Returns:
        The new state and the mean loss.
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
        text = method.encode(leaves, task) if method.reads_text else unread_text()
        loss = method.loss(leaves, text, batch, task, noise)
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


def mean_loss(
    method: Method, params: Params, data: LabelledFeatures, task: Task, generator: torch.Generator
) -> float:
    """Compute the loss of a model on all of a client's images, where nothing is trained.

    Args:
        method: The method.
        params: The model's tensors.
        data: The client's images.
        task: The task.
        generator: Draws the method's noise.

    Returns:
        The mean loss.
    """
    noise = method.noise(len(data), task, generator)
    noise = {name: value.to(task.device) for name, value in noise.items()}
    batch = data.rows(torch.arange(len(data)), task.device)
    with torch.no_grad():
        return float(method.loss(params, method.encode(params, task), batch, task, noise))


def batches(count: int, settings: LocalSettings, generator: torch.Generator) -> Iterator[Tensor]:
    """Draw the row numbers of every step: each epoch a new order; its last batch may be smaller.

    Args:
        count: Number of images.
        settings: Epochs and batch size.
        generator: Draws the order.

    Yields:
        Row numbers of a step.
    """
    for _ in range(settings.epochs):
        order = torch.randperm(count, generator=generator)
        yield from torch.split(order, settings.batch_size)


def distance(params: Params, received: Params) -> Tensor:
    """Return |shared - received|^2, FedProx's pull towards what the server sent.

    Args:
        params: The model's tensors.
        received: What the server sent.

    Returns:
        A scalar.
    """
    parts = [(params[name] - value).square().sum() for name, value in received.items()]
    return torch.stack(parts).sum() if parts else torch.zeros(())


def check_loss(loss: float, lr: float) -> float:
    """Refuse to go on where training has diverged.

    Args:
        loss: The loss.
        lr: The learning rate, for the message.

    Returns:
        The loss.

    Raises:
        MethodError: The loss is infinite or not a number.
    """
    if not math.isfinite(loss):
        raise MethodError(f"training diverged (loss {loss}): lower federation.lr (now {lr:g})")
    return loss


def trains(method: Method, name: str, value: Tensor) -> bool:
    """Say whether SGD trains a tensor: a floating one, unless the method says otherwise.

    Args:
        method: The method.
        name: The tensor's name.
        value: The tensor.

    Returns:
        Whether it does.
    """
    return value.is_floating_point() and name not in (*method.untrained, *method.server_made)


def make_update(
    method: Method, client: int, state: State, data: LabelledFeatures, task: Task, loss: float
) -> ClientUpdate:
    """Make the update that leaves the client after training.

    It holds the shared tensors that clients send, measured ones among them, and counts of images.

    Args:
        method: The method.
        client: The client's number.
        state: Its state after training.
        data: Its images.
        task: The task.
        loss: Its mean loss.

    Returns:
        The update.
    """
    measured: Params = {}
    if method.untrained and len(data):
        measured = method.measure(state.shared, without_views(data, task), task)
    return ClientUpdate(
        client=client,
        shared={**method.sent(state.shared), **measured},
        num_examples=len(data),
        class_counts=data.counts(len(task.classes)),
        loss=loss,
    )


def remembered(method: Method, state: State, data: LabelledFeatures, task: Task) -> State:
    """Return a client's state with the private tensors that its method measures on its images.

    Args:
        method: The method.
        state: The state after training.
        data: The client's images.
        task: The task.

    Returns:
        The state; the same where the method measures no private tensor.
    """
    if type(method).remember is Method.remember:
        return state
    return State(state.shared, method.remember(state.private, without_views(data, task), task))


def without_views(data: LabelledFeatures, task: Task) -> LabelledFeatures:
    """Gather a client's images without the random views of them, which are no further images.

    Args:
        data: The images, followed by their views.
        task: The task, which knows the device.

    Returns:
        The images on the device.
    """
    return data.rows(torch.arange(len(data) // (1 + data.num_views)), task.device)


def learning_rate(base: float, schedule: str, round_index: int, rounds: int) -> float:
    """Return the learning rate of a round: constant, or a half cosine to zero.

    Args:
        base: The first round's rate.
        schedule: `constant` or `cosine`.
        round_index: The round's number, from 1.
        rounds: Rounds of the run.

    Returns:
        The rate.

    Raises:
        ConfigError: There is no such schedule.

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
