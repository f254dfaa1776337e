"""FOCoOp as the authors' released code has it, against POT and loops."""

import math
from pathlib import Path

import ot
import pytest
import torch

from focoop.config import loading
from focoop.methods._released import released_loss, unbalanced_plan
from focoop.methods.base import ClientUpdate, Server, Text
from focoop.methods.focoop import FOCoOp, FOCoOpConfig
from focoop.seeds import torch_generator
from tests.methods.toy import DIM, C, U, make_batch, make_task

PRESET = Path(__file__).resolve().parents[2] / "configs" / "methods" / "focoop-authors.toml"


def preset() -> FOCoOpConfig:
    settings = loading.load(PRESET).method.settings
    assert isinstance(settings, FOCoOpConfig) and settings.released
    return settings


def after_training(server: Server, clients: int, *, drift: float) -> list[ClientUpdate]:
    """What clients send: all alike but for a little noise, as after a few steps."""
    generator = torch_generator(1, "drift")
    updates = []
    for client in range(clients):
        shared = {
            name: value
            if name == "ood_words"
            else value + drift * torch.randn(value.shape, generator=generator)
            for name, value in server.shared.items()
        }
        updates.append(ClientUpdate(client, shared, 80, torch.ones(100), 0.0))
    return updates


def test_the_preset_halves_global_prompts_and_leaves_one_ood_context() -> None:
    """After three rounds with 100 classes, 100 words, ten clients and first contexts as drawn."""
    generator = torch_generator(0, "first")
    first = {
        name: 0.02 * torch.randn(100, 4, 128, generator=generator) for name in ("global", "ood")
    }
    server = Server({**first, "ood_words": torch.arange(100)})
    method, task = FOCoOp(preset()), make_task()
    contexts = []
    for _ in range(3):
        before = server.shared["global"].norm()
        updates = after_training(server, 10, drift=1e-4)
        server = method.aggregate(server, updates, task)
        assert float(server.shared["global"].norm() / before) == pytest.approx(0.5, abs=1e-3)
        assert server.report["kept_length"] == pytest.approx(0.5, abs=1e-3)
        contexts.append(server.report["distinct_contexts"])
        # Words stay where they are; the contexts come from others.
        assert torch.equal(server.shared["ood_words"], torch.arange(100))
    near = torch.cdist(server.shared["ood"].flatten(1), first["ood"].flatten(1)).argmin(dim=1)
    assert contexts[0] <= 12 and contexts[2] == len(near.unique()) == 1


def test_the_plan_is_that_of_pot() -> None:
    cost = torch.rand(7, 5, generator=torch_generator(0, "cost"), dtype=torch.float64)
    expected = ot.unbalanced.mm_unbalanced(
        torch.full((7,), 1 / 7), torch.full((5,), 1 / 5), cost, reg_m=0.1, div="kl"
    )
    assert torch.allclose(unbalanced_plan(cost, 0.1), expected.double(), atol=1e-9)


def test_one_step_of_the_loss_written_out() -> None:
    """By autograd, image by image: unit slopes, no unit length afterwards, no class logit in q."""
    config, scale = FOCoOpConfig(
        released=True, id_steps=1, ood_steps=1, tau_id=10.0, tau_ood=10.0, mu=0.1, outer="paper",
        detection_weight=0.5, step_size=1.0,
    ), 7.0  # fmt: skip
    generator, batch = torch_generator(0, "text"), make_batch()
    rows = torch.randn(C + U, DIM, generator=generator, dtype=torch.float64)
    start = 1e-3 * torch.randn(C + U, DIM, generator=generator, dtype=torch.float64)
    noise = torch.cat([start[:C], torch.zeros(U, DIM)]).requires_grad_()  # T^o is still at rest

    def written(features: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        entropy, uneven = [], []
        for image, label in zip(batch.pooled, batch.labels.tolist(), strict=True):
            logits = [scale * row @ image for row in features]
            total = torch.stack(logits).exp().sum().log()
            entropy.append(total - logits[label])
            ood = torch.stack(logits[C:])
            uneven.append(ood.exp().sum().log() - ood.sum() / U)
        return entropy, uneven

    count = len(batch.labels)
    price = 10.0 * sum(row.norm() for row in noise[:C]) / C
    value = sum(written(rows + noise)[0]) / count - price
    slope = torch.autograd.grad(value, noise)[0][:C]
    moved = start.clone()
    moved[:C] += slope / slope.norm(dim=1, keepdim=True)
    noise = moved.clone().requires_grad_()
    entropy, uneven = written(rows + noise)
    slope = torch.autograd.grad((sum(entropy) + sum(uneven)) / count, noise)[0][C:]
    moved[C:] += slope / slope.norm(dim=1, keepdim=True)
    entropy, uneven = written(rows + moved)
    losses = [float(e + 0.5 * q) for e, q in zip(entropy, uneven, strict=True)]
    expected = math.log(sum(math.exp(loss) for loss in losses) / count)  # tau_ood mu = 1

    text = Text(rows[:C], rows[C:])
    got = released_loss(text, batch, {"id": start[:C], "ood": start[C:]}, scale, config)
    assert float(got) == pytest.approx(expected, rel=1e-9)
