"""Train clients as one batch, as `client.train` trains one: the comparison many tests make."""

from collections.abc import Sequence

import torch

from focoop.clip.base import LabelledFeatures
from focoop.federation.batched_training import BatchedTrainer, on_host
from focoop.federation.client import LocalSettings, check_loss
from focoop.methods.base import Method, State, Task


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
