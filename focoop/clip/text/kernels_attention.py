"""Triton kernels of the text tower's training step: causal attention within short sequences.

Tokens of all sequences stand in one flat (T, d) tensor without padding, `tokens` rows per group. A
sequence sees, in this order: the SOT, whose key and value in `sot` (2d,) never change; the first
SHARED rows of its group, a context that all its names have in common; its own rows. `starts` and
`sizes` hold, for each of a group's names, its first own row and how many rows it sees beside the
SOT. Where a context is shared, it is a sequence too: the one after the names.

A whole head of a sequence fits one program, so that nothing but queries, keys and values is kept
for the backward. What sequences contribute to shared keys and values is added up afterwards, in a
fixed order. Imported only where a GPU trains.
"""

# Triton's language has its own types.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, no-any-return"

from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

WARPS, WARPS_BACK, WARPS_READ = 2, 2, 1  # of one program


@triton.jit
def _rows(x, sot, at, seen, i, e):
    """(L, e) keys or values: row 0 is the SOT's."""
    first = tl.load(sot + e)
    return tl.where((i == 0)[:, None], first[None, :], tl.load(x + at, seen, 0.0))


@triton.jit
def _places(i, group, tokens, start, lead):
    """(L,) rows of the flat tensor that a sequence sees; row 0 is none."""
    return group.to(tl.int64) * tokens + tl.where(i <= lead, i - 1, start + i - 1 - lead)


@triton.jit
def _weights(q, k, i, size, scale):
    """Causal softmax (L, L) of one head of one sequence behind the SOT."""
    logits = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    seen = (i[None, :] <= i[:, None]) & (i <= size)[None, :]
    logits = tl.where(seen, logits, float("-inf"))
    powers = tl.exp(logits - tl.max(logits, 1)[:, None])
    return powers / tl.sum(powers, 1)[:, None]


@triton.jit
def _attend(qkv, sot, out, starts, sizes, names, tokens, scale, HEADS: tl.constexpr,
            SIZE: tl.constexpr, LONG: tl.constexpr, SHARED: tl.constexpr):  # fmt: skip
    D: tl.constexpr = HEADS * SIZE
    program, many = tl.program_id(0), names + (SHARED > 0)
    sequence, head = program // HEADS, program % HEADS
    name = sequence % many
    size, lead = tl.load(sizes + name), tl.where(name < names, SHARED, 0)
    i, e = tl.arange(0, LONG), tl.arange(0, SIZE)
    row = _places(i, sequence // many, tokens, tl.load(starts + name), lead)[:, None]
    seen, own = ((i >= 1) & (i <= size))[:, None], ((i > lead) & (i <= size))[:, None]
    at = row * (3 * D) + head * SIZE + e[None, :]
    q = tl.load(qkv + at, own & (i >= 1)[:, None], 0.0)
    k = _rows(qkv + D, sot + head * SIZE, at, seen, i, e)
    v = _rows(qkv + 2 * D, sot + D + head * SIZE, at, seen, i, e)
    weights = _weights(q, k, i, size, scale).to(v.dtype)
    mixed = tl.dot(weights, v, input_precision="ieee")
    tl.store(out + row * D + head * SIZE + e[None, :], mixed.to(out.dtype.element_ty),
             own & (i >= 1)[:, None])  # fmt: skip


@triton.jit
def _attend_back(qkv, sot, slope, out, extra, starts, sizes, names, tokens, scale,
                 HEADS: tl.constexpr, SIZE: tl.constexpr, LONG: tl.constexpr,
                 SHARED: tl.constexpr):  # fmt: skip
    D: tl.constexpr = HEADS * SIZE
    program, many = tl.program_id(0), names + (SHARED > 0)
    sequence, head = program // HEADS, program % HEADS
    name, group = sequence % many, sequence // many
    size, lead = tl.load(sizes + name), tl.where(name < names, SHARED, 0)
    i, e = tl.arange(0, LONG), tl.arange(0, SIZE)
    row = _places(i, group, tokens, tl.load(starts + name), lead)[:, None]
    seen, own = ((i >= 1) & (i <= size))[:, None], ((i > lead) & (i >= 1) & (i <= size))[:, None]
    at = row * (3 * D) + head * SIZE + e[None, :]
    q = tl.load(qkv + at, own, 0.0)
    k = _rows(qkv + D, sot + head * SIZE, at, seen, i, e)
    v = _rows(qkv + 2 * D, sot + D + head * SIZE, at, seen, i, e)
    g = tl.load(slope + row * D + head * SIZE + e[None, :], own, 0.0)
    weights = _weights(q, k, i, size, scale)
    dv = tl.dot(tl.trans(weights.to(v.dtype)), g, input_precision="ieee")
    tl.store(out + at + 2 * D, dv.to(out.dtype.element_ty), own)
    dw = tl.dot(g, tl.trans(v), input_precision="ieee")
    ds = (weights * (dw - tl.sum(weights * dw, 1)[:, None]) * scale).to(v.dtype)
    dq = tl.dot(ds, k, input_precision="ieee")
    tl.store(out + at, dq.to(out.dtype.element_ty), own)
    dk = tl.dot(tl.trans(ds), q, input_precision="ieee")
    tl.store(out + at + D, dk.to(out.dtype.element_ty), own)
    if SHARED > 0:
        there = ((i >= 1) & (i <= lead))[:, None]
        line = (group.to(tl.int64) * names + name) * SHARED + i - 1
        place = line[:, None] * (2 * D) + head * SIZE + e[None, :]
        tl.store(extra + place, dk.to(extra.dtype.element_ty), there)
        tl.store(extra + place + D, dv.to(extra.dtype.element_ty), there)


@triton.jit
def _weights_of_one(query, k, i, end, scale):
    """As `_weights`, (L,) for the one query at `end`."""
    logits = tl.where(i <= end, tl.sum(query[None, :] * k, 1) * scale, float("-inf"))
    powers = tl.exp(logits - tl.max(logits, 0))
    return powers / tl.sum(powers, 0)


@triton.jit
def _read(q, kv, sot, out, starts, ends, names, tokens, scale, HEADS: tl.constexpr,
          SIZE: tl.constexpr, LONG: tl.constexpr, SHARED: tl.constexpr):  # fmt: skip
    D: tl.constexpr = HEADS * SIZE
    program = tl.program_id(0)
    sequence, head = program // HEADS, program % HEADS
    name = sequence % names
    end = tl.load(ends + name) + 1
    i, e = tl.arange(0, LONG), tl.arange(0, SIZE)
    row = _places(i, sequence // names, tokens, tl.load(starts + name), SHARED)[:, None]
    seen = ((i >= 1) & (i <= end))[:, None]
    at = row * (2 * D) + head * SIZE + e[None, :]
    place = sequence.to(tl.int64) * D + head * SIZE + e
    k = _rows(kv, sot + head * SIZE, at, seen, i, e).to(tl.float32)
    v = _rows(kv + D, sot + D + head * SIZE, at, seen, i, e).to(tl.float32)
    weights = _weights_of_one(tl.load(q + place).to(tl.float32), k, i, end, scale)
    tl.store(out + place, tl.sum(weights[:, None] * v, 0).to(out.dtype.element_ty))


@triton.jit
def _read_back(q, kv, sot, slope, dq, dkv, extra, starts, sizes, ends, names, tokens, scale,
               HEADS: tl.constexpr, SIZE: tl.constexpr, LONG: tl.constexpr,
               SHARED: tl.constexpr):  # fmt: skip
    D: tl.constexpr = HEADS * SIZE
    program = tl.program_id(0)
    sequence, head = program // HEADS, program % HEADS
    name = sequence % names
    end = tl.load(ends + name) + 1
    i, e = tl.arange(0, LONG), tl.arange(0, SIZE)
    row = _places(i, sequence // names, tokens, tl.load(starts + name), SHARED)[:, None]
    seen = ((i >= 1) & (i <= end))[:, None]
    at = row * (2 * D) + head * SIZE + e[None, :]
    place = sequence.to(tl.int64) * D + head * SIZE + e
    k = _rows(kv, sot + head * SIZE, at, seen, i, e).to(tl.float32)
    v = _rows(kv + D, sot + D + head * SIZE, at, seen, i, e).to(tl.float32)
    query, g = tl.load(q + place).to(tl.float32), tl.load(slope + place).to(tl.float32)
    weights = _weights_of_one(query, k, i, end, scale)
    dw = tl.sum(g[None, :] * v, 1)
    ds = weights * (dw - tl.sum(weights * dw, 0)) * scale
    tl.store(dq + place, tl.sum(ds[:, None] * k, 0).to(dq.dtype.element_ty))
    dk, dv = ds[:, None] * query[None, :], weights[:, None] * g[None, :]
    # Rows after the end are written too: their slope is 0.
    own = ((i >= 1) & (i > SHARED) & (i <= tl.load(sizes + name)))[:, None]
    tl.store(dkv + at, dk.to(dkv.dtype.element_ty), own)
    tl.store(dkv + at + D, dv.to(dkv.dtype.element_ty), own)
    if SHARED > 0:
        there = ((i >= 1) & (i <= SHARED))[:, None]
        line = sequence.to(tl.int64) * SHARED + i - 1
        spot = line[:, None] * (2 * D) + head * SIZE + e[None, :]
        tl.store(extra + spot, dk.to(extra.dtype.element_ty), there)
        tl.store(extra + spot + D, dv.to(extra.dtype.element_ty), there)


def shapes(flat: Any, width: int, heads: int) -> dict[str, int]:
    """Return the sizes that the kernels are compiled for.

    Args:
        flat: The layout, a `fused.Flat`.
        width: Width of the tower.
        heads: Number of heads.

    Returns:
        Sizes by name.
    """
    return {"HEADS": heads, "SIZE": width // heads, "LONG": flat.longest, "SHARED": flat.shared}


def attend(qkv: Tensor, sot: Tensor, flat: Any, heads: int) -> Tensor:
    """Attend within sequences.

    Args:
        qkv: Queries, keys and values (T, 3d).
        sot: Key and value of the SOT (2d,).
        flat: The layout, a `fused.Flat`.
        heads: Number of heads.

    Returns:
        Mixed values (T, d).
    """
    width = qkv.shape[1] // 3
    out = qkv.new_empty(len(qkv), width)
    _attend[(len(qkv) // flat.tokens * len(flat.starts) * heads,)](
        qkv, sot, out, flat.starts, flat.sizes, flat.names, flat.tokens, (width // heads) ** -0.5,
        **shapes(flat, width, heads), num_warps=WARPS,
    )  # fmt: skip
    return out


def attend_back(qkv: Tensor, sot: Tensor, slope: Tensor, flat: Any, heads: int) -> Tensor:
    """Take a gradient back through `attend`.

    Args:
        qkv: Queries, keys and values (T, 3d).
        sot: Key and value of the SOT (2d,).
        slope: Gradient of the mixed values (T, d).
        flat: The layout, a `fused.Flat`.
        heads: Number of heads.

    Returns:
        Gradient (T, 3d).
    """
    width, groups = slope.shape[1], len(qkv) // flat.tokens
    out = torch.empty_like(qkv)
    extra = qkv.new_empty(groups * flat.names * flat.shared, 2 * width)
    _attend_back[(groups * len(flat.starts) * heads,)](
        qkv, sot, slope, out, extra if flat.shared else out, flat.starts, flat.sizes, flat.names,
        flat.tokens, (width // heads) ** -0.5,
        **shapes(flat, width, heads), num_warps=WARPS_BACK,
    )  # fmt: skip
    if flat.shared:
        shared = out.view(groups, flat.tokens, 3 * width)[:, : flat.shared, width:]
        shared += summed(extra, groups, flat)
    return out


def read(query: Tensor, kv: Tensor, sot: Tensor, flat: Any, heads: int) -> Tensor:
    """Attend with the queries of the EOTs alone.

    Args:
        query: Queries (S, d).
        kv: Keys and values (T, 2d) of all tokens.
        sot: Key and value of the SOT (2d,).
        flat: The layout, a `fused.Flat`.
        heads: Number of heads.

    Returns:
        Mixed values (S, d).
    """
    count, width = query.shape
    out = torch.empty_like(query)
    _read[(count * heads,)](
        query, kv, sot, out, flat.starts, flat.ends, flat.names, flat.tokens,
        (width // heads) ** -0.5, **shapes(flat, width, heads), num_warps=WARPS_READ,
    )  # fmt: skip
    return out


def read_back(
    query: Tensor, kv: Tensor, sot: Tensor, slope: Tensor, flat: Any, heads: int
) -> tuple[Tensor, Tensor]:
    """Take a gradient back through `read`.

    Args:
        query: Queries (S, d).
        kv: Keys and values (T, 2d).
        sot: Key and value of the SOT (2d,).
        slope: Gradient of the mixed values (S, d).
        flat: The layout, a `fused.Flat`.
        heads: Number of heads.

    Returns:
        Gradients (S, d) and (T, 2d).
    """
    count, width = query.shape
    dq, dkv = torch.empty_like(query), torch.empty_like(kv)
    extra = kv.new_empty(count * flat.shared, 2 * width)
    _read_back[(count * heads,)](
        query, kv, sot, slope, dq, dkv, extra if flat.shared else dkv, flat.starts, flat.sizes,
        flat.ends, flat.names, flat.tokens, (width // heads) ** -0.5,
        **shapes(flat, width, heads), num_warps=WARPS_READ,
    )  # fmt: skip
    if flat.shared:
        groups = count // flat.names
        shared = dkv.view(groups, flat.tokens, 2 * width)[:, : flat.shared]
        shared.copy_(summed(extra, groups, flat))
    return dq, dkv


def summed(extra: Tensor, groups: int, flat: Any) -> Tensor:
    """Add up what all names of a group contribute to shared rows.

    Args:
        extra: Contributions (G * N * n, 2d).
        groups: Number G of groups.
        flat: The layout, a `fused.Flat`.

    Returns:
        Sums (G, n, 2d).
    """
    parts = extra.view(groups, flat.names, flat.shared, -1)
    return parts.sum(dim=1, dtype=torch.float32)
