"""PromptFolio against slow float64 references."""

import math
import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from focoop.clip.base import LabelledFeatures
from focoop.config.loading import load
from focoop.errors import ConfigError
from focoop.federation.client import LocalSettings
from focoop.methods.base import ClientUpdate, Server, State, Task
from focoop.methods.promptfolio import PromptFolio
from focoop.seeds import torch_generator
from tests.federation.batched import trained_alike
from tests.methods.toy import (
    N_TOKENS,
    WIDTH,
    C,
    check_gradients,
    make_batch,
    make_task,
    step_loss,
    unified_task,
)


def make_method(**settings: float) -> PromptFolio:
    return PromptFolio(PromptFolio.Config(context_tokens=N_TOKENS, **settings))


def make_params(seed: int = 0) -> dict[str, Tensor]:
    generator = torch_generator(seed, "contexts")
    return {
        name: torch.randn(N_TOKENS, WIDTH, generator=generator, dtype=torch.float64)
        for name in ("global", "local")
    }


def slow_cosines(params: dict[str, Tensor], task: Task, theta: float, images: Tensor) -> Tensor:
    """<h, (1 - theta) e^G_c + theta e^L_c>, one image, one class, one entry at a time."""
    sides = {name: task.encode(params[name], task.id_names).tolist() for name in params}
    rows = []
    for h in images.tolist():
        row = []
        for shared, own in zip(sides["global"], sides["local"], strict=True):
            row.append(
                sum(
                    x * ((1 - theta) * a + theta * b)
                    for x, a, b in zip(h, shared, own, strict=True)
                )
            )
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("theta", [0.0, 0.4, 1.0])
def test_logits_loss_and_score_are_the_written_out_sums(theta: float) -> None:
    task, params, batch = unified_task(), make_params(), make_batch()
    method = make_method(local_share=theta, temperature=0.5)
    expected = slow_cosines(params, task, theta, batch.pooled)
    logits = method.logits(method.encode(params, task), batch.pooled, None)
    assert torch.allclose(logits.id, expected, rtol=1e-12)
    total = 0.0
    for row, label in zip(expected.tolist(), batch.labels.tolist(), strict=True):
        powers = [math.exp(task.logit_scale * value) for value in row]
        total -= math.log(powers[label] / sum(powers))
    loss = step_loss(method, params, batch, task)
    assert float(loss) == pytest.approx(total / len(batch.labels), rel=1e-12)
    largest = [
        max(math.exp(v / 0.5) for v in r) / sum(math.exp(v / 0.5) for v in r)
        for r in expected.tolist()
    ]
    assert method.score(logits, task).tolist() == pytest.approx([-math.log(p) for p in largest])


def test_disagreeing_prompts_shorten_the_mixture() -> None:
    """|e|^2 = 1 - 2 theta (1 - theta) (1 - cos) for two unit vectors: it is not renormalised."""
    task, params, theta = unified_task(), make_params(), 0.3
    mixture = make_method(local_share=theta).encode(params, task).id
    cosine = (
        task.encode(params["global"], task.id_names) * task.encode(params["local"], task.id_names)
    ).sum(1)
    expected = 1 - 2 * theta * (1 - theta) * (1 - cosine)
    assert expected.max() < 0.99
    assert torch.allclose(mixture.square().sum(1), expected, rtol=1e-12)


def test_gradients_by_finite_differences() -> None:
    check_gradients(make_method(), make_params(), make_batch(), unified_task())


def test_starts_from_two_draws_of_which_one_travels() -> None:
    state = PromptFolio().init(make_task(), torch_generator(0))
    assert set(state.shared) == {"global"} and set(state.private) == {"local"}
    shared, own = state.shared["global"], state.private["local"]
    assert shared.shape == own.shape == (8, WIDTH)
    assert not torch.equal(shared, own)
    wide = replace(make_task(), width=2000)
    deviation = float(PromptFolio().init(wide, torch_generator(0)).private["local"].std())
    assert deviation == pytest.approx(0.02, rel=0.05)


def test_server_weighs_by_samples() -> None:
    updates = [
        ClientUpdate(k, {"global": make_params(k)["global"]}, count, torch.zeros(C).long(), 0.0)
        for k, count in enumerate([1, 5, 2])
    ]
    server = make_method().aggregate(Server(updates[0].shared), updates, unified_task())
    for i in range(N_TOKENS):
        for j in range(WIDTH):
            slow = sum(u.num_examples * float(u.shared["global"][i, j]) for u in updates) / 8
            assert float(server.shared["global"][i, j]) == pytest.approx(slow, rel=1e-12)
    assert set(server.shared) == {"global"} and not server.memory


def test_many_clients_at_once_train_as_each_alone() -> None:
    task, method = unified_task(), make_method()
    settings = LocalSettings(epochs=2, batch_size=4, lr=0.1, momentum=0.5, prox=0.1)
    shared = {"global": make_params()["global"]}
    states = [State(shared, {"local": make_params(k)["local"]}) for k in range(3)]
    batches = [make_batch(size, seed) for seed, size in enumerate([7, 4, 9])]
    data = [LabelledFeatures(b.pooled, None, b.labels) for b in batches]
    trained = trained_alike(method, states, data, task, settings)
    for found, before in zip(trained, states, strict=True):
        assert not torch.allclose(found.private["local"], before.private["local"], atol=1e-3)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("method.local_share=1.5", "the most allowed is 1"),
        ("method.local_share=-0.1", "the least allowed is 0"),
        ("method.context_tokens=0", "the least allowed is 1"),
        ("method.temperature=0.0", "more than 0"),
        ("method.frac=0.2", "there is no setting method.frac"),
    ],
)
def test_settings_out_of_range_are_refused(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        load(None, ["method.name=promptfolio", override])
