"""PromptFolio: a shared and a private context, mixed as text features like assets in a portfolio.

Paper: Pan et al., Federated Learning from Vision-Language Foundation Models: Theoretical Analysis
and Method, NeurIPS 2024.
Objective: CE(s <h, e_c>) with
    e_c = (1 - theta) Text([p_G] name_c) + theta Text([p_L] name_c)      theta -> `local_share`
both of unit length before they are mixed and the mixture not brought back to it: where the two
disagree, <h, e_c> is smaller. s -> `task.logit_scale`, p_G -> `global`, p_L -> `local` (n, d_t),
or (C, n, d_t) with `class_specific`.

Shared: `global`. Private: `local`; with a prior `counts` (C,) of the client's own labels.
Server: mean of `global` weighted by samples; class-specific ones, per class by class counts.
Score: MCM at T -> `temperature` on <h, e_c>; the paper itself detects nothing. Others, and a
prior: `_answers.py`.

Differs from the authors' code: defaults are PromptFolio's own (theta 0.4, n = 8), where the FOCoOp
code has theta = 0.2, n = 16 and calls theta `frac`, its name also for FOCoOp's share of the
*global* prompt; weights are samples, not mini-batches; fp32 prompts; MCM where the FOCoOp code
computes the softmax at s = 100. PromptFolio's code encodes each image twice and drops one result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.nn.functional as F

from focoop.fields import setting
from focoop.methods._answers import AnswerConfig, Answering
from focoop.methods._averages import federated_average
from focoop.methods._contexts import draw_context
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


class PromptFolio(Answering):
    """One context for all clients and one of each client's own."""

    @dataclass(frozen=True)
    class Config(AnswerConfig):
        """Settings of PromptFolio."""

        context_tokens: int = setting(
            8, "n, length of each context", low=1, high=64, grid=(4, 8, 16), group="paper"
        )
        local_share: float = setting(
            0.4,
            "theta, share of the client's own prompt in the text features",
            low=0,
            high=1,
            grid=(0.2, 0.4, 0.6, 0.8),
            group="paper",
        )
        class_specific: bool = setting(
            False, "one context per class", grid=(False, True), group="paper"
        )

    config: Config
    paper = "Pan et al. 2024"
    shares = "context"
    keeps = "a second context"
    scores_by = "MCM"

    @property
    def by_class(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return what is averaged class by class: a class's own context."""
        return ("global",) if self.config.class_specific else ()

    def init(self, task: Task, generator: torch.Generator) -> State:
        """Two independent draws (n, d_t), or (C, n, d_t)."""
        shape = [self.config.context_tokens, task.width]
        if self.config.class_specific:
            shape.insert(0, len(task.classes))
        return State(
            shared={"global": draw_context(shape, task, generator)},
            private={
                "local": draw_context(shape, task, generator),
                **self.unknown_counts(task),
            },
        )

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        """The classes twice, 2 C prompts."""
        return {name: Prompt(params[name], task.id_names) for name in ("global", "local")}

    def text(self, params: Params, features: Params, task: Task) -> Text:
        """Mixture (C, D), of length 1 or less."""
        share = self.config.local_share
        mixed = (1.0 - share) * features["global"] + share * features["local"]
        return Text(mixed, parts=self.prior(params, task))

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        """Cross-entropy over the C classes."""
        logits = cosines(text, batch.pooled)
        return F.cross_entropy(task.logit_scale * logits.id, batch.labels)

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Federated averaging of the shared context."""
        return federated_average(server, updates, self.by_class)
