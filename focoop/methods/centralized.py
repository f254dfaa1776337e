"""CoOp on all clients' images in one place: no federation, what one context can learn at best.

Paper: Zhou et al., Learning to Prompt for Vision-Language Models (CoOp), IJCV 2022.
Objective: CE(s * cos(h, e_c)), e_c = Text([v_1..v_n] name_c), s -> `task.logit_scale`,
v -> `context` (n, d_t), or (C, n, d_t) with `class_specific`.

Shared: `context`, between the one party that holds all images and those who are tested.
Private: nothing.
Server: takes the party's context as it is.
Score: MCM at T -> `temperature` over the C classes.

Differs from the authors' code: it has no such row. The bound is one for a common model: a client's
own model may know its own classes better.
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
    weighted_mean,
)
from focoop.settings import setting


class Centralized(Method):
    """One context, learned by a party that holds all images."""

    @dataclass(frozen=True)
    class Config:
        """Settings of CoOp."""

        context_tokens: int = setting(16, "n, length of the context", low=1, grid=(4, 8, 16))
        class_specific: bool = setting(False, "one context per class", grid=(False, True))
        temperature: float = setting(1.0, "T of MCM, on raw cosines", above=0)

    config: Config
    paper = "Zhou et al. 2022"
    shares = "context (and all images)"
    scores_by = "MCM"
    pools_data = True

    def init(self, task: Task, generator: torch.Generator) -> State:
        """Context (n, d_t) or (C, n, d_t)."""
        shape = [self.config.context_tokens, task.width]
        if self.config.class_specific:
            shape.insert(0, len(task.classes))
        return State(shared={"context": draw_context(shape, task, generator)})

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
        """The mean over the one party there is."""
        return Server({"context": weighted_mean(updates, "context")})
