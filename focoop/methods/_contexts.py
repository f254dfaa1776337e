"""Contexts that training starts from: drawn at random, or the tokens of words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from focoop.methods.base import Task


def draw_context(shape: Sequence[int], task: Task, generator: torch.Generator) -> Tensor:
    """Draw contexts from N(0, 0.02^2), on the CPU so that every device starts alike.

    Args:
        shape: Their shape.
        task: The task, which knows the device.
        generator: Draws the numbers.

    Returns:
        The contexts.
    """
    return (torch.randn(*shape, generator=generator) * 0.02).to(task.device)


def first_context(
    task: Task,
    generator: torch.Generator,
    tokens: int,
    start: str = "",
    rows: int = 0,
) -> Tensor:
    """Make the context that training starts from.

    Args:
        task: gives the embeddings of words and the device.
        generator: draws the vectors where no words are given.
        tokens: length n of a drawn context.
        start: words whose tokens are the context; they also give its length. Empty: drawn.
        rows: how many contexts, such as one per class; 0: one for all.

    Returns:
        (n, d_t), or (rows, n, d_t).
    """
    shape = [rows] if rows else []
    if not start.strip():
        return draw_context([*shape, tokens, task.width], task, generator)
    words = task.embed(start).to(task.anchors)
    return words.expand(*shape, *words.shape).clone()
