"""FOCoOp: three prompt sets that classify, generalise and detect, kept consistent across clients.

Paper: Liao et al., FOCoOp: Enhancing Out-of-Distribution Robustness in Federated Prompt Learning
for Vision-Language Models, ICML 2025. Readings of its gaps: A-1..A-17 in `docs/model/focoop.md`.

Client (Bi-level OOD Separations, BOS), with S = exp(s cos):
    t_c = (1 - rho) t^l_c + rho t^g_c                                   rho -> `global_share`
    L   = -log p(y=c|x) - w log p(ID|x), both over the C + U prompts (Eq. bi_obj)
    eps^g: N steps that each raise L - tau_1 mean_c |eps^g_c|, |eps^g_c| <= `id_radius`
    eps^o: M steps that each raise L - tau_2 mean_u |eps^o_u|, |eps^o_u| <= `ood_radius`
    descend mean_b L_b(eps^g, eps^o), or m log mean_b exp(L_b / m)      (Eq. sol_dro), `outer`
Server (Global-view OOD Consistency, GOC):
    t^g_c <- sum_k |D_kc| t^g_kc / sum_k |D_kc|; pi <- SemiUOT(T^g, all clients' T^o)
    T^g moves towards the barycentre of the top-M OOD prompts by mass (seemly OOD), each class by
        1 - alpha times how seemly they are to it; the spread of the classes stays
    T^o <- the OOD prompts that received least mass

Shared: `global` (C, n, d_t), `ood` (U, n, d_t), `ood_words` (U,), the word of each OOD slot.
Private: `local` (C, n, d_t); with a prior `counts` (C,) of the client's own labels.
Score: ID mass, w log sum_u S - log sum_c S, w -> `ood_weight`; at w = 1 the log-odds of p(ID|x).
Not in the paper: `open_share` below 1 gives a client's answers and score its prior (`_prior.py`).

Differs from the authors' code: perturbations inside a radius, -log p(ID|x), constant tau, per-class
counts, transport with hard classes, a pull that keeps the classes apart, contexts that stay with
their word. `docs/model/authors_code.md` has file and line of each; `released` and the preset
`focoop-authors` do what the code does. The preset `focoop-paper` follows the paper to the letter
and degenerates: `distinct_words` and `transport_gap` in its rounds' reports tell how far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from focoop.errors import MethodError
from focoop.functional import scores
from focoop.methods._answers import COMMON_SCORES, EVIDENCE_SCALES, Answering
from focoop.methods._averages import class_weighted_mean, weighted_mean
from focoop.methods._bos import Ascent, Separation, separation_loss
from focoop.methods._contexts import first_context
from focoop.methods._focoop_config import FOCoOpConfig
from focoop.methods._goc import prompt_report
from focoop.methods._released import released_consistency, released_loss
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

    from focoop.clip import Names


class FOCoOp(Answering):
    """Global, local and OOD prompts with robust client training and transport on the server."""

    Config = FOCoOpConfig  # type: ignore[assignment]
    config: FOCoOpConfig
    paper = "Liao et al. 2025"
    shares = "global prompts, OOD prompts"
    keeps = "local prompts"
    scores_by = "ID mass over C + U"
    needs_ood = True
    tried_scores = {
        **COMMON_SCORES,
        "id_mass": {"score_scale": EVIDENCE_SCALES, "ood_weight": (0.1, 0.3, 1.0)},
    }
    by_class = ("global",)
    identity_settings = {"alpha": 1.0}  # otherwise T^g moves towards T^o

    @property
    def reads_text(self) -> bool:  # type: ignore[override]
        """Return whether the loss reads the text side; on prompts its ascent makes its own."""
        return self.config.space == "feature" or not self.config.bos

    def init(self, task: Task, generator: torch.Generator) -> State:
        """Global and local prompts from one draw, OOD prompts from another."""
        if task.ood_names is None:
            raise MethodError("focoop needs OOD prompts: set negatives.count above 0")
        tokens, start = self.config.context_tokens, self.config.start
        prompts = first_context(task, generator, tokens, start, len(task.classes))
        shared = {
            "global": prompts,
            "ood": first_context(task, generator, tokens, start, len(task.ood_names)),
            "ood_words": torch.arange(len(task.ood_names), device=task.device),
        }
        return State(shared, private={"local": prompts.clone()})

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        """The fused class prompts (C of them) and the OOD prompts (U)."""
        fused = self.fuse(params["local"], params["global"])
        return {
            "id": Prompt(fused, task.id_names),
            "ood": Prompt(params["ood"], words_of(params, task)),
        }

    def fuse(self, local: Tensor, shared: Tensor) -> Tensor:
        """Fuse local and global class features: t_c = (1 - rho) t^l_c + rho t^g_c.

        Args:
            local: Local features (C, D).
            shared: Global features (C, D).

        Returns:
            Fused features (C, D).
        """
        rho = self.config.global_share
        return (1.0 - rho) * local + rho * shared

    def noise(self, batch_size: int, task: Task, generator: torch.Generator) -> Params:
        """Starting perturbations of class and OOD prompts, Gaussian of scale sigma.

        For random directions also those, `id_direction` and `ood_direction`.
        """
        if not self.config.bos:
            return {}
        assert task.ood_names is not None
        row = [task.anchors.shape[1]]
        if self.config.space == "prompt":
            row = [self.config.context_tokens, task.width]
        counts = {"id": len(task.classes), "ood": len(task.ood_names)}

        def draw(count: int) -> Tensor:
            return torch.randn(count, *row, generator=generator, dtype=task.anchors.dtype)

        # In place: on prompts these are millions of numbers.
        noise = {name: draw(count).mul_(self.config.sigma) for name, count in counts.items()}
        if self.config.ascent == "random":
            noise |= {f"{name}_direction": draw(count) for name, count in counts.items()}
        return noise

    def ascent_of(self, name: str, task: Task) -> Ascent:
        """Say how the rows `id` or `ood` are perturbed.

        Args:
            name: Which rows.
            task: The task, whose classes give the unit of lengths in feature space.

        Returns:
            The ascent.
        """
        return self.config.ascent_of(name, task.spread if self.config.space == "feature" else 1.0)

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        """Eq. sol_dro; without BOS the mean of the same losses."""
        config = self.config
        scale, weight = task.logit_scale, config.detection_weight
        if not config.bos:
            return separation_loss(text, batch, scale, weight).mean()
        if config.released:
            return released_loss(text, batch, noise, scale, config)
        if config.space == "feature":
            ascents = self.ascent_of("id", task), self.ascent_of("ood", task)
            return Separation(batch, scale, weight).loss(text, noise, *ascents, config.outer_loss)
        worst = self.worst_case(text, params, batch, task, noise)
        return config.outer_loss(separation_loss(worst, batch, scale, weight))

    def worst_case(
        self, text: Text, params: Params, batch: Batch, task: Task, noise: Params
    ) -> Text:
        """Return text features where the worst perturbations move prompts.

        Eps^g moves the global prompts, by rho the fused ones; then eps^o given it the OOD prompts.

        Args:
            text: The text side, or `unread_text()`.
            params: Shared and private tensors.
            batch: Images with labels.
            task: The task.
            noise: The random numbers of the step.

        Returns:
            The moved text side.
        """
        config, rho = self.config, self.config.global_share
        words = words_of(params, task)  # here: inside a gradient their lengths would not be known
        still_ood = task.encode(params["ood"], words) if text.ood is None else text.ood
        still_ood = still_ood.detach()
        fused = self.fuse(params["local"], params["global"])
        fixed_id, fixed_ood = fused.detach(), params["ood"].detach()

        def objective(ids: Tensor, oods: Tensor) -> Tensor:
            scale, weight = task.logit_scale, config.detection_weight
            return separation_loss(Text(ids, oods), batch, scale, weight).mean()

        def move_id(base: Tensor, eps: Tensor) -> Tensor:
            return task.encode(torch.add(base, eps, alpha=rho), task.id_names)

        def move_ood(base: Tensor, eps: Tensor) -> Tensor:
            return task.encode(base + eps, words)

        def explored(name: str, objective: Callable[[Tensor], Tensor]) -> Tensor:
            slope, directions = torch.func.grad(objective), noise.get(f"{name}_direction")
            return self.ascent_of(name, task).climb(objective, slope, noise[name], directions)

        moved = explored("id", lambda eps: objective(move_id(fixed_id, eps), still_ood))
        worst = move_id(fused, moved)
        still_id = worst.detach()
        moved = explored("ood", lambda eps: objective(still_id, move_ood(fixed_ood, eps)))
        return Text(worst, move_ood(params["ood"], moved))

    def score_inputs(self, logits: Logits, task: Task, scale: float = 0.0) -> scores.Inputs:
        """Cosines and constants, with the weight of OOD prompts in ID mass."""
        inputs = super().score_inputs(logits, task, scale or self.config.score_scale)
        return replace(inputs, ood_weight=self.config.ood_weight)

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Per-class mean of T^g, then Global-view OOD Consistency over all clients' T^o."""
        prompts = class_weighted_mean(updates, "global", server.shared["global"])
        words = server.shared["ood_words"]
        alone = len(updates) == 1 and self.config.goc_pool == "all"
        if not self.config.goc or alone:
            shared = {"global": prompts, "ood": weighted_mean(updates, "ood"), "ood_words": words}
            return Server(shared, report=prompt_report(prompts, words))
        if self.config.released:
            return released_consistency(updates, server, self.config)
        return self.config.consistency.calibrate(prompts, words, updates, server)


def words_of(params: Params, task: Task) -> Names:
    """Return the OOD names in the order of the prompts' slots.

    Args:
        params: The shared tensors.
        task: The task.

    Returns:
        The names.
    """
    assert task.ood_names is not None
    return task.ood_names.select(params["ood_words"])
