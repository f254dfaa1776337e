"""Bi-level separations: the loss over C + U prompts and its worst perturbation within a price."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from focoop.clip import fused
from focoop.methods.base import Batch, Params, Text

WIDEST, MOST = 1024, 4096  # rows of the GPU's kernels, and how many of them there may be


@dataclass(frozen=True)
class Ascent:
    """How perturbations are explored (Alg. 2).

    Attributes:
        radius: cap on each row's norm; 0 for none.
        step_size: of a normalised step, as a share of the radius (of 1 without a radius);
            otherwise the factor of the raw gradient.
        normalised: unit row gradients; otherwise raw gradients.
        gamma: L1 price of a perturbation.
    """

    radius: float
    step_size: float
    normalised: bool
    gamma: float

    def climb(
        self, slope: Callable[[Tensor], Tensor], start: Tensor, *, steps: int, tau: float
    ) -> Tensor:
        """Noise (R, ...) after `steps` of ascent from `start`; `slope` is the objective's gradient.

        The price of moving, tau, is taken off.
        """
        noise = start
        for _ in range(steps):
            noise = self.step(noise, slope(noise) - self.price_slope(noise, tau))
        return noise

    def price_slope(self, noise: Tensor, tau: float) -> Tensor:
        """The gradient of `price`; 0 where the noise is 0."""
        norms = row_norms(noise)
        slope = tau / len(noise) * noise / torch.where(norms > 0, norms, 1.0)
        if self.gamma > 0:
            slope = slope + self.gamma / len(noise) * noise.sign()
        return slope

    def price(self, noise: Tensor, tau: float) -> Tensor:
        """Tau mean_r |eps_r|_2 + gamma mean_r |eps_r|_1: the expected transport cost."""
        rows = noise.flatten(1)
        price: Tensor = tau * rows.norm(dim=1).mean()
        if self.gamma > 0:
            price = price + self.gamma * rows.abs().sum(dim=1).mean()
        return price

    def step(self, noise: Tensor, gradient: Tensor) -> Tensor:
        """One step of ascent, then back into the radius."""
        step = self.step_size * gradient
        if self.normalised:
            step = step * (self.radius or 1.0) / row_norms(gradient).clamp(min=1e-12)
        noise = noise + step
        if self.radius > 0:
            noise = noise * (self.radius / row_norms(noise).clamp(min=1e-12)).clamp(max=1.0)
        return noise


Move = tuple[Ascent, int, float]  # how rows are perturbed: ascent, steps, price


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
        offset: (C,) added to the class logits, for example a log prior; None: nothing.
        kernels: whether `loss` uses the kernels of `_bos_triton.py`; None: where they can be used.
        kernel_rows: rows that one program of these kernels moves.
    """

    batch: Batch
    scale: float
    detection_weight: float
    offset: Tensor | None = None
    kernels: bool | None = None
    kernel_rows: int = 1

    def loss(
        self, text: Text, noise: Params, move_id: Move, move_ood: Move, sharpness: float
    ) -> Tensor:
        """Eq. sol_dro: the soft maximum of the batch's losses under the worst perturbations."""
        kernels = self.kernels
        if kernels is None:
            kernels = fits(text.id, text.ood, move_id[0], move_ood[0])
        if kernels:
            from focoop.methods._bos_triton import RobustLoss

            found: Tensor = RobustLoss.apply(
                text.id, text.ood, noise["id"], noise["ood"], self.batch.pooled, self.batch.labels,
                self.offset, move_id, move_ood, self.scale, self.detection_weight, sharpness,
                self.kernel_rows,
            )[0]  # fmt: skip
            return found
        worst = self.worst(text, noise, move_id, move_ood)
        losses = separation_loss(worst, self.batch, self.scale, self.detection_weight, self.offset)
        return soft_maximum(losses, sharpness)

    def worst(self, text: Text, noise: Params, move_id: Move, move_ood: Move) -> Text:
        """Unit text features under the worst perturbations: class rows first, OOD rows given them.

        `noise` holds the starting rows `id` and `ood`. A fused class feature moves as a whole: its
        global part has no address of its own there.
        """
        assert text.ood is not None
        still_id, still_ood = text.id.detach(), text.ood.detach()
        ascent, steps, tau = move_id
        slope = self.slope(still_id, still_ood, ids=True)
        worst = F.normalize(
            text.id + ascent.climb(slope, noise["id"], steps=steps, tau=tau), dim=-1
        )
        ascent, steps, tau = move_ood
        slope = self.slope(still_ood, worst.detach(), ids=False)
        moved = ascent.climb(slope, noise["ood"], steps=steps, tau=tau)
        return Text(worst, F.normalize(text.ood + moved, dim=-1))

    def logits(self, unit: Tensor, *, ids: bool) -> Tensor:
        """(B, R) scaled cosines."""
        logits = self.scale * self.batch.pooled @ unit.T
        return logits + self.offset if ids and self.offset is not None else logits

    def slope(self, rows: Tensor, others: Tensor, *, ids: bool) -> Callable[[Tensor], Tensor]:
        """Noise (R, D) -> gradient, where `rows` (R, D) move and `others` stay as they are."""
        there = self.logits(others, ids=not ids).logsumexp(dim=1, keepdim=True)
        weight, pooled = self.detection_weight, self.batch.pooled
        classes = torch.arange(len(rows), device=rows.device)
        own = (self.batch.labels[:, None] == classes).to(rows.dtype) if ids else None  # (B, R)

        def at(noise: Tensor) -> Tensor:
            moved = rows + noise
            length: Tensor = moved.norm(dim=-1, keepdim=True).clamp(min=1e-12)
            unit = moved / length
            logits = self.logits(unit, ids=ids)
            shares = logits.log_softmax(dim=1)  # among these rows
            here = logits[:, :1] - shares[:, :1]  # log of their sum
            part = (1.0 + weight) * torch.sigmoid(here - there)
            pull = part * shares.exp() if own is None else (part - weight) * shares.exp() - own
            g = self.scale / len(pooled) * pull.T @ pooled
            along = (unit * g).sum(dim=-1, keepdim=True)
            slope: Tensor = (g - unit * along) / length
            return slope

        return at


def fits(ids: Tensor, oods: Tensor | None, *ascents: Ascent) -> bool:
    """Whether the kernels of `_bos_triton.py` can: a GPU, unit gradients, no L1 price."""
    assert oods is not None
    return (
        ids.device.type == "cuda"
        and ids.dtype == torch.float32
        and ids.shape[1] <= WIDEST
        and max(len(ids), len(oods)) <= MOST
        and all(ascent.normalised and ascent.gamma == 0 for ascent in ascents)
        and fused.builds(ids.device)
    )


def row_norms(rows: Tensor) -> Tensor:
    """(R, ...) -> (R, 1, ...) Euclidean norm of each row."""
    norms: Tensor = rows.flatten(1).norm(dim=1)
    return norms.view(-1, *[1] * (rows.dim() - 1))


def soft_maximum(losses: Tensor, sharpness: float) -> Tensor:
    """(B,) -> scalar sharpness * log mean_b exp(loss_b / sharpness): the outer loss of Eq. sol_dro.

    Tends to the mean for large and to the maximum for small `sharpness` (tau_2 mu).
    """
    total: Tensor = sharpness * ((losses / sharpness).logsumexp(dim=0) - math.log(len(losses)))
    return total


def separation_loss(
    text: Text, batch: Batch, scale: float, detection_weight: float, offset: Tensor | None = None
) -> Tensor:
    """(B,) -log p(y|x) - w log p(ID|x) over C + U prompts (Eq. bi_obj).

    `offset` (C,) is added to the class logits, for example a log prior.
    """
    assert text.ood is not None
    id_logits = scale * batch.pooled @ text.id.T
    if offset is not None:
        id_logits = id_logits + offset
    ood_logits = scale * batch.pooled @ text.ood.T
    id_sum = id_logits.logsumexp(dim=1)
    total = torch.logaddexp(id_sum, ood_logits.logsumexp(dim=1))
    own = id_logits.gather(1, batch.labels[:, None]).squeeze(1)
    return (total - own) + detection_weight * (total - id_sum)
