"""The GPU's fused step, its kernels run by Triton's interpreter, against every position in float64.

The interpreter has no bfloat16: float32 shows that the formulas are right, float16 that sums are in
float32 where operands are not. Bits of bfloat16 are checked on a GPU: `benchmarks/gpu.py`, exact.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from focoop.clip.text import fused
from focoop.clip.text.blocks import ACTIVATIONS
from focoop.clip.text.tower import Names, TextShape, TextTower
from tests.clip.test_text_engine import draw, naive
from tests.helpers import CONTEXT_LENGTH, VOCABULARY, toy_tokenize

pytest.importorskip("triton")
TEXTS = ["cat", "hot air balloon", "red fox"]


def tower_of(activation: str, layers: int = 2) -> TextTower:
    shape = TextShape(32, layers, 2, 12, CONTEXT_LENGTH, activation, norm_eps=1e-3)
    tower = TextTower(shape, torch.nn.Embedding(VOCABULARY, 32)).freeze()
    for name, weight in tower.named_parameters():
        noise = draw(*weight.shape, dtype=torch.float32)
        gain = "ln" in name and "weight" in name
        weight.data = 1 + 0.3 * noise if gain else 0.3 * noise
    return tower


def both(
    tower: TextTower, names: Names, contexts: Tensor, dtype: torch.dtype
) -> tuple[list[Tensor], list[Tensor]]:
    """Features and gradient of the fused step and of the naive path in float64."""
    slopes = draw(len(contexts), len(names), tower.dim)
    leaf = contexts.float().requires_grad_()
    _, rows, tokens, _ = contexts.shape
    layout = fused.flat(tower.pos, names, tokens, unified=rows == 1)
    out = fused.Tower.apply(leaf, fused.Stack.of(tower, dtype), layout)
    out = torch.nn.functional.normalize(tower.proj(tower.lnf(out)), dim=-1)
    out = out.view(len(contexts), len(names), -1)
    (out * slopes).sum().backward()
    assert leaf.grad is not None
    slow, wide = contexts.double().requires_grad_(), copy.deepcopy(tower).double()
    there = Names(names.vocabulary, names.embeddings.double(), names.lengths)
    expected = torch.stack([naive(wide, one[0] if rows == 1 else one, there) for one in slow])
    (expected * slopes).sum().backward()
    assert slow.grad is not None
    return [out.detach(), leaf.grad], [expected.detach(), slow.grad]


@pytest.mark.parametrize("unified", [False, True], ids=["specific", "unified"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        pytest.param(torch.float32, 1e-5, id="float32"),
        pytest.param(torch.float16, 2e-2, id="float16", marks=pytest.mark.slow),
    ],
)
def test_the_fused_step_is_the_naive_path(
    unified: bool, dtype: torch.dtype, tolerance: float
) -> None:
    tower = tower_of("quick_gelu")
    names = tower.prepare(toy_tokenize, TEXTS)
    found, expected = both(tower, names, draw(2, 1 if unified else len(TEXTS), 3, 32), dtype)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() < tolerance * other.norm()


@pytest.mark.parametrize("unified", [False, True], ids=["specific", "unified"])
def test_without_gradients_the_tower_runs_in_float32_and_keeps_nothing(unified: bool) -> None:
    tower = tower_of("quick_gelu")
    names = tower.prepare(toy_tokenize, TEXTS)
    contexts = draw(2, 1 if unified else len(TEXTS), 3, 32)
    with torch.no_grad():
        found = tower.fused(contexts.float(), names, torch.float32)
    wide = copy.deepcopy(tower).double()
    there = Names(names.vocabulary, names.embeddings.double(), names.lengths)
    expected = torch.cat([naive(wide, one[0] if unified else one, there) for one in contexts])
    assert found.grad_fn is None
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_an_ascent_under_vmap_takes_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slopes of detached contexts inside vmap, then features with a graph outside it."""
    tower = tower_of("quick_gelu", layers=1)
    names = tower.prepare(toy_tokenize, TEXTS)
    slopes, calls = draw(len(TEXTS), tower.dim, dtype=torch.float32), []
    plain = fused.run

    def counted(contexts: Tensor, *given: Any) -> Tensor:
        calls.append(len(contexts))
        return plain(contexts, *given)

    def loss(contexts: Tensor) -> Tensor:
        still = contexts.detach()
        noise = torch.func.grad(lambda x: (tower(still + x, names) * slopes).sum())
        moved = noise(torch.zeros_like(still))
        return (tower(contexts + moved, names) * slopes).square().sum()

    params = draw(2, len(TEXTS), 3, 32, dtype=torch.float32).requires_grad_()
    expected = torch.stack([loss(one) for one in params])
    (slope,) = torch.autograd.grad(expected.sum(), params)
    monkeypatch.setattr(fused, "products", lambda *_: torch.float32)
    monkeypatch.setattr(fused, "run", counted)
    found = torch.func.vmap(loss)(params)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), params)[0], slope, rtol=1e-3, atol=1e-4
    )
    assert calls == [2, 2]  # both clients in each pass


def test_lengths_that_the_host_does_not_know_are_padded() -> None:
    tower = tower_of("quick_gelu", layers=1)
    known = tower.prepare(toy_tokenize, TEXTS)
    names = Names(known.vocabulary, known.embeddings, known.lengths)
    lengths = known.lengths.tolist()
    for unified, shared in ((False, 0), (True, 3)):
        tokens = [fused.flat(tower.pos, n, 3, unified=unified).tokens for n in (known, names)]
        own = 3 - shared
        exact, padded = sum(own + n for n in lengths), len(TEXTS) * (own + max(lengths))
        assert tokens == [shared + exact, shared + padded]
        rows = 1 if unified else len(TEXTS)
        found, expected = both(tower, names, draw(2, rows, 3, 32), torch.float32)
        for one, other in zip(found, expected, strict=True):
            assert (one - other).norm() < 1e-5 * other.norm()


@pytest.mark.parametrize("kind", list(ACTIVATIONS))
def test_activations_and_their_slopes(kind: str) -> None:
    from focoop.clip.text import kernels

    x = (3.0 * draw(7, 5)).requires_grad_()
    expected = ACTIVATIONS[kind](x)
    slope = draw(*x.shape)
    (gradient,) = torch.autograd.grad((expected * slope).sum(), x)
    values = x.detach().float()
    torch.testing.assert_close(kernels.act(values, kind), expected.float(), atol=1e-6, rtol=1e-5)
    found = kernels.act_back(values, slope.float().clone(), kind)
    torch.testing.assert_close(found, gradient.float(), atol=1e-6, rtol=1e-5)


def test_where_the_fused_step_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    tower = tower_of("gelu", layers=1).train_in(torch.bfloat16)
    contexts = draw(1, 3, 4, 32, dtype=torch.float32).requires_grad_()
    assert fused.products(tower, contexts, 10) is None  # no GPU here
    cpu = torch.device("cpu")
    assert fused.builds(cpu)
    fused.builds.cache_clear()

    def broken(*_: object) -> Tensor:
        raise RuntimeError("no compiler")

    monkeypatch.setattr("focoop.clip.text.kernels.act", broken)
    with pytest.warns(RuntimeWarning, match="no compiler"):
        assert not fused.builds(cpu)
    fused.builds.cache_clear()
