"""FOCoOp's ascent in prompt space with the first slope for all steps."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from focoop.clip.text.tower import Names
from focoop.methods._bos import separation_loss
from focoop.methods.base import Task, Text
from focoop.methods.focoop import FOCoOp, FOCoOpConfig
from focoop.seeds import torch_generator
from tests.methods.toy import (
    N_TOKENS,
    C,
    U,
    make_batch,
    make_names,
    make_params,
    make_task,
    step_loss,
)


def counted(task: Task) -> tuple[Task, list[int]]:
    """The task, and how many prompts each call of its tower had."""
    calls: list[int] = []

    def encode(contexts: Tensor, names: Names) -> Tensor:
        calls.append(len(names))
        return task.encode(contexts, names)

    return replace(task, encode=encode), calls


@pytest.mark.parametrize("normalised", [True, False])
def test_reused_slopes_are_those_of_the_start(normalised: bool) -> None:
    task, params, batch = make_task(), make_params(), make_batch()
    config = FOCoOpConfig(
        context_tokens=N_TOKENS, space="prompt", reuse_slopes=True, id_radius=0.4, sigma=0.05,
        normalised_steps=normalised, id_steps=3, ood_steps=2, tau_id=0.3, tau_ood=0.2, mu=5.0,
        ascent="alg2", step_size=0.4, ood_radius=1.0,
    )  # fmt: skip
    method = FOCoOp(config)
    noise = method.noise(len(batch.labels), task, torch_generator(3))
    leaves = {name: value.clone().requires_grad_() for name, value in noise.items()}

    def text(moved: dict[str, Tensor]) -> Text:
        rho = config.global_share
        fused = (1 - rho) * params["local"] + rho * (params["global"] + moved["id"])
        oods = task.encode(params["ood"] + moved["ood"], make_names(U, "w"))
        return Text(task.encode(fused, task.id_names), oods)

    mean = separation_loss(text(leaves), batch, task.logit_scale, 1.0).mean()
    slopes = dict(zip(leaves, torch.autograd.grad(mean, list(leaves.values())), strict=True))
    moved = {}
    for name, steps, tau, radius in (("id", 3, 0.3, 0.4), ("ood", 2, 0.2, 1.0)):
        now = noise[name].clone()
        for _ in range(steps):
            for row in range(len(now)):
                slope = slopes[name][row] - tau / len(now) * now[row] / now[row].norm()
                length = radius / slope.norm() if normalised else 1.0
                now[row] += config.step_size * length * slope
                now[row] *= min(1.0, radius / float(now[row].norm()))
        moved[name] = now
    losses = separation_loss(text(moved), batch, task.logit_scale, 1.0)
    sharpness = config.tau_ood * config.mu
    expected = sharpness * (losses / sharpness).exp().mean().log()
    found = step_loss(method, params, batch, task, 3)
    assert float(found) == pytest.approx(float(expected), rel=1e-10)


def test_reused_slopes_cost_one_pass_however_many_steps() -> None:
    batch, passes = make_batch(), {}
    for reuse in (True, False):
        for steps in (1, 6):
            task, calls = counted(make_task())
            config = FOCoOpConfig(
                context_tokens=N_TOKENS, space="prompt", reuse_slopes=reuse, id_steps=steps,
                ood_steps=steps, ascent="alg2",
            )  # fmt: skip
            step_loss(FOCoOp(config), make_params(), batch, task)
            passes[reuse, steps] = sum(calls) / (C + U)
    assert passes[True, 1] == passes[True, 6] == 3  # the step's own, the slopes', the last
    assert passes[False, 6] == 2 + 6
