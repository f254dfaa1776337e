"""The text tower on a GPU: fused kernels, no padding, its own backward.

Contexts may be each name's own or shared by all names of a group: then it is computed once and its
gradient is the sum of all names'. Between the matrix products runs one kernel each: residual and
norm, attention, activation. Gains and biases of norms are folded into the frozen weights behind
them, so that a norm's own output is all its backward needs; weights get no gradient, so that no
product's input is kept. The SOT sees nothing but itself: its keys and values are constants of the
tower. The residual stream is float32, its gradient in the products' dtype.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

# Rows of a sequence that one program of the attention kernel can hold.
LONGEST = 64


@dataclass(frozen=True)
class Flat:
    """Where the tokens of N prompts lie, without the SOT, for each of any number of groups alike.

    Attributes:
        names: N.
        shared: rows of the context at the beginning of a group, 0 where each name has its own.
        tokens: rows of a group.
        longest: rows that the longest sequence sees and its SOT, as a power of two.
        starts, sizes: (N,) int32 first own row and number of rows seen; one more for the context
            where it is shared.
        ends: (N,) int32 place of the EOT among the rows seen.
        rows: int64 rows of the contexts' tokens within a group.
        places: (tokens,) int32 which of the contexts' tokens a row is, -1 where it is none.
        base: (tokens, d_t) all embeddings but the contexts, positions added everywhere.
    """

    names: int
    shared: int
    tokens: int
    longest: int
    starts: Tensor
    sizes: Tensor
    ends: Tensor
    rows: Tensor
    places: Tensor
    base: Tensor

    def contexts(self, slope: Tensor) -> Tensor:
        """Pick the gradients of the contexts out of those of all tokens.

        Args:
            slope: Gradients (K * tokens, d_t).

        Returns:
            Gradients (K, N or 1, n, d_t).
        """
        width = slope.shape[-1]
        slopes = slope.view(-1, self.tokens, width).index_select(1, self.rows)
        return slopes.view(len(slopes), 1 if self.shared else self.names, -1, width)

    def at_ends(self, groups: int) -> Tensor:
        """Return the rows of the EOTs.

        Args:
            groups: Number K of groups.

        Returns:
            Rows (K * N,).
        """
        first = self.tokens * torch.arange(groups, device=self.starts.device)
        own = self.starts[: self.names] + self.ends - self.shared
        return (first[:, None] + own).view(-1)


def flat(pos: Tensor, names: Any, tokens: int, *, unified: bool) -> Flat:
    """Lay out names behind contexts.

    Where the host does not know the lengths every sequence is as long as the longest.

    Args:
        pos: Embeddings of positions (context_length, d_t).
        names: The names, a `Names`.
        tokens: Tokens of a context.
        unified: One context is shared by all names of a group.

    Returns:
        The layout.
    """
    count, longest, width = names.embeddings.shape
    device, shared = pos.device, tokens if unified else 0
    own = tokens - shared  # context rows of each sequence
    known: Sequence[int] | None = names.known
    if known is None:
        sizes = torch.full((count,), own + longest, dtype=torch.int32, device=device)
        starts = (own + longest) * torch.arange(count, dtype=torch.int32, device=device)
        rows = count * (own + longest)
        places = torch.arange(rows, device=device)
    else:
        host = torch.tensor([own + length for length in known])
        sizes = host.to(torch.int32).to(device)
        starts = (host.cumsum(0) - host).to(torch.int32).to(device)
        rows = int(host.sum())
        each = [i * (own + longest) + torch.arange(n) for i, n in enumerate(host.tolist())]
        places = torch.cat(each).to(device)
    blank = names.embeddings.new_zeros(count, own, width)
    total = tokens + longest
    whole = torch.cat([blank, names.embeddings], dim=1) + pos[1 + shared : 1 + total]
    base = whole.view(-1, width)[places]
    if unified:
        starts = torch.cat([starts + shared, starts.new_zeros(1)])
        sizes = torch.cat([sizes + shared, sizes.new_full((1,), shared)])
        base = torch.cat([pos[1 : 1 + shared], base])
        inner = torch.arange(shared, device=device)
    else:
        inner = (starts.long()[:, None] + torch.arange(tokens, device=device)).view(-1)
    places = torch.full((shared + rows,), -1, dtype=torch.int32, device=device)
    places[inner] = torch.arange(len(inner), dtype=torch.int32, device=device)
    return Flat(
        names=count,
        shared=shared,
        tokens=shared + rows,
        longest=max(16, 1 << total.bit_length()),
        starts=starts,
        sizes=sizes,
        ends=(names.lengths + tokens - 1).to(torch.int32),
        rows=inner,
        places=places,
        base=base.to(torch.float32),
    )


@dataclass(frozen=True)
class Linear:
    """Frozen weight (out, in) and bias (out,) in the products' dtype."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """(T, in) -> (T, out)."""
        return torch.addmm(self.bias, x, self.weight.T)

    def back(self, slope: Tensor) -> Tensor:
        """Take a gradient back through the map.

        Args:
            slope: Gradient (T, out).

        Returns:
            Gradient (T, in).
        """
        return torch.mm(slope, self.weight)


def folded(linear: nn.Linear, norm: nn.LayerNorm | None, dtype: torch.dtype) -> Linear:
    """Fold a norm's gain and bias into the map behind it: W (g x + b) + c = (W g) x + (W b + c).

    Args:
        linear: The map.
        norm: The norm before it, or None.
        dtype: Type of the products.

    Returns:
        The folded map.
    """
    weight: Tensor = linear.weight
    bias: Tensor = linear.bias
    if norm is not None:
        weight, bias = weight * norm.weight, bias + weight @ norm.bias
    return Linear(weight.to(dtype), bias.to(dtype))


@dataclass(frozen=True)
class Frozen:
    """One block's weights, and the key and value (2d,) of the SOT there."""

    sot: Tensor
    qkv: Linear
    o: Linear
    f1: Linear
    f2: Linear

    def part(self, first: int, last: int) -> Linear:
        """Return the map to some of queries (0), keys (1) and values (2).

        Args:
            first: The first of them.
            last: The one after the last.

        Returns:
            The map.
        """
        width = self.qkv.weight.shape[1]
        rows = slice(first * width, last * width)
        return Linear(self.qkv.weight[rows], self.qkv.bias[rows])


@dataclass(frozen=True)
class Stack:
    """All blocks as the fused step reads them."""

    blocks: tuple[Frozen, ...]
    heads: int
    activation: str
    eps: float
    dtype: torch.dtype

    @classmethod
    def of(cls, tower: Any, dtype: torch.dtype) -> "Stack":
        """Read the blocks of a text tower.

        Args:
            tower: A `TextTower`.
            dtype: Type of the products.

        Returns:
            The blocks.
        """
        blocks = [
            Frozen(
                sot.to(dtype),
                folded(block.qkv, block.ln_1, dtype),
                folded(block.o, None, dtype),
                folded(block.f1, block.ln_2, dtype),
                folded(block.f2, None, dtype),
            )
            for block, sot in zip(tower.blocks, of_sot(tower), strict=True)
        ]
        shape = tower.shape
        return cls(tuple(blocks), shape.heads, shape.activation, shape.norm_eps, dtype)


@torch.no_grad()
def of_sot(tower: Any) -> list[Tensor]:
    """Compute key and value of the SOT in every block: alone, it attends to itself.

    Args:
        tower: A `TextTower`.

    Returns:
        A vector (2d,) for each block.
    """
    x = (tower.sot + tower.pos[0])[None]
    width, keys_values = x.shape[1], []
    for block in tower.blocks:
        qkv = block.qkv(block.ln_1(x))
        keys_values.append(qkv[0, width:].float())
        x = block.finish(x, qkv[:, 2 * width :])
    return keys_values


def run(contexts: Tensor, stack: Stack, layout: Flat, saved: list[Tensor] | None = None) -> Tensor:
    """Run contexts through all blocks.

    Args:
        contexts: Contexts (K, N or 1, n, d_t).
        stack: The blocks.
        layout: Where tokens lie.
        saved: Takes what a backward needs: norms' outputs, queries, keys, values, what the
            activation saw; None: nothing is kept.

    Returns:
        The last block's output at the EOTs (K * N, d_t).
    """
    from focoop.clip.text import kernels, kernels_attention

    dtype, heads = stack.dtype, stack.heads
    forgets, saved = saved is None, [] if saved is None else saved
    x = kernels.embed(contexts, layout.base, layout.places)
    mlp: Tensor | None = None  # what the block before adds to x
    for block in stack.blocks[:-1]:
        hat, rstd = kernels.norm(x, mlp, None, stack.eps, dtype)
        qkv = block.qkv(hat)
        saved += [hat, rstd, qkv]
        mixed = block.o(kernels_attention.attend(qkv, block.sot, layout, heads))
        hat, rstd = kernels.norm(x, mlp, mixed, stack.eps, dtype)
        hidden = block.f1(hat)
        saved += [hat, rstd, hidden]
        mlp = block.f2(kernels.act(hidden, stack.activation))
        if forgets:
            saved.clear()
    last, ends = stack.blocks[-1], layout.at_ends(len(contexts))
    hat, rstd = kernels.norm(x, mlp, None, stack.eps, dtype)
    kv, query = last.part(1, 3)(hat), last.part(0, 1)(hat.index_select(0, ends))
    saved += [hat, rstd, kv, query]
    x, mlp = x.index_select(0, ends), None if mlp is None else mlp.index_select(0, ends)
    mixed = last.o(kernels_attention.read(query, kv, last.sot, layout, heads))
    hat, rstd = kernels.norm(x, mlp, mixed, stack.eps, dtype)
    hidden = last.f1(hat)
    saved += [hat, rstd, hidden, ends]
    return x + last.f2(kernels.act(hidden, stack.activation))


class Tower(torch.autograd.Function):
    """Contexts (K, N or 1, n, d_t) -> (K * N, d_t), the last block's output at the EOTs."""

    @staticmethod
    def forward(ctx: Any, contexts: Tensor, stack: Stack, layout: Flat) -> Tensor:
        """`run`, which keeps what the backward needs."""
        saved: list[Tensor] = []
        out = run(contexts, stack, layout, saved)
        ctx.stack, ctx.layout = stack, layout
        ctx.save_for_backward(*saved)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of the contexts."""
        from focoop.clip.text import kernels, kernels_attention

        stack, layout, saved = ctx.stack, ctx.layout, list(ctx.saved_tensors)
        heads, kind = stack.heads, stack.activation
        ends, hidden, rstd, hat = saved.pop(), saved.pop(), saved.pop(), saved.pop()
        last = stack.blocks[-1]
        at_ends = slope.to(stack.dtype).contiguous()
        inner = last.f1.back(kernels.act_back(hidden, last.f2.back(at_ends), kind))
        kernels.norm_back(inner, hat, rstd, at_ends)
        query, kv, rstd, hat = saved.pop(), saved.pop(), saved.pop(), saved.pop()
        inner = last.o.back(at_ends)
        dq, dkv = kernels_attention.read_back(query, kv, last.sot, inner, layout, heads)
        inner = last.part(1, 3).back(dkv)
        inner.index_add_(0, ends, last.part(0, 1).back(dq))
        above = torch.zeros_like(hat).index_copy_(0, ends, at_ends)
        kernels.norm_back(inner, hat, rstd, above)
        for block in reversed(stack.blocks[:-1]):
            hidden, rstd, hat = saved.pop(), saved.pop(), saved.pop()
            inner = block.f1.back(kernels.act_back(hidden, block.f2.back(above), kind))
            kernels.norm_back(inner, hat, rstd, above)
            qkv, rstd, hat = saved.pop(), saved.pop(), saved.pop()
            inner = block.o.back(above)
            inner = kernels_attention.attend_back(qkv, block.sot, inner, layout, heads)
            kernels.norm_back(block.qkv.back(inner), hat, rstd, above)
        return layout.contexts(above).to(torch.float32), None, None


@cache
def builds(device: torch.device) -> bool:
    """Say whether Triton is there and can build a kernel: it comes with torch, a compiler may not.

    Args:
        device: The device to build for.

    Returns:
        Whether it can.
    """
    if find_spec("triton") is None:
        return False
    try:
        from focoop.clip.text import kernels

        kernels.act(torch.ones(1, device=device), "gelu")
    except Exception as error:  # whatever Triton or the compiler may raise
        message = "Triton cannot build kernels here, the text tower trains without them, slower"
        warnings.warn(f"{message}: {error}", RuntimeWarning, stacklevel=2)
        return False
    return True


def products(tower: Any, contexts: Tensor, length: int) -> torch.dtype | None:
    """Say in which type the kernels run: on a GPU, in plain tensors, on short sequences.

    Args:
        tower: A `TextTower`.
        contexts: The contexts.
        length: Tokens of the longest sequence.

    Returns:
        The training type where gradients are asked for, float32 where they are not; None where the
        kernels cannot run.
    """
    size = tower.width // tower.shape.heads
    training = torch.is_grad_enabled()
    dtype: torch.dtype | None = tower.autocast if training else tower.pos.dtype
    if (
        contexts.device.type != "cuda"
        or dtype is None
        or contexts.dtype != torch.float32
        or not (training or dtype == torch.float32)
        or length > LONGEST
        or size not in (16, 32, 64, 128)
        or torch._C._functorch.is_functorch_wrapped_tensor(contexts)
        or not builds(contexts.device)
    ):
        return None
    return dtype
