"""FOCoOp+: FOCoOp's three prompt sets in a model that does not forget what other clients know.

Paper: ours, built on FOCoOp (Zhou et al., ICML 2025); ablation in `docs/methods/focoop_plus.md`.

FOCoOp's clients answer their own classes by pushing all others away. Here a client that holds the
classes H_k with counts n_c keeps the others' prompts as the federation made them and says what it
expects in one place, a prior:
    t_c  = (1 - rho) t^l_c + rho t^g_c for c in H_k, t^g_c otherwise    rho -> `global_share`
    e_c  = unit(W((1 - v) Text(t_c) + v z_c) + r_c), h seen as W(h)      v -> `template_share`
    pi_c = (1 - lambda) n_c / n + lambda / C                            lambda -> `open_share`
    answer argmax_c s cos(h, e_c) + log pi_c                            s -> `score_scale`
    score  w log sum_u exp(s cos(h, o_u)) - log sum_c pi_c exp(s cos(h, e_c))
    L    = BDRO of -log p(y|x) - log p(ID|x) over C + U (as FOCoOp), logits + a log pi_c
           + b mean_{c in H_k} (1 - cos(e_c, W(z_c)))     a -> `train_prior`, b -> `anchor_weight`
with e_c for c not in H_k without gradient, z_c the feature of the hand-written template and r_c a
direction of the class's own. T^g learns from the whole gradient, not from its share rho of it.
With `shrinkage` k < 1, W(x) = unit((x - m) A) discounts what varies within classes: A = ((1 - k) S
+ k I)^(-1/2), S the clients' mean scatter of images about their class means, m the mean image, for
texts the mean template. At 1, the default, W(x) = x.
Server: as FOCoOp; T^g and r per class by counts, T^o by Global-view OOD Consistency; A from S.

Shared: `global` (C, n, d_t), `residual` (C, D), `ood` (U, n, d_t), `ood_words` (U,); with a metric
also `centre` (D,) and `scatter` (D, D), measured and not trained, and the server's `metric` (D, D).
Private: `local` (C, n, d_t), `counts` (C,) of the client's own labels.

Differs from the authors' code: there is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from focoop import scores
from focoop.errors import MethodError
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
    class_weighted_mean,
    cosines,
    draw_context,
    weighted_mean,
)
from focoop.methods._consistency import Consistency
from focoop.methods._metric import learned, scatter, whitened
from focoop.methods._robust import Ascent, Separation, separation_loss, soft_maximum
from focoop.settings import setting


class FOCoOpPlus(Method):
    """Personal where a client has images, global elsewhere, one prior for answer and detection."""

    @dataclass(frozen=True)
    class Config:
        """Settings of FOCoOp+; those it has in common with FOCoOp mean the same."""

        context_tokens: int = setting(16, "n, length of each context", low=1)
        global_share: float = setting(
            0.8, "rho, share of the global prompt", low=0, high=1, grid=(0.5, 0.8, 1.0)
        )
        global_rate: float = setting(
            1.0, "weight of the global prompt's gradient; FOCoOp's is rho", low=0
        )
        template_share: float = setting(
            0.5, "v, share of the template in a class feature", low=0, high=1, grid=(0.3, 0.5)
        )
        residual_scale: float = setting(
            0.3, "scale of r_c, a class's own direction; 0: none", low=0, grid=(0.2, 0.3, 0.5)
        )
        shrinkage: float = setting(
            1.0, "k, how far the metric is drawn to the plain one; 1: no metric", above=0, high=1
        )
        keep_absent: bool = setting(True, "classes without images use the global prompt as it is")
        anchor_weight: float = setting(
            1.0, "b, pull of held classes to the template", low=0, grid=(0.5, 1.0, 2.0)
        )
        train_prior: float = setting(1.0, "a, weight of log pi in the training loss", low=0)
        open_share: float = setting(
            0.3,
            "lambda, share of images expected of any class; 1: no prior",
            above=0,
            high=1,
            grid=(0.2, 0.25, 0.3),
        )
        prior_in_score: bool = setting(True, "weigh classes by the prior in the score too")
        bos: bool = setting(True, "robust separations; false: CE over C + U")
        goc: bool = setting(True, "transport on the server; false: averages")
        detection_weight: float = setting(1.0, "weight of -log p(ID|x)", low=0)
        id_steps: int = setting(4, "N, ascent steps on class prompts", low=0)
        ood_steps: int = setting(4, "M, ascent steps on OOD prompts", low=0)
        id_radius: float = setting(0.3, "cap on |eps^g|; 0: none", low=0)
        ood_radius: float = setting(1.0, "cap on |eps^o|; 0: none", low=0)
        step_size: float = setting(0.4, "lr of the ascent, in radii", low=0)
        sigma: float = setting(1e-3, "sigma, scale of the starting noise", low=0)
        tau_id: float = setting(10.0, "tau_1, price of moving class prompts", low=0)
        tau_ood: float = setting(10.0, "tau_2, price of moving OOD prompts", above=0)
        mu: float = setting(1.0, "mu, KL regularisation of the outer loss", above=0)
        transport_tau: float = setting(0.1, "tau of SemiUOT's loose marginal", above=0)
        alpha: float = setting(1.0, "alpha, share of T^g kept in calibration", low=0, high=1)
        goc_pool: Literal["all", "mean"] = setting(
            "all", "transport sees `all` clients' OOD prompts, or their `mean`: sums suffice"
        )
        ood_cap: float = setting(
            1.0, "share of the kept OOD prompts one client may supply; 1: no cap", above=0, high=1
        )
        score_scale: float = setting(30.0, "s, scale of answer and score", above=0)
        ood_weight: float = setting(
            0.1, "w, weight of OOD prompts in the score", low=0, grid=(0.0, 0.1, 0.3)
        )

    config: Config
    paper = "ours, on Zhou et al. 2025"
    shares = "global prompts, class residuals, OOD prompts"
    keeps = "local prompts, class counts"
    scores_by = "ID mass under the client's prior"
    needs_ood = True
    by_class = ("global", "residual")
    lr_grid = (3.0, 6.0, 10.0)
    identity_settings = {"alpha": 1.0}  # otherwise T^g moves towards T^o

    def init(self, task: Task, generator: torch.Generator) -> State:
        """Global and local prompts from one draw, OOD prompts from another."""
        if task.ood_names is None:
            raise MethodError("focoop_plus needs OOD prompts: set negatives.count above 0")
        tokens = self.config.context_tokens
        prompts = draw_context([len(task.classes), tokens, task.width], task, generator)
        ood = draw_context([len(task.ood_names), tokens, task.width], task, generator)
        slots = torch.arange(len(task.ood_names), device=task.device)
        counts = torch.zeros(len(task.classes), dtype=torch.int64, device=task.device)
        shared = {
            "global": prompts,
            "residual": torch.zeros_like(task.anchors),
            "ood": ood,
            "ood_words": slots,
        }
        if self.config.shrinkage < 1.0:
            plain = torch.eye(task.anchors.shape[1]).to(task.anchors)
            shared |= {"centre": torch.zeros_like(plain[0]), "scatter": plain, "metric": plain}
        return State(shared, private={"local": prompts.clone(), "counts": counts})

    @property
    def untrained(self) -> tuple[str, ...]:  # type: ignore[override]
        """What clients measure, and the metric that the server makes of it."""
        return ("centre", "scatter", "metric") if self.config.shrinkage < 1.0 else ()

    def measure(self, images: Batch, task: Task) -> Params:
        """Mean and within-class scatter of the client's images."""
        return {
            "centre": images.pooled.mean(dim=0),
            "scatter": scatter(images, len(task.classes)),
        }

    def prepare(self, task: Task) -> Params:
        """`middle` (D,): mean of the templates' features; nothing for a single class."""
        if not self.untrained:
            return {}
        count = len(task.anchors)
        return {"middle": task.anchors.mean(dim=0) * ((count - 1) / count)}

    def personalise(self, private: Params, class_counts: Tensor, task: Task) -> Params:
        """The client's own class counts: what it holds and what it expects."""
        return {**private, "counts": class_counts}

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        """Class prompts, personal where the client has images, and OOD prompts."""
        assert task.ood_names is not None
        rho, rate = self.config.global_share, self.config.global_rate
        local, shared = params["local"], params["global"]
        fused = (1.0 - rho) * local + rho * shared
        # The value stays; the global prompt learns at a rate of its own.
        fused = fused + (rate - rho) * (shared - shared.detach())
        if self.config.keep_absent:
            held = (params["counts"] > 0)[:, None, None]
            fused = torch.where(held, fused, shared.detach())
        return {
            "id": Prompt(fused, task.id_names),
            "ood": Prompt(params["ood"], task.ood_names.select(params["ood_words"])),
        }

    def text(self, params: Params, features: Params, task: Task) -> Text:
        """Features and the log prior (C,), largest 0."""
        counts = params["counts"].to(features["id"].dtype)
        share = self.config.open_share
        prior = (1.0 - share) * counts / counts.sum().clamp(min=1.0) + share / len(counts)
        prior = (prior / prior.amax()).log()
        share, ids, residual = self.config.template_share, features["id"], params["residual"]
        if self.config.keep_absent:
            residual = torch.where((counts > 0)[:, None], residual, residual.detach())
        ids = self.seen_text((1.0 - share) * ids + share * task.anchors, params, task)
        ids = F.normalize(ids + self.config.residual_scale * residual, dim=-1)
        view = {name: params[name] for name in ("metric", "centre") if self.untrained}
        ood = self.seen_text(features["ood"], params, task)
        return Text(ids, ood, {"prior": prior, **view})

    def seen_text(self, features: Tensor, params: Params, task: Task) -> Tensor:
        """Text features (N, D) as the metric sees them."""
        if not self.untrained:
            return features
        return whitened(features, task.frozen["middle"], params["metric"])

    def seen(self, text: Text, pooled: Tensor) -> Tensor:
        """Image features (N, D) as the metric sees them."""
        if not self.untrained:
            return pooled
        return whitened(pooled, text.parts["centre"], text.parts["metric"])

    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        """Cosines, those with classes shifted by log pi / s."""
        raw = cosines(text, self.seen(text, pooled))
        shifted = raw.id + text.parts["prior"] / self.config.score_scale
        return Logits(shifted, raw.ood, parts={"cosines": raw.id})

    def noise(self, batch_size: int, task: Task, generator: torch.Generator) -> Params:
        """Starting perturbations of class and OOD features, Gaussian of scale sigma."""
        if not self.config.bos:
            return {}
        assert task.ood_names is not None
        width, dtype = task.anchors.shape[1], task.anchors.dtype
        return {
            name: torch.randn(count, width, generator=generator, dtype=dtype) * self.config.sigma
            for name, count in (("id", len(task.classes)), ("ood", len(task.ood_names)))
        }

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        """Robust separations under the training prior, and the pull of the template."""
        config, scale = self.config, task.logit_scale
        offset = config.train_prior * text.parts["prior"]
        weight = config.detection_weight if config.bos else 0.0
        batch = replace(batch, pooled=self.seen(text, batch.pooled))

        def losses(moved: Text) -> Tensor:
            return separation_loss(moved, batch, scale, weight, offset)

        if config.bos:
            worst = Separation(batch, scale, weight, offset).worst(
                text,
                noise,
                (self.ascent(config.id_radius), config.id_steps, config.tau_id),
                (self.ascent(config.ood_radius), config.ood_steps, config.tau_ood),
            )
            total = soft_maximum(losses(worst), config.tau_ood * config.mu)
        else:
            total = losses(text).mean()
        held = (params["counts"] > 0).to(total.dtype)
        off = 1.0 - (text.id * self.seen_text(task.anchors, params, task)).sum(dim=1)
        return total + config.anchor_weight * (held * off).sum() / held.sum().clamp(min=1.0)

    def ascent(self, radius: float) -> Ascent:
        """How perturbations are explored within `radius`."""
        return Ascent(radius, self.config.step_size, normalised=True, gamma=0.0)

    def score(self, logits: Logits, task: Task) -> Tensor:
        """ID mass under the prior, or with all classes alike."""
        config = self.config
        assert logits.ood is not None
        ids = logits.id if config.prior_in_score else logits.parts["cosines"]
        return scores.id_mass(ids, logits.ood, config.score_scale, config.ood_weight)

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Per-class mean of T^g, then Global-view OOD Consistency over all clients' T^o."""
        prompts = class_weighted_mean(updates, "global", server.shared["global"])
        residual = class_weighted_mean(updates, "residual", server.shared["residual"])
        shared = {**server.shared, "global": prompts, "residual": residual}
        memory: Params = {}
        if self.untrained:
            metric, memory = learned(server, updates, self.config.shrinkage)
            shared |= metric
        alone = len(updates) == 1 and self.config.goc_pool == "all"
        if not self.config.goc or alone:
            return Server({**shared, "ood": weighted_mean(updates, "ood")}, memory)
        consistency = Consistency(
            tau=self.config.transport_tau,
            alpha=self.config.alpha,
            cap=self.config.ood_cap,
            pool=self.config.goc_pool,
        )
        chosen = consistency.calibrate(prompts, shared["ood_words"], updates, server)
        return Server({**shared, **chosen.shared}, {**memory, **chosen.memory}, chosen.report)
