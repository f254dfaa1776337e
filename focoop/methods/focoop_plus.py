"""FOCoOp+: class means as posteriors with the classes' names as prior, in one round.

Paper: ours; empirical Bayes (James & Stein 1961; Efron & Morris 1973) on federated sums, shrinkage
from OAS (Chen et al., IEEE TSP 2010); `docs/model/focoop_plus.md` has what each part is worth.

A client tells sums of its images, the server makes one Gaussian model of all classes, and a client
answers with it under its own prior. Nothing is trained and nothing is tuned:
    Sigma = (1 - k) S + k tr(S)/D I, k = max(sqrt(rho), d)  S within classes, rho: OAS's shrinkage
    mu_c  = w_c m_c + (1 - w_c) p_c, w_c = n_c / (n_c + kappa)
    W(x)  = (x - m) Sigma^(-1/2),  B(x) = x T^(-1/2)
    answer argmax_c s cos(W(h) - u u.W(h), W(mu_c) - u u.W(mu_c)) + log pi_c   s -> `score_scale`
    score  -log sum_c pi_c exp(s cos(B(h), B(mu_c))) + a |W(h)| / r      a: `SURPRISE`
m_c is the mean of the n_c images of class c, m that of all images, p_c what the name of c predicts
by a map from text features to means that is learned from all other classes; kappa is the variance
within classes over that of means about such predictions (`_posterior.py`). Where names predict
nothing, all means shrink alike and answers are those of the images. A class known by name alone has
its prediction as its mean. pi is the client's prior, lambda -> `open_share` (`_prior.py`).
u = unit(m Sigma^(-1/2)) is what all images have in common: images of a domain that nobody has seen
are off along it, and without it all of them would look like the same classes.
d is the shrinkage that differences between clients of the same classes ask for, as those of unlike
domains or cameras (`_sums.between_clients`): what varies in one domain need not in the next. It is
0 where clients have no class in common, and where secure sums hide them.
The score asks two things: whether some class explains the image better than images at large do,
whose shrunk second moment is T, and how far the image lies from all images, r the root of the mean
square of |W| over training images.

What a client tells is of classes with `least_images` different images or more, and how images vary
within them only where images less classes make `least_freedom`. A later round adds what new clients
bring.

Shared: measured `means` (C, D), `mean_weight` (C, 1), `moment` (D, D), `spread_weight` (1,); the
server's `centre` (D,), `metric` (D, D), `background` (D, D), `classes` (C, D).
Private: `counts` (C,) of the client's own labels.

Differs from the authors' code: there is none. FOCoOp's prompt sets, separations and transport are
not here: with these sums they changed no answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from focoop.fields import setting
from focoop.functional import scores
from focoop.methods._closed_form import APART, SpreadConfig, SpreadForm, answerable, has_mean
from focoop.methods._metric import whitening
from focoop.methods._posterior import posterior, spread_within
from focoop.methods._prior import PRIOR
from focoop.methods._sums import Totals
from focoop.methods.base import Logits, Params, Task, Text

if TYPE_CHECKING:
    from torch import Tensor

SURPRISE = 6.0  # log-odds of a typical image's distance from all images
BACKGROUND = 0.6  # shrinkage of the second moment of all images


class FOCoOpPlus(SpreadForm):
    """One Gaussian model of all classes, names as prior, a client's own prior for its answers."""

    @dataclass(frozen=True)
    class Config(SpreadConfig):
        """Settings of FOCoOp+."""

        score_scale: float = setting(
            20.0,
            "s, scale of answer and score",
            above=0,
            grid=(10.0, 20.0, 40.0),
            group="engineering",
        )
        names: bool = setting(
            True, "the classes' names as prior; false: images alone", group="ablation"
        )

    config: Config
    paper = "ours; James & Stein 1961"
    shares = "class means, second moment"
    scores_by = "ID mass against images at large, and distance"
    solved = ("centre", "metric", "background", "classes")

    @property
    def scale(self) -> float:
        """Cosines are multiplied by `score_scale`."""
        return self.config.score_scale

    def solve(self, totals: Totals, task: Task, extras: Params) -> tuple[Params, dict[str, float]]:
        """The two metrics, and class means as posteriors."""
        centre = totals.centre.cpu()
        spread, shrinkage = spread_within(totals)
        metric = whitening(spread, shrinkage) * len(spread) ** 0.5
        total = totals.moment.cpu() - centre[:, None] * centre
        length = ((total @ metric) * metric).sum().clamp(min=0.0).sqrt()  # of a typical image
        classes, report = totals.means, {"shrinkage": shrinkage}
        if self.config.names:
            found = posterior(totals, task.anchors, metric)
            classes = found.means
            report |= {"kappa": found.kappa, "explained": found.explained}
        solved = {
            "centre": centre,
            "metric": metric / (float(length) or 1.0),
            "background": whitening(totals.moment, BACKGROUND),
            "classes": classes,
        }
        return solved, report

    def model(self, params: Params, task: Task) -> Text:
        """Class means (C, D) as the metric sees them; as the background's does they are a part."""
        classes, centre = params["classes"], params["centre"]
        along = F.normalize(centre @ params["metric"], dim=0)
        parts = {name: params[name] for name in ("centre", "metric", "background")}
        parts |= {"known": has_mean(classes), "along": along}
        parts["apart"] = F.normalize(classes @ params["background"], dim=-1)
        return Text(across((classes - centre) @ params["metric"], along), parts=parts)

    def evidence(self, text: Text, pooled: Tensor) -> Logits:
        """Cosines with class means; for the score those against the background, and lengths."""
        parts, least = text.parts, APART / self.scale
        images = (pooled - parts["centre"]) @ parts["metric"]
        cosines = across(images, parts["along"]) @ text.id.T
        against = F.normalize(pooled @ parts["background"], dim=-1) @ parts["apart"].T
        score = {
            "against": answerable(against, parts["known"], least) + parts[PRIOR],
            "length": torch.linalg.vector_norm(images, dim=-1),
        }
        return Logits(answerable(cosines, parts["known"], least), parts=score)

    def score(self, logits: Logits, task: Task) -> Tensor:
        """How little speaks for any class against images at large, and how far the image is."""
        mass = scores.energy(logits.parts["against"], self.scale)
        return mass + SURPRISE * logits.parts["length"]


def across(rows: Tensor, along: Tensor) -> Tensor:
    """Return unit rows without their part along a direction.

    Args:
        rows: (N, D).
        along: (D,) a unit vector, or zero: nothing is taken out.

    Returns:
        (N, D) rows of length 1.
    """
    return F.normalize(rows - (rows @ along)[:, None] * along, dim=-1)
