"""FOCoOp's losses, ascent and scores against slow float64 references."""

import math
import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from focoop.config.loading import load
from focoop.errors import ConfigError, MethodError
from focoop.methods._bos import Outer, separation_loss
from focoop.methods.base import Batch, Text
from focoop.methods.focoop import FOCoOp, FOCoOpConfig
from focoop.seeds import torch_generator
from tests.methods.toy import (
    N_TOKENS,
    check_gradients,
    make_batch,
    make_params,
    make_task,
    step_loss,
)


def slow_losses(text: Text, batch: Batch, scale: float, weight: float) -> list[float]:
    """-log p(y|x) - w log p(ID|x) with sums written out (Eq. bi_obj)."""
    out = []
    assert text.ood is not None
    for h, y in zip(batch.pooled.tolist(), batch.labels.tolist(), strict=True):

        def similarity(e: list[float], h: list[float] = h) -> float:
            return math.exp(scale * sum(a * b for a, b in zip(h, e, strict=True)))

        ids = [similarity(e) for e in text.id.tolist()]
        oods = [similarity(e) for e in text.ood.tolist()]
        p_class = ids[y] / (sum(ids) + sum(oods))
        p_id = sum(ids) / (sum(ids) + sum(oods))
        out.append(-math.log(p_class) - weight * math.log(p_id))
    return out


@pytest.mark.parametrize("weight", [0.0, 1.0, 0.3])
def test_separation_loss_is_the_written_out_sum(weight: float) -> None:
    task, batch = make_task(), make_batch()
    text = FOCoOp().encode(make_params(), task)
    fast = separation_loss(text, batch, task.logit_scale, weight)
    slow = slow_losses(text, batch, task.logit_scale, weight)
    assert fast.tolist() == pytest.approx(slow, rel=1e-12)


def test_fusion_is_in_context_space() -> None:
    task, params = make_task(), make_params()
    method = FOCoOp(FOCoOpConfig(global_share=0.3))
    fused = 0.7 * params["local"] + 0.3 * params["global"]
    expected = task.encode(fused, task.id_names)
    assert torch.equal(method.encode(params, task).id, expected)


def test_soft_maximum_is_log_mean_exp_with_its_limits() -> None:
    losses = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    slow = 0.7 * math.log(sum(math.exp(x / 0.7) for x in losses.tolist()) / 3)
    assert float(Outer(0.7, relative=False)(losses)) == pytest.approx(slow, rel=1e-12)
    assert float(Outer(0.6)(losses)) == pytest.approx(slow, rel=1e-12)  # 0.6 of the mean 3.5 / 3
    assert float(Outer(1e6)(losses)) == pytest.approx(float(losses.mean()), abs=1e-5)
    assert float(Outer()(losses)) == pytest.approx(float(losses.mean()), rel=1e-12)
    assert float(Outer(1e-3)(losses)) == pytest.approx(2.0, abs=2e-3)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_without_bos_the_loss_is_the_plain_mean(weight: float) -> None:
    """At weight 0 it is the cross-entropy over C + U: the detection term is a switch of its own."""
    task, params, batch = make_task(), make_params(), make_batch()
    config = FOCoOpConfig(bos=False, detection_weight=weight)
    loss = step_loss(FOCoOp(config), params, batch, task)
    text = FOCoOp().encode(params, task)
    slow = slow_losses(text, batch, task.logit_scale, weight)
    assert float(loss) == pytest.approx(sum(slow) / len(slow), rel=1e-12)
    assert text.ood is not None
    if weight == 0.0:
        logits = task.logit_scale * batch.pooled @ torch.cat([text.id, text.ood]).T
        assert float(loss) == pytest.approx(float(F.cross_entropy(logits, batch.labels)), rel=1e-12)


@pytest.mark.parametrize("space", ["feature", "prompt"])
def test_no_steps_and_no_noise_is_the_plain_robust_loss(space: str) -> None:
    task, params, batch = make_task(), make_params(), make_batch()
    config = FOCoOpConfig(
        context_tokens=N_TOKENS,
        space=space,
        id_steps=0,
        ood_steps=0,
        sigma=0.0,
        tau_ood=10.0,
        mu=0.1,
        outer="paper",
    )
    loss = step_loss(FOCoOp(config), params, batch, task)
    slow = slow_losses(FOCoOp().encode(params, task), batch, task.logit_scale, 1.0)
    assert float(loss) == pytest.approx(
        math.log(sum(math.exp(x) for x in slow) / len(slow)), rel=1e-12
    )
    mean = step_loss(FOCoOp(replace(config, outer="mean")), params, batch, task)
    assert float(mean) == pytest.approx(sum(slow) / len(slow), rel=1e-12)


@pytest.mark.parametrize("space", ["feature", "prompt"])
@pytest.mark.parametrize("bos", [True, False])
def test_gradients_by_finite_differences(space: str, bos: bool) -> None:
    # No ascent steps: their result is held fixed by definition, so differences of the whole loss
    # would also move the perturbation. The noise alone keeps both perturbed paths in play.
    config = FOCoOpConfig(
        context_tokens=N_TOKENS, space=space, bos=bos, id_steps=0, ood_steps=0, sigma=0.05
    )
    check_gradients(FOCoOp(config), make_params(), make_batch(), make_task(), 3)


def test_spaces_agree_for_a_linear_tower_without_mixing() -> None:
    """Contexts of unit length that are their own features: both spaces perturb the same thing."""
    task = make_task(linear=True, width=3, dim=6)
    params = make_params(width=3)
    for name in ("global", "local", "ood"):
        rows = F.normalize(params[name].flatten(1), dim=-1)
        params[name] = rows.view_as(params[name])
    batch = make_batch(dim=6)
    values = []
    for space, unit in (("feature", task.spread), ("prompt", 1.0)):  # the unit of lengths
        config = FOCoOpConfig(
            context_tokens=N_TOKENS,
            space=space,
            global_share=1.0,
            sigma=0.01,
            id_radius=0.1 / unit,
            ood_radius=0.3 / unit,
            tau_id=0.1 * unit,
            tau_ood=0.01 * unit,
        )
        values.append(float(step_loss(FOCoOp(config), params, batch, task, 4)))
    assert values[0] == pytest.approx(values[1], rel=1e-12)


def test_robust_loss_exceeds_the_plain_one() -> None:
    task, params, batch = make_task(), make_params(), make_batch()
    plain = FOCoOp(FOCoOpConfig(ascent="none"))
    robust = FOCoOp(FOCoOpConfig(sigma=0.0))
    assert step_loss(robust, params, batch, task) > step_loss(plain, params, batch, task)


def test_scores_choose_the_probability_asked_for() -> None:
    task, params, batch = make_task(), make_params(), make_batch()
    text = FOCoOp().encode(params, task)
    orders = {}
    for name in ("id_mass", "max_softmax_all", "mcm"):
        method = FOCoOp(FOCoOpConfig(score=name))
        logits = method.logits(text, batch.pooled, None)
        orders[name] = method.score(logits, task).double()
    assert logits.ood is not None
    s = task.logit_scale
    odds = (s * logits.ood).exp().sum(1) / (s * logits.id).exp().sum(1)
    assert orders["id_mass"].argsort().tolist() == odds.argsort().tolist()
    both = (s * logits.id).exp().sum(1) + (s * logits.ood).exp().sum(1)
    largest = (s * logits.id).exp().max(1).values / both
    assert orders["max_softmax_all"].argsort().tolist() == (-largest).argsort().tolist()
    mcm = logits.id.softmax(1).max(1).values
    assert orders["mcm"].argsort().tolist() == (-mcm).argsort().tolist()


def test_refuses_a_task_without_words() -> None:
    task = make_task()
    empty = replace(task, ood_names=None)
    with pytest.raises(MethodError, match=r"negatives\.count"):
        FOCoOp().init(empty, torch_generator(0))


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("method.space=pixel", "feature, prompt"),
        ("method.alpha=1.5", "the most allowed is 1"),
        ("method.mu=0.0", "more than 0"),
        ("method.tau_odd=1.0", "method.tau_ood"),
    ],
)
def test_settings_out_of_range_are_refused(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        load(None, ["method.name=focoop", override])
