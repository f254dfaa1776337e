"""FOCoOp+ through a metric: what clients measure, what the server makes of it, what is seen."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from focoop.federation.client import ClientData, LocalSettings, make_update, train
from focoop.methods._base import ClientUpdate, Server, State, Task
from focoop.methods._metric import whitening
from focoop.methods.focoop_plus import FOCoOpPlus
from focoop.seeds import torch_generator
from tests.methods.test_focoop_plus import COUNTS, params_of, slow_prior
from tests.methods.toy import DIM, N_TOKENS, C, make_batch, make_task, step_loss

PLAIN = FOCoOpPlus.Config(context_tokens=N_TOKENS, bos=False, shrinkage=0.4)
MEASURED = ("centre", "scatter", "metric")


def metric_task() -> Task:
    task = make_task()
    return replace(task, frozen=FOCoOpPlus(PLAIN).prepare(task))


def metric_params(seed: int = 0) -> dict[str, Tensor]:
    generator = torch_generator(seed, "metric")
    root = torch.randn(DIM, DIM, generator=generator, dtype=torch.float64)
    return {
        **params_of(seed),
        "centre": 0.2 * torch.randn(DIM, generator=generator, dtype=torch.float64),
        "scatter": root @ root.T,
        "metric": torch.eye(DIM, dtype=torch.float64) + 0.1 * (root + root.T),
    }


def slow_white(x: Tensor, middle: Tensor, params: dict[str, Tensor]) -> Tensor:
    """Unit (x - m) A of one feature, sum by sum."""
    off, metric = (x - middle).tolist(), params["metric"].tolist()
    moved = [sum(off[i] * metric[i][j] for i in range(DIM)) for j in range(DIM)]
    return torch.tensor(moved, dtype=torch.float64) / math.sqrt(sum(v * v for v in moved))


def slow_sides(params: dict[str, Tensor], task: Task) -> tuple[list[Tensor], ...]:
    """Class, OOD and template features as the metric sees them."""
    rho, v = PLAIN.global_share, PLAIN.template_share
    middle = sum(task.anchors) / C * (C - 1) / C
    assert isinstance(middle, Tensor) and task.ood_names is not None
    ids = []
    for c in range(C):
        context = params["global"][c]
        if COUNTS[c] > 0:
            context = (1 - rho) * params["local"][c] + rho * context
        row = task.encode(context[None], task.id_names.select(torch.tensor([c])))[0]
        seen = slow_white((1 - v) * row + v * task.anchors[c], middle, params)
        mixed = seen + PLAIN.residual_scale * params["residual"][c]
        ids.append(mixed / math.sqrt(sum(float(x) ** 2 for x in mixed)))
    oods = [slow_white(o, middle, params) for o in task.encode(params["ood"], task.ood_names)]
    return ids, oods, [slow_white(z, middle, params) for z in task.anchors]


def test_loss_answer_and_score_are_the_written_out_ones() -> None:
    task, params, batch = metric_task(), metric_params(), make_batch()
    method, prior = FOCoOpPlus(PLAIN), slow_prior(PLAIN.open_share)
    ids, oods, anchors = slow_sides(params, task)
    logits = method.logits(method.encode(params, task), batch.pooled, None)
    scores, losses, s = method.score(logits, task), [], PLAIN.score_scale
    for row, (image, y) in enumerate(zip(batch.pooled, batch.labels.tolist(), strict=True)):
        h = slow_white(image, params["centre"], params)
        terms = [task.logit_scale * float(h @ e) + p for e, p in zip(ids, prior, strict=True)]
        outside = sum(math.exp(task.logit_scale * float(h @ o)) for o in oods)
        losses.append(math.log(sum(map(math.exp, terms)) + outside) - terms[y])
        posterior = [s * float(h @ e) + p for e, p in zip(ids, prior, strict=True)]
        assert int(logits.id[row].argmax()) == posterior.index(max(posterior))
        mass = math.log(sum(map(math.exp, posterior)))
        far = math.log(sum(math.exp(s * float(h @ o)) for o in oods))
        assert float(scores[row]) == pytest.approx(PLAIN.ood_weight * far - mass, rel=1e-5)
    held = [c for c in range(C) if COUNTS[c] > 0]
    pull = sum(1 - float(ids[c] @ anchors[c]) for c in held) / len(held)
    expected = sum(losses) / len(losses) + PLAIN.anchor_weight * pull
    assert float(step_loss(method, params, batch, task)) == pytest.approx(expected, rel=1e-12)


def test_a_client_measures_its_own_mean_and_scatter_and_trains_neither() -> None:
    task, batch, method = metric_task(), make_batch(size=9), FOCoOpPlus(PLAIN)
    params = metric_params()
    private = ("local", "counts")
    shared = {n: v for n, v in params.items() if n not in private}
    state = State(shared, {n: params[n] for n in private})
    data = ClientData(batch.pooled, None, batch.labels)
    trained, loss = train(method, state, data, task, LocalSettings(1, 9, 0.1), torch_generator(0))
    assert all(torch.equal(trained.shared[n], params[n]) for n in MEASURED)
    assert not torch.equal(trained.shared["global"], params["global"])
    sent = make_update(method, 0, trained, data, task, loss).shared
    assert torch.equal(sent["metric"], params["metric"])  # the server's own
    torch.testing.assert_close(sent["centre"], sum(batch.pooled) / 9)
    spread = torch.zeros(DIM, DIM, dtype=torch.float64)
    for h, y in zip(batch.pooled, batch.labels, strict=True):
        of_class = [x for x, label in zip(batch.pooled, batch.labels, strict=True) if label == y]
        off = h - sum(of_class) / len(of_class)
        spread += torch.outer(off, off) / 9
    torch.testing.assert_close(sent["scatter"], spread, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shrinkage", [1e-6, 0.4, 1.0])
def test_the_metric_makes_the_scatter_round(shrinkage: float) -> None:
    spread = metric_params(3)["scatter"]
    metric, plain = whitening(spread, shrinkage), torch.eye(DIM, dtype=torch.float64)
    drawn = (1 - shrinkage) * spread / (spread.trace() / DIM) + shrinkage * plain
    torch.testing.assert_close(metric @ drawn @ metric, plain, atol=1e-9, rtol=0)
    torch.testing.assert_close(metric, metric.T)


def test_the_metric_of_nothing_and_of_a_broken_scatter_is_finite() -> None:
    for spread in (torch.zeros(3, 3), torch.diag(torch.tensor([1.0, -3.0, 4.0]))):
        assert whitening(spread, 0.5).isfinite().all()


def test_the_server_averages_over_all_rounds() -> None:
    task, method = metric_task(), FOCoOpPlus(PLAIN)
    counts = torch.tensor([[2, 0, 1, 0], [6, 3, 0, 0]])
    clients = [metric_params(1), metric_params(2)]
    kept = [n for n in clients[0] if n not in ("local", "counts")]
    updates = [
        ClientUpdate(k, {n: p[n] for n in kept}, int(counts[k].sum()), counts[k], 0.0)
        for k, p in enumerate(clients)
    ]
    server = method.aggregate(Server({n: metric_params(0)[n] for n in kept}), updates, task)
    for name in ("centre", "scatter"):
        expected = (3 * clients[0][name] + 9 * clients[1][name]) / 12
        torch.testing.assert_close(server.shared[name], expected)
    made = whitening(server.shared["scatter"], PLAIN.shrinkage)
    torch.testing.assert_close(server.shared["metric"], made)
    again = method.aggregate(server, updates[:1], task).shared  # 12 images before, 3 now
    expected = (12 * server.shared["centre"] + 3 * clients[0]["centre"]) / 15
    torch.testing.assert_close(again["centre"], expected)


def test_it_starts_plain() -> None:
    task, method = metric_task(), FOCoOpPlus(PLAIN)
    shared = method.init(task, torch_generator(0)).shared
    assert set(MEASURED) <= set(shared) and set(method.untrained) == set(MEASURED)
    made = whitening(shared["scatter"], PLAIN.shrinkage)
    torch.testing.assert_close(shared["metric"], made.to(shared["metric"]))
    batch = make_batch()
    text = method.encode({**metric_params(), **{n: shared[n].double() for n in MEASURED}}, task)
    raw = method.logits(text, batch.pooled, None).parts["cosines"]
    torch.testing.assert_close(raw, F.normalize(batch.pooled, dim=-1) @ text.id.T)
    off = FOCoOpPlus(replace(PLAIN, shrinkage=1.0))
    assert not off.untrained and not set(MEASURED) & set(off.init(task, torch_generator(0)).shared)
