"""Names ready to be prompted, grouped by length so that little padding runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

import torch

from focoop.clip.text.fused import Flat

if TYPE_CHECKING:
    from torch import Tensor

# What one more bucket costs in a block, in multiplications of a matrix product (measured on a CPU;
# a GPU does thousands of tokens in the time of a few launches).
BUCKET_COST = {"cpu": 2e7, "cuda": 3e9}
SELECTIONS = 8  # kept of one set of names


@dataclass(frozen=True)
class Grouping:
    """Names by length, in buckets that follow one another in `order`.

    Attributes:
        order: (N,) row of each name in the order they run.
        back: (N,) its inverse.
        sizes: (names, tokens) of each bucket.
        exact: whether all names of a bucket have its length.
    """

    order: Tensor
    back: Tensor
    sizes: tuple[tuple[int, int], ...]
    exact: tuple[bool, ...]


@dataclass(frozen=True)
class Names:
    """N names ready to be prompted: all of each sequence but its context.

    Attributes:
        vocabulary: the names as written by the user, before any `select`.
        embeddings: (N, L, d_t) embeddings of name, period and EOT; zero after the EOT.
        lengths: (N,) number of those positions up to and including the EOT.
        index: (N,) place of each name in the vocabulary; None: in order.
        grouping: names by length; None: all as long as the longest.
        known: the lengths on the host; None: not known there.
        bucket_cost: what a bucket of its own costs, as in `group`; None: the device's.
        flats: layouts for the fused step by context tokens and whether names share them.
        chosen: earlier selections by their rows.
    """

    vocabulary: tuple[str, ...]
    embeddings: Tensor
    lengths: Tensor
    index: Tensor | None = None
    grouping: Grouping | None = field(default=None, repr=False)
    known: tuple[int, ...] | None = field(default=None, repr=False)
    bucket_cost: float | None = field(default=None, repr=False)
    flats: dict[tuple[int, bool], Flat] = field(default_factory=dict, repr=False, compare=False)
    chosen: dict[tuple[int, ...], Names] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def texts(self) -> tuple[str, ...]:
        """Return the N names in order; this waits for the device where names were selected."""
        if self.index is None:
            return self.vocabulary
        return tuple(self.vocabulary[i] for i in self.index.tolist())

    def buckets(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Go through the buckets.

        Yields:
            Embeddings (N_b, L_b, d_t) of a bucket and places of its EOTs; None: always the last.
        """
        if self.grouping is None:
            yield self.embeddings, self.lengths - 1
            return
        embeddings = self.embeddings.index_select(0, self.grouping.order)
        ends = self.lengths.index_select(0, self.grouping.order) - 1
        first = 0
        for (count, length), exact in zip(self.grouping.sizes, self.grouping.exact, strict=True):
            rows = slice(first, first + count)
            yield embeddings[rows, :length], None if exact else ends[rows]
            first += count

    def select(self, index: Tensor) -> Names:
        """Select names, for example after words changed slots.

        With an index on the host nothing waits for the device, and its selections are kept.

        Args:
            index: Places of the names (N',).

        Returns:
            The names at these places.
        """
        rows = on_host(index) if index.device.type == "cpu" else None
        if rows is not None and rows in self.chosen:
            return self.chosen[rows]
        index = index.to(self.lengths.device)
        source = index if self.index is None else self.index[index]
        lengths, embeddings = self.lengths[index], self.embeddings[index]
        if rows is None or self.known is None:  # lengths on a GPU would have to be waited for
            known = on_host(lengths) if lengths.device.type == "cpu" else None
        else:
            known = tuple(self.known[row] for row in rows)
        cost, width = self.bucket_cost, embeddings.shape[-1]
        grouping = None if known is None else group(known, width, lengths.device, cost)
        selection = Names(self.vocabulary, embeddings, lengths, source, grouping, known, cost)
        if rows is not None and not _transformed(embeddings):
            if len(self.chosen) >= SELECTIONS:
                self.chosen.clear()
            self.chosen[rows] = selection
        return selection


def on_host(numbers: Tensor) -> tuple[int, ...] | None:
    """Return the numbers of a tensor, where the host can know them.

    Args:
        numbers: A tensor (N,).

    Returns:
        The numbers; None under vmap, where each client may have its own.
    """
    try:
        return tuple(numbers.tolist())
    except RuntimeError:
        return None


def _transformed(tensor: Tensor) -> bool:
    """Whether a tensor belongs to vmap, grad or inference mode, and must not be kept for later."""
    wrapped: bool = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return wrapped or tensor.is_inference()


def group(
    known: Sequence[int], width: int, device: torch.device, cost: float | None = None
) -> Grouping | None:
    """Group names by length (N,) where that saves more padding than it costs.

    Args:
        known: length of each name in tokens.
        width: of the text tower.
        device: where the tower runs.
        cost: multiplications that a bucket of its own may cost; None: measured for the device.

    Returns:
        The buckets, or None where one bucket of padded names is best.
    """
    if cost is None:
        cost = BUCKET_COST.get(device.type, BUCKET_COST["cuda"])
    padding = cost / (12 * width**2)  # tokens cheaper than a bucket
    order = sorted(range(len(known)), key=known.__getitem__)
    sizes: list[tuple[int, int]] = []
    exact: list[bool] = []
    for length, rows in groupby(order, key=known.__getitem__):
        count = len(list(rows))
        if sizes and sizes[-1][0] * (length - sizes[-1][1]) < padding:
            sizes[-1] = (sizes[-1][0] + count, length)
            exact[-1] = False
        else:
            sizes.append((count, length))
            exact.append(True)
    if len(sizes) == 1 and not exact[0]:
        return None
    there = torch.tensor(order)
    back = torch.empty_like(there)
    back[there] = torch.arange(len(order))
    return Grouping(there.to(device), back.to(device), tuple(sizes), tuple(exact))
