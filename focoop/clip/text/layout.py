"""Where the tokens of a batch of prompts lie, and attention over what prompts share.

All tokens stand in one flat (T, d) tensor, so that norms and products see every token once and
little padding: first G prefixes of P tokens, each shared by all prompts of its group, then the
prompts' own tokens, those of equal length together. A prompt attends to its group's prefix and to
its own tokens up to the present one. Under the causal mask this is exact: a prefix never sees what
follows it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from focoop.clip.text.attention import attend


@dataclass(frozen=True)
class Bucket:
    """Sequences that run together: `count` per group, `length` own tokens each.

    `ends` (G * count,) is the place of each EOT among them; None: always the last.
    """

    count: int
    length: int
    ends: Tensor | None = None


@dataclass(frozen=True)
class Layout:
    """G groups, P shared tokens each, then buckets of sequences."""

    groups: int
    prefix: int
    buckets: Sequence[Bucket]
    masks: dict[int, Tensor] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        """Return the number of tokens of the prefixes and of each bucket."""
        own = [self.groups * bucket.count * bucket.length for bucket in self.buckets]
        return [self.groups * self.prefix, *own]

    @property
    def sequences(self) -> list[int]:
        """Return the number of sequences of each bucket."""
        return [self.groups * bucket.count for bucket in self.buckets]

    def split(self, rows: Tensor, heads: int, parts: int) -> list[tuple[Tensor, ...]]:
        """Cut rows into prefixes and buckets, and each of these into parts and heads.

        Args:
            rows: (T, parts * d).
            heads: Number of heads.
            parts: For example 3 for queries, keys and values.

        Returns:
            For prefixes and buckets, parts of (G * heads, sequences, L, e).
        """
        size = rows.shape[-1] // (parts * heads)
        shapes = [(1, self.prefix), *((b.count, b.length) for b in self.buckets)]
        pieces = []
        for part, (count, length) in zip(torch.split(rows, self.sizes), shapes, strict=True):
            part = part.reshape(self.groups, count, length, parts, heads, size)
            part = part.permute(3, 0, 4, 1, 2, 5).contiguous()
            pieces.append(part.reshape(parts, self.groups * heads, count, length, size).unbind())
        return pieces

    def later(self, length: int, like: Tensor) -> Tensor:
        """Return a mask that is True above the diagonal; it is made once per batch.

        Args:
            length: L.
            like: A tensor on the wanted device.

        Returns:
            A mask (L, L).
        """
        if length not in self.masks:
            everywhere = torch.ones(length, length, dtype=torch.bool, device=like.device)
            self.masks[length] = everywhere.triu(1)
        return self.masks[length]

    def attend(self, qkv: Tensor, heads: int) -> Tensor:
        """Attend within sequences and to the prefixes they share.

        Args:
            qkv: Queries, keys and values (T, 3d).
            heads: Number of heads.

        Returns:
            Mixed values (T, d).
        """
        if self.prefix == 0:
            rows = torch.split(qkv, self.sizes)[1:]
            return together([fused(r, b, heads) for r, b in zip(rows, self.buckets, strict=True)])
        first, *own = self.split(qkv, heads, 3)
        kp, vp = first[1][:, 0], first[2][:, 0]  # (G * heads, P, e)
        nothing = kp[:, :0]
        q, k, v = first
        mixed = [attend(q, k, v, nothing, nothing, self.later(self.prefix, qkv))]
        for (q, k, v), bucket in zip(own, self.buckets, strict=True):
            mixed.append(attend(q, k, v, kp, vp, self.later(bucket.length, qkv)))
        return together([self.flat(part) for part in mixed])

    def read(self, query: Tensor, kv: Tensor, heads: int) -> Tensor:
        """Attend with the queries of the EOTs alone.

        Args:
            query: Queries (S, d).
            kv: Keys and values (T, 2d) of all tokens.
            heads: Number of heads.

        Returns:
            Mixed values (S, d).
        """
        first, *own = self.split(kv, heads, 2)
        kp, vp = first[0][:, 0], first[1][:, 0]
        mixed = []
        for q, (k, v), bucket in zip(
            torch.split(query, self.sequences), own, self.buckets, strict=True
        ):
            q = q.reshape(self.groups, bucket.count, heads, -1).transpose(1, 2)
            q = q.reshape(-1, bucket.count, 1, k.shape[-1])
            after = None
            if bucket.ends is not None:
                places = torch.arange(bucket.length, device=kv.device)
                after = (places > bucket.ends[:, None]).view(self.groups, 1, bucket.count, -1)
                after = after.expand(-1, heads, -1, -1).reshape(len(q), bucket.count, 1, -1)
            mixed.append(self.flat(attend(q, k, v, kp, vp, after)))
        return together(mixed)

    def at_ends(self, x: Tensor) -> Tensor:
        """Return the rows of the EOTs.

        Args:
            x: Tokens (T, d).

        Returns:
            Tokens (S, d).
        """
        end_rows = []
        for rows, bucket in zip(torch.split(x, self.sizes)[1:], self.buckets, strict=True):
            rows = rows.reshape(self.groups * bucket.count, bucket.length, -1)
            if bucket.ends is None:
                end_rows.append(rows[:, -1])
            else:
                end_rows.append(rows[torch.arange(len(rows), device=x.device), bucket.ends])
        return together(end_rows)

    def flat(self, mixed: Tensor) -> Tensor:
        """Join heads and sequences to rows again.

        Args:
            mixed: (G * heads, sequences, L, e).

        Returns:
            Rows (G * sequences * L, d).
        """
        _, count, length, size = mixed.shape
        mixed = mixed.reshape(self.groups, -1, count, length, size).permute(0, 2, 3, 1, 4)
        return mixed.reshape(self.groups * count * length, -1)


def fused(qkv: Tensor, bucket: Bucket, heads: int) -> Tensor:
    """Attend causally within sequences, by torch's fused kernel.

    Args:
        qkv: Queries, keys and values (N * L, 3d).
        bucket: The sequences.
        heads: Number of heads.

    Returns:
        Mixed values (N * L, d).
    """
    q, k, v = qkv.reshape(bucket.count, bucket.length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).reshape(len(qkv), -1)


def together(parts: Sequence[Tensor]) -> Tensor:
    """Join parts to one tensor of all rows.

    Args:
        parts: The parts.

    Returns:
        All rows.
    """
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
