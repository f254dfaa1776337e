"""FedOTP: a shared and a private context meet an image's patches by partial optimal transport.

Paper: Li et al., Global and Local Prompts Cooperation via Optimal Transport, CVPR 2024.
Objective: CE(s * sum_pr T_pr S_pr) per image and class c, S_pr = cos(patch_p, e_rc),
e_rc = Text([context r] name_c), r over `global` and `local`, s -> `task.logit_scale`;
T minimises <1 - S, T> + eps sum T (log T - 1) with T^T 1 = gamma/2 and T 1 <= 1/P, and gets no
gradient; eps -> `epsilon`, gamma -> `mass`; with `sinkhorn` gamma = 1 and T 1 = 1/P.

Shared: `global` (n, d_t), or (C, n, d_t) with `class_specific`. Private: `local` of the same shape;
with a prior `counts` (C,) of the client's own labels.
Server: mean weighted by samples; with class-specific contexts, per class by class counts.
Score: MCM at T -> `temperature` over the C transported cosines; others, and a prior: `_answers.py`.

Differs from the authors' code: logarithms in fp32, where fp16 underflows at eps = 0.01; each image
and class stops by its own threshold, not by the mean of the batch; the participation of the run
holds in the first round too. The FOCoOp code shares nothing: `docs/model/authors_code.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F

from focoop.errors import MethodError
from focoop.fields import setting
from focoop.functional import transport
from focoop.methods._answers import AnswerConfig, Answering
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
    from torch import Tensor

# Entries of all plans held at a time: bounds the memory of an evaluation with 196 patches.
CELLS = 2**23


class FedOTP(Answering):
    """Two contexts for all classes, one of them a client's own, and plans over patches."""

    @dataclass(frozen=True)
    class Config(AnswerConfig):
        """Settings of FedOTP."""

        context_tokens: int = setting(
            16, "n, length of each context", low=1, high=64, grid=(4, 16), group="paper"
        )
        transport: Literal["partial", "sinkhorn"] = setting(
            "partial",
            "`partial`: patches may go unused; `sinkhorn`: all are used alike",
            group="paper",
        )
        epsilon: float = setting(
            0.1,
            "eps, weight of the plan's entropy",
            above=0,
            grid=(0.01, 0.03, 0.1, 0.3),
            group="paper",
        )
        mass: float = setting(
            1.0,
            "gamma, share of the patches that is used",
            above=0,
            high=1,
            grid=(0.5, 0.8, 1.0),
            group="paper",
        )
        threshold: float = setting(
            1e-3, "a plan stops at this change of its scaling", low=0, group="engineering"
        )
        max_iterations: int = setting(
            100, "scalings of a plan at most", low=1, high=100_000, group="engineering"
        )
        class_specific: bool = setting(
            False, "one context per class", grid=(False, True), group="paper"
        )

    config: Config
    paper = "Li et al. 2024"
    shares = "global context"
    keeps = "local context"
    scores_by = "MCM over transported patches"
    patch_kind = "lf_a"

    @property
    def by_class(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return what is averaged class by class: a class's own context."""
        return ("global",) if self.config.class_specific else ()

    def init(self, task: Task, generator: torch.Generator) -> State:
        """Two contexts (n, d_t) or (C, n, d_t), each from its own draw."""
        each = [len(task.classes)] if self.config.class_specific else []
        shape = [2, *each, self.config.context_tokens, task.width]
        both = draw_context(shape, task, generator)
        private = {"local": both[1].clone(), **self.unknown_counts(task)}
        return State(shared={"global": both[0].clone()}, private=private)

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        """The classes in both contexts, C prompts each."""
        return {name: Prompt(params[name], task.id_names) for name in ("global", "local")}

    def text(self, params: Params, features: Params, task: Task) -> Text:
        """Features of the global context as `id`, those of the local one beside them."""
        parts = {"local": features["local"], **self.prior(params, task)}
        return Text(features["global"], parts=parts)

    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        """Transported cosines of the patches, shifted by the client's prior."""
        return expected(Logits(self.transported(text, patches, early=True)), text)

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        """Cross-entropy over the C classes."""
        logits = self.transported(text, batch.patches, early=False)
        return F.cross_entropy(task.logit_scale * logits, batch.labels)

    def transported(
        self, text: Text, patches: Tensor | None, *, early: bool, cells: int = CELLS
    ) -> Tensor:
        """Return sum_pr T_pr S_pr of patches and prompts, for each image and class.

        Args:
            text: The text side.
            patches: Patches (N, P, D).
            early: As in `transport.partial`.
            cells: Entries of plans held at a time.

        Returns:
            Similarities (N, C).

        Raises:
            MethodError: There are no patch features.
        """
        if patches is None:
            raise MethodError("fedotp reads patch features: set data.with_patches=true")
        prompts = torch.stack([text.id, text.parts["local"]], dim=1)  # (C, 2, D)
        size = max(1, cells // max(1, patches.shape[1] * len(text.id) * 2))
        whole = torch.compiler.is_compiling()  # a graph does not know how many images there are
        similarities = []
        for some in [patches] if whole else torch.split(patches, size):
            similarity = torch.einsum("npd,crd->ncpr", some, prompts)
            plan = self.plan(1.0 - similarity, early=early).to(similarity.dtype)
            similarities.append((plan * similarity).sum(dim=(2, 3)))
        return torch.cat(similarities)

    def plan(self, cost: Tensor, *, early: bool) -> Tensor:
        """Solve the transport of patches to prompts, without gradient.

        Args:
            cost: Costs (N, C, P, 2).
            early: As in `transport.partial`.

        Returns:
            Plans (N, C, P, 2).
        """
        config = self.config
        if config.transport == "sinkhorn":
            return transport.balanced(
                cost,
                epsilon=config.epsilon,
                threshold=config.threshold,
                max_iterations=config.max_iterations,
                early=early,
            )
        return transport.partial(
            cost,
            epsilon=config.epsilon,
            mass=config.mass,
            threshold=config.threshold,
            max_iterations=config.max_iterations,
            early=early,
        )

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Federated averaging of the global context alone."""
        return federated_average(server, updates, self.by_class)
