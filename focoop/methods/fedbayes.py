"""FedBayes: class means as posteriors with the classes' names as prior, in one or two rounds.

Paper: ours; empirical Bayes (James & Stein 1961; Efron & Morris 1973) on the sums of `fedlda`.

Images say what a class looks like; its name says it too, through a map from text features to image
means that the server learns from all classes of the federation. How much the name counts is not
set but estimated: w_c = n_c / (n_c + kappa), kappa from how well names predict class means they
have not seen (`_posterior.py`). Where names predict nothing the means are those of `fedlda`.
    A = ((1 - k) S + k tr(S)/D I)^(-1/2), W(x) = unit((x - m) A)
    answer argmax_c s W(h).W(mu_c) + log pi_c, mu_c the posterior mean   s -> `score_scale`
    score  -log sum_c pi_c exp(s cos(h, m_c)), m_c the mean image
with pi the client's prior, lambda -> `open_share` (`_prior.py`). The metric A tells classes apart
by what varies little within them; whether an image is of any class shows in plain cosines, where
what all images have in common counts too. `plain_score = false` scores by W as well.
The shrinkage k is OAS's after the first round. In the next, clients answer their own images with
each of the shrinkages `SHRINKAGES`, each image left out of the sums it is in, and tell the mean
loss; the server takes the k of least loss. No validation images are needed, and sums suffice.
A class known by name alone has its prediction as its mean.

What a client tells is of classes with `least_images` different images or more, and how images vary
within them only where images less classes make `least_freedom`; losses are of the same images.

Shared: measured `means` (C, D), `mean_weight` (C, 1), `moment` (D, D), `spread_weight` (1,),
`losses` (k, s); the server's `images` (C,), `spread_told` (1,), `centre` (D,), `metric` (D, D),
`classes` (C, D), `plain` (C, D).
Private: `counts` (C,) of the client's own labels.

Differs from the authors' code: there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from focoop.fields import setting
from focoop.functional import scores
from focoop.methods._closed_form import APART, SpreadConfig, SpreadForm, answerable
from focoop.methods._posterior import Basis, Posterior, Seen, left_out_cosines, posterior
from focoop.methods._prior import PRIOR
from focoop.methods._sums import Totals, oas
from focoop.methods.base import Batch, Logits, Params, Task, Text

if TYPE_CHECKING:
    from torch import Tensor

# Shrinkages that are tried beside OAS's, and scales of cosines of which the best counts for each.
SHRINKAGES = (0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0)
SCALES = (5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0)
LARGEST = 16.0  # loss of an image at most
UNIT = 1 / 1024  # losses are sent in these, so that they take little of `privacy.clip`


class FedBayes(SpreadForm):
    """Means weighed against names by how well names predict, one or two rounds."""

    @dataclass(frozen=True)
    class Config(SpreadConfig):
        """Settings of FedBayes."""

        score_scale: float = setting(
            20.0,
            "s, scale of answer and score",
            above=0,
            grid=(10.0, 20.0, 40.0),
            group="engineering",
        )
        plain_score: bool = setting(
            True, "detect by plain cosines; false: by the metric's", group="ablation"
        )
        names: bool = setting(
            True, "the classes' names as prior; false: images alone", group="ablation"
        )
        choose: bool = setting(
            True, "shrinkage by losses on images left out; false: OAS's", group="ablation"
        )

    config: Config
    paper = "ours; James & Stein 1961"
    shares = "class means, second moment, losses"
    scores_by = "ID mass under the client's prior"
    also = ("losses",)
    solved = ("images", "spread_told", "centre", "metric", "classes", "plain")

    @property
    def scale(self) -> float:
        """Cosines are multiplied by `score_scale`."""
        return self.config.score_scale

    def first(self, task: Task) -> Params:
        """No losses yet."""
        return {"losses": task.anchors.new_zeros(1 + len(SHRINKAGES), len(SCALES))}

    def measure(self, params: Params, images: Batch, task: Task) -> Params:
        """Sums, and losses of the client's images under the model it received."""
        measured = self.sums.measure(params, images)
        known = measured["mean_weight"][:, 0] > 0
        counts = params["images"].double()
        usable = (known & (counts >= 2))[images.labels]
        if not self.config.choose or not bool(usable.any()) or float(params["spread_told"]) <= 0:
            return {**measured, "losses": params["losses"]}
        chosen = Batch(images.pooled[usable], None, images.labels[usable])
        losses = self.losses(received(params), chosen, task)
        return {**measured, "losses": (UNIT * losses).to(params["losses"])}

    def losses(self, totals: Totals, images: Batch, task: Task) -> Tensor:
        """Compute the mean cross-entropy of images left out, at every shrinkage and scale.

        Args:
            totals: What is known of all images.
            images: The images.
            task: The task.

        Returns:
            Losses (k, s).
        """
        basis, labels = Basis.of(totals), images.labels.cpu()
        rows = []
        for shrinkage in (oas(totals.scatter, totals.freedom), *SHRINKAGES):
            texts = task.anchors.double()
            estimate = self.means(totals, texts, basis, shrinkage)
            seen = Seen(basis, shrinkage, totals.centre)
            cosines = left_out_cosines(images.pooled, labels, totals, estimate, seen)
            rows.append(
                torch.stack(
                    [
                        F.cross_entropy(s * cosines, labels, reduction="none").clamp(max=LARGEST)
                        for s in SCALES
                    ]
                ).mean(dim=1)
            )
        return torch.stack(rows)

    def means(self, totals: Totals, texts: Tensor, basis: Basis, shrinkage: float) -> Posterior:
        """Return posterior class means at a shrinkage, or those of the images alone.

        Args:
            totals: What is known of all images.
            texts: Text features of the classes (C, D).
            basis: Of the covariance within classes.
            shrinkage: The shrinkage.

        Returns:
            The means.
        """
        if self.config.names:
            return posterior(totals, texts, basis, shrinkage, totals.centre)
        known = (totals.images.cpu() > 0).double()
        seen = Seen(basis, shrinkage, totals.centre)
        return Posterior(seen(totals.means) * known[:, None], known, 0.0, 0.0)

    def solve(self, totals: Totals, task: Task, extras: Params) -> tuple[Params, dict[str, float]]:
        """The metric at the chosen shrinkage, and class means as it sees them."""
        losses = extras["losses"].double().cpu() / UNIT
        shrinkage = max(oas(totals.scatter, totals.freedom), 1e-3)
        if self.config.choose and bool((losses > 0).any()):
            best = int(losses.amin(dim=1).argmin())
            shrinkage = shrinkage if best == 0 else SHRINKAGES[best - 1]
        basis = Basis.of(totals)
        estimate = self.means(totals, task.anchors.double(), basis, shrinkage)
        scales = basis.scales(shrinkage)
        named = totals.centre.cpu() + (estimate.means / scales) @ basis.vectors.T
        plain = torch.where(totals.images.cpu()[:, None] > 0, totals.means.cpu(), named)
        report = {"shrinkage": shrinkage, "kappa": estimate.kappa, "explained": estimate.explained}
        solved = {
            "images": totals.images,
            "spread_told": totals.images.new_full((1,), totals.told),
            "centre": totals.centre,
            "metric": basis.vectors * scales,
            "classes": estimate.means,
            "plain": plain * (estimate.means.abs().sum(dim=1, keepdim=True) > 0),
        }
        return solved, report

    def model(self, params: Params, task: Task) -> Text:
        """Posterior class means (C, D) in the metric's coordinates."""
        classes = params["classes"]
        parts = {name: params[name] for name in ("centre", "metric")}
        parts["plain"] = F.normalize(params["plain"], dim=-1)
        known = classes.abs().sum(dim=1) > 0
        return Text(F.normalize(classes, dim=-1), parts={**parts, "known": known})

    def evidence(self, text: Text, pooled: Tensor) -> Logits:
        """Cosines of images and posterior means, and the plain ones (N, C) for the score."""
        known, apart = text.parts["known"], APART / self.scale
        images = (pooled - text.parts["centre"]) @ text.parts["metric"]
        cosines = F.normalize(images, dim=-1) @ text.id.T
        plain = answerable(pooled @ text.parts["plain"].T, known, apart) + text.parts[PRIOR]
        return Logits(answerable(cosines, known, apart), parts={"plain": plain})

    def score(self, logits: Logits, task: Task) -> Tensor:
        """ID mass: how little of all evidence, weighed by the prior, speaks for any class."""
        return scores.energy(
            logits.parts["plain"] if self.config.plain_score else logits.id, self.scale
        )


def received(params: Params) -> Totals:
    """Read what is known of all images from the tensors that a client received.

    Args:
        params: The shared tensors.

    Returns:
        The sums.
    """
    means, moment = params["means"].double(), params["moment"].double()
    spread_images = float(params["spread_told"])
    return Totals(means.cpu(), params["images"].double().cpu(), moment.cpu(), spread_images)
