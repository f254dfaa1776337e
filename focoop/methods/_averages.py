"""Server steps that average over clients, by their images or by their images of each class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from focoop.methods.base import Server

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import Tensor

    from focoop.methods.base import ClientUpdate


def federated_average(
    server: Server, updates: Sequence[ClientUpdate], by_class: Collection[str] = ()
) -> Server:
    """Average every shared tensor that clients send over clients (FedAvg).

    Args:
        server: The server before the round.
        updates: The updates.
        by_class: Names of tensors with a row per class, which are averaged by the images of each
            class; a class that nobody holds keeps its row.

    Returns:
        The server after it; its memory and the tensors that it makes are as they were.
    """
    averages = {
        name: class_weighted_mean(updates, name, server.shared[name])
        if name in by_class
        else weighted_mean(updates, name)
        for name in updates[0].shared
    }
    return Server({**server.shared, **averages}, server.memory)


def weighted_mean(updates: Sequence[ClientUpdate], name: str) -> Tensor:
    """Average a tensor over clients by their images (FedAvg), summed in float64.

    Args:
        updates: The updates.
        name: The tensor's name.

    Returns:
        sum_k n_k t_k / sum_k n_k.
    """
    stacked = torch.stack([update.shared[name] for update in updates])  # (K, ...)
    weights = torch.tensor([float(u.num_examples) for u in updates], dtype=torch.float64)
    weights = (weights / weights.sum()).to(stacked.device)
    mean: Tensor = torch.einsum("k,k...->...", weights, stacked.double())
    return _like(stacked, mean)


def class_weighted_mean(updates: Sequence[ClientUpdate], name: str, previous: Tensor) -> Tensor:
    """Average the rows of a tensor over clients by their images of each class.

    Args:
        updates: The updates.
        name: The tensor's name.
        previous: What a class that nobody holds keeps.

    Returns:
        t_c = sum_k |D_kc| t_kc / sum_k |D_kc|.
    """
    stacked = torch.stack([update.shared[name] for update in updates])  # (K, C, ...)
    counts = torch.stack([u.class_counts for u in updates]).double().to(stacked.device)  # (K, C)
    total = counts.sum(dim=0)
    weights = counts / total.clamp(min=1.0)
    mean = _like(stacked, torch.einsum("kc,kc...->c...", weights, stacked.double()))
    held = (total > 0).view(-1, *[1] * (mean.dim() - 1))
    return torch.where(held, mean, previous)


def _like(stacked: Tensor, mean: Tensor) -> Tensor:
    """A mean in the type of what it is a mean of; one of whole numbers is rounded, never cut."""
    return (mean if stacked.is_floating_point() else mean.round()).to(stacked.dtype)
