"""Bi-level separations on a GPU: `_bos.Separation.loss` with its gradient in a few kernels.

Written in torch a step of the ascent is some forty small operations, each of which takes longer to
start than to run. Here one Triton kernel turns logits into their slopes, another moves rows and
looks at their next logits. All in float32, sums in a fixed order. Imported only where a GPU trains;
`TRITON_INTERPRET=1` runs it on a CPU.
"""

# Triton's language has its own types.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, no-any-return"

from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from focoop.methods._bos import BACK_OFF, Ascent, Outer

WARPS = 1  # per program


@triton.jit
def _log_sum(logits, image, r, rows):
    """Logits (R,) of an image and the log of the sum of their exponents."""
    values = tl.load(logits + image * rows + r, r < rows, float("-inf"))
    top = tl.max(values, 0)
    return values, top + tl.log(tl.sum(tl.exp(values - top), 0))


@triton.jit
def _pull(logits, others, labels, weights, pull, images, rows, others_rows, detection,
          BLOCK: tl.constexpr, OTHERS: tl.constexpr, IDS: tl.constexpr,
          WEIGHED: tl.constexpr):  # fmt: skip
    """dL/dl (R,) of one image, times its weight: 1/B unless WEIGHED."""
    image = tl.program_id(0).to(tl.int64)
    r = tl.arange(0, BLOCK)
    values, here = _log_sum(logits, image, r, rows)
    _, there = _log_sum(others, image, tl.arange(0, OTHERS), others_rows)
    part = (1.0 + detection) / (1.0 + tl.exp(there - here))
    shares = tl.exp(values - here)
    if IDS:
        gradient = (part - detection) * shares - (r == tl.load(labels + image)).to(tl.float32)
    else:
        gradient = part * shares
    if WEIGHED:
        gradient *= tl.load(weights + image)
    else:
        gradient *= 1.0 / images
    tl.store(pull + image * rows + r, gradient, r < rows)


@triton.jit
def _length(x):
    return tl.sqrt(tl.sum(x * x, 1))[:, None]


@triton.jit
def _move(still, noise, out, pooled, pull, logits, lengths, images, rows, scale, tau, step,
          radius, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, AHEAD: tl.constexpr,
          IMAGES: tl.constexpr, SLOPE: tl.constexpr, CLIMB: tl.constexpr,
          LOOK: tl.constexpr):  # fmt: skip
    """Of some rows of one client: their SLOPE, a step that CLIMBs along it, a LOOK at logits.

    The step is `Ascent.proximal`, with the client's length.
    """
    client = tl.program_id(1).to(tl.int64)
    r, e = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = (r < rows)[:, None] & (e < D)[None, :]
    at = (client * rows + r)[:, None] * D + e[None, :]
    eps = tl.load(noise + at, inside, 0.0)
    features = tl.load(still + at, inside, 0.0)
    pooled += client * images * D
    first = client * images * rows
    if SLOPE:
        slope = tl.zeros((ROWS, BLOCK), tl.float32)
        for start in range(0, images, AHEAD):
            for ahead in tl.static_range(AHEAD):
                b = start + ahead
                x = tl.load(pooled + b * D + e[None, :], (e < D)[None, :], 0.0)
                own = tl.load(pull + first + b * rows + r, r < rows, 0.0)
                slope += own[:, None] * x
        moved = features + eps
        length = tl.maximum(_length(moved), 1e-12)
        unit = moved / length
        slope = scale * (slope - unit * tl.sum(unit * slope, 1)[:, None]) / length
        if CLIMB:
            reach = step * tl.load(lengths + client) * tl.where(radius > 0, radius, 1.0)
            reach = reach / tl.maximum(_length(slope), 1e-12)
            eps += reach * slope
            lost = reach * tau / rows / tl.maximum(_length(eps), 1e-12)
            eps *= tl.maximum(1.0 - lost, 0.0)
            cap = tl.minimum(radius / tl.maximum(_length(eps), 1e-12), 1.0)
            eps *= tl.where(radius > 0, cap, 1.0)
            tl.store(out + at, eps, inside)
        else:
            tl.store(out + at, slope, inside)
    if LOOK:
        moved = features + eps
        unit = moved / tl.maximum(_length(moved), 1e-12)
        # Stored at the end: a store between them would make every load wait for a sum.
        every = tl.arange(0, IMAGES)
        image_logits = tl.zeros((ROWS, IMAGES), tl.float32)
        for start in range(0, images, AHEAD):
            for ahead in tl.static_range(AHEAD):
                b = start + ahead
                x = tl.load(pooled + b * D + e[None, :], (e < D)[None, :], 0.0)
                image_logits = tl.where(
                    (every == b)[None, :], tl.sum(unit * x, 1)[:, None], image_logits
                )
        image_logits *= scale
        there = (r < rows)[:, None] & (every < images)[None, :]
        tl.store(logits + first + every[None, :] * rows + r[:, None], image_logits, there)


@triton.jit
def _losses(ids, oods, labels, losses, classes, words, detection, IDS: tl.constexpr,
            OODS: tl.constexpr):  # fmt: skip
    """-log p(y|x) - w log p(ID|x) of one image."""
    image = tl.program_id(0).to(tl.int64)
    _, here = _log_sum(ids, image, tl.arange(0, IDS), classes)
    _, there = _log_sum(oods, image, tl.arange(0, OODS), words)
    top = tl.maximum(here, there)
    total = top + tl.log(tl.exp(here - top) + tl.exp(there - top))
    own = tl.load(ids + image * classes + tl.load(labels + image))
    tl.store(losses + image, total - own + detection * (total - here))


class Side:
    """Class or OOD rows (K, R, D) of K clients, what moves them and their logits (K, B, R)."""

    def __init__(
        self, still: Tensor, noise: Tensor, pooled: Tensor, scale: float, rows_each: int
    ) -> None:
        self.rows_each = rows_each  # rows that one program moves
        self.still, self.noise = still.contiguous(), noise.contiguous()
        self.pooled, self.scale = pooled, scale
        self.clients, self.rows, self.width = still.shape
        self.images = pooled.shape[1]
        self.logits = still.new_empty(self.clients, self.images, self.rows)
        self.slopes = torch.empty_like(self.logits)
        self.block = triton.next_power_of_2(self.rows)
        self.ahead = next(n for n in (8, 4, 2, 1) if self.images % n == 0)  # read at a time

    def move(
        self,
        noise: Tensor,
        out: Tensor,
        *,
        slope: bool,
        logits: Tensor | None = None,
        how: Ascent | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """One pass over the rows: with `how` a step of ascent by `lengths` (K,), else the slope.

        The next logits (K, B, R) are written into `logits` where it is given.
        """
        seen = self.logits if logits is None else logits
        _move[(triton.cdiv(self.rows, self.rows_each), self.clients)](
            self.still, noise, out, self.pooled, self.slopes, seen,
            seen if lengths is None else lengths,
            self.images, self.rows, float(self.scale), float(how.tau) if how else 0.0,
            float(how.step_size) if how else 0.0, float(how.radius) if how else 0.0,
            D=self.width, BLOCK=triton.next_power_of_2(self.width), ROWS=self.rows_each,
            AHEAD=self.ahead, IMAGES=triton.next_power_of_2(self.images), SLOPE=slope,
            CLIMB=how is not None, LOOK=logits is not None,
            num_warps=WARPS,
        )  # fmt: skip
        return out

    def pull(
        self, others: "Side", labels: Tensor | None, detection: float, weights: Tensor | None
    ) -> None:
        """The slopes of the logits, the others' as they are."""
        _pull[(self.clients * self.images,)](
            self.logits, others.logits, self.logits if labels is None else labels,
            self.logits if weights is None else weights, self.slopes,
            self.images, self.rows, others.rows, float(detection),
            BLOCK=self.block, OTHERS=others.block, IDS=labels is not None,
            WEIGHED=weights is not None, num_warps=1,
        )  # fmt: skip

    def climb(
        self, others: "Side", labels: Tensor, detection: float, how: Ascent, *, ids: bool
    ) -> None:
        """`Ascent.monotone` from the noise given; noise and logits are those of its end."""
        noise = capped(self.noise, how.radius)
        self.move(noise, noise, slope=False, logits=self.logits)

        def worth(moved: Tensor, logits: Tensor) -> Tensor:
            """(K,) mean loss less the price."""
            pair = (logits, others.logits) if ids else (others.logits, logits)
            losses = losses_of(*pair, labels, detection)
            return losses.mean(dim=1) - how.tau * moved.norm(dim=2).mean(dim=1)

        best = worth(noise, self.logits)
        length = torch.ones_like(best)
        for _ in range(how.steps):
            self.pull(others, labels if ids else None, detection, None)
            origin, logits = noise, self.logits
            first, length = length, length * BACK_OFF**how.trials
            for trial in range(how.trials):
                tried = first * BACK_OFF**trial
                seen = torch.empty_like(self.logits)
                moved = self.move(
                    origin, torch.empty_like(origin), slope=True, logits=seen, how=how,
                    lengths=tried,
                )  # fmt: skip
                value = worth(moved, seen)
                better = value > best
                noise = torch.where(better[:, None, None], moved, noise)
                logits = torch.where(better[:, None, None], seen, logits)
                best = torch.where(better, value, best)
                length = torch.where(better, tried, length)
            length = (length / BACK_OFF).clamp(max=1.0)
            self.logits = logits.contiguous()
        self.noise = noise.contiguous()


def capped(noise: Tensor, radius: float) -> Tensor:
    """A copy of noise (K, R, D) with every row brought into the radius."""
    if radius <= 0:
        return noise.clone()
    return noise * (radius / noise.norm(dim=2, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)


def losses_of(ids: Tensor, oods: Tensor, labels: Tensor, detection: float) -> Tensor:
    """(K, B) losses of images with logits (K, B, C) and (K, B, U)."""
    clients, images, classes = ids.shape
    losses = ids.new_empty(clients, images)
    _losses[(clients * images,)](
        ids, oods, labels, losses, classes, oods.shape[2], float(detection),
        IDS=triton.next_power_of_2(classes), OODS=triton.next_power_of_2(oods.shape[2]),
        num_warps=1,
    )  # fmt: skip
    return losses


def robust(
    ids: Tensor, oods: Tensor, noise_id: Tensor, noise_ood: Tensor, pooled: Tensor,
    labels: Tensor, move_id: Ascent, move_ood: Ascent, scale: float, detection: float,
    outer: Outer, rows_each: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Eq. sol_dro of K clients: losses (K,), their slopes for class and OOD rows (K, R, D)."""
    pooled, labels = pooled.contiguous(), labels.contiguous()
    id_side = Side(ids, noise_id, pooled, scale, rows_each)
    ood_side = Side(oods, noise_ood, pooled, scale, rows_each)
    nothing = torch.zeros_like(ood_side.still)
    ood_side.move(nothing, nothing, slope=False, logits=ood_side.logits)
    id_side.climb(ood_side, labels, detection, move_id, ids=True)
    ood_side.climb(id_side, labels, detection, move_ood, ids=False)
    losses = losses_of(id_side.logits, ood_side.logits, labels, detection)
    weights = (losses / outer.width_of(losses)).softmax(dim=1)
    id_side.pull(ood_side, labels, detection, weights)
    ood_side.pull(id_side, None, detection, weights)
    slopes = [
        side.move(side.noise, torch.empty_like(side.still), slope=True)
        for side in (id_side, ood_side)
    ]
    return outer(losses), *slopes


class RobustLoss(torch.autograd.Function):
    """`robust` of one client, tensors without K; under vmap of all clients at once."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        """The loss and its slopes; with K where vmap put it."""
        if given[0].dim() == 3:
            return robust(*given)
        several: list[Any] = [v[None] if isinstance(v, Tensor) else v for v in given]
        return tuple(output[0] for output in robust(*several))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        """Keep the slopes, which have none themselves."""
        _, *slopes = output
        ctx.mark_non_differentiable(*slopes)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*slopes)

    @staticmethod
    def backward(ctx: Any, slope: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        """What was made in `forward`, times the slope () or (K,)."""
        ids, oods = (slope[..., None, None] * gradient for gradient in ctx.saved_tensors)
        return ids, oods, *[None] * 10

    @staticmethod
    def vmap(info: Any, in_dims: Any, *given: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """Clients in front."""
        tensors: list[Any] = []
        for value, dim in zip(given, in_dims, strict=True):
            if not isinstance(value, Tensor):
                tensors.append(value)
            elif dim is None:
                tensors.append(value.expand(info.batch_size, *value.shape))
            else:
                tensors.append(value.movedim(dim, 0))
        return RobustLoss.apply(*tensors), (0, 0, 0)
