"""FedLDA: class means seen through the spread within classes, from one round of sums.

Paper: linear discriminant analysis (Fisher 1936; Rao 1948) on federated statistics, as in pFedFDA
(McLaughlin & Su, NeurIPS 2024), FedCGS (Guan et al., IJCAI 2025) and GH-OFL's LDA heads; shrinkage
by OAS (Chen et al., IEEE TSP 2010); Mahalanobis detection (Lee et al., NeurIPS 2018).

With mu_c the class means of all clients' images, S their covariance within classes (images less
classes degrees of freedom), m the mean image and rho the shrinkage that OAS computes from S:
    A = ((1 - rho) S + rho tr(S)/D I)^(-1/2), W(x) = unit((x - m) A)
    rule `cosine`:   answer argmax_c s W(h).W(mu_c) + log pi_c           s -> `score_scale`
    rule `gaussian`: answer argmax_c -|(h - mu_c) A|^2 / 2 + log pi_c
    score `id_mass`: -log sum_c pi_c exp(the evidence above); `mahalanobis`: min_c |(h - mu_c) A|^2
with pi the client's prior, lambda -> `open_share` (`_prior.py`). Nothing is tuned for A.

What a client tells is of classes with `least_images` different images or more, and how images vary
within them only where images less classes make `least_freedom`.

Shared: measured `means` (C, D), `mean_weight` (C, 16), `moment` (D, D), `spread_weight` (16,); the
server's `centre` (D,), `metric` (D, D).
Private: `counts` (C,) of the client's own labels.

Differs from the authors' code: pFedFDA trains features and interpolates each client's own
statistics by a search, FedCGS calibrates a trained head, GH-OFL trains heads on drawn features;
here the pooled statistics are the classifier. Cosines by default, where LDA has the Gaussian rule:
at few images its log-odds are far too large for a prior to speak.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F

from focoop.fields import setting
from focoop.functional import scores
from focoop.methods._closed_form import APART, SpreadConfig, SpreadForm, answerable, has_mean
from focoop.methods._metric import whitening
from focoop.methods._sums import Totals, oas
from focoop.methods.base import Logits, Params, Task, Text

if TYPE_CHECKING:
    from torch import Tensor


class FedLDA(SpreadForm):
    """Class means and one covariance, one round."""

    @dataclass(frozen=True)
    class Config(SpreadConfig):
        """Settings of FedLDA."""

        rule: Literal["cosine", "gaussian"] = setting(
            "cosine",
            "`cosine` of what the metric sees, or LDA's `gaussian` log-odds",
            group="paper",
        )
        score_scale: float = setting(
            20.0,
            "s, scale of the cosines in answer and score",
            above=0,
            grid=(10.0, 20.0, 40.0),
            group="engineering",
        )
        score: Literal["id_mass", "mahalanobis"] = setting(
            "id_mass", "which score detects", group="engineering"
        )

    config: Config
    paper = "Fisher 1936; McLaughlin & Su 2024; Chen et al. 2010"
    shares = "class means, second moment"
    scores_by = "ID mass under the client's prior, or Mahalanobis"
    server_made = ("centre", "metric")

    @property
    def scale(self) -> float:
        """Cosines are multiplied by `score_scale`; Gaussian log-odds are what they are."""
        return self.config.score_scale if self.config.rule == "cosine" else 1.0

    def solve(self, totals: Totals, task: Task, extras: Params) -> tuple[Params, dict[str, float]]:
        """The mean image and the metric A; the plain one where nothing was told of the spread."""
        rho = oas(totals.scatter, totals.freedom)
        spread = totals.scatter / max(totals.freedom, 1.0)
        metric = whitening(spread, rho) * len(spread) ** 0.5
        return {"centre": totals.centre, "metric": metric}, {"shrinkage": rho}

    def model(self, params: Params, task: Task) -> Text:
        """Class means (C, D) as the metric sees them, about the mean image."""
        seen = (params["means"] - params["centre"]) @ params["metric"]
        parts = {name: params[name] for name in self.server_made}
        return Text(seen, parts={**parts, "known": has_mean(params["means"])})

    def evidence(self, text: Text, pooled: Tensor) -> Logits:
        """Cosines or half squared distances, and the squared distances (N, C) for the score."""
        known = text.parts["known"]
        images = (pooled - text.parts["centre"]) @ text.parts["metric"]
        inner = images @ text.id.T
        squares = images.square().sum(dim=1, keepdim=True) + text.id.square().sum(dim=1)
        distances = torch.where(known, (squares - 2.0 * inner).clamp(min=0.0), torch.inf)
        logits = -0.5 * distances
        if self.config.rule == "cosine":
            logits = F.normalize(images, dim=-1) @ F.normalize(text.id, dim=-1).T
        logits = answerable(logits, known, APART / self.scale)
        return Logits(logits, parts={"distances": distances})

    def score(self, logits: Logits, task: Task) -> Tensor:
        """ID mass, or the squared distance from the nearest class mean."""
        if self.config.score == "mahalanobis":
            return scores.mahalanobis(logits.parts["distances"])
        return super().score(logits, task)
