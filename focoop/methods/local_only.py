"""CoOp at each client alone: no federation, the floor that sharing must pass.

Paper: Zhou et al., Learning to Prompt for Vision-Language Models (CoOp), IJCV 2022.
Objective: CE(s * cos(h, e_c)), e_c = Text([v_1..v_n] name_c), s -> `task.logit_scale`,
v -> `context` (n, d_t), or (C, n, d_t) with `class_specific`.

Shared: nothing. Private: `context`; every client starts from the same draw.
Server: nothing to do; rounds are local epochs in disguise, so that all methods train equally long.
Score: MCM at T -> `temperature` over the C classes.

Differs from the authors' code: it has no such row, although its FedOTP is one by accident; without
it no table says what federation is worth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from focoop import scores
from focoop.methods._base import (
    Batch,
    ClientUpdate,
    Logits,
    Method,
    Params,
    Prompt,
    Server,
    State,
    Task,
    Text,
    cosines,
    draw_context,
)
from focoop.settings import setting


class LocalOnly(Method):
    """Every client learns a context of its own and tells nobody."""

    @dataclass(frozen=True)
    class Config:
        """Settings of CoOp."""

        context_tokens: int = setting(16, "n, length of the context", low=1, grid=(4, 8, 16))
        class_specific: bool = setting(False, "one context per class", grid=(False, True))
        temperature: float = setting(1.0, "T of MCM, on raw cosines", above=0)

    config: Config
    paper = "Zhou et al. 2022"
    keeps = "context"
    scores_by = "MCM"

    def init(self, task: Task, generator: torch.Generator) -> State:
        """Context (n, d_t) or (C, n, d_t)."""
        shape = [self.config.context_tokens, task.width]
        if self.config.class_specific:
            shape.insert(0, len(task.classes))
        return State(shared={}, private={"context": draw_context(shape, task, generator)})

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        """The classes, C prompts."""
        return {"id": Prompt(params["context"], task.id_names)}

    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        """Cosines with the classes."""
        return cosines(text, pooled)

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        """Cross-entropy over the C classes."""
        logits = self.logits(text, batch.pooled, batch.patches)
        return F.cross_entropy(task.logit_scale * logits.id, batch.labels)

    def score(self, logits: Logits, task: Task) -> Tensor:
        """MCM."""
        return scores.mcm(logits.id, temperature=self.config.temperature)

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Nothing arrives, nothing is sent."""
        return Server({})
