"""CoOp on all clients' images in one place: no federation, what one context can learn at best.

Paper: Zhou et al., Learning to Prompt for Vision-Language Models (CoOp), IJCV 2022.
Objective: CE(s * cos(h, e_c)), e_c = Text([v_1..v_n] name_c), s -> `task.logit_scale`,
v -> `context` (n, d_t), or (C, n, d_t) with `class_specific`.

Shared: `context`, between the one party that holds all images and those who are tested.
Private: nothing; with a prior `counts` (C,) of the client's own labels.
Server: takes the party's context as it is.
Score: MCM at T -> `temperature` over the C classes; others, and a prior: `_answers.py`.

Differs from the authors' code: it has no such row. The bound is one for a common model: a client's
own model may know its own classes better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from focoop.methods._averages import weighted_mean
from focoop.methods._coop import CoOp
from focoop.methods.base import ClientUpdate, Server, State, Task

if TYPE_CHECKING:
    import torch


class Centralized(CoOp):
    """One context, learned by a party that holds all images."""

    shares = "context (and all images)"
    pools_data = True

    def init(self, task: Task, generator: torch.Generator) -> State:
        """Context (n, d_t) or (C, n, d_t)."""
        shared = {"context": self.context(task, generator)}
        return State(shared, private=self.unknown_counts(task))

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """The mean over the one party there is."""
        return Server({"context": weighted_mean(updates, "context")})
