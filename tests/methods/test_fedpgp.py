"""FedPGP against slow float64 references."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from focoop.clip.base import LabelledFeatures
from focoop.config.loading import load
from focoop.errors import ConfigError
from focoop.federation.client import LocalSettings
from focoop.methods.base import ClientUpdate, Server, State, Text
from focoop.methods.fedpgp import FedPGP
from focoop.methods.promptfl import PromptFL
from focoop.seeds import torch_generator
from tests.federation.batched import trained_alike
from tests.methods.toy import (
    DIM,
    N_TOKENS,
    WIDTH,
    C,
    check_gradients,
    make_batch,
    make_task,
    step_loss,
    unified_task,
)

RANK = 2


def make_method(**settings: Any) -> FedPGP:
    return FedPGP(FedPGP.Config(context_tokens=N_TOKENS, rank=RANK, **settings))


def make_params(seed: int = 0) -> dict[str, Tensor]:
    generator = torch_generator(seed, "contexts")
    shapes = {"global": (N_TOKENS, WIDTH), "left": (N_TOKENS, RANK), "right": (RANK, WIDTH)}
    return {
        name: torch.randn(*shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def personal_context(params: dict[str, Tensor]) -> Tensor:
    """Sigma + U V, entry by entry."""
    context = params["global"].clone()
    for i in range(N_TOKENS):
        for j in range(WIDTH):
            for b in range(RANK):
                context[i, j] += params["left"][i, b] * params["right"][b, j]
    return context


@pytest.mark.parametrize(("mu", "t"), [(1.0, 0.5), (0.3, 2.0), (0.0, 0.5)])
def test_loss_is_the_written_out_sum(mu: float, t: float) -> None:
    method = make_method(contrast_weight=mu, contrast_temperature=t, anchor="a sketch of {}")
    task, params, batch = unified_task(method), make_params(), make_batch()
    personal = task.encode(personal_context(params), task.id_names).tolist()
    shared = task.encode(params["global"], task.id_names).tolist()
    anchors = task.texts([f"a sketch of {name}" for name in task.classes]).tolist()
    entropy = 0.0
    for h, label in zip(batch.pooled.tolist(), batch.labels.tolist(), strict=True):
        powers = [math.exp(task.logit_scale * dot(h, e)) for e in personal]
        entropy -= math.log(powers[label] / sum(powers)) / len(batch.labels)
    contrast = 0.0
    for anchor, general, own in zip(anchors, shared, personal, strict=True):
        near, far = math.exp(dot(anchor, general) / t), math.exp(dot(general, own) / t)
        contrast -= math.log(near / (near + far)) / C
    loss = step_loss(method, params, batch, task)
    assert float(loss) == pytest.approx(entropy + mu * contrast, rel=1e-12)
    assert contrast > 0.1  # so that a wrong weight would show


def test_logits_and_score_are_those_of_the_personal_prompt() -> None:
    method = make_method(temperature=0.5)
    task, params, batch = unified_task(method), make_params(), make_batch()
    logits = method.logits(method.encode(params, task), batch.pooled, None)
    personal = task.encode(personal_context(params), task.id_names).tolist()
    score = []
    for h, row in zip(batch.pooled.tolist(), logits.id.tolist(), strict=True):
        cosines = [dot(h, e) for e in personal]
        assert row == pytest.approx(cosines, rel=1e-12)
        powers = [math.exp(value / 0.5) for value in cosines]
        score.append(-math.log(max(powers) / sum(powers)))
    assert method.score(logits, task).tolist() == pytest.approx(score, rel=1e-9)


def test_contrast_has_its_limits() -> None:
    """Log 2 for equal similarities, 0 for shared prompts at their anchors, opposite the own."""
    method = make_method(contrast_temperature=0.01)
    task = unified_task(method)
    anchors = task.frozen["anchors"]
    same = Text(anchors, parts={"global": anchors})
    assert float(method.contrast(same, task)) == pytest.approx(math.log(2), rel=1e-12)
    apart = Text(-anchors, parts={"global": anchors})
    assert float(method.contrast(apart, task)) == pytest.approx(0.0, abs=1e-12)
    swapped = Text(-anchors, parts={"global": -anchors})  # (1 - -1) / t = 200
    assert float(method.contrast(swapped, task)) == pytest.approx(200.0, rel=1e-12)


@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_gradients_by_finite_differences(mu: float) -> None:
    method = make_method(contrast_weight=mu)
    task, params, batch = unified_task(method), make_params(), make_batch()
    check_gradients(method, params, batch, task)


def test_without_contrast_and_change_it_is_promptfl() -> None:
    method = make_method(contrast_weight=0.0)
    task, params, batch = unified_task(method), make_params(), make_batch()
    params["left"] = torch.zeros_like(params["left"])
    assert list(method.prompts(params, task)) == ["id"]  # nothing is encoded for no term
    plain = step_loss(PromptFL(), {"context": params["global"]}, batch, task)
    assert float(step_loss(method, params, batch, task)) == pytest.approx(float(plain), rel=1e-12)


def test_the_anchor_is_a_row_of_x_unless_told_otherwise() -> None:
    asked: list[str] = []

    def texts(given: Sequence[str]) -> Tensor:
        asked.extend(given)
        return torch.ones(len(given), DIM, dtype=torch.float64)

    task = replace(make_task(), classes=("sea_lion", "cat", "dog", "{x}"), texts=texts)
    anchors = FedPGP(FedPGP.Config(context_tokens=3)).prepare(task)["anchors"]
    assert asked == ["X X X sea lion.", "X X X cat.", "X X X dog.", "X X X {x}."]
    assert anchors.shape == (4, DIM)
    FedPGP(FedPGP.Config(anchor="a photo of a {}.")).prepare(task)
    assert asked[4] == "a photo of a sea lion."
    assert FedPGP(FedPGP.Config(contrast_weight=0.0)).prepare(task) == {}


def test_starts_near_the_shared_context() -> None:
    state = FedPGP().init(replace(make_task(), width=512), torch_generator(0))
    assert {name: tuple(v.shape) for name, v in state.shared.items()} == {"global": (16, 512)}
    shapes = {name: tuple(v.shape) for name, v in state.private.items()}
    assert shapes == {"left": (16, 4), "right": (4, 512)}
    assert float(state.shared["global"].std()) == pytest.approx(0.02, rel=0.05)
    # A sum of b products of N(0, 0.02^2) has deviation sqrt(b) 0.02^2.
    change = state.private["left"] @ state.private["right"]
    assert float(change.std()) == pytest.approx(2 * 0.02**2, rel=0.3)


def test_server_weighs_by_samples() -> None:
    method = make_method()
    updates = [
        ClientUpdate(k, {"global": make_params(k)["global"]}, count, torch.zeros(C).long(), 0.0)
        for k, count in enumerate([1, 5, 2])
    ]
    server = method.aggregate(Server(updates[0].shared), updates, unified_task(method))
    for i in range(N_TOKENS):
        for j in range(WIDTH):
            slow = sum(u.num_examples * float(u.shared["global"][i, j]) for u in updates) / 8
            assert float(server.shared["global"][i, j]) == pytest.approx(slow, rel=1e-12)
    assert set(server.shared) == {"global"} and not server.memory


@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_many_clients_at_once_train_as_each_alone(mu: float) -> None:
    method = make_method(contrast_weight=mu)
    task = unified_task(method)
    settings = LocalSettings(epochs=2, batch_size=4, lr=0.1, momentum=0.5, prox=0.1)
    shared = {"global": make_params()["global"]}
    own = [{name: make_params(k)[name] for name in ("left", "right")} for k in range(3)]
    states = [State(shared, private) for private in own]
    batches = [make_batch(size, seed) for seed, size in enumerate([7, 4, 9])]
    data = [LabelledFeatures(b.pooled, None, b.labels) for b in batches]
    for found, before in zip(trained_alike(method, states, data, task, settings), own, strict=True):
        for name, start in before.items():
            assert not torch.allclose(found.private[name], start, atol=1e-3)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("method.rank=0", "the least allowed is 1"),
        ("method.contrast_weight=-1.0", "the least allowed is 0"),
        ("method.contrast_temperature=0.0", "more than 0"),
        ("method.anchor=a photo", "must contain {} once"),
        ("method.anchor={} and {}", "must contain {} once"),
        ("method.context_tokens=0", "the least allowed is 1"),
    ],
)
def test_settings_out_of_range_are_refused(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        load(None, ["method.name=fedpgp", override])
