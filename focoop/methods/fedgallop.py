"""FedGalLoP: shared prompts for whole images beside private prompts for their best patches.

Paper: Lafon et al., GalLoP: Learning Global and Local Prompts for Vision-Language Models,
ECCV 2024. FOCoOp's paper does not say what clients share; as in its code, the global prompts.
Prompts [v_1..v_n] name_c without a period, all started from the words of `start`:
    g_jc = cos(h, e^g_jc), j = 1..N_g                                N_g -> `global_prompts`
    f_p  = unit(x_p W_loc) of each patch x_p, W_loc (D', D') from the identity on; where the
           backbone has one, its frozen projection follows W_loc
    l_jc = mean of the k_j largest of cos(f_p, e^l_jc) over p        k_j -> `top_k`, one per prompt
Objective: CE(s mean_{j in J} g_j) + mean_j CE(s l_j), s -> `task.logit_scale`; J holds
max(N_g - floor(q N_g), 1) prompts, drawn for each image with replacement, q -> `dropout`.
Prediction: argmax_c (mean_j g_jc + mean_j l_jc) / 2.

Shared: `global` (N_g, n, d_t). Private: `local` (N_l, n, d_t), `projection` W_loc (D', D');
with a prior `counts` (C,) of the client's own labels.
Server: mean weighted by samples.
Score: GL-MCM on cosines averaged over prompts, all patches, no top-k; others, and a prior, which
shifts pooled cosines alone: `_answers.py`.

Differs from the authors' code: four global prompts and dropout 0.75, as GalLoP has them (the FOCoOp
code: 1 and 0.9); GL-MCM of cosines; weights are samples (`docs/model/authors_code.md`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from focoop.errors import ConfigError, MethodError
from focoop.fields import setting
from focoop.functional import scores
from focoop.methods._answers import COMMON_SCORES, TEMPERATURES, AnswerConfig, Answering
from focoop.methods._averages import federated_average
from focoop.methods._prior import PRIOR, expected
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


class FedGalLoP(Answering):
    """Several global prompts with dropout, several local ones on their top patches."""

    @dataclass(frozen=True)
    class Config(AnswerConfig):
        """Settings of FedGalLoP."""

        start: str = setting(
            "A photo of a", "words every context starts from; their tokens give n", group="paper"
        )
        global_prompts: int = setting(
            4, "N_g, shared prompts for the whole image", low=1, high=1000, group="paper"
        )
        top_k: tuple[int, ...] = setting(
            (5, 10, 15, 20),
            "k_j, patches each local prompt averages; one prompt per value",
            low=1,
            high=10_000,
            grid=((5, 10, 15, 20), (1, 2, 4, 8), (1, 1, 1, 1)),
            group="paper",
        )
        dropout: float = setting(
            0.75,
            "q, share of global prompts dropped",
            low=0,
            high=1,
            grid=(0.25, 0.5, 0.75),
            group="paper",
        )
        patch_weight: float = setting(1.0, "weight of the patches in GL-MCM", low=0, group="paper")
        score: str = setting("gl_mcm", "which score detects", group="paper")

        def __post_init__(self) -> None:
            super().__post_init__()
            if not self.start.strip():
                raise ConfigError("start must hold a word, such as 'A photo of a'")
            if not self.top_k:
                raise ConfigError("top_k must hold a value for each local prompt, such as [5, 10]")

    config: Config
    paper = "Lafon et al. 2024"
    shares = "global prompts"
    keeps = "local prompts, patch projection"
    scores_by = "GL-MCM"
    patch_kind = "lf_c"
    tried_scores = {**COMMON_SCORES, "gl_mcm": {"temperature": TEMPERATURES}}

    def init(self, task: Task, generator: torch.Generator) -> State:
        """All contexts from the same words: dropout and k_j tell them apart. W_loc the identity."""
        context = task.embed(self.config.start).to(task.anchors)  # (n, d_t)
        frozen = task.patch_projection
        width = task.anchors.shape[1] if frozen is None else frozen.shape[0]  # D'
        return State(
            shared={"global": context.repeat(self.config.global_prompts, 1, 1)},
            private={
                "local": context.repeat(len(self.config.top_k), 1, 1),
                "projection": torch.eye(width).to(task.anchors),
                **self.unknown_counts(task),
            },
        )

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        """Every context with every class: N_g C and N_l C prompts, all classes of one together."""
        classes = torch.arange(len(task.classes), device=task.device)

        def crossed(contexts: Tensor) -> Prompt:
            count = len(contexts)
            rows = contexts[:, None].expand(-1, len(classes), -1, -1).flatten(0, 1)
            return Prompt(rows, task.bare_names.select(classes.repeat(count)))

        return {name: crossed(params[name]) for name in ("global", "local")}

    def text(self, params: Params, features: Params, task: Task) -> Text:
        """Features (N_g, C, D), (N_l, C, D) and the patches' matrix (D', D); `id` is the mean."""
        shape = (-1, len(task.classes), features["global"].shape[1])
        whole = features["global"].reshape(shape)
        projection, frozen = params["projection"], task.patch_projection
        parts = {
            "global": whole,
            "local": features["local"].reshape(shape),
            "projection": projection if frozen is None else projection @ frozen.to(projection),
            **self.prior(params, task),
        }
        return Text(whole.mean(dim=0), parts=parts)

    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        """The mean of pooled and top patch cosines decides; `parts` keeps the pooled ones."""
        local, projected = text.parts["local"], project(text, patches)
        whole = pooled @ text.id.T  # the mean over prompts, as cosines are linear in them
        best = torch.stack(self.best_patches(local, projected)).mean(dim=0)
        everywhere = projected @ local.mean(dim=0).T  # (N, P, C)
        answer = Logits((whole + best) / 2, patches=everywhere, parts={"pooled": whole})
        return expected(answer, text)

    def best_patches(self, local: Tensor, projected: Tensor) -> list[Tensor]:
        """Return for each local prompt and class the mean of its k_j largest patch cosines.

        Args:
            local: Local prompts (J, C, D).
            projected: Patches (N, P, D).

        Returns:
            l_j (N, C) of each local prompt.
        """
        most = projected.shape[1]
        return [
            (projected @ features.T).topk(min(k, most), dim=1).values.mean(dim=1)
            for features, k in zip(local, self.config.top_k, strict=True)
        ]

    def noise(self, batch_size: int, task: Task, generator: torch.Generator) -> Params:
        """`kept` (B, |J|): the global prompts each image is classified with."""
        total = self.config.global_prompts
        # The small term undoes rounding, as in 0.29 * 100 = 28.999...
        count = max(total - math.floor(self.config.dropout * total + 1e-9), 1)
        return {"kept": torch.randint(total, (batch_size, count), generator=generator)}

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        """Cross-entropy with the prompts kept, plus the mean one of the local prompts."""
        scale, classes = task.logit_scale, len(task.classes)
        whole = torch.einsum("bd,jcd->bjc", batch.pooled, text.parts["global"])
        chosen = noise["kept"][:, :, None].expand(-1, -1, classes)
        loss = F.cross_entropy(scale * whole.gather(1, chosen).mean(dim=1), batch.labels)
        best = self.best_patches(text.parts["local"], project(text, batch.patches))
        local = [F.cross_entropy(scale * similarity, batch.labels) for similarity in best]
        return loss + torch.stack(local).mean()

    def score_inputs(self, logits: Logits, task: Task, scale: float = 0.0) -> scores.Inputs:
        """Cosines and constants; GL-MCM has those of the whole image, and a weight of patches."""
        inputs = super().score_inputs(logits, task, scale)
        whole = logits.id
        if self.config.score == "gl_mcm":
            whole = logits.parts["pooled"] + logits.parts.get(PRIOR, 0.0)
        return replace(inputs, id_cos=whole, weight=self.config.patch_weight)

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Federated averaging of the global prompts."""
        return federated_average(server, updates)


def project(text: Text, patches: Tensor | None) -> Tensor:
    """Bring patches into the joint space.

    Args:
        text: The text side, which holds the matrices.
        patches: Patches (N, P, D').

    Returns:
        Unit patches (N, P, D).

    Raises:
        MethodError: There are no patch features.
    """
    if patches is None:
        raise MethodError("fedgallop needs patch features: set data.with_patches to true")
    return F.normalize(patches @ text.parts["projection"], dim=-1)
