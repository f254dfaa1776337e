"""Triton kernels of the text tower's training step: norms and activations.

Sums are in float32, whatever the operands. Imported only where a GPU trains; `TRITON_INTERPRET=1`
runs the same kernels on a CPU.
"""

# Triton's language has its own types.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, no-any-return"

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

ACTIVATIONS = {"quick_gelu": 0, "gelu": 1, "gelu_tanh": 2}
ROWS = 4  # of a norm, per program
CELLS = 4096  # of an activation, per program


@triton.jit
def _embed(contexts, base, places, out, rows, tokens, held, WIDTH: tl.constexpr,
           BLOCK: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    group, own = row // tokens, row % tokens
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    place = tl.load(places + own, row < rows, -1)
    there = (group * held + place)[:, None] * WIDTH + column[None, :]
    values = tl.load(base + own[:, None] * WIDTH + column[None, :], inside, 0.0)
    values += tl.load(contexts + there, inside & (place >= 0)[:, None], 0.0)
    tl.store(out + row[:, None] * WIDTH + column[None, :], values, inside)


@triton.jit
def _norm(x, first, other, hat, rstd, rows, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
          ROWS: tl.constexpr, FIRST: tl.constexpr, OTHER: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    at = row[:, None] * WIDTH + column[None, :]
    values = tl.load(x + at, inside, 0.0)
    if FIRST:
        values += tl.load(first + at, inside, 0.0).to(tl.float32)
    if OTHER:
        values += tl.load(other + at, inside, 0.0).to(tl.float32)
        tl.store(x + at, values, inside)
    centred = tl.where(inside, values - (tl.sum(values, 1) / WIDTH)[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / WIDTH + eps)
    tl.store(hat + at, (centred * scale[:, None]).to(hat.dtype.element_ty), inside)
    tl.store(rstd + row, scale, row < rows)


@triton.jit
def _norm_back(slope, hat, rstd, above, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
               ROWS: tl.constexpr):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    at = row[:, None] * WIDTH + column[None, :]
    g = tl.load(slope + at, inside, 0.0).to(tl.float32)
    h = tl.load(hat + at, inside, 0.0).to(tl.float32)
    r = tl.load(rstd + row, row < rows, 0.0)
    mean = tl.sum(g, 1) / WIDTH
    along = tl.sum(g * h, 1) / WIDTH
    total = (g - mean[:, None] - h * along[:, None]) * r[:, None]
    total += tl.load(above + at, inside, 0.0).to(tl.float32)
    tl.store(above + at, total.to(above.dtype.element_ty), inside)


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _act(x, out, cells, KIND: tl.constexpr, CELLS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * CELLS + tl.arange(0, CELLS)
    value = tl.load(x + at, at < cells, 0.0).to(tl.float32)
    if KIND == 0:
        activated = value * _sigmoid(1.702 * value)
    elif KIND == 1:
        activated = 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))
    else:
        inner = 0.7978845608028654 * (value + 0.044715 * value * value * value)
        activated = value * _sigmoid(2.0 * inner)
    tl.store(out + at, activated.to(out.dtype.element_ty), at < cells)


@triton.jit
def _act_back(x, slope, cells, KIND: tl.constexpr, CELLS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * CELLS + tl.arange(0, CELLS)
    value = tl.load(x + at, at < cells, 0.0).to(tl.float32)
    if KIND == 0:
        gate = _sigmoid(1.702 * value)
        own = gate * (1.0 + 1.702 * value * (1.0 - gate))
    elif KIND == 1:
        below = 0.5 * (1.0 + tl.erf(value * 0.7071067811865476))
        own = below + value * 0.3989422804014327 * tl.exp(-0.5 * value * value)
    else:
        inner = 0.7978845608028654 * (value + 0.044715 * value * value * value)
        gate = _sigmoid(2.0 * inner)
        bend = 2.0 * 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * value * value)
        own = gate + value * gate * (1.0 - gate) * bend
    gradient = own * tl.load(slope + at, at < cells, 0.0).to(tl.float32)
    tl.store(slope + at, gradient.to(slope.dtype.element_ty), at < cells)


def embed(contexts: Tensor, base: Tensor, places: Tensor) -> Tensor:
    """Put contexts at their places among the other embeddings.

    Args:
        contexts: Contexts (K, N or 1, n, d).
        base: All other embeddings (tokens, d).
        places: Which of the contexts' tokens a row is (tokens,), -1 where it is none.

    Returns:
        Embeddings (K * tokens, d).
    """
    groups, (tokens, width) = len(contexts), base.shape
    contexts = contexts.contiguous()
    out = base.new_empty(groups * tokens, width)
    _embed[(triton.cdiv(len(out), ROWS),)](
        contexts, base, places, out, len(out), tokens, contexts[0].numel() // width,
        WIDTH=width, BLOCK=triton.next_power_of_2(width), ROWS=ROWS, num_warps=4,
    )  # fmt: skip
    return out


def norm(
    x: Tensor, first: Tensor | None, other: Tensor | None, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Bring the residual stream x + first + other to mean 0 and deviation 1.

    With `other` the sum is written into x; without it x stays, so that it is written once a block.

    Args:
        x: The residual stream (T, d).
        first: What is added to it (T, d), or None.
        other: What else is added to it (T, d), or None.
        eps: Added to the variance.
        dtype: Type of the result.

    Returns:
        The normed stream (T, d), and 1 / deviation (T,).
    """
    rows, width = x.shape
    hat, rstd = x.new_empty(rows, width, dtype=dtype), x.new_empty(rows)
    block = triton.next_power_of_2(width)
    _norm[(triton.cdiv(rows, ROWS),)](
        x, x if first is None else first, x if other is None else other, hat, rstd, rows, eps,
        WIDTH=width, BLOCK=block, ROWS=ROWS, FIRST=first is not None, OTHER=other is not None,
        num_warps=4,
    )  # fmt: skip
    return hat, rstd


def norm_back(slope: Tensor, hat: Tensor, rstd: Tensor, above: Tensor) -> None:
    """Add the gradient through `norm` to that of the residual stream, in place.

    Args:
        slope: Gradient of the normed stream (T, d).
        hat: The normed stream (T, d).
        rstd: 1 / deviation (T,).
        above: Gradient of the residual stream (T, d); it is changed.
    """
    rows, width = slope.shape
    _norm_back[(triton.cdiv(rows, ROWS),)](
        slope, hat, rstd, above, rows,
        WIDTH=width, BLOCK=triton.next_power_of_2(width), ROWS=ROWS, num_warps=4,
    )  # fmt: skip


def act(x: Tensor, kind: str) -> Tensor:
    """Apply the activation to every cell.

    Args:
        x: Any tensor.
        kind: `gelu` or `quick_gelu`.

    Returns:
        A tensor of the same shape.
    """
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), CELLS),)
    _act[grid](x, out, x.numel(), KIND=ACTIVATIONS[kind], CELLS=CELLS, num_warps=8)
    return out


def act_back(x: Tensor, slope: Tensor, kind: str) -> Tensor:
    """Take a gradient back through `act`, written over the gradient.

    Args:
        x: What the activation saw.
        slope: Gradient of its result; it is changed.
        kind: `gelu` or `quick_gelu`.

    Returns:
        The changed gradient.
    """
    grid = (triton.cdiv(x.numel(), CELLS),)
    _act_back[grid](x, slope, x.numel(), KIND=ACTIVATIONS[kind], CELLS=CELLS, num_warps=8)
    return slope
