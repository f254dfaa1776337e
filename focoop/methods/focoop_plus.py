"""FOCoOp+: class means as posteriors with the classes' names as prior, in one round.

Paper: ours; empirical Bayes (James & Stein 1961; Efron & Morris 1973) on federated sums, shrinkage
from OAS (Chen et al., IEEE TSP 2010); `docs/model/focoop_plus.md` has what each part is worth.

A client tells sums of its images, the server makes one Gaussian model of all classes, and a client
answers with it under its own prior. Nothing is trained and nothing is tuned:
    Sigma = (1 - k) S + k tr(S)/D I, k = max(sqrt(rho), d)  S within classes, rho: OAS's shrinkage
    mu_c  = w_c m_c + (1 - w_c) p_c, w_c = n_c / (n_c + kappa)
    nu_c  = mu_c + b_c Sigma (t_c - t)
    W(x)  = (x - m) Sigma^(-1/2),  B(x) = x T^(-1/2)
    answer argmax_c s cos(W(h) - u u.W(h), W(nu_c) - u u.W(nu_c)) + log pi_c   s -> `score_scale`
    score  -log sum_c pi_c exp(s cos(B(h), B(mu_c))) + a e               a: `SURPRISE`
    e = max(0, |W(h)| / r - 1)
m_c is the mean of the n_c images of class c, m that of all images, p_c what the name of c predicts
by a map from text features to means that is learned from all other classes; kappa is the variance
within classes over that of means about such predictions (`_posterior.py`). Where names predict
nothing, all means shrink alike and answers are those of the images. A class known by name alone has
its prediction as its mean. pi is the client's prior, lambda -> `open_share` (`_prior.py`).
t_c is the text feature of c and t their mean: W(h) W(nu_c) has b_c times the zero-shot evidence
h.t_c in it. b_c is what Fisher's discriminant of means and texts asks for, by the sums
(`_text_weight.py`): one number for all classes with images and another for those known by name
alone, which lean on their text the most. Texts that say nothing of the images have b = 0.
u = unit(m Sigma^(-1/2)) is what all images have in common: images of a domain that nobody has seen
are off along it, and without it all of them would look like the same classes.
d is the shrinkage that differences between clients of the same classes ask for, as those of unlike
domains or cameras (`_sums.between_clients`): what varies in one domain need not in the next. It is
0 where clients have no class in common, and where secure sums hide them.
The score asks two things. Does some class explain the image better than images at large do? Their
second moment is T, shrunk as Sigma is, by `BACKGROUND` at most. And does the image lie farther from
all images than a new image typically does? That length is r (`_posterior.typical_length`). An
image that is nearer than that says nothing.
A site that can say in words what else its camera may see (`foreign`: "kitchen", "street") asks a
third thing, whether such a word explains the image better than the classes do:
    score + f log(1 + mean_j exp(s cos(B(h), B(q_j))) / sum_c pi_c exp(s cos(B(h), B(mu_c))))
q_j is what the map predicts of the word j, f the correlation of such predictions with class means:
words weigh as much as the names of the classes have been right, and nothing where those say
nothing.

What a client tells is of classes with `least_images` different images or more, and how images vary
within them only where images less classes make `least_freedom`. A later round adds what new clients
bring.

Shared: measured `means` (C, D), `mean_weight` (C, 16), `moment` (D, D), `spread_weight` (16,); the
server's `centre` (D,), `metric` (D, D), `background` (D, D), `classes` (C, D) mu, `answers` (C, D)
nu, and with J words `foreign` (J, D), `foreign_weight` (1,).
Private: `counts` (C,) of the client's own labels.

Differs from the authors' code: there is none. FOCoOp's prompt sets, separations and transport are
not here: with these sums they changed no answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from focoop.errors import ConfigError
from focoop.fields import setting
from focoop.functional import scores
from focoop.methods._closed_form import APART, SpreadConfig, SpreadForm, answerable, has_mean
from focoop.methods._metric import whitening
from focoop.methods._posterior import (
    lost_to_noise,
    noise_of_means,
    posterior,
    spread_within,
    squares_within,
    typical_length,
    worth,
)
from focoop.methods._prior import PRIOR
from focoop.methods._sums import Totals
from focoop.methods._text_weight import across_plane, with_texts
from focoop.methods.base import Logits, Params, Task, Text

if TYPE_CHECKING:
    from torch import Tensor

SURPRISE = 7.0  # log-odds of a distance from all images that is twice the typical one
BACKGROUND = 0.6  # most shrinkage of the second moment of all images
TEMPLATE = "a photo of a {}."  # of foreign words, and of the classes they are held against


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
        foreign: tuple[str, ...] = setting(
            (),
            "words for what foreign images may show, such as kitchen, street; none: not said",
            group="engineering",
        )

    config: Config
    paper = "ours; James & Stein 1961"
    shares = "class means, second moment"
    scores_by = "ID mass against images at large, and distance"
    # 1: the score counted every distance; 2: texts predicted means and no more; 3: the weight of
    # texts was another one for each number of images, and wrong for few classes; 4: weights were
    # told once, and noised means believed as others
    revision = 5

    @property
    def server_made(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the names of what the server makes."""
        foreign = ("foreign", "foreign_weight") if self.config.foreign else ()
        return ("centre", "metric", "background", "classes", "answers", *foreign)

    @property
    def scale(self) -> float:
        """Cosines are multiplied by `score_scale`."""
        return self.config.score_scale

    def prepare(self, task: Task) -> Params:
        """`foreign` (J, D): texts of the foreign words, as far from the classes' as by `TEMPLATE`.

        The classes may have a template of the run's own.
        """
        if not self.config.foreign:
            return {}
        if not self.config.names:
            raise ConfigError("method.foreign needs the classes' names: leave method.names true")
        classes = [name.replace("_", " ") for name in task.classes]
        taken = {name.casefold() for name in classes}
        words = [word for word in self.config.foreign if word.casefold() not in taken]
        if not words:
            raise ConfigError("every word of method.foreign is a class: say what else may come")
        texts = task.texts([TEMPLATE.format(word) for word in (*words, *classes)])
        off = task.anchors.mean(dim=0) - texts[len(words) :].mean(dim=0)
        return {"foreign": texts[: len(words)] + off}

    def solve(self, totals: Totals, task: Task, extras: Params) -> tuple[Params, dict[str, float]]:
        """The two metrics, and class means as posteriors."""
        spread, shrinkage = spread_within(totals)
        metric = whitening(spread, shrinkage) * len(spread) ** 0.5
        totals = worth(totals, metric)
        centre = totals.centre.cpu()
        length = typical_length(totals, spread, shrinkage, metric)
        answers = classes = totals.means
        report, words = {"shrinkage": shrinkage}, {}
        if self.config.names:
            sums, texts = self._with_words(totals, task)
            found = posterior(sums, texts, metric)
            classes, foreign = found.means[: len(classes)], found.means[len(classes) :]
            within = squares_within(totals, spread, shrinkage, metric)[1]
            noise = noise_of_means(totals, within, metric)
            moved = with_texts(sums, found, texts, metric, noise)
            answers = moved.means[: len(classes)]
            report |= {"kappa": found.kappa, "explained": found.explained, "text": moved.share}
            if self.config.foreign:
                words = {"foreign": foreign, "foreign_weight": centre.new_tensor([found.fit])}
        solved = {
            "centre": centre,
            "metric": metric / length,
            "background": whitening(
                totals.moment,
                max(
                    min(shrinkage, BACKGROUND),
                    lost_to_noise(totals.moment, totals.moment_noise),
                ),
            ),
            "classes": classes,
            "answers": answers,
        }
        return {**solved, **words}, report

    def _with_words(self, totals: Totals, task: Task) -> tuple[Totals, Tensor]:
        """Sums and texts in which foreign words are further classes that nobody has images of."""
        if not self.config.foreign:
            return totals, task.anchors
        foreign = task.frozen["foreign"]
        more = (0, len(foreign))
        means, images = F.pad(totals.means, (0, 0, *more)), F.pad(totals.images, more)
        texts = torch.cat([task.anchors, foreign.to(task.anchors)])
        return replace(totals, means=means, images=images), texts

    def model(self, params: Params, task: Task) -> Text:
        """Class means (C, D) as the metric sees them; as the background's does they are a part."""
        classes, centre = params["classes"], params["centre"]
        along = F.normalize(centre @ params["metric"], dim=0)
        parts = {name: params[name] for name in ("centre", "metric", "background")}
        parts |= {"known": has_mean(classes), "along": along}
        parts["apart"] = F.normalize(classes @ params["background"], dim=-1)
        if self.config.foreign:
            parts["foreign"] = F.normalize(params["foreign"] @ params["background"], dim=-1)
            parts["foreign_weight"] = params["foreign_weight"]
        return Text(across((params["answers"] - centre) @ params["metric"], along), parts=parts)

    def evidence(self, text: Text, pooled: Tensor) -> Logits:
        """Cosines with class means; for the score those against the background, and lengths."""
        parts, least = text.parts, APART / self.scale
        images = (pooled - parts["centre"]) @ parts["metric"]
        cosines = across(images, parts["along"]) @ text.id.T
        seen = F.normalize(pooled @ parts["background"], dim=-1)
        against = answerable(seen @ parts["apart"].T, parts["known"], least)
        score = {"against": against, "length": torch.linalg.vector_norm(images, dim=-1)}
        if self.config.foreign:
            score["words"] = log_mean(self.scale * (seen @ parts["foreign"].T))
            score["foreign_weight"] = parts["foreign_weight"]
        return Logits(answerable(cosines, parts["known"], least), parts=score)

    def score(self, logits: Logits, task: Task) -> Tensor:
        """How little speaks for any class against images at large, and how far the image is.

        Only a distance beyond that of a typical new image counts.
        """
        parts = logits.parts
        excess = F.relu(parts["length"] - 1.0)
        prior = parts.get(PRIOR, torch.zeros_like(parts["against"][:1]))
        against = parts["against"] + prior
        known = scores.energy(against, self.scale) + SURPRISE * excess
        if "words" not in parts:
            return known
        # The prior has no unit: its sum makes a foreign image as likely as one of a class.
        mass = torch.logsumexp(self.scale * prior, dim=-1)
        odds = parts["words"] + mass - torch.logsumexp(self.scale * against, dim=-1)
        return known + parts["foreign_weight"] * F.softplus(odds)


def log_mean(logits: Tensor) -> Tensor:
    """Return the log of the mean of exponentials of each row.

    Args:
        logits: (N, J).

    Returns:
        (N,) logs.
    """
    return torch.logsumexp(logits, dim=-1) - math.log(logits.shape[-1])


def across(rows: Tensor, along: Tensor) -> Tensor:
    """Return unit rows without their part along a direction.

    Args:
        rows: (N, D).
        along: (D,) a unit vector, or zero: nothing is taken out.

    Returns:
        (N, D) rows of length 1.
    """
    return F.normalize(across_plane(rows, along), dim=-1)
