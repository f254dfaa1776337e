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

Differs from the authors' code: it has no such row, although its FedOTP is one by accident; without
it no table says what federation is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from focoop.fields import setting
from focoop.methods._coop import CoOp
from focoop.methods._prior import expected, prior_part
from focoop.methods.base import ClientUpdate, Logits, Params, Server, State, Task, Text, cosines

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class LocalOnly(CoOp):
    """Every client learns a context of its own and tells nobody."""

    @dataclass(frozen=True)
    class Config(CoOp.Config):
        """Settings of CoOp, and the client's prior."""

        open_share: float = setting(
            1.0,
            "lambda, share of images expected of any class; 1: no prior, 0: own classes alone",
            low=0,
            high=1,
            group="engineering",
        )

    config: Config
    keeps = "context"

    def init(self, task: Task, generator: torch.Generator) -> State:
        """Context (n, d_t) or (C, n, d_t)."""
        return State(shared={}, private={"context": self.context(task, generator)})

    def personalise(self, private: Params, class_counts: Tensor, task: Task) -> Params:
        """The client's own class counts, where its prior asks for them."""
        return private if self.config.open_share == 1 else {**private, "counts": class_counts}

    def text(self, params: Params, features: Params, task: Task) -> Text:
        """Features of the classes (C, D), and the client's prior where it has one."""
        return Text(features["id"], parts=prior_part(params, self.config.open_share, task))

    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        """Cosines with the classes, shifted by the client's prior."""
        return expected(cosines(text, pooled), text)

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Nothing arrives, nothing is sent."""
        return Server({})
