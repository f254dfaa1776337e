"""Triton kernels of the text tower's training step: causal attention within short sequences.

Tokens of all sequences stand in one flat (T, d) tensor without padding. Sequence s belongs to group
s // N and name s % N; it begins at row (s // N) * tokens + starts[s % N] and has sizes[s % N] rows.
Before them all stands the SOT, whose key and value in `sot` (2d,) never change. A whole head of a
sequence fits one program, so that nothing but queries, keys and values is kept for the backward.
Imported only where a GPU trains.
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
def _rows(x, sot, at, own, i, e):
    """(L, e) keys or values: row 0 is the SOT's, the next ones are the sequence's own."""
    first = tl.load(sot + e[None, :] + 0 * i[:, None], (i == 0)[:, None], 0.0)
    return first + tl.load(x + at, own, 0.0)


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
            SIZE: tl.constexpr, LONG: tl.constexpr):  # fmt: skip
    program = tl.program_id(0)
    sequence, head = program // HEADS, program % HEADS
    name = sequence % names
    size = tl.load(sizes + name)
    first = (sequence // names).to(tl.int64) * tokens + tl.load(starts + name) - 1
    i, e = tl.arange(0, LONG), tl.arange(0, SIZE)
    own = ((i >= 1) & (i <= size))[:, None]
    at = (first + i)[:, None] * (3 * HEADS * SIZE) + head * SIZE + e[None, :]
    q = tl.load(qkv + at, own, 0.0)
    k = _rows(qkv + HEADS * SIZE, sot + head * SIZE, at, own, i, e)
    v = _rows(qkv + 2 * HEADS * SIZE, sot + (HEADS + head) * SIZE, at, own, i, e)
    weights = _weights(q, k, i, size, scale).to(v.dtype)
    mixed = tl.dot(weights, v, input_precision="ieee")
    place = (first + i)[:, None] * (HEADS * SIZE) + head * SIZE + e[None, :]
    tl.store(out + place, mixed.to(out.dtype.element_ty), own)


@triton.jit
def _attend_back(qkv, sot, slope, out, starts, sizes, names, tokens, scale, HEADS: tl.constexpr,
                 SIZE: tl.constexpr, LONG: tl.constexpr):  # fmt: skip
    program = tl.program_id(0)
    sequence, head = program // HEADS, program % HEADS
    name = sequence % names
    size = tl.load(sizes + name)
    first = (sequence // names).to(tl.int64) * tokens + tl.load(starts + name) - 1
    i, e = tl.arange(0, LONG), tl.arange(0, SIZE)
    own = ((i >= 1) & (i <= size))[:, None]
    at = (first + i)[:, None] * (3 * HEADS * SIZE) + head * SIZE + e[None, :]
    place = (first + i)[:, None] * (HEADS * SIZE) + head * SIZE + e[None, :]
    q = tl.load(qkv + at, own, 0.0)
    k = _rows(qkv + HEADS * SIZE, sot + head * SIZE, at, own, i, e)
    v = _rows(qkv + 2 * HEADS * SIZE, sot + (HEADS + head) * SIZE, at, own, i, e)
    g = tl.load(slope + place, own, 0.0)  # 0 in rows that are not the sequence's own
    weights = _weights(q, k, i, size, scale)
    dv = tl.dot(tl.trans(weights.to(v.dtype)), g, input_precision="ieee")
    tl.store(out + at + 2 * HEADS * SIZE, dv.to(out.dtype.element_ty), own)
    dw = tl.dot(g, tl.trans(v), input_precision="ieee")
    ds = (weights * (dw - tl.sum(weights * dw, 1)[:, None]) * scale).to(v.dtype)
    dq = tl.dot(ds, k, input_precision="ieee")
    tl.store(out + at, dq.to(out.dtype.element_ty), own)
    dk = tl.dot(tl.trans(ds), q, input_precision="ieee")
    tl.store(out + at + HEADS * SIZE, dk.to(out.dtype.element_ty), own)


@triton.jit
def _weights_of_one(query, k, i, end, scale):
    """As `_weights`, (L,) for the one query at `end`."""
    logits = tl.where(i <= end, tl.sum(query[None, :] * k, 1) * scale, float("-inf"))
    powers = tl.exp(logits - tl.max(logits, 0))
    return powers / tl.sum(powers, 0)


@triton.jit
def _read(q, kv, sot, out, starts, ends, names, tokens, scale, HEADS: tl.constexpr,
          SIZE: tl.constexpr, LONG: tl.constexpr):  # fmt: skip
    program = tl.program_id(0)
    sequence, head = program // HEADS, program % HEADS
    name = sequence % names
    end = tl.load(ends + name) + 1
    first = (sequence // names).to(tl.int64) * tokens + tl.load(starts + name) - 1
    i, e = tl.arange(0, LONG), tl.arange(0, SIZE)
    own = ((i >= 1) & (i <= end))[:, None]
    at = (first + i)[:, None] * (2 * HEADS * SIZE) + head * SIZE + e[None, :]
    place = sequence.to(tl.int64) * (HEADS * SIZE) + head * SIZE + e
    k = _rows(kv, sot + head * SIZE, at, own, i, e).to(tl.float32)
    v = _rows(kv + HEADS * SIZE, sot + (HEADS + head) * SIZE, at, own, i, e).to(tl.float32)
    weights = _weights_of_one(tl.load(q + place).to(tl.float32), k, i, end, scale)
    tl.store(out + place, tl.sum(weights[:, None] * v, 0).to(out.dtype.element_ty))


@triton.jit
def _read_back(q, kv, sot, slope, dq, dkv, starts, sizes, ends, names, tokens, scale,
               HEADS: tl.constexpr, SIZE: tl.constexpr, LONG: tl.constexpr):  # fmt: skip
    program = tl.program_id(0)
    sequence, head = program // HEADS, program % HEADS
    name = sequence % names
    end = tl.load(ends + name) + 1
    first = (sequence // names).to(tl.int64) * tokens + tl.load(starts + name) - 1
    i, e = tl.arange(0, LONG), tl.arange(0, SIZE)
    own = ((i >= 1) & (i <= end))[:, None]
    at = (first + i)[:, None] * (2 * HEADS * SIZE) + head * SIZE + e[None, :]
    place = sequence.to(tl.int64) * (HEADS * SIZE) + head * SIZE + e
    k = _rows(kv, sot + head * SIZE, at, own, i, e).to(tl.float32)
    v = _rows(kv + HEADS * SIZE, sot + (HEADS + head) * SIZE, at, own, i, e).to(tl.float32)
    query, g = tl.load(q + place).to(tl.float32), tl.load(slope + place).to(tl.float32)
    weights = _weights_of_one(query, k, i, end, scale)
    dw = tl.sum(g[None, :] * v, 1)
    ds = weights * (dw - tl.sum(weights * dw, 0)) * scale
    tl.store(dq + place, tl.sum(ds[:, None] * k, 0).to(dq.dtype.element_ty))
    # Rows after the end are written too: their slope is 0.
    written = ((i >= 1) & (i <= tl.load(sizes + name)))[:, None]
    tl.store(dkv + at, (ds[:, None] * query[None, :]).to(dkv.dtype.element_ty), written)
    dv = weights[:, None] * g[None, :]
    tl.store(dkv + at + HEADS * SIZE, dv.to(dkv.dtype.element_ty), written)


def attend(qkv: Tensor, sot: Tensor, flat: Any, heads: int) -> Tensor:
    """(T, 3d) queries, keys and values -> (T, d) mixed values; `flat` is a `fused.Flat`."""
    width = qkv.shape[1] // 3
    out = qkv.new_empty(len(qkv), width)
    _attend[(len(qkv) // flat.tokens * flat.names * heads,)](
        qkv, sot, out, flat.starts, flat.sizes, flat.names, flat.tokens, (width // heads) ** -0.5,
        HEADS=heads, SIZE=width // heads, LONG=flat.longest, num_warps=WARPS,
    )  # fmt: skip
    return out


def attend_back(qkv: Tensor, sot: Tensor, slope: Tensor, flat: Any, heads: int) -> Tensor:
    """Gradient (T, 3d) through `attend` for that of its result (T, d)."""
    width = slope.shape[1]
    out = torch.empty_like(qkv)
    _attend_back[(len(qkv) // flat.tokens * flat.names * heads,)](
        qkv, sot, slope, out, flat.starts, flat.sizes, flat.names, flat.tokens,
        (width // heads) ** -0.5,
        HEADS=heads, SIZE=width // heads, LONG=flat.longest, num_warps=WARPS_BACK,
    )  # fmt: skip
    return out


def read(query: Tensor, kv: Tensor, sot: Tensor, flat: Any, heads: int) -> Tensor:
    """Queries (S, d) of the EOTs, keys and values (T, 2d) of all tokens -> (S, d)."""
    count, width = query.shape
    out = torch.empty_like(query)
    _read[(count * heads,)](
        query, kv, sot, out, flat.starts, flat.ends, flat.names, flat.tokens,
        (width // heads) ** -0.5,
        HEADS=heads, SIZE=width // heads, LONG=flat.longest, num_warps=WARPS_READ,
    )  # fmt: skip
    return out


def read_back(
    query: Tensor, kv: Tensor, sot: Tensor, slope: Tensor, flat: Any, heads: int
) -> tuple[Tensor, Tensor]:
    """Gradients (S, d) and (T, 2d) through `read`."""
    count, width = query.shape
    dq, dkv = torch.empty_like(query), torch.empty_like(kv)
    _read_back[(count * heads,)](
        query, kv, sot, slope, dq, dkv, flat.starts, flat.sizes, flat.ends, flat.names, flat.tokens,
        (width // heads) ** -0.5,
        HEADS=heads, SIZE=width // heads, LONG=flat.longest, num_warps=WARPS_READ,
    )  # fmt: skip
    return dq, dkv
