"""Shared prefixes and length buckets against the naive path: every position, every name, no cut."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from focoop.clip.text import names as prompted
from focoop.clip.text.attention import attend
from focoop.clip.text.tower import Block, Names, TextTower
from focoop.seeds import torch_generator
from tests.helpers import CONTEXT_LENGTH, ToyBackbone, toy_backbone

UNEVEN = ["cat", "hot_air balloon", "a very long name of a thing", "dog", "red fox", "sea", "oak"]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
# Relative error of a float32 sum of products of bfloat16 (8 bits), through two blocks.
BFLOAT16 = 0.05


def naive(tower: TextTower, contexts: Tensor, names: Names) -> Tensor:
    """(N, n, d_t) or (n, d_t) -> (N, D): zero padded to the tower's length, full last block."""
    if contexts.dim() == 2:
        contexts = contexts.expand(len(names), -1, -1)
    start = tower.sot.expand(len(names), 1, -1)
    x = torch.cat([start, contexts, names.embeddings], dim=1)
    x = F.pad(x, (0, 0, 0, CONTEXT_LENGTH - x.shape[1])) + tower.pos
    mask = torch.full((CONTEXT_LENGTH, CONTEXT_LENGTH), -torch.inf, dtype=x.dtype).triu(1)
    for block in tower.blocks:
        assert isinstance(block, Block)
        q, k, v = (
            part.unflatten(-1, (block.heads, -1)).transpose(1, 2)
            for part in block.qkv(block.ln_1(x)).chunk(3, dim=-1)
        )
        weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + mask, dim=-1)
        x = x + block.o((weights @ v).transpose(1, 2).flatten(2))
        x = x + block.f2(block.activation(block.f1(block.ln_2(x))))
    ends = contexts.shape[1] + names.lengths
    return F.normalize(tower.proj(tower.lnf(x[torch.arange(len(names)), ends])), dim=-1)


def backbone_in(dtype: torch.dtype, layers: int = 3) -> ToyBackbone:
    backbone = toy_backbone(layers=layers)
    backbone.text.to(dtype)
    return backbone


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch_generator(3, "engine", *shape)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def compare(tower: TextTower, contexts: Tensor, names: Names, tolerance: float) -> None:
    """Features and gradients of (K, 1 or N, n, d_t) against one client and one path at a time."""
    slopes = draw(len(contexts), len(names), tower.dim, dtype=contexts.dtype)
    fast, slow = (contexts.clone().requires_grad_() for _ in range(2))
    out = tower(fast, names)
    (out * slopes).sum().backward()
    expected = torch.stack([naive(tower, c[0] if len(c) == 1 else c, names) for c in slow])
    (expected * slopes).sum().backward()
    assert fast.grad is not None and slow.grad is not None
    torch.testing.assert_close(out, expected, atol=tolerance, rtol=tolerance)
    scale = float(slow.grad.abs().max())
    torch.testing.assert_close(fast.grad, slow.grad, atol=tolerance * scale, rtol=tolerance)


@pytest.mark.parametrize("cost", [0, 1e5, 1e9], ids=["exact", "mixed", "padded"])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("unified", [True, False], ids=["unified", "specific"])
@pytest.mark.parametrize("texts", [UNEVEN, UNEVEN[:1], ["cat", "dog"]], ids=len)
def test_fast_paths_are_the_naive_path(
    texts: list[str],
    unified: bool,
    tokens: int,
    clients: int,
    dtype: torch.dtype,
    cost: float,
) -> None:
    backbone = backbone_in(dtype)
    names = backbone.text.prepare(backbone.tokenize, texts, bucket_cost=cost)
    rows = 1 if unified else len(texts)
    contexts = draw(clients, rows, tokens, backbone.width, dtype=dtype)
    compare(backbone.text, contexts, names, TOLERANCE[dtype])


def test_names_are_grouped_by_length_where_it_pays() -> None:
    backbone = toy_backbone()
    lengths = (3, 4, 8, 3, 4, 3, 3)
    per_token = 12 * backbone.width**2
    found = {}
    for cost in (0.0, 5.0, 100.0):  # tokens of padding that cost as much as a bucket
        device = torch.device("cpu")
        found[cost] = prompted.group(lengths, backbone.width, device, cost * per_token)
    exact = found[0.0]
    assert exact is not None
    assert exact.sizes == ((4, 3), (2, 4), (1, 8)) and exact.exact == (True, True, True)
    assert exact.order.tolist() == [0, 3, 5, 6, 1, 4, 2]
    assert exact.order[exact.back].tolist() == list(range(7))
    mixed = found[5.0]
    assert mixed is not None
    assert mixed.sizes == ((6, 4), (1, 8)) and mixed.exact == (False, True)
    assert found[100.0] is None


def test_selected_names_are_grouped_anew() -> None:
    backbone = backbone_in(torch.float64)
    names = backbone.text.prepare(backbone.tokenize, UNEVEN, bucket_cost=0.0)
    names = names.select(torch.tensor([2, 2, 0, 4, 0]))
    assert names.grouping is not None
    assert names.grouping.sizes == ((2, 3), (1, 4), (2, 9))
    compare(backbone.text, draw(2, 5, 4, backbone.width), names, 1e-9)
    compare(backbone.text, draw(2, 1, 4, backbone.width), names, 1e-9)


def test_selections_of_the_host_are_kept_and_those_of_transforms_are_not() -> None:
    backbone = backbone_in(torch.float64)
    names, index = backbone.names(UNEVEN), torch.tensor([2, 0, 4])
    assert names.known == tuple(names.lengths.tolist())
    found = names.select(index)
    assert names.select(index.clone()) is found
    assert names.select(torch.tensor([2, 0, 3])) is not found
    assert found.known == tuple(found.lengths.tolist())
    names.chosen.clear()
    torch.func.vmap(lambda i: names.select(i).embeddings)(torch.stack([index, index + 1]))
    torch.func.grad(lambda x: (names.select(index).embeddings * x).sum())(torch.tensor(1.0))
    assert not any(
        torch._C._functorch.is_functorch_wrapped_tensor(kept.embeddings)
        for kept in names.chosen.values()
    )
    for first in range(prompted.SELECTIONS + 3):
        names.select(torch.tensor([0, first % len(UNEVEN), first // len(UNEVEN)]))
    assert len(names.chosen) <= prompted.SELECTIONS


def test_transforms_of_torch_func_pass_through() -> None:
    backbone = backbone_in(torch.float64)
    names = backbone.text.prepare(backbone.tokenize, UNEVEN, bucket_cost=0.0)
    slopes = draw(len(UNEVEN), backbone.dim)

    def value(contexts: Tensor) -> Tensor:
        return (backbone.text(contexts, names) * slopes).sum()

    def slow(contexts: Tensor) -> Tensor:
        return (naive(backbone.text, contexts, names) * slopes).sum()

    for contexts in (draw(2, 4, backbone.width), draw(2, len(UNEVEN), 4, backbone.width)):
        found = torch.func.vmap(torch.func.grad(value))(contexts)
        expected = torch.stack([torch.func.grad(slow)(one) for one in contexts])
        torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
    # Each client's own choice of names: lengths that no host knows.
    chosen = torch.tensor([[0, 2, 1], [3, 3, 2]])
    context = draw(4, backbone.width)
    found = torch.func.vmap(lambda index: backbone.text(context, names.select(index)))(chosen)
    expected = torch.stack([naive(backbone.text, context, names.select(one)) for one in chosen])
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


def test_an_ascent_inside_vmap_and_a_graph_outside_it() -> None:
    """A step in prompt space: slopes on detached contexts, then the features with their graph."""
    backbone = backbone_in(torch.float64)
    names = backbone.text.prepare(backbone.tokenize, UNEVEN, bucket_cost=0.0)
    slopes = draw(len(UNEVEN), backbone.dim)
    params = draw(2, len(UNEVEN), 4, backbone.width).requires_grad_()

    def loss(contexts: Tensor, encode: Callable[[Tensor, Names], Tensor]) -> Tensor:
        still = contexts.detach()
        noise = torch.func.grad(lambda x: (encode(still + x, names) * slopes).sum())
        moved = noise(torch.zeros_like(still))
        return (encode(contexts + moved, names) * slopes).square().sum()

    found = torch.func.vmap(lambda x: loss(x, backbone.text))(params)
    expected = torch.stack([loss(x, partial(naive, backbone.text)) for x in params])
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
    one, other = (torch.autograd.grad(losses.sum(), params)[0] for losses in (found, expected))
    torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9)
    with pytest.raises(RuntimeError, match="detach the parameters"):
        torch.func.vmap(torch.func.grad(lambda x: backbone.text(x, names).sum()))(params)


@pytest.mark.usefixtures("bfloat16_products")
@pytest.mark.parametrize("unified", [True, False], ids=["unified", "specific"])
def test_bfloat16_agrees_within_its_bits(unified: bool) -> None:
    backbone = backbone_in(torch.float32, layers=2)
    names = backbone.names(UNEVEN)
    contexts = draw(2, 1 if unified else len(UNEVEN), 4, backbone.width, dtype=torch.float32)
    expected = torch.stack([naive(backbone.text, c[0] if unified else c, names) for c in contexts])
    backbone.text.train_in(torch.bfloat16)
    leaf = contexts.clone().requires_grad_()
    out = backbone.text(leaf, names)
    out[..., 0].sum().backward()
    assert leaf.grad is not None and leaf.grad.dtype == torch.float32
    assert (out - expected).norm() < BFLOAT16 * expected.norm()


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "specific"])
def test_bits_do_not_depend_on_threads(unified: bool) -> None:
    backbone = toy_backbone(width=64, dim=32)
    names = backbone.names([f"{name} {i}" for i in range(5) for name in UNEVEN])
    contexts = draw(1 if unified else len(names), 16, 64, dtype=torch.float32)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            leaf = contexts.clone().requires_grad_()
            out = backbone.text(leaf, names)
            out[:, 0].sum().backward()
            assert leaf.grad is not None
            found.append((out.detach(), leaf.grad))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize(
    "shape", [(2, 3, 4, 5, 2), (2, 4, 1, 5, 8), (2, 2, 2, 2, 0), (1, 5, 5, 5, 3)]
)
def test_gradients_of_attention_are_finite_differences(shape: tuple[int, ...]) -> None:
    heads, count, queries, length, prefix = shape
    operands = [
        draw(heads, count, queries, 3),
        draw(heads, count, length, 3),
        draw(heads, count, length, 3) + 1,
        draw(heads, prefix, 3),
        draw(heads, prefix, 3) - 1,
    ]
    after = torch.ones(queries, length, dtype=torch.bool).triu(length - queries + 1)
    leaves = [operand.requires_grad_() for operand in operands]
    assert torch.autograd.gradcheck(lambda *args: attend(*args, after), leaves)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_whole_sequences_without_a_shared_start_agree(dtype: torch.dtype) -> None:
    """`run`, the path of plain texts and of class-specific contexts on a GPU."""
    backbone = backbone_in(dtype)
    tower, names = backbone.text, backbone.names(UNEVEN)
    contexts = draw(len(UNEVEN), 4, backbone.width, dtype=dtype)
    x = torch.cat([tower.sot.expand(len(names), 1, -1), contexts, names.embeddings], dim=1)
    x.requires_grad_()
    out = tower.run(x, 4 + names.lengths)
    slow = contexts.clone().requires_grad_()
    expected = naive(tower, slow, names)
    slopes = draw(*out.shape, dtype=dtype)
    (out * slopes).sum().backward()
    (expected * slopes).sum().backward()
    assert x.grad is not None and slow.grad is not None
    torch.testing.assert_close(out, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    scale = float(slow.grad.abs().max())
    torch.testing.assert_close(
        x.grad[:, 1:5], slow.grad, atol=TOLERANCE[dtype] * scale, rtol=TOLERANCE[dtype]
    )
