"""FedNCM: nearest class mean on frozen features, from one round of sums.

Paper: Legate et al., Guiding The Last Layer in Federated Learning with Pre-Trained Models, NeurIPS
2023; detection by the free energy (Liu et al., NeurIPS 2020).

    mu_c = mean of all clients' images of class c
    answer argmax_c s cos(h, mu_c) + log pi_c                            s -> `score_scale`
    score  -log sum_c pi_c exp(s cos(h, mu_c))
with pi the client's prior, lambda -> `open_share` (`_prior.py`).

What a client tells is of classes with `least_images` different images or more. A class that nobody
has told is answered last.

Shared: `means` (C, D), `mean_weight` (C, 16), both measured.
Private: `counts` (C,) of the client's own labels.

Differs from the authors' code: the means are the classifier, where the authors also start training
from them; cosines of unit features, where they take features as they are; a prior, a score and a
least number of images, of which they have none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.nn.functional as F

from focoop.fields import setting
from focoop.methods._closed_form import APART, ClosedForm, ClosedFormConfig, answerable, has_mean
from focoop.methods._sums import Sums, Totals
from focoop.methods.base import Logits, Params, Task, Text

if TYPE_CHECKING:
    from torch import Tensor


class FedNCM(ClosedForm):
    """Class means, one round."""

    @dataclass(frozen=True)
    class Config(ClosedFormConfig):
        """Settings of FedNCM."""

        score_scale: float = setting(
            20.0,
            "s, scale of answer and score",
            above=0,
            grid=(10.0, 20.0, 40.0),
            group="engineering",
        )

    config: Config
    paper = "Legate et al. 2023"
    shares = "class means"
    scores_by = "ID mass under the client's prior"

    @property
    def sums(self) -> Sums:
        """Class means alone."""
        return Sums(self.config.least_images, least_freedom=1, second=False)

    @property
    def scale(self) -> float:
        """Cosines are multiplied by `score_scale`."""
        return self.config.score_scale

    def solve(self, totals: Totals, task: Task, extras: Params) -> tuple[Params, dict[str, float]]:
        """The means are the classifier."""
        return {}, {}

    def model(self, params: Params, task: Task) -> Text:
        """Unit class means (C, D)."""
        return Text(
            F.normalize(params["means"], dim=-1), parts={"known": has_mean(params["means"])}
        )

    def evidence(self, text: Text, pooled: Tensor) -> Logits:
        """Cosines with the means."""
        return Logits(answerable(pooled @ text.id.T, text.parts["known"], APART / self.scale))
