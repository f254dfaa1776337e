"""FedLoCoOp: PromptFL whose context is also taught to be unsure about background patches.

Paper: Miyai et al., LoCoOp: Few-Shot Out-of-Distribution Detection via Prompt Learning,
NeurIPS 2023; federated averaging as in PromptFL.
Objective: CE(s cos(h, e_y)) + lambda L_ood, e_c = Text([v_1..v_n] name_c), lambda -> `ood_weight`;
    p_bp  = softmax_c(s cos(f_bp, e_c)) of every patch f_bp of every image
    J     = patches whose image's label is not among their K_t likeliest classes, K_t -> `top_k`
    L_ood = -mean_J H(p), H(p) = -sum_c p_c log(p_c + 1e-5); 0 where J is empty
s -> `task.logit_scale`, v -> `context` (n, d_t), or (C, n, d_t) with `class_specific`.

Shared: `context`. Private: nothing; with a prior `counts` (C,) of the client's own labels.
Server: mean weighted by samples; with class-specific contexts, per class by class counts.
Score: GL-MCM, or MCM of the pooled feature alone; the paper reports both.

Differs from the authors' code: gradients are zeroed before each step; one context for all classes,
lambda 0.25 and K_t a fifth of the classes, as in LoCoOp (the FOCoOp code: one for each class, 0.1
and 5); GL-MCM at T = 1 (softmax of pooled logits at s = 100); weights are samples; fp32 prompts
(`docs/model/authors_code.md`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch.nn.functional as F

from focoop.errors import MethodError
from focoop.fields import setting
from focoop.functional import scores
from focoop.methods._answers import COMMON_SCORES, TEMPERATURES, AnswerConfig, Answering
from focoop.methods._averages import federated_average
from focoop.methods._contexts import draw_context
from focoop.methods._prior import expected
from focoop.methods.base import (
    Batch,
    ClientUpdate,
    Logits,
    Params,
    Prompt,
    Server,
    State,
    Task,
    Text,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class FedLoCoOp(Answering):
    """One context for all clients; patches that do not show the label are kept uncertain."""

    @dataclass(frozen=True)
    class Config(AnswerConfig):
        """Settings of FedLoCoOp."""

        context_tokens: int = setting(
            16, "n, length of the context", low=1, high=64, grid=(4, 16), group="paper"
        )
        class_specific: bool = setting(
            False, "one context per class", grid=(False, True), group="paper"
        )
        ood_weight: float = setting(
            0.25,
            "lambda, weight of the patches' entropy",
            low=0,
            grid=(0.05, 0.25, 1.0),
            group="paper",
        )
        top_k: int = setting(
            0,
            "K_t, ranks within which a label makes a patch ID; 0: a fifth of the classes",
            low=0,
            high=10_000,
            grid=(0, 1, 5),
            group="paper",
        )
        score: str = setting("gl_mcm", "with patches, or the image alone", group="paper")
        patch_weight: float = setting(1.0, "weight of the patches in GL-MCM", low=0, group="paper")

    config: Config
    paper = "Miyai et al. 2023"
    shares = "context"
    scores_by = "GL-MCM"
    patch_kind = "lf_b"
    tried_scores = {**COMMON_SCORES, "gl_mcm": {"temperature": TEMPERATURES}}

    @property
    def by_class(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return what is averaged class by class: a class's own context."""
        return ("context",) if self.config.class_specific else ()

    def init(self, task: Task, generator: torch.Generator) -> State:
        """Context (n, d_t) or (C, n, d_t)."""
        classes = len(task.classes)
        if self.config.top_k > classes:
            raise MethodError(
                f"method.top_k = {self.config.top_k} is more than the {classes} classes: "
                f"use 1 to {classes}, or 0 for a fifth of them"
            )
        shape = [self.config.context_tokens, task.width]
        if self.config.class_specific:
            shape.insert(0, classes)
        context = draw_context(shape, task, generator)
        return State(shared={"context": context}, private=self.unknown_counts(task))

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        """The classes, C prompts."""
        return {"id": Prompt(params["context"], task.id_names)}

    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        """Cosines of image and patches with the classes; the image alone decides the answer."""
        if patches is None:
            raise MethodError("fedlocoop needs patch features: set data.with_patches to true")
        return expected(Logits(pooled @ text.id.T, patches=patches @ text.id.T), text)

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        """Cross-entropy of the image plus the weighted entropy loss of its patches."""
        logits = self.logits(Text(text.id), batch.pooled, batch.patches)  # without a prior
        assert logits.patches is not None
        image = F.cross_entropy(task.logit_scale * logits.id, batch.labels)
        patches = task.logit_scale * logits.patches
        return image + self.config.ood_weight * ood_loss(patches, batch.labels, self.rank(task))

    def rank(self, task: Task) -> int:
        """Return K_t: the number asked for, or LoCoOp's share of 200 in 1000.

        Args:
            task: The task.

        Returns:
            The number.
        """
        return self.config.top_k or max(1, round(len(task.classes) / 5))

    def score_inputs(self, logits: Logits, task: Task, scale: float = 0.0) -> scores.Inputs:
        """Cosines and constants, with the weight of the patches in GL-MCM."""
        inputs = super().score_inputs(logits, task, scale)
        return replace(inputs, weight=self.config.patch_weight)

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Federated averaging."""
        return federated_average(server, updates, self.by_class)


def ood_loss(logits: Tensor, labels: Tensor, top_k: int) -> Tensor:
    """Return minus the mean entropy of the patches whose label is not in their top K.

    Args:
        logits: Logits of patches (B, P, C).
        labels: Labels (B,).
        top_k: K.

    Returns:
        A scalar.
    """
    own = logits.gather(2, labels[:, None, None].expand(-1, logits.shape[1], 1))  # (B, P, 1)
    # As many classes above the label as K: no index is sorted, and which of two equals wins is
    # the same on every device.
    chosen = ((logits > own).sum(dim=2) >= top_k).to(logits.dtype)  # (B, P)
    probability = logits.softmax(dim=2)
    negative_entropy = (probability * (probability + 1e-5).log()).sum(dim=2)
    return (negative_entropy * chosen).sum() / chosen.sum().clamp(min=1.0)
