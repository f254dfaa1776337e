"""The text tower under `torch.func`: one call for the prompts of all clients that vmap holds.

Written for one client, a step of ascent on prompts is `torch.func.grad` of a loss through the
tower. Under vmap the tower's operations would each be mapped, and its kernels could not run. Here
the whole tower is one function whose rule for vmap puts clients in front, as the tower takes them
anyway. Its gradient is taken from the tower's own graph, which a `Tape` keeps between both ways.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from focoop.clip.text.names import Names

Encode = Callable[["Tensor", "Names"], "Tensor"]


def transformed(tensor: Tensor) -> bool:
    """Say whether a tensor is one of a transform: vmap or grad.

    Args:
        tensor: The tensor.

    Returns:
        Whether it is.
    """
    wrapped: bool = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return wrapped


def through(tower: Encode, contexts: Tensor, names: Names) -> Tensor:
    """Encode prompts that are under a transform.

    Args:
        tower: Encodes plain tensors.
        contexts: Contexts (N, n, d_t), or one (n, d_t) for all names.
        names: N names, the same for all clients.

    Returns:
        Unit features (N, D).
    """
    tape = Tape() if torch.is_grad_enabled() else None
    features: Tensor = Through.apply(contexts, tower, names, tape)
    return features


class Tape:
    """A pass through the tower whose gradient is asked for later."""

    def __init__(self) -> None:
        self.leaf: Tensor | None = None
        self.features: Tensor | None = None

    def encode(self, tower: Encode, contexts: Tensor, names: Names) -> Tensor:
        """Encode, and keep the graph.

        Args:
            tower: Encodes plain tensors.
            contexts: Contexts.
            names: Names.

        Returns:
            Features; without a graph, unless that of the contexts goes on.
        """
        if contexts.requires_grad:
            return tower(contexts, names)
        with torch.enable_grad():
            self.leaf = contexts.detach().requires_grad_()
            self.features = tower(self.leaf, names)
        return self.features.detach()

    def back(self, slope: Tensor) -> Tensor:
        """Take a gradient back through the pass.

        Args:
            slope: Gradient of the features.

        Returns:
            Gradient of the contexts.

        Raises:
            RuntimeError: The contexts belong to another graph, which nothing of this would reach.
        """
        if self.leaf is None or self.features is None:
            raise RuntimeError(
                "torch.func.grad through the text tower needs contexts without a graph of their "
                "own: detach the parameters they are made of"
            )
        return torch.autograd.grad(self.features, self.leaf, slope, retain_graph=True)[0]


class Through(torch.autograd.Function):
    """Contexts to features; under vmap for all clients in one call."""

    @staticmethod
    def forward(contexts: Tensor, tower: Encode, names: Names, tape: Tape | None) -> Tensor:
        """Encode without vmap: one client."""
        if tape is None:
            return tower(contexts, names)
        return tape.encode(tower, contexts, names)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep the tape."""
        ctx.tape = inputs[3]

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None, None]:
        """Gradient of the contexts."""
        return Back.apply(slope, ctx.tape), None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, contexts: Tensor, tower: Encode, names: Names, tape: Tape | None
    ) -> tuple[Tensor, int]:
        """Encode the prompts of all clients at once.

        Args:
            info: Gives the number of clients.
            in_dims: Where the contexts have their clients.
            contexts: Contexts with a dimension of clients.
            tower: Encodes plain tensors.
            names: N names.
            tape: Keeps the graph, or None.

        Returns:
            Features (K, N, D), and where their clients are.
        """
        front = contexts.movedim(in_dims[0], 0)

        def together(rows: Tensor, names: Names) -> Tensor:
            return tower(rows[:, None] if rows.dim() == 3 else rows, names)

        return Through.forward(front, together, names, tape), 0


class Back(torch.autograd.Function):
    """Gradient of features to gradient of contexts."""

    @staticmethod
    def forward(slope: Tensor, tape: Tape) -> Tensor:
        """One client."""
        return tape.back(slope)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep nothing: there is no second derivative."""

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> None:
        """Refuse."""
        raise NotImplementedError("the text tower has no second derivative here")

    @staticmethod
    def vmap(info: Any, in_dims: Any, slope: Tensor, tape: Tape) -> tuple[Tensor, int]:
        """Take all clients' gradients back at once.

        Args:
            info: Gives the number of clients.
            in_dims: Where the slope has its clients; None: it is the same for all.
            slope: Gradient of the features.
            tape: The pass.

        Returns:
            Gradient of the contexts, clients in front, and where these are.
        """
        front = slope.movedim(in_dims[0], 0) if in_dims[0] is not None else None
        if front is None:
            front = slope.expand(info.batch_size, *slope.shape)
        return tape.back(front), 0
