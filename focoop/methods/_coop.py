"""CoOp on the images at hand: what `local_only` and `centralized` do, apart from who holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.nn.functional as F

from focoop.fields import setting
from focoop.methods._answers import AnswerConfig, Answering
from focoop.methods._contexts import first_context
from focoop.methods.base import Batch, Params, Prompt, Task, Text, cosines

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class CoOp(Answering):
    """Cross-entropy over prompted classes; where the context lives and travels is left open."""

    @dataclass(frozen=True)
    class Config(AnswerConfig):
        """Settings of CoOp."""

        context_tokens: int = setting(
            16, "n, length of the context", low=1, high=64, grid=(4, 8, 16), group="paper"
        )
        start: str = setting(
            "",
            "words the context starts from, whose tokens give n; empty: drawn at random",
            group="engineering",
        )
        class_specific: bool = setting(
            False, "one context per class", grid=(False, True), group="paper"
        )

    config: Config
    paper = "Zhou et al. 2022"
    scores_by = "MCM"

    def context(self, task: Task, generator: torch.Generator) -> Tensor:
        """A first context (n, d_t) or (C, n, d_t)."""
        own = self.config
        rows = len(task.classes) if own.class_specific else 0
        return first_context(task, generator, own.context_tokens, own.start, rows)

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        """The classes, C prompts."""
        return {"id": Prompt(params["context"], task.id_names)}

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        """Cross-entropy over the C classes; a client's prior is for its answers alone."""
        logits = cosines(text, batch.pooled)
        return F.cross_entropy(task.logit_scale * logits.id, batch.labels)
