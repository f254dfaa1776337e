"""GDA-CLIP: class means and one covariance added to zero-shot CLIP, from one round of sums.

Paper: Wang et al., A Hard-to-Beat Baseline for Training-free CLIP-based Adaptation, ICLR 2024;
precision by Kubokawa & Srivastava, J. Multivariate Analysis 2008.

With mu_c the class means of all N images of all clients, S their covariance within classes and e_c
the text feature of the template (`data.template`):
    P = ((1 - r) S + r tr(S)/D I)^(-1), r = D / (N - 1 + D), g_c(h) = h P mu_c - mu_c P mu_c / 2
    answer argmax_c s h.e_c + a g_c(h) + log pi_c      s -> `task.logit_scale`, a -> `image_weight`
    score `id_mass`: -log sum_c pi_c exp(s h.e_c + a g_c(h)); `mahalanobis`: min_c (h - mu_c) P (..)
with pi the client's prior, lambda -> `open_share` (`_prior.py`). A class that nobody has told has
the mean g of the others: its text decides.

What a client tells is of classes with `least_images` different images or more, and how images vary
within them only where images less classes make `least_freedom`.

Shared: measured `means` (C, D), `mean_weight` (C, 16), `moment` (D, D), `spread_weight` (16,); the
server's `metric` (D, D), the square root of P.
Private: `counts` (C,) of the client's own labels.

Differs from the authors' code: sums of clients in the place of all images; P is theirs times
(N - 1 + D) / D, so that the images keep their weight beside the text however many they are, where
theirs vanish with N and the search for the weight must make up for it; `image_weight` is a setting,
which theirs searches on validation images (`focoop tune` does); classes without images by
their text, where theirs have means of the nearest images; a prior and a score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from focoop.fields import setting
from focoop.functional import scores
from focoop.methods._closed_form import SpreadConfig, SpreadForm, has_mean
from focoop.methods._metric import NOTHING, whitening
from focoop.methods._sums import Totals
from focoop.methods.base import Logits, Params, Task, Text

if TYPE_CHECKING:
    from torch import Tensor


class GDACLIP(SpreadForm):
    """Text and Gaussian discriminants, one round."""

    @dataclass(frozen=True)
    class Config(SpreadConfig):
        """Settings of GDA-CLIP."""

        image_weight: float = setting(
            1.0,
            "a, weight of the images beside the text",
            low=0,
            grid=(0.1, 0.3, 1.0, 3.0, 10.0),
            group="paper",
        )
        score: Literal["id_mass", "mahalanobis"] = setting(
            "id_mass", "which score detects", group="engineering"
        )

    config: Config
    paper = "Wang et al. 2024"
    shares = "class means, second moment"
    scores_by = "ID mass under the client's prior, or Mahalanobis"
    server_made = ("metric",)

    @property
    def scale(self) -> float:
        """The evidence is log-odds as it is."""
        return 1.0

    def solve(self, totals: Totals, task: Task, extras: Params) -> tuple[Params, dict[str, float]]:
        """The metric of the Bayesian precision; zero where nothing was told of the spread."""
        images = float(totals.images.sum())
        spread = totals.scatter / max(images - 1.0, 1.0)
        width = len(spread)
        if totals.freedom <= 0 or float(spread.diagonal().mean()) < NOTHING:
            return {"metric": torch.zeros_like(spread)}, {}
        shrinkage = width / (images - 1.0 + width)
        return {"metric": whitening(spread, shrinkage) * width**0.5}, {"shrinkage": shrinkage}

    def model(self, params: Params, task: Task) -> Text:
        """Text features (C, D) times s; class means as the metric sees them are a part."""
        seen = params["means"] @ params["metric"]
        parts = {"metric": params["metric"], "means": seen, "known": has_mean(params["means"])}
        return Text(task.anchors * task.logit_scale, parts=parts)

    def evidence(self, text: Text, pooled: Tensor) -> Logits:
        """Log-odds of text and images, and the squared distances (N, C) for the score."""
        known, means = text.parts["known"], text.parts["means"]
        images = pooled @ text.parts["metric"]
        gauss = images @ means.T - means.square().sum(dim=1) / 2.0
        share = known.to(gauss) / known.sum().clamp(min=1)
        gauss = torch.where(known, gauss, (gauss @ share)[:, None])
        squares = images.square().sum(dim=1, keepdim=True)
        distances = torch.where(known, (squares - 2.0 * gauss).clamp(min=0.0), torch.inf)
        logits = pooled @ text.id.T + self.config.image_weight * gauss
        return Logits(logits, parts={"distances": distances})

    def score(self, logits: Logits, task: Task) -> Tensor:
        """ID mass, or the squared distance from the nearest class mean."""
        if self.config.score == "mahalanobis":
            return scores.mahalanobis(logits.parts["distances"])
        return super().score(logits, task)
