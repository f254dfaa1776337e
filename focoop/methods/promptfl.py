"""PromptFL: clients learn one context together by federated averaging. The template for methods.

Paper: Guo et al., PromptFL, IEEE TMC 2023 (CoOp, Zhou et al., IJCV 2022, on each client).
Objective: CE(s * cos(h, e_c)), e_c = Text([v_1..v_n] name_c), s -> `task.logit_scale`,
v -> `context` (n, d_t), or (C, n, d_t) with `class_specific`.

Shared: `context`. Private: nothing; with a prior `counts` (C,) of the client's own labels.
Server: mean weighted by samples; with class-specific contexts, per class by class counts.
Score: MCM at T -> `temperature` over the C classes; others, and a prior: `_answers.py`.

Differs from the authors' code: weights are samples, not mini-batches; fp32 prompts; MCM where the
FOCoOp code computes the softmax at s = 100 and calls it MSP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.nn.functional as F

from focoop.fields import setting
from focoop.methods._answers import AnswerConfig, Answering
from focoop.methods._averages import federated_average
from focoop.methods._contexts import first_context
from focoop.methods.base import (
    Batch,
    ClientUpdate,
    Params,
    Prompt,
    Server,
    State,
    Task,
    Text,
    cosines,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class PromptFL(Answering):
    """One context for all classes and all clients."""

    @dataclass(frozen=True)
    class Config(AnswerConfig):
        """Settings of PromptFL."""

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
    paper = "Guo et al. 2023"
    shares = "context"
    scores_by = "MCM"

    @property
    def by_class(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return what is averaged class by class: a class's own context."""
        return ("context",) if self.config.class_specific else ()

    def init(self, task: Task, generator: torch.Generator) -> State:
        """Context (n, d_t) or (C, n, d_t)."""
        own = self.config
        rows = len(task.classes) if own.class_specific else 0
        context = first_context(task, generator, own.context_tokens, own.start, rows)
        return State(shared={"context": context}, private=self.unknown_counts(task))

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        """The classes, C prompts."""
        return {"id": Prompt(params["context"], task.id_names)}

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        """Cross-entropy over the C classes."""
        logits = cosines(text, batch.pooled)
        return F.cross_entropy(task.logit_scale * logits.id, batch.labels)

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Federated averaging."""
        return federated_average(server, updates, self.by_class)
