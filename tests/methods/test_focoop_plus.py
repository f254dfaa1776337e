"""FOCoOp+ against slow float64 references: features, prior, loss, score and server step."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from focoop.errors import MethodError
from focoop.methods._metric import whitening
from focoop.methods.base import Batch, ClientUpdate, Server, Task
from focoop.methods.focoop_plus import WEIGHT, FOCoOpPlus
from focoop.seeds import torch_generator
from tests.methods.toy import (
    DIM,
    N_TOKENS,
    C,
    U,
    check_gradients,
    make_batch,
    make_params,
    step_loss,
    trained,
)
from tests.methods.toy import make_task as plain_task

Config = FOCoOpPlus.Config
COUNTS = torch.tensor([3, 0, 5, 0])
PLAIN = Config(context_tokens=N_TOKENS, bos=False, detection_weight=0.0)


def make_task() -> Task:
    task = plain_task()
    return replace(task, frozen=FOCoOpPlus(PLAIN).prepare(task))


def params_of(seed: int = 0) -> dict[str, Tensor]:
    generator = torch_generator(seed, "measured")

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    means, root = 0.5 * draw(C, DIM), draw(DIM, DIM)
    means[1] = 0.0  # nobody has sent one of this class
    return {
        **make_params(seed),
        "means": means,
        "counts": COUNTS,
        "centre": 0.2 * draw(DIM),
        "scatter": root @ root.T,
        "mean_weight": torch.zeros(C, 1, dtype=torch.float64),
        "scatter_weight": torch.zeros(1, dtype=torch.float64),
        "metric": torch.eye(DIM, dtype=torch.float64) + 0.1 * (root + root.T),
    }


def slow_moved(x: Tensor, middle: Tensor, params: dict[str, Tensor]) -> list[float]:
    """(x - m) A of one feature, sum by sum."""
    off, metric = (x - middle).tolist(), params["metric"].tolist()
    return [sum(off[i] * metric[i][j] for i in range(DIM)) for j in range(DIM)]


def length(x: list[float]) -> float:
    return math.sqrt(sum(v * v for v in x))


def slow_white(x: Tensor, middle: Tensor, params: dict[str, Tensor]) -> Tensor:
    """Unit (x - m) A without its part along the mean image's c A."""
    moved = slow_moved(x, middle, params)
    mean = slow_moved(params["centre"], torch.zeros(DIM, dtype=torch.float64), params)
    part = sum(v * u for v, u in zip(moved, mean, strict=True)) / length(mean) ** 2
    across = [v - part * u for v, u in zip(moved, mean, strict=True)]
    return torch.tensor(across, dtype=torch.float64) / length(across)


def slow_middle(task: Task) -> Tensor:
    return sum(task.anchors) / C * (C - 1) / C  # type: ignore[return-value]


def slow_prior(open_share: float) -> list[float]:
    """Log of (1 - lambda) n_c / n + lambda / C, largest 0."""
    total = sum(COUNTS.tolist())
    prior = [(1 - open_share) * n / total + open_share / C for n in COUNTS.tolist()]
    return [math.log(p / max(prior)) for p in prior]


def slow_features(params: dict[str, Tensor], task: Task, config: Config) -> list[Tensor]:
    """e_c = unit(W(Text(t_c)) + q W(mu_c)), class by class."""
    out, rho = [], config.global_share
    for c in range(C):
        context = params["global"][c]
        if COUNTS[c] > 0:
            context = (1 - rho) * params["local"][c] + rho * context
        row = task.encode(context[None], task.id_names.select(torch.tensor([c])))[0]
        mixed = slow_white(row, slow_middle(task), params)
        if float(params["means"][c].abs().sum()) > 0:
            image = slow_white(params["means"][c], params["centre"], params)
            mixed = mixed + config.mean_share * image
        out.append(mixed / length(mixed.tolist()))
    return out


def test_features_and_prior_are_the_written_out_ones() -> None:
    task, params = make_task(), params_of()
    config = Config(context_tokens=N_TOKENS, global_share=0.7, open_share=0.2)
    text = FOCoOpPlus(config).encode(params, task)
    torch.testing.assert_close(
        text.id, torch.stack(slow_features(params, task, config)), rtol=1e-12, atol=1e-12
    )
    assert text.parts["prior"].tolist() == pytest.approx(slow_prior(0.2), rel=1e-12)


def slow_loss(params: dict[str, Tensor], batch: Batch, task: Task, config: Config) -> float:
    """Cross-entropy over C + U with a log pi_c on the classes, and the pull to the template."""
    ids, prior = slow_features(params, task, config), slow_prior(config.open_share)
    assert task.ood_names is not None
    middle, s, losses = slow_middle(task), task.logit_scale, []
    oods = [slow_white(o, middle, params) for o in task.encode(params["ood"], task.ood_names)]
    for image, y in zip(batch.pooled, batch.labels.tolist(), strict=True):
        h = slow_white(image, params["centre"], params)
        logits = [s * float(h @ e) + p for e, p in zip(ids, prior, strict=True)]
        total = sum(math.exp(x) for x in logits) + sum(math.exp(s * float(h @ o)) for o in oods)
        losses.append(math.log(total) - logits[y])
    held = [c for c in range(C) if COUNTS[c] > 0]
    anchors = [slow_white(z, middle, params) for z in task.anchors]
    pull = sum(1 - float(ids[c] @ anchors[c]) for c in held) / len(held)
    return sum(losses) / len(losses) + config.anchor_weight * pull


@pytest.mark.parametrize(("share", "anchor"), [(1.0, 0.0), (0.3, 2.0), (0.1, 0.3)])
def test_loss_without_bos_is_the_written_out_sum(share: float, anchor: float) -> None:
    task, params, batch = make_task(), params_of(), make_batch()
    config = replace(PLAIN, open_share=share, anchor_weight=anchor)
    fast = step_loss(FOCoOpPlus(config), params, batch, task)
    assert float(fast) == pytest.approx(slow_loss(params, batch, task, config), rel=1e-12)


def test_robust_loss_without_steps_and_noise_is_the_plain_one_with_detection() -> None:
    """BOS without exploration: the soft maximum of CE - log p(ID|x), in the limit of a mean."""
    task, params, batch = make_task(), params_of(), make_batch()
    still = replace(PLAIN, bos=True, id_steps=0, ood_steps=0, sigma=0.0, mu=1e7)
    expected = slow_loss(params, batch, task, PLAIN)
    assert float(step_loss(FOCoOpPlus(still), params, batch, task)) == pytest.approx(
        expected, rel=1e-6
    )
    still = replace(still, detection_weight=1.0)
    assert step_loss(FOCoOpPlus(still), params, batch, task) > expected
    moved = replace(still, id_steps=4, ood_steps=4)
    assert step_loss(FOCoOpPlus(moved), params, batch, task) > step_loss(
        FOCoOpPlus(still), params, batch, task
    )


@pytest.mark.parametrize("rho", [0.5, 0.8])
def test_gradients(rho: float) -> None:
    """Finite differences; the global prompt's gradient is 1 / rho of its own."""
    task, params, batch = make_task(), params_of(), make_batch()
    method = FOCoOpPlus(replace(PLAIN, global_share=rho))
    # An entry of a class the client holds: what it does not hold has no gradient.
    check_gradients(method, params, batch, task, places=[17], times={"global": 1 / rho})


def test_absent_classes_are_not_trained() -> None:
    task, params, batch = make_task(), params_of(), make_batch()
    batch = Batch(batch.pooled, None, torch.where(batch.labels % 2 == 0, batch.labels, 0))
    method = FOCoOpPlus(Config(context_tokens=N_TOKENS))
    leaves = trained(method, params)
    step_loss(method, leaves, batch, task).backward()
    for name in ("global", "local"):
        gradient = leaves[name].grad
        assert gradient is not None
        norms = gradient.flatten(1).norm(dim=1)
        assert (norms[COUNTS == 0] == 0).all() and (norms[COUNTS > 0] > 0).all()


@pytest.mark.parametrize("prior_in_score", [True, False])
def test_answer_and_score_use_the_prior_and_the_metric(prior_in_score: bool) -> None:
    task, params, batch = make_task(), params_of(), make_batch()
    s, w, d = 20.0, 0.4, 0.3
    config = replace(PLAIN, score_scale=s, ood_weight=w, open_share=0.2, distance_weight=d)
    method = FOCoOpPlus(replace(config, prior_in_score=prior_in_score))
    text = method.encode(params, task)
    logits = method.logits(text, batch.pooled, None)
    scores = method.score(logits, task)
    prior = slow_prior(0.2)
    assert text.ood is not None
    for row, image in enumerate(batch.pooled):
        h = slow_white(image, params["centre"], params)
        cosines = [float(h @ e) for e in text.id]
        posterior = [s * cos + p for cos, p in zip(cosines, prior, strict=True)]
        assert int(logits.id[row].argmax()) == posterior.index(max(posterior))
        counted = posterior if prior_in_score else [s * cos for cos in cosines]
        mass = math.log(sum(math.exp(x) for x in counted))
        outside = math.log(sum(math.exp(s * float(h @ o)) for o in text.ood))
        away = length(slow_moved(image, params["centre"], params))
        assert float(scores[row]) == pytest.approx(w * outside - mass + d * s * away, rel=1e-5)


def test_no_prior_at_an_open_share_of_one_and_for_a_client_without_images() -> None:
    task, params = make_task(), params_of()
    for config, counts in ((replace(PLAIN, open_share=1.0), COUNTS), (PLAIN, 0 * COUNTS)):
        text = FOCoOpPlus(config).encode({**params, "counts": counts}, task)
        assert text.parts["prior"].tolist() == pytest.approx([0.0] * C, abs=1e-12)


@pytest.mark.parametrize("goc", [True, False])
def test_server_means_by_class_counts(goc: bool) -> None:
    task, counts = make_task(), torch.tensor([[2, 0, 1, 0], [6, 3, 0, 0]])
    clients = [params_of(1), params_of(2)]
    shared = tuple(FOCoOpPlus(PLAIN).init(task, torch_generator(0)).shared)
    told = {"mean_weight": torch.full((C, 1), WEIGHT, dtype=torch.float64)}  # of all classes held
    updates = [
        ClientUpdate(k, {n: p[n] for n in shared} | told, int(counts[k].sum()), counts[k], 0.0)
        for k, p in enumerate(clients)
    ]
    before = {n: params_of(0)[n] for n in shared}
    method = FOCoOpPlus(replace(PLAIN, goc=goc))
    after = method.aggregate(Server(before), updates, task).shared
    for name in ("global", "means"):
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


def test_starts_with_a_plain_metric_and_needs_negatives() -> None:
    task, method = make_task(), FOCoOpPlus(PLAIN)
    state = method.init(task, torch_generator(0))
    made = whitening(state.shared["scatter"], PLAIN.shrinkage)
    torch.testing.assert_close(state.shared["metric"], made.to(state.shared["metric"]))
    assert method.personalise(state.private, COUNTS, task)["counts"].tolist() == COUNTS.tolist()
    with pytest.raises(MethodError, match=r"negatives\.count"):
        method.init(replace(task, ood_names=None), torch_generator(0))


def test_features_without_means_under_a_plain_metric_are_the_towers() -> None:
    task, params, method = make_task(), params_of(), FOCoOpPlus(PLAIN)
    start = method.init(task, torch_generator(0)).shared
    plain = {n: start[n].double() for n in FOCoOpPlus.untrained}
    held = torch.ones(C, dtype=torch.int64)
    rho = method.config.global_share
    fused = (1 - rho) * params["local"] + rho * params["global"]
    expected = F.normalize(task.encode(fused, task.id_names) - slow_middle(task), dim=-1)
    found = method.encode({**params, **plain, "counts": held}, task)
    torch.testing.assert_close(found.id, expected)
    raw = method.logits(found, make_batch().pooled, None).parts["cosines"]
    torch.testing.assert_close(raw, F.normalize(make_batch().pooled, dim=-1) @ expected.T)
