"""One step of SGD, to the bit that of torch.optim.SGD.

Making a torch optimiser imports torch's compiler, 900 modules and more than a second: too much for
a process that answers one message of a federation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


class SGD:
    """Stochastic gradient descent with momentum m and weight decay w.

    g <- g + w p; b <- m b + g (b = g in the first step); p <- p - lr b.
    """

    def __init__(
        self, params: Sequence[Tensor], lr: float, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        self.params, self.lr = list(params), lr
        self.momentum, self.weight_decay = momentum, weight_decay
        self.buffers: list[Tensor | None] = [None] * len(self.params)

    def zero_grad(self) -> None:
        """Forget gradients."""
        for param in self.params:
            param.grad = None

    def step(self) -> None:
        """Move every parameter that has a gradient."""
        with torch.no_grad():
            for place, param in enumerate(self.params):
                if param.grad is not None:
                    self._move(place, param, param.grad)

    def _move(self, place: int, param: Tensor, grad: Tensor) -> None:
        if self.weight_decay:
            grad = grad.add(param, alpha=self.weight_decay)
        if self.momentum:
            buffer = self.buffers[place]
            buffer = grad.clone() if buffer is None else buffer.mul_(self.momentum).add_(grad)
            self.buffers[place] = grad = buffer
        param.add_(grad, alpha=-self.lr)
