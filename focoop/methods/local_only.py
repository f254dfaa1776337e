"""CoOp at each client alone: no federation, the floor that sharing must pass.

Paper: Zhou et al., Learning to Prompt for Vision-Language Models (CoOp), IJCV 2022.
Objective: CE(s * cos(h, e_c)), e_c = Text([v_1..v_n] name_c), s -> `task.logit_scale`,
v -> `context` (n, d_t), or (C, n, d_t) with `class_specific`.

Answer: argmax_c s cos(h, e_c) + log pi_c, pi the client's prior with lambda -> `open_share`
(`_prior.py`); training knows no prior.

Shared: nothing. Private: `context`; every client starts from the same draw. With a prior `counts`
(C,) of the client's own labels.
Server: nothing to do; rounds are local epochs in disguise, so that all methods train equally long.
Score: MCM at T -> `temperature` over the C classes, shifted by log pi_c / s.

Differs from the authors' code: it has no such row; without it no table says what federation is
worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from focoop.methods._coop import CoOp
from focoop.methods.base import ClientUpdate, Server, State, Task

if TYPE_CHECKING:
    import torch


class LocalOnly(CoOp):
    """Every client learns a context of its own and tells nobody."""

    keeps = "context"

    def init(self, task: Task, generator: torch.Generator) -> State:
        """Context (n, d_t) or (C, n, d_t)."""
        return State(shared={}, private={"context": self.context(task, generator)})

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Nothing arrives, nothing is sent."""
        return Server({})
