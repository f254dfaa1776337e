"""Robust aggregation for any method: updates are screened before the method's server step.

A rule changes the updates, not the method. `median` and `trimmed` put the robust value into every
update, so that whatever mean the method takes of them is that value. `krum` and `clip` change the
updates that stand out and leave the others as they are, so that a server step that concatenates
keeps its choice. Rows of class prompts are compared among the clients that say they hold the class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from focoop.methods import ClientUpdate, Method, Params, Server, Task

if TYPE_CHECKING:
    from torch import Tensor

RULES = ("none", "clip", "median", "trimmed", "krum")
Screened = tuple[list[ClientUpdate], dict[str, float]]
# What happens to updates before the method's server step, with numbers for the round's report.
Screen = Callable[[Method, Server, Sequence[ClientUpdate], Task], Screened]


@dataclass(frozen=True)
class Defence:
    """What the server does with updates before it trusts them.

    Attributes:
        rule: one of `RULES`; `none` does nothing at all.
        hostile: share of clients taken to be hostile: cut from each end, or left out by Krum.
        clip: longest change of a tensor, in medians over the clients of the round.
        count_cap: largest count of images, in medians over the clients of the round; 0: none.
    """

    rule: str = "none"
    hostile: float = 0.2
    clip: float = 2.0
    count_cap: float = 10.0

    def screen(
        self, method: Method, server: Server, updates: Sequence[ClientUpdate], task: Task
    ) -> Screened:
        """Screen updates before the method's server step.

        Args:
            method: The method.
            server: The server.
            updates: The clients' updates.
            task: The task.

        Returns:
            The updates a method may see, and what was done to them for the round's report.
        """
        if self.rule == "none":
            return list(updates), {}
        received = method.sent(server.shared)
        usable = [u for u in updates if refusal(u, received, len(task.classes)) is None]
        report = {"refused": float(len(updates) - len(usable))}
        if not usable:
            return [], report
        if self.count_cap:
            usable = cap_counts(usable, self.count_cap)
        if self.rule == "clip":
            usable, clipped = clip_changes(usable, received, self.clip)
            return usable, report | {"clipped": float(clipped)}
        return self._by_rows(usable, received, method.by_class), report

    def _by_rows(
        self, updates: list[ClientUpdate], received: Params, by_class: Sequence[str]
    ) -> list[ClientUpdate]:
        everyone = list(range(len(updates)))
        changed: list[Params] = [dict(u.shared) for u in updates]
        for name, value in received.items():
            if not value.is_floating_point():
                continue
            stacked = torch.stack([u.shared[name] for u in updates])  # (K, ...)
            result = stacked.clone()
            if name in by_class:
                for c in range(len(value)):
                    holders = [k for k in everyone if updates[k].class_counts[c] > 0]
                    weights = [float(updates[k].class_counts[c]) for k in holders]
                    if holders:
                        result[:, c] = self._row(stacked[:, c], holders, weights)
            else:
                weights = [float(u.num_examples) for u in updates]
                if value.dim() >= 3:  # a stack of prompts, such as one for each negative word
                    for row in range(len(value)):
                        result[:, row] = self._row(stacked[:, row], everyone, weights)
                else:
                    result = self._row(stacked, everyone, weights)
            for params, mine in zip(changed, result, strict=True):
                params[name] = mine
        return [replace(u, shared=p) for u, p in zip(updates, changed, strict=True)]

    def _row(self, copies: Tensor, voters: list[int], weights: list[float]) -> Tensor:
        """All clients' copies (K, ...) of one row after the vote of `voters` over it."""
        votes = copies[voters]
        if self.rule == "median":
            return median(votes).expand_as(copies)
        if self.rule == "trimmed":
            return trimmed_mean(votes, self.hostile).expand_as(copies)
        chosen = krum(votes, self.hostile)
        mean = weighted(votes[chosen], [weights[i] for i in chosen])
        result = mean.expand_as(copies).clone()
        trusted = [voters[i] for i in chosen]
        result[trusted] = copies[trusted]
        return result


def refusal(update: ClientUpdate, received: Params, num_classes: int) -> str | None:
    """Say why an update cannot be used: names, shapes, kinds, numbers and counts.

    Args:
        update: The update.
        received: What the server sent, of the tensors that clients send.
        num_classes: Number of classes.

    Returns:
        The reason, or None where it can be used.
    """
    if set(update.shared) != set(received):
        names = sorted(set(update.shared) ^ set(received))
        return f"tensors missing or not asked for: {', '.join(names)}"
    for name, value in received.items():
        mine = update.shared[name]
        if mine.shape != value.shape or mine.dtype != value.dtype:
            return (
                f"{name} is {mine.dtype} {tuple(mine.shape)}, "
                f"not {value.dtype} {tuple(value.shape)}"
            )
        if value.is_floating_point() and not bool(torch.isfinite(mine).all()):
            return f"{name} holds values that are not finite"
    counts = update.class_counts
    if counts.shape != (num_classes,) or counts.is_floating_point():
        return f"class counts are {counts.dtype} {tuple(counts.shape)}, not ({num_classes},) int64"
    if bool((counts < 0).any()) or update.num_examples < 1:
        return "counts of images must not be negative, nor all images zero"
    return None


def cap_counts(updates: Sequence[ClientUpdate], factor: float) -> list[ClientUpdate]:
    """Cut counts at some times their median, so that no client outweighs all by a claim.

    Args:
        updates: The updates.
        factor: How many times the median.

    Returns:
        The updates.
    """
    held = torch.cat([u.class_counts[u.class_counts > 0] for u in updates])
    class_limit = _limit(held, factor)
    limit = _limit(torch.tensor([u.num_examples for u in updates]), factor)
    return [
        replace(
            u,
            class_counts=u.class_counts.clamp(max=class_limit),
            num_examples=min(u.num_examples, limit),
        )
        for u in updates
    ]


def _limit(counts: Tensor, factor: float) -> int:
    return max(1, int(factor * float(counts.double().median()))) if len(counts) else 1


def clip_changes(
    updates: Sequence[ClientUpdate], received: Params, factor: float
) -> tuple[list[ClientUpdate], int]:
    """Shorten changes that are longer than some medians, tensor by tensor.

    Args:
        updates: The updates.
        received: What the server sent, of the tensors that clients send.
        factor: How many medians.

    Returns:
        The updates, and how many of them were shortened.
    """
    changed: list[Params] = [dict(u.shared) for u in updates]
    shortened: set[int] = set()
    for name, value in received.items():
        if not value.is_floating_point():
            continue
        lengths = torch.stack(
            [torch.linalg.vector_norm((u.shared[name] - value).double()) for u in updates]
        ).cpu()
        bound = factor * float(median(lengths))
        for index, length in enumerate(lengths.tolist()):
            if length > bound:
                change = updates[index].shared[name].double() - value
                changed[index][name] = (value + change * (bound / length)).to(value.dtype)
                shortened.add(index)
    result = [replace(u, shared=p) for u, p in zip(updates, changed, strict=True)]
    return result, len(shortened)


def median(votes: Tensor) -> Tensor:
    """Return the coordinate-wise median; of an even number the mean of the middle two.

    Args:
        votes: Tensors (h, ...).

    Returns:
        The median (...).

    >>> median(torch.tensor([[1.0], [9.0], [2.0], [4.0]]))
    tensor([3.])
    """
    return trimmed(votes, (len(votes) - 1) // 2)


def trimmed_mean(votes: Tensor, share: float) -> Tensor:
    """Return the coordinate-wise mean without a share of the least and largest values.

    Args:
        votes: Tensors (h, ...).
        share: The share at each end.

    Returns:
        The mean (...).
    """
    return trimmed(votes, outvoted(len(votes), share))


def trimmed(votes: Tensor, cut: int) -> Tensor:
    """Return the coordinate-wise mean without some of the least and largest values.

    Args:
        votes: Tensors (h, ...).
        cut: How many at each end.

    Returns:
        The mean (...).
    """
    middle = votes.double().sort(dim=0).values[cut : len(votes) - cut]
    return middle.mean(dim=0).to(votes.dtype)


def krum(votes: Tensor, share: float) -> list[int]:
    """Choose the votes that lie closest to others, by Multi-Krum (Blanchard et al. 2017).

    A vote's score is the sum of its h - f - 2 least squared distances. The paper's guarantee asks
    for h >= 2f + 3; with fewer voters f is the largest minority and at least one distance counts.

    Args:
        votes: Tensors (h, ...).
        share: Share of voters taken to be hostile.

    Returns:
        The h - f chosen votes.
    """
    count = len(votes)
    hostile = outvoted(count, share)
    if hostile == 0:
        return list(range(count))
    flat = votes.double().flatten(1)
    # Direct differences: a product of large votes would lose the small distances.
    squares = torch.stack([(flat - vote).square().sum(dim=1) for vote in flat])  # (h, h)
    squares.fill_diagonal_(math.inf)
    near = squares.sort(dim=1).values[:, : max(1, count - hostile - 2)].sum(dim=1)
    best = torch.sort(near, stable=True).indices[: count - hostile]
    return sorted(int(i) for i in best)


def outvoted(count: int, share: float) -> int:
    """Return how many voters are taken to be hostile: a share rounded up, never a majority.

    Args:
        count: Number of voters.
        share: The share.

    Returns:
        Their number.

    >>> [outvoted(h, 0.2) for h in (1, 2, 3, 5, 10)]
    [0, 0, 1, 1, 2]
    """
    return max(0, min(math.ceil(share * count - 1e-9), (count - 1) // 2))


def weighted(votes: Tensor, weights: Sequence[float]) -> Tensor:
    """Return the weighted mean of votes, in float64.

    Put into the updates that were left out, it makes the method's weighted mean over all clients
    the weighted mean over those that were kept.

    Args:
        votes: Tensors (h, ...).
        weights: Weights (h,).

    Returns:
        The mean (...).
    """
    share = torch.tensor(weights, dtype=torch.float64, device=votes.device)
    mean: Tensor = torch.einsum("k,k...->...", share / share.sum(), votes.double())
    return mean.to(votes.dtype)
