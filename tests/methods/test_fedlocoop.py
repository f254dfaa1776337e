"""FedLoCoOp's loss, scores and server step against slow float64 loops."""

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
from focoop.methods.base import Batch, ClientUpdate, Method, Server, State, Task
from focoop.methods.fedlocoop import FedLoCoOp, ood_loss
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
)

Row = list[float]


def patch_task() -> Task:
    """The toy task with a tower that takes unified and many clients' contexts."""
    generator = torch_generator(1, "patch tower")
    mix = torch.randn(N_TOKENS * WIDTH, DIM, generator=generator, dtype=torch.float64)
    word = torch.randn(WIDTH, DIM, generator=generator, dtype=torch.float64)

    def encode(contexts: Tensor, names: Names) -> Tensor:
        if contexts.dim() == 2:
            contexts = contexts.expand(len(names), -1, -1)
        hidden = torch.tanh(contexts.flatten(-2) @ mix + names.embeddings[:, 0] @ word)
        return F.normalize(hidden, dim=-1)

    return replace(make_task(), encode=encode)


def patch_batch(size: int = 6, patches: int = 5, seed: int = 0) -> Batch:
    batch = make_batch(size, seed)
    drawn = torch.randn(
        size, patches, DIM, generator=torch_generator(seed, "patches"), dtype=torch.float64
    )
    return replace(batch, patches=F.normalize(drawn, dim=-1))


def make_context(*lead: int) -> dict[str, Tensor]:
    generator = torch_generator(2, "context")
    drawn = torch.randn(*lead, N_TOKENS, WIDTH, generator=generator, dtype=torch.float64)
    return {"context": drawn}


def make_method(**settings: object) -> FedLoCoOp:
    return FedLoCoOp(FedLoCoOp.Config(context_tokens=N_TOKENS, **settings))  # type: ignore[arg-type]


def softmax(values: Row) -> Row:
    total = sum(math.exp(v) for v in values)
    return [math.exp(v) / total for v in values]


def dot(a: Row, b: Row) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def slow_parts(text: Tensor, batch: Batch, scale: float, top_k: int) -> tuple[float, float, int]:
    """Cross-entropy, L_ood and the number of OOD patches, sums written out."""
    assert batch.patches is not None
    crossed, entropies = [], []
    images = zip(batch.pooled.tolist(), batch.patches.tolist(), batch.labels.tolist(), strict=True)
    for h, patches, y in images:
        crossed.append(-math.log(softmax([scale * dot(h, e) for e in text.tolist()])[y]))
        for f in patches:
            p = softmax([scale * dot(f, e) for e in text.tolist()])
            likeliest = sorted(range(len(p)), key=[-q for q in p].__getitem__)[:top_k]
            if y not in likeliest:
                entropies.append(-sum(q * math.log(q + 1e-5) for q in p))
    cross_entropy = sum(crossed) / len(crossed)
    return cross_entropy, -sum(entropies) / max(len(entropies), 1), len(entropies)


@pytest.mark.parametrize("top_k", [1, 2, 3])
@pytest.mark.parametrize("weight", [0.25, 1.5])
def test_loss_is_the_written_out_sum(top_k: int, weight: float) -> None:
    task, batch, params = patch_task(), patch_batch(), make_context()
    method = make_method(top_k=top_k, ood_weight=weight)
    text = method.encode(params, task)
    cross, ood, count = slow_parts(text.id, batch, task.logit_scale, top_k)
    assert 0 < count < batch.labels.numel() * 5  # both kinds of patches are there
    slow = cross + weight * ood
    assert float(step_loss(method, params, batch, task)) == pytest.approx(slow, rel=1e-12)


def test_no_ood_patch_leaves_cross_entropy() -> None:
    task, batch, params = patch_task(), patch_batch(), make_context()
    method = make_method(top_k=C, ood_weight=3.0)
    text = method.encode(params, task)
    cross = F.cross_entropy(task.logit_scale * batch.pooled @ text.id.T, batch.labels)
    assert float(step_loss(method, params, batch, task)) == pytest.approx(float(cross), rel=1e-12)


def test_uncertain_patches_cost_least() -> None:
    flat = torch.zeros(1, 1, 8, dtype=torch.float64)
    flat[..., 1] = 1e-9  # a hair above the label, so that the patch is OOD
    sure = flat.clone()
    sure[..., 1] = 50.0
    label = torch.tensor([0])
    limit = -math.log(1 / 8 + 1e-5)
    assert float(ood_loss(flat, label, 1)) == pytest.approx(-limit, rel=1e-9)
    assert float(ood_loss(sure, label, 1)) == pytest.approx(math.log(1 + 1e-5), abs=1e-12)


@pytest.mark.parametrize(("classes", "rank"), [(1, 1), (4, 1), (10, 2), (100, 20), (1000, 200)])
def test_default_rank_is_a_fifth_of_the_classes(classes: int, rank: int) -> None:
    task = replace(patch_task(), classes=("c",) * classes)
    assert make_method().rank(task) == rank
    assert make_method(top_k=1).rank(task) == 1


def test_gradients_by_finite_differences() -> None:
    task, batch = patch_task(), patch_batch()
    method = make_method(top_k=2, ood_weight=1.0)
    check_gradients(method, make_context(), batch, task)


@pytest.mark.parametrize("name", ["gl_mcm", "mcm"])
def test_scores_are_the_written_out_maxima(name: str) -> None:
    task, batch = patch_task(), patch_batch()
    method = make_method(score=name, patch_weight=0.5, temperature=0.2)
    text = method.encode(make_context(), task)
    logits = method.logits(text, batch.pooled, batch.patches)
    assert batch.patches is not None
    slow = []
    for h, patches in zip(batch.pooled.tolist(), batch.patches.tolist(), strict=True):
        whole = max(softmax([dot(h, e) / 0.2 for e in text.id.tolist()]))
        local = max(max(softmax([dot(f, e) / 0.2 for e in text.id.tolist()])) for f in patches)
        slow.append(-math.log(whole) if name == "mcm" else 1 - whole + 0.5 * (1 - local))
    assert method.score(logits, task).tolist() == pytest.approx(slow, rel=1e-12)
    cosines = [[dot(h, e) for e in text.id.tolist()] for h in batch.pooled.tolist()]
    assert logits.id.tolist() == [pytest.approx(row, rel=1e-12) for row in cosines]


@pytest.mark.parametrize("class_specific", [False, True])
def test_server_averages_by_samples_or_by_class(class_specific: bool) -> None:
    task = patch_task()
    method = make_method(class_specific=class_specific)
    previous = method.init(task, torch_generator(0)).shared["context"].double()
    counts = [[3, 0, 1, 0], [1, 2, 0, 0]]  # nobody holds class 3
    contexts = [previous + 1.0, previous * 3.0]
    updates = [
        ClientUpdate(k, {"context": contexts[k]}, sum(counts[k]), torch.tensor(counts[k]), 0.0)
        for k in range(2)
    ]
    mean = method.aggregate(Server({"context": previous}), updates, task).shared["context"]
    if not class_specific:
        slow = (4 * contexts[0] + 3 * contexts[1]) / 7
    else:
        slow = previous.clone()
        slow[0] = (3 * contexts[0][0] + contexts[1][0]) / 4
        slow[1], slow[2] = contexts[1][1], contexts[0][2]
    torch.testing.assert_close(mean, slow, rtol=1e-12, atol=0)


@pytest.mark.parametrize("class_specific", [False, True])
def test_clients_together_are_clients_alone(class_specific: bool) -> None:
    task = patch_task()
    method: Method = make_method(top_k=2, ood_weight=1.0, class_specific=class_specific)
    lead = (C,) if class_specific else ()
    state = State(make_context(*lead))
    batches = [patch_batch(size, seed=seed) for size, seed in ((7, 1), (4, 2), (0, 3), (6, 4))]
    data = [LabelledFeatures(b.pooled, b.patches, b.labels) for b in batches]
    settings = LocalSettings(epochs=2, batch_size=4, lr=0.3, momentum=0.5)
    trained = trained_alike(method, [state] * 4, data, task, settings)
    assert not torch.equal(trained[0].shared["context"], state.shared["context"])


def test_init_follows_the_settings() -> None:
    task = patch_task()
    one = make_method().init(task, torch_generator(0))
    assert one.shared["context"].shape == (N_TOKENS, WIDTH) and not one.private
    each = make_method(class_specific=True).init(task, torch_generator(0))
    assert each.shared["context"].shape == (C, N_TOKENS, WIDTH)


def test_refuses_what_it_cannot_do() -> None:
    task = patch_task()
    with pytest.raises(MethodError, match=r"more than the 4 classes: use 1 to 4"):
        make_method(top_k=5).init(task, torch_generator(0))
    with pytest.raises(MethodError, match=r"data\.with_patches"):
        step_loss(make_method(), make_context(), make_batch(), task)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("method.top_k=-1", "the least allowed is 0"),
        ("method.ood_weight=-0.1", "the least allowed is 0"),
        ("method.temperature=0.0", "more than 0"),
        ("method.score=gl_mmc", "nearest is 'gl_mcm'"),
        ("method.topk=5", "method.top_k"),
    ],
)
def test_settings_out_of_range_are_refused(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        load(None, ["method.name=fedlocoop", override])
