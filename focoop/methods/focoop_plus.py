"""FOCoOp+: FOCoOp's three prompt sets in a model that does not forget what other clients know.

Paper: ours, built on FOCoOp (Liao et al., ICML 2025); ablation in `docs/model/focoop_plus.md`.

FOCoOp's clients answer their own classes by pushing all others away. Here a client that holds the
classes H_k with counts n_c keeps the others' prompts as the federation made them and says what it
expects in one place, a prior:
    t_c  = (1 - rho) t^l_c + rho t^g_c for c in H_k, t^g_c otherwise     rho -> `global_share`
    e_c  = unit(W(Text(t_c)) + q W(mu_c)), o_u = W(Text(t^o_u))         q -> `mean_share`
    pi_c = (1 - lambda) n_c / n + lambda / C                            lambda -> `open_share`
    answer argmax_c s W(h).e_c + log pi_c                               s -> `score_scale`
    score  w log sum_u exp(s W(h).o_u) - log sum_c pi_c exp(s W(h).e_c) + d s |(h - m) A|
    L    = BDRO of -log p(y|x) - log p(ID|x) over C + U (as FOCoOp), logits + log pi_c
           + b mean_{c in H_k} (1 - cos(e_c, W(z_c)))                   b -> `anchor_weight`
with w -> `ood_weight`, d -> `distance_weight`, z_c the feature of the hand-written template, mu_c
the mean image of a class over all clients, and no gradient into e_c for c not in H_k. T^g learns
from the whole gradient, not from its share rho of it.
W(x) = unit((x - m) A (I - u u^T)) discounts what varies within classes, and drops what all images
have in common: A = ((1 - k) S + k s I)^(-1/2), S the clients' mean scatter of images about mu_c
(k -> `shrinkage`), m the mean image, u = unit(m A); for texts m is the mean template. Images of a
domain nobody has seen are off the mean along m: without u they all look like some classes.
Server: as FOCoOp; T^g per class by counts, T^o by Global-view OOD Consistency; mu and S are means
of all that clients have sent so far, m is the mean of mu by images, A comes from S.

What a client measures is of classes with `least_images` different images or more, all of it: other
classes' rows leave as they came, and their images are in no sum. The scatter leaves only where
images less classes make `least_freedom`: with fewer it and the means tell single images
(`benchmarks/means_attack.py`). What was left out has no weight: `mean_weight`, `scatter_weight`.

Shared: `global` (C, n, d_t), `ood` (U, n, d_t), `ood_words` (U,); measured, not trained: `means`
(C, D), `scatter` (D, D), `mean_weight` (C, 1), `scatter_weight` (1,); the server's: `centre` (D,),
`metric` (D, D).
Private: `local` (C, n, d_t), `counts` (C,) of the client's own labels.

Differs from the authors' code: there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from focoop.fields import setting
from focoop.functional import scores
from focoop.methods._bos import Separation, separation_loss
from focoop.methods._goc import told
from focoop.methods._metric import class_means, distinct_counts, known, scatter, seen, whitening
from focoop.methods._prior import log_prior
from focoop.methods._prompt_sets import PromptSetsConfig, first_noise, first_prompts
from focoop.methods.base import (
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
    weighted_mean,
)

if TYPE_CHECKING:
    from torch import Tensor

# What a client sends as the weight of a row it has measured: exact in binary, and small, so that it
# takes little of `privacy.clip`.
WEIGHT = 1 / 16
LEAST_SHARE = 0.05  # of images whose clients measured; less is taken for noise


class FOCoOpPlus(Method):
    """Personal where a client has images, global elsewhere, one prior for answer and detection."""

    @dataclass(frozen=True)
    class Config(PromptSetsConfig):
        """Settings of FOCoOp+; those of `PromptSetsConfig` mean the same as FOCoOp's."""

        global_share: float = setting(
            0.8, "rho, share of the global prompt", low=0, high=1, group="paper"
        )
        alpha: float = setting(
            1.0, "alpha, share of T^g kept in calibration", low=0, high=1, group="paper"
        )
        least_images: int = setting(
            5,
            "different images of a class below which nothing is sent of them",
            low=2,
            high=1_000_000,
            group="engineering",
        )
        least_freedom: int = setting(
            16,
            "images less classes below which a client's scatter is not sent",
            low=1,
            high=1_000_000,
            group="engineering",
        )
        mean_share: float = setting(
            3.0,
            "q, weight of a class's mean image in its feature",
            low=0,
            grid=(1.0, 2.0, 3.0),
            group="paper",
        )
        shrinkage: float = setting(
            0.5,
            "k, how far the metric is drawn to the plain one; 1: all the way",
            above=0,
            high=1,
            grid=(0.3, 0.5, 0.8),
            group="paper",
        )
        anchor_weight: float = setting(
            5.0,
            "b, pull of held classes to the template",
            low=0,
            grid=(0.5, 2.0, 5.0),
            group="paper",
        )
        open_share: float = setting(
            0.3,
            "lambda, share of images expected of any class; 1: no prior",
            above=0,
            high=1,
            grid=(0.2, 0.3, 0.4),
            group="paper",
        )
        prior_in_score: bool = setting(
            True, "weigh classes by the prior in the score too", group="ablation"
        )
        score_scale: float = setting(
            20.0,
            "s, scale of answer and score",
            above=0,
            grid=(17.0, 20.0, 23.0),
            group="paper",
        )
        ood_weight: float = setting(
            0.1,
            "w, weight of OOD prompts in the score",
            low=0,
            grid=(0.0, 0.1, 0.3),
            group="paper",
        )
        distance_weight: float = setting(
            0.4,
            "d, weight of the distance from the mean image",
            low=0,
            grid=(0.2, 0.3, 0.4),
            group="paper",
        )

    config: Config
    paper = "ours, on Liao et al. 2025"
    shares = "global prompts, OOD prompts, class means, scatter"
    keeps = "local prompts, class counts"
    scores_by = "ID mass under the client's prior"
    needs_ood = True
    by_class = ("global", "means", "mean_weight")
    untrained = ("centre", "means", "scatter", "mean_weight", "scatter_weight", "metric")
    lr_grid = (3.0, 6.0, 10.0)
    identity_settings = {"alpha": 1.0}  # otherwise T^g moves towards T^o

    def init(self, task: Task, generator: torch.Generator) -> State:
        """Global and local prompts from one draw, OOD prompts from another."""
        prompts = first_prompts(self.config, task, generator, "focoop_plus")
        counts = torch.zeros(len(task.classes), dtype=torch.int64, device=task.device)
        width = task.anchors.shape[1]
        plain = torch.eye(width, dtype=task.anchors.dtype, device=task.device)
        shared = {
            **prompts,
            "centre": torch.zeros_like(plain[0]),
            "means": torch.zeros_like(task.anchors),
            "scatter": plain / width,  # of which the plain metric is made
            "mean_weight": torch.zeros_like(task.anchors[:, :1]),
            "scatter_weight": torch.zeros_like(plain[0, :1]),
            "metric": plain,
        }
        return State(shared, private={"local": prompts["global"].clone(), "counts": counts})

    def measure(self, params: Params, images: Batch, task: Task) -> Params:
        """Class means and scatter of the client's images, of classes with enough of them alone.

        What is not measured leaves as it was received, with a weight of zero.
        """
        old, spread = params["means"], params["scatter"]
        counts = distinct_counts(images, len(old))
        enough = counts >= self.config.least_images
        usable = enough[images.labels]
        images = Batch(images.pooled[usable], None, images.labels[usable])
        own = class_means(images, len(old))
        freedom = int((counts[enough] - 1).sum())
        tells = freedom >= self.config.least_freedom
        return {
            "means": torch.where(enough[:, None], own.to(old), old),
            "mean_weight": WEIGHT * enough[:, None].to(old),
            "scatter": scatter(images, old, own).to(spread) if tells else spread,
            "scatter_weight": torch.full_like(params["scatter_weight"], WEIGHT * tells),
        }

    def prepare(self, task: Task) -> Params:
        """`middle` (D,): mean of the templates' features; nothing for a single class."""
        count = len(task.anchors)
        return {"middle": task.anchors.mean(dim=0) * ((count - 1) / count)}

    def personalise(self, private: Params, class_counts: Tensor, task: Task) -> Params:
        """The client's own class counts: what it holds and what it expects."""
        return {**private, "counts": class_counts}

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        """Class prompts, personal where the client has images, and OOD prompts."""
        assert task.ood_names is not None
        rho, local, shared = self.config.global_share, params["local"], params["global"]
        fused = (1.0 - rho) * local + rho * shared
        # The value stays; the global prompt learns from the whole gradient.
        fused = fused + (1.0 - rho) * (shared - shared.detach())
        held = (params["counts"] > 0)[:, None, None]
        fused = torch.where(held, fused, shared.detach())
        return {
            "id": Prompt(fused, task.id_names),
            "ood": Prompt(params["ood"], task.ood_names.select(params["ood_words"])),
        }

    def text(self, params: Params, features: Params, task: Task) -> Text:
        """Features as the metric sees them, and the log prior (C,), largest 0."""
        prior = log_prior(params["counts"], self.config.open_share, features["id"].dtype)
        centre, metric = params["centre"], params["metric"]
        along = F.normalize(centre @ metric, dim=0)
        view = {"centre": centre, "metric": metric, "along": along}
        ids, oods = (self.seen_text(features[name], view, task) for name in ("id", "ood"))
        means = torch.where(known(params["means"]), seen(params["means"], **view)[0], 0.0)
        ids = F.normalize(ids + self.config.mean_share * means, dim=-1)
        return Text(ids, oods, {"prior": prior, **view})

    def answer_scale(self, task: Task) -> float:
        """Cosines are multiplied by `score_scale`."""
        return self.config.score_scale

    def view(self, text: Text) -> Params:
        """Return how images are seen: `centre` (D,), `metric` (D, D) and `along` (D,).

        Args:
            text: The text side.

        Returns:
            Tensors by name.
        """
        return {name: text.parts[name] for name in ("centre", "metric", "along")}

    def seen_text(self, features: Tensor, view: Params, task: Task) -> Tensor:
        """Return text features as the metric sees them.

        Args:
            features: Text features (N, D).
            view: What `view` gives.
            task: The task.

        Returns:
            Features (N, D).
        """
        return seen(features, **{**view, "centre": task.frozen["middle"]})[0]

    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        """Cosines, those with classes shifted by log pi / s."""
        images, distance = seen(pooled, **self.view(text))
        raw = cosines(text, images)
        shifted = raw.id + text.parts["prior"] / self.config.score_scale
        return Logits(shifted, raw.ood, parts={"cosines": raw.id, "distance": distance})

    def noise(self, batch_size: int, task: Task, generator: torch.Generator) -> Params:
        """Starting perturbations of class and OOD features, Gaussian of scale sigma."""
        if not self.config.bos:
            return {}
        assert task.ood_names is not None
        counts = {"id": len(task.classes), "ood": len(task.ood_names)}
        width = task.anchors.shape[1]
        return first_noise(self.config, counts, [width], task.anchors.dtype, generator)

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        """Robust separations under the training prior, and the pull of the template."""
        config, scale, view = self.config, task.logit_scale, self.view(text)
        batch = replace(batch, pooled=seen(batch.pooled, **view)[0])
        weight, prior = config.detection_weight, text.parts["prior"]
        if config.bos:
            ascents = config.ascent_of("id"), config.ascent_of("ood")
            separation = Separation(batch, scale, weight, prior)
            total = separation.loss(text, noise, *ascents, config.sharpness)
        else:
            total = separation_loss(text, batch, scale, weight, prior).mean()
        held = (params["counts"] > 0).to(total.dtype)
        off = 1.0 - (text.id * self.seen_text(task.anchors, view, task)).sum(dim=1)
        return total + config.anchor_weight * (held * off).sum() / held.sum().clamp(min=1.0)

    def score(self, logits: Logits, task: Task) -> Tensor:
        """ID mass under the prior, or with all classes alike, and the distance from the mean."""
        config = self.config
        assert logits.ood is not None
        ids = logits.id if config.prior_in_score else logits.parts["cosines"]
        score = scores.id_mass(ids, logits.ood, config.score_scale, config.ood_weight)
        return score + config.distance_weight * config.score_scale * logits.parts["distance"]

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Per-class mean of T^g, then Global-view OOD Consistency over all clients' T^o."""
        prompts = class_weighted_mean(updates, "global", server.shared["global"])
        learned, memory = self.learn(server, updates)
        shared = {**server.shared, **learned, "global": prompts}
        alone = len(updates) == 1 and self.config.goc_pool == "all"
        if not self.config.goc or alone:
            report = told(prompts, shared["ood_words"])
            return Server({**shared, "ood": weighted_mean(updates, "ood")}, memory, report)
        consistency = self.config.consistency
        chosen = consistency.calibrate(prompts, shared["ood_words"], updates, server)
        return Server({**shared, **chosen.shared}, {**memory, **chosen.memory}, chosen.report)

    def learn(self, server: Server, updates: Sequence[ClientUpdate]) -> tuple[Params, Params]:
        """Average what clients measured in all rounds so far, and make the metric of it.

        A round weighs as many images as were measured in it, so that rounds with few clients add
        up. Rows that clients left as they were take no part: the change is divided by the share of
        images whose clients did measure, which noise cannot make too small (`LEAST_SHARE`).

        Args:
            server: The server.
            updates: The updates.

        Returns:
            The measured tensors and those made of them.
        """
        old, shared = server.shared, {}
        counts = torch.stack([update.class_counts for update in updates]).sum(dim=0)
        fresh, weight = (
            class_weighted_mean(updates, name, old[name]) for name in ("means", "mean_weight")
        )
        share = (weight.double()[:, 0] / WEIGHT).clamp(0.0, 1.0)  # (C,)
        now = counts.double().to(share.device) * share
        seen_before = server.memory.get("measured", torch.zeros_like(now)).to(now)
        images = now + seen_before
        part = now / images.clamp(min=1e-9) / share.clamp(min=LEAST_SHARE)
        shared["means"] = old["means"] + (fresh - old["means"]) * part[:, None].to(old["means"])
        if float(images.sum()) > 0:
            centre = (images[:, None] * shared["means"].double()).sum(dim=0) / images.sum()
            shared["centre"] = centre.to(old["centre"])
        spread_share = float((weighted_mean(updates, "scatter_weight") / WEIGHT).clamp(0.0, 1.0))
        spread_now = float(counts.sum()) * spread_share
        spread_before = float(server.memory.get("spread", torch.zeros(())))
        step = spread_now / max(spread_now + spread_before, 1e-9) / max(spread_share, LEAST_SHARE)
        shared["scatter"] = old["scatter"] + (
            (weighted_mean(updates, "scatter") - old["scatter"]) * step
        )
        for name in ("mean_weight", "scatter_weight"):
            shared[name] = torch.zeros_like(old[name])
        metric = whitening(shared["scatter"], self.config.shrinkage)
        shared["metric"] = metric.to(old["metric"])
        spread = torch.tensor(spread_now + spread_before, dtype=torch.float64)
        return shared, {"measured": images, "spread": spread}
