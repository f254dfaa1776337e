"""FedPGP: a shared context plus a private low-rank one, held apart by a contrast of text features.

Paper: Cui et al., Harmonizing Generalization and Personalization in Federated Prompt Learning,
ICML 2024.
Objective, with e_c(v) = Text([v] name_c), e0_c the frozen feature of the anchor text:
    CE(s cos(h, e_c(sigma + U V))) + mu L_con                            mu -> `contrast_weight`
    L_con = mean_c -log[e^(pos_c / t) / (e^(pos_c / t) + e^(neg_c / t))] t -> `contrast_temperature`
    pos_c = cos(e0_c, e_c(sigma)), neg_c = cos(e_c(sigma), e_c(sigma + U V))
so that the shared prompt stays near CLIP's own text and the personal one leaves the shared one.
s -> `task.logit_scale`, sigma -> `global` (n, d_t), U -> `left` (n, b), V -> `right` (b, d_t),
b -> `rank`. Gradients pass through both sides of neg_c. With `class_specific`
all three have a row per class, (C, n, d_t), (C, n, b) and (C, b, d_t).

Shared: `global`. Private: `left`, `right`; with a prior `counts` (C,) of the client's labels.
Server: mean of `global` weighted by samples; class-specific ones, per class by class counts.
Score: MCM at T -> `temperature` over cos(h, e_c(sigma + U V)); the paper itself detects
nothing. Others, and a prior: `_answers.py`.

Differs from the authors' code: the anchor is made once and U V alone, whose features no term reads,
is not encoded (both codes encode 4 C sequences per step, here 2 C); with `contrast_weight` 0 the
shared prompt is not encoded either; one prompt per class (N = 1, FedPGP's default: with N = 2 its
code takes the softmax over 2 C entries of which half are never a label); weights are samples, not
mini-batches as in the FOCoOp code; fp32 prompts; MCM where that code has the softmax at s = 100.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.nn.functional as F

from focoop.errors import ConfigError
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


class FedPGP(Answering):
    """One context for all clients and each client's own low-rank change of it."""

    @dataclass(frozen=True)
    class Config(AnswerConfig):
        """Settings of FedPGP."""

        context_tokens: int = setting(
            16, "n, length of the context", low=1, high=64, grid=(4, 16), group="paper"
        )
        rank: int = setting(
            4, "b, rank of the private change", low=1, high=4096, grid=(4, 8), group="paper"
        )
        contrast_weight: float = setting(
            1.0,
            "mu, weight of the contrast; 0 for none",
            low=0,
            grid=(0.1, 0.5, 1.0),
            group="paper",
        )
        contrast_temperature: float = setting(0.5, "t of the contrast", above=0, group="paper")
        anchor: str = setting(
            "",
            "text the shared prompt stays near, {} for the name; empty: n times X, then {}.",
            group="paper",
        )
        class_specific: bool = setting(
            False, "one context per class", grid=(False, True), group="paper"
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.anchor and self.anchor.count("{}") != 1:
                raise ConfigError(
                    f"method.anchor = {self.anchor!r} must contain {{}} once, for the class name, "
                    "or be empty"
                )

    config: Config
    paper = "Cui et al. 2024"
    shares = "context"
    keeps = "low-rank change of the context"
    scores_by = "MCM"

    def prepare(self, task: Task) -> Params:
        """The anchor's features (C, D)."""
        if self.config.contrast_weight == 0:
            return {}
        template = self.config.anchor or "X " * self.config.context_tokens + "{}."
        names = [name.replace("_", " ") for name in task.classes]
        return {"anchors": task.texts([template.replace("{}", name) for name in names])}

    @property
    def by_class(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return what is averaged class by class: a class's own context."""
        return ("global",) if self.config.class_specific else ()

    def init(self, task: Task, generator: torch.Generator) -> State:
        """Sigma (n, d_t), U (n, b) and V (b, d_t), all alike: U V starts near zero."""
        tokens, rank = self.config.context_tokens, self.config.rank
        each = [len(task.classes)] if self.config.class_specific else []
        return State(
            shared={"global": draw_context([*each, tokens, task.width], task, generator)},
            private={
                "left": draw_context([*each, tokens, rank], task, generator),
                "right": draw_context([*each, rank, task.width], task, generator),
                **self.unknown_counts(task),
            },
        )

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        """The classes with the personal context and, for the contrast, with the shared one."""
        personal = params["global"] + params["left"] @ params["right"]
        prompts = {"id": Prompt(personal, task.id_names)}
        if self.config.contrast_weight > 0:
            prompts["global"] = Prompt(params["global"], task.id_names)
        return prompts

    def text(self, params: Params, features: Params, task: Task) -> Text:
        """The personal prompts (C, D); the shared ones beside them, for the loss."""
        shared = {name: value for name, value in features.items() if name == "global"}
        return Text(features["id"], parts={**shared, **self.prior(params, task)})

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        """Cross-entropy over the C classes, and the contrast."""
        logits = cosines(text, batch.pooled)
        loss = F.cross_entropy(task.logit_scale * logits.id, batch.labels)
        if self.config.contrast_weight > 0:
            loss = loss + self.config.contrast_weight * self.contrast(text, task)
        return loss

    def contrast(self, text: Text, task: Task) -> Tensor:
        """Return the contrastive loss: -log of the two-way softmax is softplus((neg - pos) / t).

        Args:
            text: The text side.
            task: The task.

        Returns:
            A scalar.
        """
        shared = text.parts["global"]  # (C, D), unit vectors as all of them
        near = (task.frozen["anchors"] * shared).sum(dim=-1)
        far = (shared * text.id).sum(dim=-1)
        return F.softplus((far - near) / self.config.contrast_temperature).mean()

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Federated averaging of the shared context."""
        return federated_average(server, updates, self.by_class)
