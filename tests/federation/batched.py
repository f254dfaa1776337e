"""Train clients as one batch, as `client.train` trains one: the comparison many tests make."""

from collections.abc import Sequence

import pytest
import torch

from focoop.clip.base import LabelledFeatures
from focoop.federation.batched_training import BatchedTrainer, on_host
from focoop.federation.client import LocalSettings, check_loss, train
from focoop.methods.base import Method, State, Task
from focoop.seeds import torch_generator


def train_together(
    method: Method,
    states: Sequence[State],
    data: Sequence[LabelledFeatures],
    task: Task,
    settings: LocalSettings,
    generators: Sequence[torch.Generator],
) -> list[tuple[State, float]]:
    """`client.train` for clients that received the same shared tensors, as one batch."""
    results = BatchedTrainer(method, task, settings).train(states, data, settings.lr, generators)
    losses = on_host([loss for _, loss in results])
    for loss, images in zip(losses, data, strict=True):
        if len(images):
            check_loss(loss, settings.lr)
    return [(state, loss) for (state, _), loss in zip(results, losses, strict=True)]


def trained_alike(
    method: Method,
    states: Sequence[State],
    data: Sequence[LabelledFeatures],
    task: Task,
    settings: LocalSettings,
) -> list[State]:
    """Train clients one by one and as one batch, demand the same of both, and return the states."""
    generators = [torch_generator(0, "client", k) for k in range(len(states))]
    group = train_together(method, states, data, task, settings, generators)
    for k, (found, loss) in enumerate(group):
        generator = torch_generator(0, "client", k)
        alone, alone_loss = train(method, states[k], data[k], task, settings, generator)
        torch.testing.assert_close(found.shared, alone.shared, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.private, alone.private, rtol=1e-9, atol=1e-9)
        assert loss == pytest.approx(alone_loss, rel=1e-9, nan_ok=True)
    return [found for found, _ in group]
