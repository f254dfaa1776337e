"""FedOTP's transported logits, loss and server step against slow float64 references."""

import math
import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from focoop.clip.base import LabelledFeatures
from focoop.clip.text.tower import Names
from focoop.config.loading import load
from focoop.errors import ConfigError, MethodError
from focoop.federation.client import LocalSettings
from focoop.methods.base import Batch, ClientUpdate, Server, State, Task
from focoop.methods.fedotp import FedOTP
from focoop.seeds import torch_generator
from tests.federation.batched import trained_alike
from tests.methods.toy import DIM, N_TOKENS, WIDTH, C, make_task, step_loss

P = 5
CONFIG = FedOTP.Config(context_tokens=N_TOKENS, mass=0.8)


def make_images(size: int = 6, seed: int = 0) -> Batch:
    generator = torch_generator(seed, "images")
    patches = torch.randn(size, P, DIM, generator=generator, dtype=torch.float64)
    labels = torch.randint(C, (size,), generator=generator)
    pooled = F.normalize(patches.mean(1), dim=-1)
    return Batch(pooled, F.normalize(patches, dim=-1), labels)


def make_state(seed: int = 0) -> State:
    generator = torch_generator(seed, "contexts")

    def draw() -> Tensor:
        return torch.randn(N_TOKENS, WIDTH, generator=generator, dtype=torch.float64)

    return State({"global": draw()}, {"local": draw()})


def make_unified_task() -> Task:
    """The toy task with a tower that also takes one context for all names, and many clients."""
    task = make_task()

    def encode(contexts: Tensor, names: Names) -> Tensor:
        if contexts.dim() == 4:  # one set of prompts per client
            return torch.stack([task.encode(one, names) for one in contexts])
        return task.encode(contexts.expand(len(names), -1, -1), names)

    return replace(task, encode=encode)


def slow_plan(cosines: list[list[float]], config: FedOTP.Config) -> list[list[float]]:
    """The scaling of methods 1.2 for one image and class, number by number."""
    kernel = [[math.exp(-(1.0 - s) / config.epsilon) for s in row] for row in cosines]
    capped = config.transport == "partial"
    b = (config.mass if capped else 1.0) / 2
    u, v = [1.0] * P, [1.0, 1.0]
    for _ in range(config.max_iterations):
        for p in range(P):
            u[p] = 1.0 / P / (kernel[p][0] * v[0] + kernel[p][1] * v[1])
            if capped:
                u[p] = min(u[p], 1.0)
        old = list(v)
        v = [b / sum(kernel[p][r] * u[p] for p in range(P)) for r in range(2)]
        if (abs(v[0] - old[0]) + abs(v[1] - old[1])) / 2 < config.threshold:
            break
    return [[u[p] * kernel[p][r] * v[r] for r in range(2)] for p in range(P)]


def slow_plans(params: dict[str, Tensor], batch: Batch, task: Task, config: FedOTP.Config) -> list:
    """plans[image][class][patch][prompt]."""
    rows = slow_cosines(params, batch, task)
    return [[slow_plan(one, config) for one in image] for image in rows]


def slow_cosines(params: dict[str, Tensor], batch: Batch, task: Task) -> list:
    """cosines[image][class][patch][prompt]; prompt 0 is the global context."""
    names = task.id_names
    features = [task.encode(params[n].expand(C, -1, -1), names).tolist() for n in params]
    assert list(params) == ["global", "local"] and batch.patches is not None

    def cosine(x: list[float], y: list[float]) -> float:
        return sum(a * b for a, b in zip(x, y, strict=True)) / math.hypot(*x) / math.hypot(*y)

    return [
        [[[cosine(x, features[r][c]) for r in range(2)] for x in image] for c in range(C)]
        for image in batch.patches.tolist()
    ]


def slow_loss(params: dict[str, Tensor], batch: Batch, task: Task, plans: list) -> float:
    """Mean of -log softmax_y(s sum_pr T_pr S_pr) with given plans."""
    total = 0.0
    cosines = slow_cosines(params, batch, task)
    for plan, image, y in zip(plans, cosines, batch.labels.tolist(), strict=True):
        logits = [
            task.logit_scale
            * sum(plan[c][p][r] * image[c][p][r] for p in range(P) for r in range(2))
            for c in range(C)
        ]
        total += math.log(sum(math.exp(z - logits[y]) for z in logits))
    return total / len(batch.labels)


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        FedOTP.Config(),
        FedOTP.Config(epsilon=0.05, mass=0.4),
        FedOTP.Config(transport="sinkhorn", mass=0.4),
        FedOTP.Config(threshold=50.0, max_iterations=7),
        FedOTP.Config(transport="sinkhorn", threshold=0.2),
        FedOTP.Config(transport="sinkhorn", epsilon=0.05, threshold=0.0, max_iterations=3),
    ],
    ids=["partial", "defaults", "sharp", "sinkhorn", "short", "loose sinkhorn", "short sinkhorn"],
)
def test_loss_is_the_written_out_one(config: FedOTP.Config) -> None:
    task, batch, state = make_unified_task(), make_images(), make_state()
    params = {**state.shared, **state.private}
    slow = slow_loss(params, batch, task, slow_plans(params, batch, task, config))
    assert float(step_loss(FedOTP(config), params, batch, task)) == pytest.approx(slow, rel=1e-9)


def test_gradients_by_finite_differences_with_the_plan_held() -> None:
    """The plan gets no gradient, so differences are taken at the plans of the point itself."""
    task, batch, state = make_unified_task(), make_images(), make_state()
    params = {**state.shared, **state.private}
    leaves = {name: v.clone().requires_grad_(True) for name, v in params.items()}
    step_loss(FedOTP(CONFIG), leaves, batch, task).backward()
    plans = slow_plans(params, batch, task, CONFIG)
    for name in params:
        for place in [(0, 0), (1, 2), (0, 1)]:
            value = []
            for sign in (1, -1):
                moved = {k: v.clone() for k, v in params.items()}
                moved[name][place] += sign * 1e-5
                value.append(slow_loss(moved, batch, task, plans))
            gradient = leaves[name].grad
            assert gradient is not None
            slope = (value[0] - value[1]) / 2e-5
            assert float(gradient[place]) == pytest.approx(slope, rel=1e-6, abs=1e-9)


def test_logits_predict_what_the_loss_trains() -> None:
    task, batch, state = make_unified_task(), make_images(), make_state()
    params = {**state.shared, **state.private}
    method = FedOTP(CONFIG)
    logits = method.logits(method.encode(params, task), batch.pooled, batch.patches).id
    loss = F.cross_entropy(task.logit_scale * logits, batch.labels)
    assert float(loss) == pytest.approx(float(step_loss(method, params, batch, task)), rel=1e-12)
    two_images = 2 * P * C * 2
    text = method.encode(params, task)
    parts = method.transported(text, batch.patches, early=True, cells=two_images)
    torch.testing.assert_close(parts, logits, rtol=1e-12, atol=1e-15)
    none = method.logits(method.encode(params, task), batch.pooled[:0], batch.patches[:0])
    assert none.id.shape == (0, C)


def test_a_wide_entropy_and_equal_contexts_give_mean_cosines() -> None:
    """At a large epsilon every patch gets the same mass: gamma times the mean cosine."""
    task, batch, state = make_unified_task(), make_images(), make_state()
    params = {"global": state.shared["global"], "local": state.shared["global"]}
    method = FedOTP(FedOTP.Config(epsilon=1e6, mass=0.7))
    text = method.encode(params, task)
    assert batch.patches is not None
    expected = 0.7 * batch.patches.mean(1) @ text.id.T
    logits = method.logits(text, batch.pooled, batch.patches)
    torch.testing.assert_close(logits.id, expected, rtol=0.0, atol=1e-6)


def test_a_small_mass_looks_at_the_best_patches_alone() -> None:
    """With gamma = 2/P and one patch near the prompt of a class, that class is the answer."""
    task, state = make_unified_task(), make_state()
    method = FedOTP(FedOTP.Config(epsilon=0.02, mass=2 / P))
    text = method.encode({**state.shared, **state.private}, task)
    mixed = make_images(C)
    assert mixed.patches is not None
    patches = mixed.patches.clone()
    patches[:, 0], patches[:, 1] = text.id, text.parts["local"]
    logits = method.logits(text, mixed.pooled, patches).id
    assert logits.argmax(1).tolist() == list(range(C))
    assert logits.diagonal().tolist() == pytest.approx([2 / P] * C, abs=0.02)


def test_only_the_global_context_is_shared_and_averaged_by_samples() -> None:
    task = make_unified_task()
    state = FedOTP(CONFIG).init(task, torch_generator(0))
    assert {n: tuple(v.shape) for n, v in state.shared.items()} == {"global": (N_TOKENS, WIDTH)}
    assert {n: tuple(v.shape) for n, v in state.private.items()} == {"local": (N_TOKENS, WIDTH)}
    assert not torch.equal(state.shared["global"], state.private["local"])
    sizes, contexts = [1, 5, 2], [make_state(k).shared["global"] for k in range(3)]
    updates = [
        ClientUpdate(k, {"global": contexts[k]}, sizes[k], torch.zeros(C, dtype=torch.int64), 0.0)
        for k in range(3)
    ]
    server = FedOTP(CONFIG).aggregate(Server(make_state(9).shared), updates, task)
    assert server.shared.keys() == {"global"}
    for place in [(0, 0), (1, 2)]:
        mean = sum(n * float(x[place]) for n, x in zip(sizes, contexts, strict=True)) / 8
        assert float(server.shared["global"][place]) == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("transport", ["partial", "sinkhorn"])
def test_clients_together_train_as_alone(transport: str) -> None:
    task = make_unified_task()
    method = FedOTP(FedOTP.Config(context_tokens=N_TOKENS, transport=transport, max_iterations=30))
    settings = LocalSettings(epochs=2, batch_size=3, lr=0.3, momentum=0.5)
    images = [make_images(size, seed) for seed, size in enumerate([5, 3, 6])]
    data = [LabelledFeatures(b.pooled, b.patches, b.labels) for b in images]
    shared = make_state().shared
    states = [State(shared, make_state(k).private) for k in range(3)]
    trained = trained_alike(method, states, data, task, settings)
    for found, before in zip(trained, states, strict=True):
        assert not torch.equal(found.private["local"], before.private["local"])


def test_score_is_mcm_of_the_transported_cosines() -> None:
    task, batch, state = make_unified_task(), make_images(), make_state()
    method = FedOTP(FedOTP.Config(temperature=0.5))
    text = method.encode({**state.shared, **state.private}, task)
    logits = method.logits(text, batch.pooled, batch.patches)
    expected = [-math.log(max(row)) for row in (logits.id / 0.5).softmax(1).tolist()]
    assert method.score(logits, task).tolist() == pytest.approx(expected, rel=1e-9)


def test_images_without_patches_are_refused() -> None:
    task, batch, state = make_unified_task(), make_images(), make_state()
    text = FedOTP().encode({**state.shared, **state.private}, task)
    with pytest.raises(MethodError, match=r"data\.with_patches=true"):
        FedOTP().logits(text, batch.pooled, None)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("method.transport=exact", "partial, sinkhorn"),
        ("method.mass=1.2", "the most allowed is 1"),
        ("method.mass=0.0", "more than 0"),
        ("method.epsilon=0.0", "more than 0"),
        ("method.threshold=-1.0", "the least allowed is 0"),
        ("method.max_iterations=0", "the least allowed is 1"),
    ],
)
def test_settings_out_of_range_are_refused(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        load(None, ["method.name=fedotp", override])
