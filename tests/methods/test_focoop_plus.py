"""FOCoOp+ against slow float64 references: fusion, prior, loss, score and server step."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from focoop.errors import MethodError
from focoop.methods._base import Batch, ClientUpdate, Server, Task
from focoop.methods.focoop_plus import FOCoOpPlus
from focoop.seeds import torch_generator
from tests.methods.toy import DIM, N_TOKENS, C, U, make_batch, make_params, make_task, step_loss

Config = FOCoOpPlus.Config
COUNTS = torch.tensor([3, 0, 5, 0])
PLAIN = Config(context_tokens=N_TOKENS, bos=False)


def params_of(seed: int = 0) -> dict[str, Tensor]:
    generator = torch_generator(seed, "residual")
    residual = 0.5 * torch.randn(C, DIM, generator=generator, dtype=torch.float64)
    return {**make_params(seed), "residual": residual, "counts": COUNTS}


def slow_prior(open_share: float) -> list[float]:
    """Log of (1 - lambda) n_c / n + lambda / C, largest 0."""
    total = sum(COUNTS.tolist())
    prior = [(1 - open_share) * n / total + open_share / C for n in COUNTS.tolist()]
    return [math.log(p / max(prior)) for p in prior]


def slow_features(params: dict[str, Tensor], task: Task, config: Config) -> list[Tensor]:
    """e_c = unit((1 - v) Text(t_c) + v z_c + scale r_c), class by class."""
    out = []
    rho, v = config.global_share, config.template_share
    for c in range(C):
        context = params["global"][c]
        if COUNTS[c] > 0:
            context = (1 - rho) * params["local"][c] + rho * context
        row = task.encode(context[None], task.id_names.select(torch.tensor([c])))[0]
        mixed = (1 - v) * row + v * task.anchors[c] + config.residual_scale * params["residual"][c]
        out.append(mixed / math.sqrt(sum(float(x) ** 2 for x in mixed)))
    return out


def test_features_and_prior_are_the_written_out_ones() -> None:
    task, params = make_task(), params_of()
    config = Config(context_tokens=N_TOKENS, global_share=0.7, template_share=0.4, open_share=0.2)
    text = FOCoOpPlus(config).encode(params, task)
    torch.testing.assert_close(
        text.id, torch.stack(slow_features(params, task, config)), rtol=1e-12, atol=1e-12
    )
    assert text.parts["prior"].tolist() == pytest.approx(slow_prior(0.2), rel=1e-12)


def slow_loss(params: dict[str, Tensor], batch: Batch, task: Task, config: Config) -> float:
    """Cross-entropy over C + U with a log pi_c on the classes, and the pull to the template."""
    ids, prior = slow_features(params, task, config), slow_prior(config.open_share)
    assert task.ood_names is not None
    oods = task.encode(params["ood"], task.ood_names)
    s, losses = task.logit_scale, []
    for h, y in zip(batch.pooled, batch.labels.tolist(), strict=True):
        logits = [
            s * float(h @ e) + config.train_prior * p for e, p in zip(ids, prior, strict=True)
        ]
        total = sum(math.exp(x) for x in logits) + sum(math.exp(s * float(h @ o)) for o in oods)
        losses.append(math.log(total) - logits[y])
    held = [c for c in range(C) if COUNTS[c] > 0]
    pull = sum(1 - float(ids[c] @ task.anchors[c]) for c in held) / len(held)
    return sum(losses) / len(losses) + config.anchor_weight * pull


@pytest.mark.parametrize(("train_prior", "anchor"), [(0.0, 0.0), (1.0, 2.0), (0.5, 0.3)])
def test_loss_without_bos_is_the_written_out_sum(train_prior: float, anchor: float) -> None:
    task, params, batch = make_task(), params_of(), make_batch()
    config = replace(PLAIN, train_prior=train_prior, anchor_weight=anchor)
    fast = step_loss(FOCoOpPlus(config), params, batch, task)
    assert float(fast) == pytest.approx(slow_loss(params, batch, task, config), rel=1e-12)


def test_robust_loss_without_steps_and_noise_is_the_plain_one_with_detection() -> None:
    """BOS without exploration: the soft maximum of CE - log p(ID|x), in the limit of a mean."""
    task, params, batch = make_task(), params_of(), make_batch()
    still = replace(PLAIN, bos=True, id_steps=0, ood_steps=0, sigma=0.0, mu=1e7)
    without = replace(still, detection_weight=0.0)
    expected = slow_loss(params, batch, task, PLAIN)
    assert float(step_loss(FOCoOpPlus(without), params, batch, task)) == pytest.approx(
        expected, rel=1e-6
    )
    assert step_loss(FOCoOpPlus(still), params, batch, task) > expected
    moved = replace(still, id_steps=4, ood_steps=4)
    assert step_loss(FOCoOpPlus(moved), params, batch, task) > step_loss(
        FOCoOpPlus(still), params, batch, task
    )


@pytest.mark.parametrize("rate", [0.8, 1.0])
def test_gradients(rate: float) -> None:
    """Finite differences; the global prompt's gradient is `global_rate / rho` of its own."""
    task, params, batch = make_task(), params_of(), make_batch()
    method = FOCoOpPlus(replace(PLAIN, global_share=0.8, global_rate=rate))
    leaves = {
        n: v.clone().requires_grad_(True) if v.is_floating_point() else v for n, v in params.items()
    }
    step_loss(method, leaves, batch, task).backward()
    factor = {"global": rate / 0.8, "local": 1.0, "ood": 1.0, "residual": 1.0}
    for name, times in factor.items():
        place = (2, 1) if name == "residual" else (2, 1, 2)
        values = []
        for sign in (1, -1):
            moved = {k: v.clone() for k, v in params.items()}
            moved[name][place] += sign * 1e-6
            values.append(float(step_loss(method, moved, batch, task)))
        slope = times * (values[0] - values[1]) / 2e-6
        gradient = leaves[name].grad
        assert gradient is not None
        assert float(gradient[place]) == pytest.approx(slope, rel=1e-5, abs=1e-9)


def test_absent_classes_are_not_trained() -> None:
    task, params, batch = make_task(), params_of(), make_batch()
    batch = Batch(batch.pooled, None, torch.where(batch.labels % 2 == 0, batch.labels, 0))
    leaves = {
        n: v.clone().requires_grad_(True) if v.is_floating_point() else v for n, v in params.items()
    }
    step_loss(FOCoOpPlus(Config(context_tokens=N_TOKENS)), leaves, batch, task).backward()
    for name in ("global", "local", "residual"):
        gradient = leaves[name].grad
        assert gradient is not None
        norms = gradient.flatten(1).norm(dim=1)
        assert (norms[COUNTS == 0] == 0).all() and (norms[COUNTS > 0] > 0).all()


def test_answer_and_score_use_the_prior() -> None:
    task, params, batch = make_task(), params_of(), make_batch()
    config = replace(PLAIN, score_scale=20.0, ood_weight=0.4, open_share=0.2)
    method = FOCoOpPlus(config)
    text = method.encode(params, task)
    logits = method.logits(text, batch.pooled, None)
    prior, s = slow_prior(0.2), 20.0
    assert text.ood is not None
    for row, h in enumerate(batch.pooled):
        cosines = [float(h @ e) for e in text.id]
        posterior = [s * cos + p for cos, p in zip(cosines, prior, strict=True)]
        assert int(logits.id[row].argmax()) == posterior.index(max(posterior))
        mass = math.log(sum(math.exp(x) for x in posterior))
        outside = math.log(sum(math.exp(s * float(h @ o)) for o in text.ood))
        score = float(method.score(logits, task)[row])
        assert score == pytest.approx(0.4 * outside - mass, rel=1e-5)
    alike = FOCoOpPlus(replace(config, prior_in_score=False))
    flat = [math.log(sum(math.exp(s * float(h @ e)) for e in text.id)) for h in batch.pooled]
    outside_all = [
        math.log(sum(math.exp(s * float(h @ o)) for o in text.ood)) for h in batch.pooled
    ]
    expected = [0.4 * o - m for o, m in zip(outside_all, flat, strict=True)]
    found = alike.score(alike.logits(text, batch.pooled, None), task)
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_no_prior_at_an_open_share_of_one_and_for_a_client_without_images() -> None:
    task, params = make_task(), params_of()
    for config, counts in ((replace(PLAIN, open_share=1.0), COUNTS), (PLAIN, 0 * COUNTS)):
        text = FOCoOpPlus(config).encode({**params, "counts": counts}, task)
        assert text.parts["prior"].tolist() == pytest.approx([0.0] * C, abs=1e-12)


@pytest.mark.parametrize("goc", [True, False])
def test_server_means_by_class_counts(goc: bool) -> None:
    task, counts = make_task(), torch.tensor([[2, 0, 1, 0], [6, 3, 0, 0]])
    clients = [params_of(1), params_of(2)]
    shared = ("global", "residual", "ood", "ood_words")
    updates = [
        ClientUpdate(k, {n: p[n] for n in shared}, int(counts[k].sum()), counts[k], 0.0)
        for k, p in enumerate(clients)
    ]
    before = {n: params_of(0)[n] for n in shared}
    after = FOCoOpPlus(replace(PLAIN, goc=goc)).aggregate(Server(before), updates, task).shared
    for name in ("global", "residual"):
        for c in range(C):
            weights = counts[:, c].tolist()
            rows = [p[name][c] for p in clients]
            expected = (
                sum(w * r for w, r in zip(weights, rows, strict=True)) / sum(weights)
                if sum(weights)
                else before[name][c]
            )
            torch.testing.assert_close(after[name][c], expected, rtol=1e-12, atol=1e-12)
    for u in range(U):
        copies = [p["ood"][u] for p in clients]
        if goc:  # alpha = 1: only the choice of a copy remains
            assert any(torch.equal(after["ood"][u], copy) for copy in copies)
        else:
            torch.testing.assert_close(after["ood"][u], (3 * copies[0] + 9 * copies[1]) / 12)


def test_starts_from_one_draw_and_needs_negatives() -> None:
    task, method = make_task(), FOCoOpPlus(PLAIN)
    state = method.init(task, torch_generator(0))
    assert torch.equal(state.shared["global"], state.private["local"])
    assert method.personalise(state.private, COUNTS, task)["counts"].tolist() == COUNTS.tolist()
    with pytest.raises(MethodError, match=r"negatives\.count"):
        method.init(replace(task, ood_names=None), torch_generator(0))


def test_equal_features_without_mixing_are_the_towers() -> None:
    task, params = make_task(), params_of()
    config = replace(PLAIN, template_share=0.0, residual_scale=0.0, keep_absent=False)
    fused = (1 - config.global_share) * params["local"] + config.global_share * params["global"]
    expected = F.normalize(task.encode(fused, task.id_names), dim=-1)
    torch.testing.assert_close(FOCoOpPlus(config).encode(params, task).id, expected)
