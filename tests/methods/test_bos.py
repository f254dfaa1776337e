"""The ascent's closed-form gradients against autograd, in float64; threads of the transport."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from focoop.functional import transport
from focoop.methods._bos import Ascent, Rule, Separation, Side, separation_loss
from focoop.methods._goc import Consistency
from focoop.methods.base import Batch, ClientUpdate, Params, Server, Text
from focoop.seeds import torch_generator

CLASSES, WORDS, WIDTH, IMAGES = 5, 4, 8, 6


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch_generator(1, *shape), dtype=torch.float64)


def unit(*shape: int) -> Tensor:
    return F.normalize(draw(*shape), dim=-1)


def batch() -> Batch:
    return Batch(unit(IMAGES, WIDTH), None, torch.arange(IMAGES) % CLASSES)


def worst_features(
    text: Text, noise: Params, objective: Callable[[Text], Tensor], ids: Ascent, oods: Ascent
) -> Text:
    """`Separation.worst` by autograd through any objective of the text.

    `noise` holds the starting rows `id` and `ood`.
    """
    assert text.ood is not None
    still_id, still_ood = text.id.detach(), text.ood.detach()

    def of_ids(noise: Tensor) -> Tensor:
        return objective(Text(F.normalize(still_id + noise, dim=-1), still_ood))

    moved = ids.climb(of_ids, torch.func.grad(of_ids), noise["id"], noise.get("id_direction"))
    worst = F.normalize(text.id + moved, dim=-1)
    still = worst.detach()

    def of_oods(noise: Tensor) -> Tensor:
        return objective(Text(still, F.normalize(still_ood + noise, dim=-1)))

    moved = oods.climb(of_oods, torch.func.grad(of_oods), noise["ood"], noise.get("ood_direction"))
    return Text(worst, F.normalize(text.ood + moved, dim=-1))


@pytest.mark.parametrize("normalised", [True, False], ids=["unit steps", "raw steps"])
@pytest.mark.parametrize("weight", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("rule", ["monotone", "alg2", "random"])
def test_the_worst_features_are_those_of_autograd(
    normalised: bool, weight: float, rule: Rule
) -> None:
    images = batch()
    text = Text(unit(CLASSES, WIDTH).requires_grad_(), unit(WORDS, WIDTH).requires_grad_())
    noise = {"id": 0.01 * draw(CLASSES, WIDTH), "ood": 0.01 * draw(WORDS, WIDTH)}
    # Other draws than those of the rows, along which features would not turn.
    noise |= {"id_direction": draw(2, CLASSES, WIDTH)[1], "ood_direction": draw(2, WORDS, WIDTH)[1]}
    moves = [Ascent(r, 0.4, n, 0.5, normalised, rule) for r, n in ((0.3, 3), (1.0, 4))]

    def objective(moved: Text) -> Tensor:
        return separation_loss(moved, images, 5.0, weight).mean()

    expected = worst_features(text, noise, objective, *moves)
    found = Separation(images, 5.0, weight).worst(text, noise, *moves)
    assert found.ood is not None and expected.ood is not None
    torch.testing.assert_close(found.id, expected.id, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(found.ood, expected.ood, atol=1e-12, rtol=1e-12)
    assert not torch.allclose(found.id, text.id, atol=1e-2)
    # Gradients pass through the moved rows as if the noise were given.
    leaves = [text.id, text.ood]
    slopes = [
        torch.autograd.grad(objective(side), leaves, retain_graph=True)
        for side in (found, expected)
    ]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-9)


def test_the_slope_of_the_price() -> None:
    ascent, noise = Ascent(1.0, 0.4, 1, 3.0), draw(3, WIDTH)
    expected = torch.func.grad(ascent.price)(noise)
    torch.testing.assert_close(ascent.price_slope(noise), expected, atol=1e-12, rtol=1e-12)
    noise[1] = 0.0
    assert ascent.price_slope(noise)[1].abs().max() == 0.0


def test_many_clients_at_once() -> None:
    images, other = batch(), unit(WORDS, WIDTH)
    rows, noise = unit(3, CLASSES, WIDTH), 0.1 * draw(3, CLASSES, WIDTH)

    def slope(rows: Tensor, noise: Tensor) -> Tensor:
        return Side(Separation(images, 5.0, 1.0), rows, other, ids=True).slope(noise)

    found = torch.func.vmap(slope)(rows, noise)
    expected = torch.stack([slope(r, n) for r, n in zip(rows, noise, strict=True)])
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("rule", ["dual", "open_loop"])
@pytest.mark.parametrize("fails", [False, True])
def test_small_transports_run_on_one_thread(
    fails: bool, rule: Literal["dual", "open_loop"], monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = getattr(transport, f"semi_unbalanced_{rule}")
    used, before = [], torch.get_num_threads()

    def watched(cost: Tensor, **settings: Any) -> Any:
        used.append(torch.get_num_threads())
        if fails:
            raise RuntimeError("no plan")
        return solver(cost, **settings)

    monkeypatch.setattr(transport, "semi_unbalanced_dual", watched)
    monkeypatch.setattr(transport, "semi_unbalanced_open_loop", watched)
    updates = [
        ClientUpdate(k, {"ood": draw(WORDS, 2, k + 3)[:, :, :3]}, 1, torch.ones(CLASSES), 0.0)
        for k in range(2)
    ]
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError, match="no plan") if fails else nullcontext():
            Consistency(tau=0.1, rule=rule).calibrate(
                draw(CLASSES, 2, 3),
                torch.arange(WORDS),
                updates,
                Server({"global": draw(CLASSES, 2, 3)}),
            )
        assert used == [1] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
