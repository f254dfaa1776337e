"""Blocks of a CLIP-style text transformer over a flat batch of tokens."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focoop.clip.text.layout import Layout

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}


@dataclass(frozen=True)
class TextShape:
    """Architecture of a CLIP-style text tower."""

    width: int
    layers: int
    heads: int
    dim: int
    context_length: int
    activation: str = "gelu"
    norm_eps: float = 1e-5


class Block(nn.Module):
    """Pre-norm transformer block with a causal mask."""

    def __init__(self, shape: TextShape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.activation = ACTIVATIONS[shape.activation]
        self.ln_1 = nn.LayerNorm(width, shape.norm_eps)
        self.qkv = nn.Linear(width, 3 * width)
        self.o = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width, shape.norm_eps)
        self.f1 = nn.Linear(width, 4 * width)
        self.f2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        """(T, d) -> (T, d)."""
        return self.finish(x, layout.attend(self.qkv(self.ln_1(x)), self.heads))

    def read(self, x: Tensor, layout: Layout) -> Tensor:
        """Compute the block's output at the EOTs, and nowhere else.

        Args:
            x: Tokens (T, d).
            layout: Where tokens lie.

        Returns:
            Tokens (S, d) of the S EOTs.
        """
        width = x.shape[-1]
        normed = self.ln_1(x)
        weight, bias = self.qkv.weight, self.qkv.bias
        kv = F.linear(normed, weight[width:], bias[width:])
        query = F.linear(layout.at_ends(normed), weight[:width], bias[:width])
        return self.finish(layout.at_ends(x), layout.read(query, kv, self.heads))

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Add what attention mixed to the residual stream, then the MLP's output.

        Args:
            x: The residual stream (T, d).
            mixed: Mixed values (T, d).

        Returns:
            The block's output (T, d).
        """
        x = x + self.o(mixed)
        hidden = self.activation(self.f1(self.ln_2(x)))
        out: Tensor = x + self.f2(hidden)
        return out
