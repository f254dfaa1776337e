"""Attention of short sequences to a prefix they share and to themselves, with its own backward.

Queries q (H, N, Lq, e) of H = groups x heads; the prefix has keys kp and values vp (H, P, e), the
sequences have their own k and v (H, N, L, e). Products with the prefix are one matrix product per
head for all N sequences: its keys and values are never copied to sequences. Sums are written out
where the fused kernels would divide them among threads, which changes bits.
"""

from typing import Any

import torch
from torch import Tensor

# Below this many multiplications per matrix torch.bmm runs a scalar loop on a CPU.
TINY = 400


def attend(q: Tensor, k: Tensor, v: Tensor, kp: Tensor, vp: Tensor, after: Tensor | None) -> Tensor:
    """Attend to P shared and L own positions.

    Args:
        q: Queries (H, N, Lq, e).
        k: Own keys (H, N, L, e).
        v: Own values (H, N, L, e).
        kp: Keys of the prefix (H, P, e); P may be 0.
        vp: Values of the prefix (H, P, e).
        after: True where a query may not look; broadcasts to (H, N, Lq, L).

    Returns:
        Mixed values (H, N, Lq, e).
    """
    mixed: Tensor = Attention.apply(q, k, v, kp, vp, after)[0]
    return mixed


def batched(x: Tensor) -> Tensor:
    """Join the first two dimensions.

    Args:
        x: (H, N, a, b).

    Returns:
        (H * N, a, b).
    """
    return x.reshape(-1, *x.shape[2:])


def whole(x: Tensor) -> Tensor:
    """Join the second and third dimension.

    Args:
        x: (H, N, a, b).

    Returns:
        (H, N * a, b).
    """
    return x.reshape(len(x), -1, x.shape[-1])


def product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices one by one, so that bits do not depend on the number of threads.

    Args:
        a: (M, i, j).
        b: (M, j, e).

    Returns:
        (M, i, e).
    """
    rows, inner = a.shape[1:]
    if a.device.type != "cpu" or rows * inner * b.shape[2] >= TINY:
        return torch.bmm(a, b)
    out = a[..., :1] * b[:, :1]
    for place in range(1, inner):
        out = torch.addcmul(out, a[..., place : place + 1], b[:, place : place + 1])
    return out


class Attention(torch.autograd.Function):
    """Keeps the weights (H, N, Lq, P + L); everything else of the backward is seven products."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, kp: Tensor, vp: Tensor, after: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Mixed values and the weights."""
        p = kp.shape[1]
        logits = torch.bmm(batched(q), batched(k).transpose(1, 2)).view(*q.shape[:3], -1)
        if after is not None:
            logits = logits.masked_fill(after, -torch.inf)
        if p:
            shared = torch.bmm(whole(q), kp.transpose(1, 2)).view(*q.shape[:3], p)
            logits = torch.cat([shared, logits], dim=-1)
        logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
        weights = torch.softmax(logits * q.shape[-1] ** -0.5, dim=-1).to(v.dtype)
        mixed = product(batched(weights[..., p:]), batched(v))
        if p:
            mixed = mixed + torch.bmm(whole(weights[..., :p]), vp).view(mixed.shape)
        return mixed.view(q.shape), weights

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep the operands and the weights."""
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[:5], output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        """Gradients of q, k, v, kp and vp."""
        q, k, v, kp, vp, weights = ctx.saved_tensors
        p = kp.shape[1]
        grad = grad.contiguous()
        own = batched(weights[..., p:])
        slope = torch.bmm(batched(grad), batched(v).transpose(1, 2)).view(*q.shape[:3], -1)
        if p:
            shared = torch.bmm(whole(grad), vp.transpose(1, 2)).view(*q.shape[:3], p)
            slope = torch.cat([shared, slope], dim=-1)
        slope = slope * weights
        slope = (slope - weights * slope.sum(dim=-1, keepdim=True)) * q.shape[-1] ** -0.5
        slope_own = batched(slope[..., p:])
        dq = product(slope_own, batched(k))
        dk = product(slope_own.transpose(1, 2), batched(q)).view(k.shape)
        dv = product(own.transpose(1, 2), batched(grad)).view(v.shape)
        dkp = dvp = None
        if p:
            head = whole(slope[..., :p])
            dq = dq + torch.bmm(head, kp).view(dq.shape)
            dkp = torch.bmm(head.transpose(1, 2), whole(q))
            dvp = torch.bmm(whole(weights[..., :p]).transpose(1, 2), whole(grad))
        return dq.view(q.shape), dk, dv, dkp, dvp, None
