"""The GPU's robust loss, its kernels run by Triton's interpreter, against float64."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from focoop.methods import _bos
from focoop.methods._bos import Ascent, Outer, Separation
from focoop.methods.base import Batch, Params, Text
from focoop.seeds import torch_generator
from tests.methods.test_bos import draw, unit

pytest.importorskip("triton")

CLIENTS, CLASSES, WORDS, WIDTH, IMAGES = 2, 5, 3, 12, 4


OUTERS = {"mean": Outer(), "relative": Outer(0.5), "absolute": Outer(0.7, relative=False)}


def loss_of(
    dtype: torch.dtype,
    radius: float,
    weight: float,
    outer: Outer,
    steps: Sequence[int] = (2, 1),
    *,
    kernels: bool = False,
) -> list[Tensor]:
    """(K,) losses of clients under vmap, and the slopes of their class and OOD rows."""
    labels = torch.randint(CLASSES, (CLIENTS, IMAGES), generator=torch_generator(3))
    leaves = [unit(CLIENTS, n, WIDTH).to(dtype).requires_grad_() for n in (CLASSES, WORDS)]
    noise = {"id": 0.01 * draw(CLIENTS, CLASSES, WIDTH), "ood": 0.01 * draw(CLIENTS, WORDS, WIDTH)}
    noise["id"][0, 1] = 0.0  # its price has no slope
    moves = [
        Ascent(r, 0.4, count, 0.3, trials=2)  # the interpreter is slow
        for r, count in zip((radius, 2 * radius), steps, strict=True)
    ]

    def one(i: Tensor, o: Tensor, x: Tensor, y: Tensor, n: Params) -> Tensor:
        # Several rows a program: the interpreter is slow.
        separation = Separation(Batch(x, None, y), 5.0, weight, kernels, kernel_rows=8)
        return separation.loss(Text(i, o), n, *moves, outer)

    mapped = torch.func.vmap(one)
    pooled = unit(CLIENTS, IMAGES, WIDTH).to(dtype)
    start = {n: v.to(dtype) for n, v in noise.items()}
    losses: Tensor = mapped(*leaves, pooled, labels, start)
    total = (losses * torch.arange(1.0, 1 + CLIENTS)).sum()
    return [losses.detach(), *torch.autograd.grad(total, leaves)]


@pytest.mark.parametrize(("weight", "outer"), [(0.0, "mean"), (0.5, "relative")])
def test_the_kernels_are_the_formulas(weight: float, outer: str) -> None:
    agree(0.3, weight, outer)


@pytest.mark.slow
@pytest.mark.parametrize("outer", OUTERS)
@pytest.mark.parametrize("weight", [0.0, 0.5])
@pytest.mark.parametrize("radius", [0.3, 0.0], ids=["cap", "no cap"])
def test_the_kernels_are_the_formulas_everywhere(radius: float, weight: float, outer: str) -> None:
    agree(radius, weight, outer)


def agree(radius: float, weight: float, outer: str) -> None:
    """The kernels' losses and slopes in float32 are the formulas' in float64."""
    expected = loss_of(torch.float64, radius, weight, OUTERS[outer])
    found = loss_of(torch.float32, radius, weight, OUTERS[outer], kernels=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "steps",
    [(0, 2), *(pytest.param(steps, marks=pytest.mark.slow) for steps in ((2, 0), (0, 0)))],
)
def test_without_steps_the_noise_stays(steps: Sequence[int]) -> None:
    expected = loss_of(torch.float64, 0.3, 1.0, OUTERS["absolute"], steps)
    found = loss_of(torch.float32, 0.3, 1.0, OUTERS["absolute"], steps, kernels=True)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, atol=2e-5, rtol=1e-4)


@pytest.mark.slow
def test_one_client_alone_is_one_of_many() -> None:
    batch = Batch(unit(IMAGES, WIDTH).float(), None, torch.arange(IMAGES))
    noise = {"id": 0.01 * draw(CLASSES, WIDTH).float(), "ood": 0.01 * draw(WORDS, WIDTH).float()}
    move = Ascent(0.3, 0.4, 2, 1.0)

    def loss(ids: Tensor, oods: Tensor) -> Tensor:
        separation = Separation(batch, 5.0, 1.0, kernels=True)
        return separation.loss(Text(ids, oods), noise, move, move, Outer(1.0))

    leaves = [unit(n, WIDTH).float().requires_grad_() for n in (CLASSES, WORDS)]
    many = torch.func.vmap(loss)(*(leaf.expand(2, -1, -1) for leaf in leaves))
    alone = loss(*leaves)
    assert torch.equal(many[0], many[1])
    torch.testing.assert_close(many[0], alone, atol=1e-6, rtol=1e-6)
    slopes = torch.autograd.grad(many[0], leaves), torch.autograd.grad(alone, leaves)
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


def test_where_the_kernels_are_used() -> None:
    rows, unit_steps = unit(CLASSES, WIDTH).float(), Ascent(0.3, 0.4, 2, 1.0)
    assert not _bos.fits(rows, rows, unit_steps)  # no GPU here
