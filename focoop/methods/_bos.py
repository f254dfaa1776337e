"""Bi-level separations: the loss over C + U prompts and its worst perturbation within a price."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F

from focoop.methods.base import Batch, Params, Text

if TYPE_CHECKING:
    from torch import Tensor

WIDEST, MOST = 1024, 4096  # rows of the GPU's kernels, and how many of them there may be
BACK_OFF = 0.25  # of the lengths tried in one step of the ascent, what each is of the last

# How rows are perturbed: steps that each raise the objective, the steps of Alg. 2 taken whatever
# they do, directions drawn at random with the lengths of the first, or no perturbation at all.
Rule = Literal["monotone", "alg2", "random", "none"]
Function = Callable[["Tensor"], "Tensor"]


@dataclass(frozen=True)
class Ascent:
    """How the rows of one kind, R class or OOD prompts, are perturbed.

    The objective is F(eps) = L(eps) - tau sum_r |eps_r| / R over |eps_r| <= radius. A prompt is one
    of R equal atoms of its distribution, so that a row pays tau for its distance out of its share
    1/R of the loss: it moves where R |dL/deps_r| exceeds tau.

    Attributes:
        radius: cap on each row's norm; 0 for none.
        step_size: of a normalised step, as a share of the radius (of 1 without a radius);
            otherwise the factor of the raw gradient.
        steps: how many steps are taken.
        tau: price of a row's distance.
        normalised: unit row gradients; otherwise raw gradients.
        rule: how a step is made.
        trials: how many lengths are tried in a step.
    """

    radius: float
    step_size: float
    steps: int
    tau: float
    normalised: bool = True
    rule: Rule = "monotone"
    trials: int = 4

    def climb(
        self, value: Function, slope: Function, start: Tensor, directions: Tensor | None = None
    ) -> Tensor:
        """Perturb rows until all steps are made.

        Args:
            value: noise (R, ...) -> L, a scalar.
            slope: noise (R, ...) -> dL/deps (R, ...).
            start: the first noise (R, ...).
            directions: random rows (R, ...) that take the place of the found ones, for `random`.

        Returns:
            The noise (R, ...) after the last step.
        """
        if self.rule == "none":
            return torch.zeros_like(start)
        if self.rule == "alg2":
            for _ in range(self.steps):
                start = self.step(start, slope(start) - self.price_slope(start))
            return start
        noise = self.monotone(value, slope, start)
        if self.rule == "random":
            assert directions is not None
            return directions * row_norms(noise) / row_norms(directions).clamp(min=1e-12)
        return noise

    def monotone(self, value: Function, slope: Function, start: Tensor) -> Tensor:
        """Proximal steps; of several lengths the best is taken, none where none raises F.

        There is no branch, so that clients can be mapped and steps recorded.
        """
        noise = self.capped(start)
        best = value(noise) - self.price(noise)
        length = torch.ones_like(best)
        for _ in range(self.steps):
            direction, origin = slope(noise), noise
            first, length = length, length * BACK_OFF**self.trials
            for trial in range(self.trials):
                tried = first * BACK_OFF**trial
                moved = self.proximal(origin, direction, tried)
                worth = value(moved) - self.price(moved)
                better = worth > best
                noise = torch.where(better, moved, noise)
                best = torch.where(better, worth, best)
                length = torch.where(better, tried, length)
            length = (length / BACK_OFF).clamp(max=1.0)
        return noise

    def proximal(self, noise: Tensor, direction: Tensor, length: Tensor) -> Tensor:
        """A step of some length, then what the price takes back, then into the radius.

        This is the exact maximiser of L's linear model, less the price and the squared step: the
        proximal map of a row's norm and that of a ball, one after the other.
        """
        reach = self.step_size * length
        if self.normalised:
            reach = reach * (self.radius or 1.0) / row_norms(direction).clamp(min=1e-12)
        moved = noise + reach * direction
        rows = len(noise)
        if self.tau > 0:
            lost = reach * self.tau / rows / row_norms(moved).clamp(min=1e-12)
            moved = moved * (1.0 - lost).clamp(min=0.0)
        return self.capped(moved)

    def capped(self, noise: Tensor) -> Tensor:
        """The noise with every row brought back into the radius."""
        if self.radius <= 0:
            return noise
        return noise * (self.radius / row_norms(noise).clamp(min=1e-12)).clamp(max=1.0)

    def price(self, noise: Tensor) -> Tensor:
        """Return tau sum_r |eps_r| / R, what the perturbation pays."""
        price: Tensor = self.tau * noise.flatten(1).norm(dim=1).mean()
        return price

    def price_slope(self, noise: Tensor) -> Tensor:
        """The gradient of `price`; 0 where the noise is 0."""
        norms = row_norms(noise)
        slope: Tensor = noise * (self.tau / len(noise) / torch.where(norms > 0, norms, 1.0))
        return slope

    def step(self, noise: Tensor, gradient: Tensor) -> Tensor:
        """One step of Alg. 2, then back into the radius."""
        if not self.normalised:
            return self.capped(torch.add(noise, gradient, alpha=self.step_size))
        reach = self.step_size * (self.radius or 1.0) / row_norms(gradient).clamp(min=1e-12)
        return self.capped(noise + reach * gradient)


@dataclass(frozen=True)
class Outer:
    """How the losses of a batch become one: m log mean_b exp(L_b / m), their soft maximum.

    It tends to the mean for a large width m, which is what an infinite one gives, and to the
    largest loss for a small one.

    Attributes:
        width: m.
        relative: m is in units of the batch's mean loss, so that one value means the same on any
            logit scale.
    """

    width: float = math.inf
    relative: bool = True

    def __call__(self, losses: Tensor) -> Tensor:
        """(..., B) losses -> (...)."""
        if math.isinf(self.width):
            return losses.mean(dim=-1)
        width = self.width_of(losses)
        total = (losses / width).logsumexp(dim=-1) - math.log(losses.shape[-1])
        return width.squeeze(-1) * total

    def width_of(self, losses: Tensor) -> Tensor:
        """(..., 1) the width m for the losses (..., B) of a batch, which has no gradient."""
        mean = losses.detach().mean(dim=-1, keepdim=True)
        if self.relative:
            return self.width * mean.clamp(min=1e-12)
        return torch.full_like(mean, self.width)


@dataclass(frozen=True)
class Separation:
    """The mean `separation_loss` of a batch as a function of noise on unit rows, in closed form.

    With unit rows u = (t + eps) / |t + eps|, logits l and their softmax over C + U:
        dL/dl = ((1 + w) softmax - [ID] (w softmax over ID + one-hot)) / B
        dL/deps = (g - u (u.g)) / |t + eps|, g = s (dL/dl)^T x

    Attributes:
        batch: images and labels.
        scale: s, factor of the cosines.
        detection_weight: w, weight of -log p(ID|x).
        kernels: whether `loss` uses the kernels of `_bos_triton.py`; None: where they can be used.
        kernel_rows: rows that one program of these kernels moves.
    """

    batch: Batch
    scale: float
    detection_weight: float
    kernels: bool | None = None
    kernel_rows: int = 1

    def loss(self, text: Text, noise: Params, ids: Ascent, oods: Ascent, outer: Outer) -> Tensor:
        """Eq. sol_dro: one loss of the batch's losses under the worst perturbations."""
        kernels = self.kernels
        if kernels is None:
            kernels = fits(text.id, text.ood, ids, oods)
        if kernels:
            from focoop.methods._bos_triton import RobustLoss

            robust_loss: Tensor = RobustLoss.apply(
                text.id, text.ood, noise["id"], noise["ood"], self.batch.pooled, self.batch.labels,
                ids, oods, self.scale, self.detection_weight, outer, self.kernel_rows,
            )[0]  # fmt: skip
            return robust_loss
        worst = self.worst(text, noise, ids, oods)
        return outer(separation_loss(worst, self.batch, self.scale, self.detection_weight))

    def worst(self, text: Text, noise: Params, ids: Ascent, oods: Ascent) -> Text:
        """Unit text features under the worst perturbations: class rows first, OOD rows given them.

        `noise` holds the starting rows `id` and `ood`, and for random directions `id_direction`
        and `ood_direction`. A fused class feature moves as a whole: its global part has no address
        of its own there.
        """
        assert text.ood is not None
        still_id, still_ood = text.id.detach(), text.ood.detach()
        side = Side(self, still_id, still_ood, ids=True)
        moved = ids.climb(side.value, side.slope, noise["id"], noise.get("id_direction"))
        worst = F.normalize(text.id + moved, dim=-1)
        side = Side(self, still_ood, worst.detach(), ids=False)
        moved = oods.climb(side.value, side.slope, noise["ood"], noise.get("ood_direction"))
        return Text(worst, F.normalize(text.ood + moved, dim=-1))

    def logits(self, unit: Tensor) -> Tensor:
        """(B, R) scaled cosines."""
        return self.scale * self.batch.pooled @ unit.T


class Side:
    """The mean loss where `rows` (R, D) move and `others` stay as they are.

    Args:
        of: The loss.
        rows: The rows that move (R, D).
        others: The rows that stay.
        ids: The rows are those of classes.

    Attributes:
        there: (B, 1) log of the sum over the others.
        own: (B, R) one where the row is the image's class, for class rows.
    """

    def __init__(self, of: Separation, rows: Tensor, others: Tensor, *, ids: bool) -> None:
        self.of, self.rows = of, rows
        fixed = of.logits(others)
        self.there = fixed.logsumexp(dim=1, keepdim=True)
        labels = of.batch.labels[:, None]
        classes = torch.arange(len(rows if ids else others), device=rows.device)
        own = (labels == classes).to(rows.dtype)
        self.own = own if ids else None
        # Of OOD rows the loss has a part that does not move.
        self.fixed = None if ids else (own * fixed).sum(dim=1)

    def units(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Moved rows (R, D) of unit length, and their length before (R, 1)."""
        moved = self.rows + noise
        length: Tensor = moved.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        return moved / length, length

    def value(self, noise: Tensor) -> Tensor:
        """The mean loss under noise (R, D), a scalar."""
        weight = self.of.detection_weight
        logits = self.of.logits(self.units(noise)[0])
        here, there = logits.logsumexp(dim=1), self.there[:, 0]
        total = torch.logaddexp(here, there)
        if self.own is not None:
            return (total - (self.own * logits).sum(dim=1) + weight * (total - here)).mean()
        assert self.fixed is not None
        return (total - self.fixed + weight * (total - there)).mean()

    def slope(self, noise: Tensor) -> Tensor:
        """The gradient (R, D) of `value`."""
        weight, pooled = self.of.detection_weight, self.of.batch.pooled
        unit, length = self.units(noise)
        logits = self.of.logits(unit)
        shares = logits.log_softmax(dim=1)  # among these rows
        here = logits[:, :1] - shares[:, :1]  # log of their sum
        part = (1.0 + weight) * torch.sigmoid(here - self.there)
        pull = part * shares.exp()
        if self.own is not None:
            pull = (part - weight) * shares.exp() - self.own
        g = self.of.scale / len(pooled) * pull.T @ pooled
        along = (unit * g).sum(dim=-1, keepdim=True)
        slope: Tensor = (g - unit * along) / length
        return slope


def fits(ids: Tensor, oods: Tensor | None, *ascents: Ascent) -> bool:
    """Whether the kernels of `_bos_triton.py` can: a GPU and unit gradients.

    They make the steps that each raise the objective. Those of the ablations, `alg2`, `random` and
    `none`, are made in torch.
    """
    from focoop.clip import fused  # here: importing it loads torch, which a table does without

    assert oods is not None
    return (
        ids.device.type == "cuda"
        and ids.dtype == torch.float32
        and ids.shape[1] <= WIDEST
        and max(len(ids), len(oods)) <= MOST
        and all(a.normalised and a.rule == "monotone" for a in ascents)
        and fused.builds(ids.device)
    )


def row_norms(rows: Tensor) -> Tensor:
    """(R, ...) -> (R, 1, ...) Euclidean norm of each row."""
    norms: Tensor = rows.flatten(1).norm(dim=1)
    return norms.view(-1, *[1] * (rows.dim() - 1))


def separation_loss(text: Text, batch: Batch, scale: float, detection_weight: float) -> Tensor:
    """(B,) -log p(y|x) - w log p(ID|x) over C + U prompts (Eq. bi_obj)."""
    assert text.ood is not None
    id_logits = scale * batch.pooled @ text.id.T
    ood_logits = scale * batch.pooled @ text.ood.T
    id_sum = id_logits.logsumexp(dim=1)
    total = torch.logaddexp(id_sum, ood_logits.logsumexp(dim=1))
    own = id_logits.gather(1, batch.labels[:, None]).squeeze(1)
    return (total - own) + detection_weight * (total - id_sum)
