"""Fed3R: ridge regression of one-hot labels on frozen features, from one round of sums.

Paper: Fani et al., Accelerating Heterogeneous Federated Learning with Closed-form Classifiers, ICML
2024, and its "only local labels" (OLL), IEEE Access 2025: here `open_share = 0`.

With N images h_i of all clients and one-hot labels y_i:
    V = (sum_i h_i h_i^T + r I)^(-1) sum_i h_i y_i^T, its columns of unit length   r -> `ridge`
    answer argmax_c s h.v_c + log pi_c                                   s -> `score_scale`
    score  -log sum_c pi_c exp(s h.v_c)
with pi the client's prior, lambda -> `open_share` (`_prior.py`). With `ridge = 0` r is the one of
least generalised cross-validation (Golub et al. 1979), N |Y - H V|^2 / (N - tr hat)^2, which the
sums give without a further image.

What a client tells is of classes with `least_images` different images or more, and how images vary
within them only where images less classes make `least_freedom`.

Shared: measured `means` (C, D), `mean_weight` (C, 16), `moment` (D, D), `spread_weight` (16,); the
server's `weights` (C, D).
Private: `counts` (C,) of the client's own labels.

Differs from the authors' code: r by generalised cross-validation, where theirs is a setting (0.01);
no constant beside the features, which have unit length here; no random features; a prior that can
be soft, a score and least numbers of images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from focoop.fields import setting
from focoop.methods._closed_form import APART, SpreadConfig, SpreadForm, answerable, has_mean
from focoop.methods._posterior import spread_within
from focoop.methods._sums import Totals
from focoop.methods.base import Logits, Params, Task, Text
from focoop.threads import one_core

if TYPE_CHECKING:
    from torch import Tensor

# Ridges that are tried: from none at all to one that leaves the class means alone.
RIDGES = tuple(10.0 ** (exponent / 8) for exponent in range(-24, 33))


class Fed3R(SpreadForm):
    """Federated ridge regression, one round."""

    @dataclass(frozen=True)
    class Config(SpreadConfig):
        """Settings of Fed3R."""

        ridge: float = setting(
            0.0,
            "r, ridge on sums over images; 0: by generalised cross-validation",
            low=0,
            group="paper",
        )
        unit_columns: bool = setting(
            True, "columns of the classifier have unit length", group="paper"
        )
        score_scale: float = setting(
            20.0,
            "s, scale of answer and score",
            above=0,
            grid=(10.0, 20.0, 40.0),
            group="engineering",
        )

    config: Config
    paper = "Fani et al. 2024"
    shares = "class means, second moment"
    scores_by = "ID mass under the client's prior"
    server_made = ("weights",)

    @property
    def scale(self) -> float:
        """Products are multiplied by `score_scale`."""
        return self.config.score_scale

    def solve(self, totals: Totals, task: Task, extras: Params) -> tuple[Params, dict[str, float]]:
        """The classifier (C, D), and the ridge it was made with."""
        images = totals.images.sum()
        second, sums = images * totals.moment, totals.images[:, None] * totals.means
        if float(images) <= 0:
            return {"weights": torch.zeros_like(sums)}, {}
        # Images whose spread nobody told have that of the others: without it they seem to be their
        # class means, which a ridge regression takes for certain.
        untold = float(images - (totals.images > 0).sum()) - totals.freedom
        if untold > 0.5:
            spread, shrinkage = spread_within(totals)
            size = spread.diagonal().mean() * torch.eye(len(spread)).to(spread)
            second = second + untold * ((1.0 - shrinkage) * spread + shrinkage * size).to(second)
        weights, ridge = ridge_regression(second, sums, float(images), self.config.ridge)
        return {"weights": weights}, {"ridge": ridge}

    def model(self, params: Params, task: Task) -> Text:
        """The classifier's columns as rows (C, D)."""
        weights = params["weights"]
        if self.config.unit_columns:
            weights = F.normalize(weights, dim=-1)
        return Text(weights, parts={"known": has_mean(params["means"])})

    def evidence(self, text: Text, pooled: Tensor) -> Logits:
        """What the regression says of each class."""
        return Logits(answerable(pooled @ text.id.T, text.parts["known"], APART / self.scale))


def ridge_regression(
    second: Tensor, sums: Tensor, images: float, ridge: float = 0.0
) -> tuple[Tensor, float]:
    """Solve ridge regression of one-hot labels from sums over images, in float64.

    Args:
        second: (D, D) sum of h h^T.
        sums: (C, D) sum of h over the images of each class.
        images: N, how many they are.
        ridge: r; 0: the one of `RIDGES` with least generalised cross-validation.

    Returns:
        (C, D) classifier, and the ridge.
    """
    with one_core():  # bits that do not depend on the machine
        values, vectors = torch.linalg.eigh(((second + second.T) / 2).double().cpu())
    values = values.clamp(min=0.0)
    inner = sums.double().cpu() @ vectors  # (C, D)
    if not ridge:
        tried = torch.tensor(RIDGES, dtype=torch.float64)
        inverses = 1.0 / (values + tried[:, None])  # (R, D)
        energy = inner.square().sum(dim=0)
        # |Y - H V|^2 = N - 2 tr V^T B + tr V^T (H^T H) V with B = H^T Y, in the base of vectors.
        rest = images - (energy * (2.0 * inverses - values * inverses.square())).sum(dim=1)
        freedom = images - (values * inverses).sum(dim=1)
        usable = freedom > 1e-6 * images
        errors = torch.where(usable, rest.clamp(min=0.0) / freedom.square(), torch.inf)
        ridge = RIDGES[int(errors.argmin())]
    weights = (inner / (values + ridge)) @ vectors.T
    return weights.to(second.device), ridge
