"""TOFA: Gaussian classes with a client's own posterior, prompts weighed by all clients, one round.

Paper: Zhang et al., TOFA: Training-Free One-Shot Federated Adaptation for Vision-Language Models,
AAAI 2026.

Images of class c are N(w_c, S). Everybody's images D give a posterior of w_c and S (Normal-inverse-
Wishart, flat prior), which is client k's prior with the power a; its own images D_k come on top:
    q_k ~ L(D_k) L(D)^a                                                a -> `power`
    w_kc = (a N_c w_c + n_kc m_kc) / (a N_c + n_kc), m_kc the mean of its own n_kc images
    S_k  = (a T + T_k + sum_c a N_c n_kc / (a N_c + n_kc) d_kc d_kc^T) / (a N + n_k), d = m_kc - w_c
with T, T_k the scatter within classes of all images and of its own. Images vote by the Gaussian
discriminant g_c(h) = h P w_kc - w_kc P w_kc / 2, P = ((1 - r) S_k + r tr(S_k)/D I)^(-1).
Prompts t_c^m of a class (`PROMPTS`; t_c^0 is `data.template`) are judged by clients that hold it:
u(t) is the mean probability that their images of class c have under zero-shot CLIP with t for c,
    worth r_cm = mean over clients of u(t_c^0) log(u(t_c^m) / u(t_c^0))
and the text feature e_c is their mean with weights softmax_m(r_cm / T)      T -> `worth_scale`
    f_V = g, f_T = s h.e_c, y = sigmoid(log(max softmax f_V / max softmax f_T))
    answer argmax_c y f_V + (1 - y) f_T + log pi_c, y of each image; score -log sum_c exp of it
with pi the client's prior, lambda -> `open_share` (`_prior.py`). A class that nobody has told has
the mean g of the others: its text decides.

What a client tells is of classes with `least_images` different images or more, and how images vary
within them only where images less classes make `least_freedom`. Its own posterior is made of all
its images, which stay.

Shared: measured `means` (C, D), `mean_weight` (C, 16), `moment` (D, D), `spread_weight` (16,),
`worth` (C, M); the server's `images` (C,), `spread_told` (1,).
Private: `counts` (C,) of the client's own labels, `own_sums` (C, D), `own_scatter` (D, D).

Differs from the authors' code: none is published; this follows the paper's description. A language
model at every client writes its prompts, here they are hand-written templates. The paper leaves
open how worth makes weights, the value of a and how S is inverted where images are few: a softmax,
1, and the shrinkage of GDA-CLIP (`gda_clip.py`), r = D / (N - 1 + D). Worth is averaged by images,
so that sums suffice, where theirs counts clients alike. A prior, a score and a least number of
images, of which the paper has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from focoop.fields import setting
from focoop.methods._averages import class_weighted_mean
from focoop.methods._closed_form import SpreadConfig, SpreadForm, has_mean
from focoop.methods._metric import NOTHING, class_means, whitening
from focoop.methods._sums import LEAST_SHARE, Totals
from focoop.methods._weights import MEASURED, read
from focoop.methods.base import Batch, ClientUpdate, Logits, Params, Server, State, Task, Text

if TYPE_CHECKING:
    from torch import Tensor

PROMPTS = (
    "a photo of the {}.",
    "a close-up photo of a {}.",
    "a blurry photo of a {}.",
    "a photo of a small {}.",
    "a photo of many {}.",
    "a picture of a {} in its surroundings.",
    "a drawing of a {}.",
)
LEAST = 1e-6  # probability below which a prompt is not judged more exactly


class TOFA(SpreadForm):
    """A client's own Gaussian classes beside prompts that all clients judge, one round."""

    @dataclass(frozen=True)
    class Config(SpreadConfig):
        """Settings of TOFA."""

        power: float = setting(
            1.0,
            "a, power of everybody's images in a client's posterior",
            above=0,
            grid=(0.1, 0.3, 1.0, 3.0),
            group="paper",
        )
        worth_scale: float = setting(
            0.1, "T, how evenly prompts are weighed; large: alike", above=0, group="engineering"
        )

    config: Config
    paper = "Zhang et al. 2026"
    shares = "class means, second moment, worth of prompts"
    keeps = "class counts, sums and scatter of its images"
    scores_by = "ID mass under the client's prior"
    also = ("worth",)
    server_made = ("images", "spread_told")

    @property
    def scale(self) -> float:
        """The factor that makes log-odds of the evidence: 1, because it is log-odds already."""
        return 1.0

    @property
    def by_class(self) -> tuple[str, ...]:  # type: ignore[override]
        """Class means and what prompts are worth have a row per class."""
        return (*self.sums.by_class, "worth")

    @property
    def untrained(self) -> tuple[str, ...]:  # type: ignore[override]
        """Everything, the private tensors too."""
        return (*super().untrained, "own_sums", "own_scatter")

    def prepare(self, task: Task) -> Params:
        """`prompts` (C, 1 + M, D): the template's features, then those of `PROMPTS`."""
        texts = [p.format(name.replace("_", " ")) for name in task.classes for p in PROMPTS]
        made = task.texts(texts).view(len(task.classes), len(PROMPTS), -1).to(task.anchors)
        return {"prompts": torch.cat([task.anchors[:, None], made], dim=1)}

    def first(self, task: Task) -> Params:
        """All prompts are worth the same."""
        return {"worth": task.anchors.new_zeros(len(task.classes), 1 + len(PROMPTS))}

    def init(self, task: Task, generator: torch.Generator) -> State:
        """Nothing is known of any class, nor of own images."""
        state = super().init(task, generator)
        rows, width = task.anchors.shape
        zeros = task.anchors.new_zeros
        own = {"own_sums": zeros(rows, width), "own_scatter": zeros(width, width)}
        return State(state.shared, {**state.private, **own})

    def remember(self, private: Params, images: Batch, task: Task) -> Params:
        """Sums and scatter of the client's own images, for its posterior."""
        means = class_means(images, len(task.classes))
        off = images.pooled.double() - means[images.labels]
        counts = torch.bincount(images.labels, minlength=len(means))
        own = {"counts": counts, "own_sums": means * counts[:, None], "own_scatter": off.T @ off}
        return {**private, **{name: value.to(private[name]) for name, value in own.items()}}

    def measure(self, params: Params, images: Batch, task: Task) -> Params:
        """Sums, and what prompts are worth on the client's images of the classes it tells."""
        measured = self.sums.measure(params, images)
        tells = (measured["mean_weight"] > 0).all(dim=1, keepdim=True)
        worth = worth_of(images, task.frozen["prompts"], task.logit_scale)
        return {**measured, "worth": torch.where(tells, worth, params["worth"])}

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Add up what clients told; the worth of prompts is a mean by images of each class."""
        result = super().aggregate(server, updates, task)
        old, nothing = server.shared["worth"], torch.zeros_like(server.shared["mean_weight"])
        weight = read(MEASURED, class_weighted_mean(updates, "mean_weight", nothing))
        share = weight.share[:, None].to(old).clamp(LEAST_SHARE, 1.0)  # of images that were judged
        known = result.memory["images"].to(old)
        before = server.memory.get("images", torch.zeros_like(known)).to(known)
        part = (1.0 - before / known.clamp(min=1e-9))[:, None] / share
        fresh = class_weighted_mean(updates, "worth", old)
        shared = {**result.shared, "worth": old + (fresh - old) * part}
        return Server(shared, result.memory, result.report)

    def solve(self, totals: Totals, task: Task, extras: Params) -> tuple[Params, dict[str, float]]:
        """How many images are behind the sums: each client solves for its own posterior."""
        told = totals.images.new_full((1,), totals.told)
        return {"images": totals.images, "spread_told": told}, {}

    def posterior(self, params: Params) -> tuple[Tensor, Tensor]:
        """Compute a client's class means (C, D) and its metric (D, D), the root of P.

        Args:
            params: The client's tensors.

        Returns:
            Means, zero where nobody has images; metric, zero where nothing is known of the spread.
        """
        names = ("means", "moment", "counts", "own_sums", "own_scatter")
        means, moment, counts, sums, scatter = (params[name].double().cpu() for name in names)
        images, told = params["images"].double().cpu(), float(params["spread_told"])
        totals = Totals(means, images, moment, told)
        power = self.config.power
        every = power * images
        own = sums / counts.clamp(min=1)[:, None]
        both = every + counts
        centres = (every[:, None] * means + sums) / both.clamp(min=1e-9)[:, None]
        apart = own - means
        between = apart.T @ ((every * counts / both.clamp(min=1e-9))[:, None] * apart)
        freedom = power * told + float(counts.sum())
        spread = (power * totals.scatter + scatter + between) / max(freedom, 1.0)
        width = len(spread)
        if float(spread.diagonal().mean()) < NOTHING:
            return centres, torch.zeros_like(spread)
        shrinkage = width / (max(freedom, 1.0) - 1.0 + width)
        return centres, whitening(spread, shrinkage) * width**0.5

    def model(self, params: Params, task: Task) -> Text:
        """Weighed prompts (C, D) times s; the client's class means as its metric sees them."""
        centres, metric = (value.to(task.anchors) for value in self.posterior(params))
        weights = torch.softmax(params["worth"] / self.config.worth_scale, dim=1)
        texts = torch.einsum("cm,cmd->cd", weights, task.frozen["prompts"])
        parts = {"metric": metric, "means": centres @ metric, "known": has_mean(centres)}
        return Text(F.normalize(texts, dim=-1) * task.logit_scale, parts=parts)

    def evidence(self, text: Text, pooled: Tensor) -> Logits:
        """Images' and texts' log-odds, each image by how sure both are of it."""
        known, means = text.parts["known"], text.parts["means"]
        gauss = pooled @ text.parts["metric"] @ means.T - means.square().sum(dim=1) / 2.0
        share = known.to(gauss) / known.sum().clamp(min=1)
        gauss = torch.where(known, gauss, (gauss @ share)[:, None])
        words = pooled @ text.id.T
        sure = [F.log_softmax(one, dim=1).amax(dim=1, keepdim=True) for one in (gauss, words)]
        images = torch.sigmoid(sure[0] - sure[1])
        return Logits(images * gauss + (1.0 - images) * words)


def worth_of(images: Batch, prompts: Tensor, scale: float) -> Tensor:
    """What each prompt of a class adds to the template's, judged by a client's images.

    Args:
        images: The client's images.
        prompts: Features (C, 1 + M, D); the first are the template's.
        scale: s, which makes log-odds of cosines.

    Returns:
        Worth (C, 1 + M), u(t_0) log(u(t_m) / u(t_0)); zero where the client has no image.
    """
    plain = scale * images.pooled @ prompts[:, 0].T  # (n, C)
    own = images.labels[:, None]
    others = plain.scatter(1, own, -torch.inf).logsumexp(dim=1)
    judged = scale * torch.einsum("nd,nmd->nm", images.pooled, prompts[images.labels])
    sure = torch.sigmoid(judged - others[:, None])  # (n, 1 + M)
    sums = sure.new_zeros(prompts.shape[:2]).index_add_(0, images.labels, sure)
    counts = torch.bincount(images.labels, minlength=len(prompts))[:, None]
    mean = (sums / counts.clamp(min=1)).clamp(min=LEAST)
    return torch.where(counts > 0, mean[:, :1] * (mean / mean[:, :1]).log(), 0.0)
