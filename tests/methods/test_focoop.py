"""FOCoOp's losses, ascent and server step against slow float64 references."""

import math
import re
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from focoop.clip.text import Names
from focoop.config import load
from focoop.errors import ConfigError, MethodError
from focoop.methods._base import Batch, ClientUpdate, Server, Task, Text
from focoop.methods._robust import Ascent, soft_maximum
from focoop.methods.focoop import FOCoOp, FOCoOpConfig, separation_loss
from focoop.seeds import torch_generator

C, U, N_TOKENS, WIDTH, DIM = 4, 5, 2, 3, 6


def make_names(count: int, prefix: str) -> Names:
    """Names whose single embedding differs, so that a tower can tell them apart."""
    rows = torch.arange(count, dtype=torch.float64)[:, None, None]
    return Names(
        tuple(f"{prefix}{i}" for i in range(count)),
        torch.cat([torch.sin(rows + i) for i in range(WIDTH)], dim=2),
        torch.ones(count, dtype=torch.int64),
    )


def make_task(*, linear: bool = False, width: int = WIDTH, dim: int = DIM) -> Task:
    """A smooth float64 tower; `linear` returns the context itself, brought to unit length."""
    generator = torch_generator(0, "tower")
    mix = torch.randn(N_TOKENS * width, dim, generator=generator, dtype=torch.float64)
    word = torch.randn(width, dim, generator=generator, dtype=torch.float64)

    def encode(contexts: Tensor, names: Names) -> Tensor:
        if linear:
            return F.normalize(contexts.flatten(1), dim=-1)
        hidden = torch.tanh(contexts.flatten(1) @ mix + names.embeddings[:, 0] @ word)
        return F.normalize(hidden, dim=-1)

    anchors = F.normalize(torch.randn(C, dim, generator=generator, dtype=torch.float64), dim=-1)
    return Task(
        classes=tuple(f"c{i}" for i in range(C)),
        encode=encode,
        id_names=make_names(C, "c"),
        ood_names=make_names(U, "w"),
        anchors=anchors,
        logit_scale=7.0,
        width=width,
    )


def make_params(seed: int = 0, width: int = WIDTH, tokens: int = N_TOKENS) -> dict[str, Tensor]:
    generator = torch_generator(seed, "params")

    def draw(count: int) -> Tensor:
        return torch.randn(count, tokens, width, generator=generator, dtype=torch.float64)

    return {
        "global": draw(C),
        "local": draw(C),
        "ood": draw(U),
        "ood_words": torch.arange(U),
    }


def make_batch(size: int = 8, seed: int = 0, dim: int = DIM) -> Batch:
    generator = torch_generator(seed, "batch")
    pooled = torch.randn(size, dim, generator=generator, dtype=torch.float64)
    labels = torch.randint(C, (size,), generator=generator)
    return Batch(F.normalize(pooled, dim=-1), None, labels)


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
    text = FOCoOp().text(make_params(), task)
    fast = separation_loss(text, batch, task.logit_scale, weight)
    slow = slow_losses(text, batch, task.logit_scale, weight)
    assert fast.tolist() == pytest.approx(slow, rel=1e-12)


def test_fusion_is_in_context_space() -> None:
    task, params = make_task(), make_params()
    method = FOCoOp(FOCoOpConfig(global_share=0.3))
    fused = 0.7 * params["local"] + 0.3 * params["global"]
    expected = task.encode(fused, task.id_names)
    assert torch.equal(method.text(params, task).id, expected)


def test_soft_maximum_is_log_mean_exp_with_its_limits() -> None:
    losses = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    slow = 0.7 * math.log(sum(math.exp(x / 0.7) for x in losses.tolist()) / 3)
    assert float(soft_maximum(losses, 0.7)) == pytest.approx(slow, rel=1e-12)
    assert float(soft_maximum(losses, 1e6)) == pytest.approx(float(losses.mean()), abs=1e-5)
    assert float(soft_maximum(losses, 1e-3)) == pytest.approx(2.0, abs=2e-3)


def test_without_bos_the_loss_is_cross_entropy_over_all_prompts() -> None:
    task, params, batch = make_task(), make_params(), make_batch()
    loss = FOCoOp(FOCoOpConfig(bos=False)).loss(params, batch, task, torch_generator(0))
    text = FOCoOp().text(params, task)
    assert text.ood is not None
    logits = task.logit_scale * batch.pooled @ torch.cat([text.id, text.ood]).T
    assert float(loss) == pytest.approx(float(F.cross_entropy(logits, batch.labels)), rel=1e-12)


@pytest.mark.parametrize("space", ["feature", "prompt"])
def test_no_steps_and_no_noise_is_the_plain_robust_loss(space: str) -> None:
    task, params, batch = make_task(), make_params(), make_batch()
    config = FOCoOpConfig(space=space, id_steps=0, ood_steps=0, sigma=0.0, mu=0.1)
    loss = FOCoOp(config).loss(params, batch, task, torch_generator(0))
    slow = slow_losses(FOCoOp().text(params, task), batch, task.logit_scale, 1.0)
    assert float(loss) == pytest.approx(
        math.log(sum(math.exp(x) for x in slow) / len(slow)), rel=1e-12
    )


@pytest.mark.parametrize("space", ["feature", "prompt"])
@pytest.mark.parametrize("bos", [True, False])
def test_gradients_by_finite_differences(space: str, bos: bool) -> None:
    # No ascent steps: their result is held fixed by definition, so differences of the whole loss
    # would also move the perturbation. The noise alone keeps both perturbed paths in play.
    config = FOCoOpConfig(space=space, bos=bos, id_steps=0, ood_steps=0, sigma=0.05)
    method, task, batch = FOCoOp(config), make_task(), make_batch()
    params = make_params()
    leaves = {
        name: v.clone().requires_grad_(True) if v.is_floating_point() else v
        for name, v in params.items()
    }
    method.loss(leaves, batch, task, torch_generator(3)).backward()
    for name in ("global", "local", "ood"):
        for place in [(0, 0, 0), (2, 1, 2), (3, 0, 1)]:
            value = []
            for sign in (1, -1):
                moved = {k: v.clone() for k, v in params.items()}
                moved[name][place] += sign * 1e-6
                value.append(float(method.loss(moved, batch, task, torch_generator(3))))
            slope = (value[0] - value[1]) / 2e-6
            gradient = leaves[name].grad
            assert gradient is not None
            assert float(gradient[place]) == pytest.approx(slope, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_every_small_step_raises_the_inner_objective(normalised: bool, tau: float) -> None:
    task, batch = make_task(), make_batch()
    text = FOCoOp().text(make_params(), task)
    ascent = Ascent(0.0, 1e-3, normalised, sigma=0.05, gamma=0.01)

    def objective(noise: Tensor) -> Tensor:
        moved = Text(F.normalize(text.id + noise, dim=-1), text.ood)
        return separation_loss(moved, batch, task.logit_scale, 1.0).mean()

    values = []
    for steps in range(6):
        noise = ascent.explore(
            objective, text.id, steps=steps, tau=tau, generator=torch_generator(1)
        )
        values.append(float(objective(noise) - ascent.price(noise, tau)))
    assert all(later > earlier for earlier, later in zip(values, values[1:], strict=False))


def test_price_is_the_mean_row_cost() -> None:
    noise = torch.tensor([[[3.0, 4.0]], [[0.0, -1.0]]])
    ascent = Ascent(0.0, 1.0, True, 0.0, gamma=0.5)
    assert float(ascent.price(noise, 2.0)) == pytest.approx(2 * (5 + 1) / 2 + 0.5 * (7 + 1) / 2)


def test_perturbations_stay_within_the_radius() -> None:
    ascent = Ascent(radius=0.1, step_size=1.0, normalised=True, sigma=0.0, gamma=0.0)
    like = torch.zeros(3, 2, 2)
    noise = ascent.explore(
        lambda n: (n * 5).sum(), like, steps=3, tau=0.0, generator=torch_generator(0)
    )
    assert noise.flatten(1).norm(dim=1).tolist() == pytest.approx([0.1] * 3)


def test_spaces_agree_for_a_linear_tower_without_mixing() -> None:
    """Contexts of unit length that are their own features: both spaces perturb the same thing."""
    task = make_task(linear=True, width=3, dim=6)
    params = make_params(width=3)
    for name in ("global", "local", "ood"):
        rows = F.normalize(params[name].flatten(1), dim=-1)
        params[name] = rows.view_as(params[name])
    batch = make_batch(dim=6)
    values = []
    for space in ("feature", "prompt"):
        config = FOCoOpConfig(space=space, global_share=1.0, sigma=0.01, ood_radius=0.3)
        values.append(float(FOCoOp(config).loss(params, batch, task, torch_generator(4))))
    assert values[0] == pytest.approx(values[1], rel=1e-12)


def test_robust_loss_exceeds_the_plain_one() -> None:
    task, params, batch = make_task(), make_params(), make_batch()
    plain = FOCoOp(FOCoOpConfig(id_steps=0, ood_steps=0, sigma=0.0))
    robust = FOCoOp(FOCoOpConfig(sigma=0.0, tau_id=0.0, tau_ood=10.0))
    generator = torch_generator(0)
    assert robust.loss(params, batch, task, generator) > plain.loss(params, batch, task, generator)


def make_updates(count: int, seed: int = 0, counts: Tensor | None = None) -> list[ClientUpdate]:
    generator = torch_generator(seed, "updates")
    updates = []
    for client in range(count):
        params = make_params(seed=100 + client + seed)
        held = torch.randint(0, 4, (C,), generator=generator) if counts is None else counts[client]
        shared = {name: params[name] for name in ("global", "ood", "ood_words")}
        updates.append(ClientUpdate(client, shared, int(held.sum()) or 1, held, 0.0))
    return updates


def make_server() -> Server:
    params = make_params(seed=99)
    return Server({name: params[name] for name in ("global", "ood", "ood_words")})


def slow_class_mean(updates: list[ClientUpdate], previous: Tensor) -> Tensor:
    rows = []
    for c in range(C):
        total = sum(int(u.class_counts[c]) for u in updates)
        if total == 0:
            rows.append(previous[c])
            continue
        rows.append(sum(int(u.class_counts[c]) * u.shared["global"][c] for u in updates) / total)
    return torch.stack(rows)


def test_without_goc_global_prompts_average_by_class_and_ood_prompts_by_samples() -> None:
    updates, server, task = make_updates(3), make_server(), make_task()
    result = FOCoOp(FOCoOpConfig(goc=False)).aggregate(server, updates, task)
    expected = slow_class_mean(updates, server.shared["global"])
    assert torch.allclose(result.shared["global"], expected, rtol=1e-12)
    total = sum(u.num_examples for u in updates)
    mean = sum(u.num_examples * u.shared["ood"] for u in updates) / total
    assert torch.allclose(result.shared["ood"], mean, rtol=1e-12)


def test_a_class_nobody_holds_keeps_its_prompt() -> None:
    counts = torch.tensor([[2, 0, 1, 0], [3, 0, 0, 4]])
    updates, server = make_updates(2, counts=counts), make_server()
    result = FOCoOp(FOCoOpConfig(goc=False)).aggregate(server, updates, make_task())
    assert torch.equal(result.shared["global"][1], server.shared["global"][1])
    assert torch.equal(result.shared["global"][3], updates[1].shared["global"][3])


def slow_transport(cost: Tensor, tau: float, steps: int) -> Tensor:
    """Frank-Wolfe with 1/(i+2), loops and a dense vertex (spec 1.10e)."""
    rows, columns = cost.shape
    prior = torch.full((columns,), 1.0 / columns, dtype=cost.dtype)
    plan = torch.full((rows, columns), 1.0 / (rows * columns), dtype=cost.dtype)
    for i in range(steps):
        gradient = cost + tau * torch.log(plan.sum(0) / prior)
        vertex = torch.zeros_like(plan)
        for c in range(rows):
            vertex[c, gradient[c].argmin()] = 1.0 / rows
        beta = 1.0 / (i + 2)
        plan = (1 - beta) * plan + beta * vertex
    return plan


@pytest.mark.parametrize("scale", ["range", "max"])
def test_goc_is_the_written_out_server_step(scale: Literal["range", "max"]) -> None:
    config = FOCoOpConfig(
        transport_steps=40,
        transport_gap=0.0,
        transport_rule="open_loop",
        cost_scale=scale,
        alpha=0.7,
        seemly_count=6,
        keep="slot",
    )
    updates, server, task = make_updates(3), make_server(), make_task()
    result = FOCoOp(config).aggregate(server, updates, task)

    prompts = slow_class_mean(updates, server.shared["global"]).flatten(1)
    ood = torch.cat([u.shared["ood"] for u in updates]).flatten(1)  # (KU, nd)
    cost = torch.stack([((prompts[c] - ood) ** 2).sum(1) for c in range(C)])
    lowest = cost.min() if scale == "range" else 0.0
    plan = slow_transport((cost - lowest) / (cost.max() - lowest), config.transport_tau, 40)
    mass = plan.sum(0)
    # Columns that were never chosen tie up to rounding; ties go to the lower index.
    seemly = sorted(range(3 * U), key=lambda j: (-round(15 * float(mass[j]), 6), j))[:6]
    for c in range(C):
        weights = plan[c, seemly]
        target = (weights[:, None] * ood[seemly]).sum(0) / weights.sum()
        expected = 0.7 * prompts[c] + 0.3 * target
        assert torch.allclose(result.shared["global"][c].flatten(), expected, rtol=1e-9)
    for u in range(U):
        copies = [
            (round(15 * float(mass[k * U + u]), 6), -cost[:, k * U + u].min()) for k in range(3)
        ]
        best = min(range(3), key=lambda k: copies[k])
        assert torch.equal(result.shared["ood"][u].flatten(), ood[best * U + u])
    assert result.shared["ood_words"].tolist() == list(range(U))
    assert result.report["transport_steps"] == 40


def test_paper_literal_choice_carries_words_along() -> None:
    config = FOCoOpConfig(keep="paper", transport_steps=50)
    updates, server, task = make_updates(3), make_server(), make_task()
    result = FOCoOp(config).aggregate(server, updates, task)
    everything = torch.cat([u.shared["ood"] for u in updates])
    for row, word in zip(result.shared["ood"], result.shared["ood_words"].tolist(), strict=True):
        origin = [j for j in range(3 * U) if torch.equal(everything[j], row)]
        assert [j % U for j in origin] == [word]


def test_single_participant_skips_the_transport() -> None:
    updates, server, task = make_updates(1), make_server(), make_task()
    result = FOCoOp().aggregate(server, updates, task)
    assert torch.equal(result.shared["ood"], updates[0].shared["ood"])
    assert dict(result.report) == {}


def test_identical_updates_keep_ood_prompts_and_move_global_ones_only_towards_them() -> None:
    server, task = make_server(), make_task()
    counts = torch.ones(C, dtype=torch.int64)
    updates = [ClientUpdate(k, dict(server.shared), C, counts, 0.0) for k in range(3)]
    kept = FOCoOp(FOCoOpConfig(alpha=1.0)).aggregate(server, updates, task)
    assert torch.allclose(kept.shared["global"], server.shared["global"], rtol=1e-12)
    assert torch.equal(kept.shared["ood"], server.shared["ood"])
    moved = FOCoOp(FOCoOpConfig(alpha=0.5)).aggregate(server, updates, task)
    assert torch.equal(moved.shared["ood"], server.shared["ood"])


def test_equal_masses_keep_the_copy_farthest_from_every_class() -> None:
    """Without a step all masses are equal; client 1's copies lie farther out than client 0's."""
    counts = torch.ones(2, C, dtype=torch.int64)
    updates, server = make_updates(2, counts=counts), make_server()
    updates[1].shared["ood"] = 5.0 * updates[0].shared["ood"]
    config = FOCoOpConfig(transport_gap=1e9)
    result = FOCoOp(config).aggregate(server, updates, make_task())
    assert result.report["transport_steps"] == 0
    assert torch.equal(result.shared["ood"], updates[1].shared["ood"])


def test_armijo_warm_start_needs_no_more_steps_than_a_cold_one() -> None:
    method = FOCoOp(FOCoOpConfig(transport_rule="armijo", transport_gap=1e-4))
    updates, server, task = make_updates(3), make_server(), make_task()
    first = method.aggregate(server, updates, task)
    second = method.aggregate(Server(server.shared, first.memory), updates, task)
    assert second.report["transport_steps"] <= first.report["transport_steps"]


def test_scores_choose_the_probability_asked_for() -> None:
    task, params, batch = make_task(), make_params(), make_batch()
    text = FOCoOp().text(params, task)
    orders = {}
    for name in ("id_mass", "msp_all", "mcm"):
        method = FOCoOp(FOCoOpConfig(score=name))
        logits = method.logits(text, batch.pooled, None)
        orders[name] = method.score(logits, task).double()
    assert logits.ood is not None
    s = task.logit_scale
    odds = (s * logits.ood).exp().sum(1) / (s * logits.id).exp().sum(1)
    assert orders["id_mass"].argsort().tolist() == odds.argsort().tolist()
    both = (s * logits.id).exp().sum(1) + (s * logits.ood).exp().sum(1)
    largest = (s * logits.id).exp().max(1).values / both
    assert orders["msp_all"].argsort().tolist() == (-largest).argsort().tolist()
    mcm = logits.id.softmax(1).max(1).values
    assert orders["mcm"].argsort().tolist() == (-mcm).argsort().tolist()


def test_refuses_a_task_without_words() -> None:
    task = make_task()
    empty = Task(task.classes, task.encode, task.id_names, None, task.anchors, 7.0, WIDTH)
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
