"""FedLAPT's bank, mixing, loss, score and server step against slow float64 references."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from focoop.clip.base import LabelledFeatures
from focoop.clip.text.tower import Names
from focoop.config.loading import load
from focoop.errors import ConfigError, MethodError
from focoop.federation.client import LocalSettings
from focoop.methods.base import Batch, ClientUpdate, Logits, Params, Server, State, Task, cosines
from focoop.methods.fedlapt import TEMPLATES, FedLAPT, symmetric_beta
from focoop.seeds import torch_generator
from tests.federation.batched import trained_alike
from tests.methods.toy import (
    N_TOKENS,
    WIDTH,
    C,
    U,
    check_gradients,
    make_batch,
    make_task,
    step_loss,
)

CONTEXTS = ("separate", "unified", "class_specific")


def any_shape(tower: Callable[[Tensor, Names], Tensor]) -> Callable[[Tensor, Names], Tensor]:
    """The toy tower, which takes (N, n, d_t), for one (n, d_t) and for (K, N, n, d_t) as well."""

    def encode(contexts: Tensor, names: Names) -> Tensor:
        if contexts.dim() == 4:
            return torch.stack([tower(one, names) for one in contexts])
        return tower(contexts.expand(len(names), -1, -1), names)

    return encode


def make(**changes: object) -> tuple[FedLAPT, Task, Params]:
    """A method, its task with a bank, and float64 contexts of a length that matters."""
    method = FedLAPT(FedLAPT.Config(context_tokens=N_TOKENS, **changes))  # type: ignore[arg-type]
    task = make_task()
    task = replace(task, frozen=method.prepare(task), encode=any_shape(task.encode))
    shared = method.init(task, torch_generator(1)).shared
    return method, task, {name: 25.0 * value.double() for name, value in shared.items()}


def slow_mixed(h: list[float], other: list[float], share: float) -> list[float]:
    mixed = [share * a + (1.0 - share) * b for a, b in zip(h, other, strict=True)]
    norm = math.sqrt(sum(a * a for a in mixed))
    return [a / norm for a in mixed]


def slow_loss(features: Sequence[Tensor], rows: list[list[float]], labels: list[int]) -> float:
    """Mean of -log softmax at the label over all C + U prompts, at the toy task's scale 7."""
    prompts = torch.cat(list(features)).tolist()
    total = 0.0
    for x, y in zip(rows, labels, strict=True):
        similar = [math.exp(7.0 * sum(a * b for a, b in zip(x, e, strict=True))) for e in prompts]
        total -= math.log(similar[y] / sum(similar))
    return total / len(rows)


def slow_features(params: Params, task: Task) -> tuple[Tensor, Tensor]:
    """(C, D) and (U, D), name by name, whatever the contexts are called."""
    assert task.ood_names is not None
    found = []
    for name, names in (("id", task.id_names), ("ood", task.ood_names)):
        contexts = params.get(name, params.get("context"))
        assert contexts is not None
        rows = []
        for i in range(len(names)):
            own = contexts[i] if contexts.dim() == 3 else contexts
            rows.append(task.encode(own[None], names.select(torch.tensor([i]))))
        found.append(torch.cat(rows))
    return found[0], found[1]


def test_bank_holds_every_name_in_every_template() -> None:
    task = replace(make_task(), classes=("c0", "sea_lion", "c2", "c3"))
    bank = FedLAPT().prepare(task)["bank"]
    assert bank.shape == (C + U, 7, 6)
    assert torch.equal(bank[1, 2], task.texts(["a origami sea lion."])[0])
    assert torch.equal(bank[C + 3, 6], task.texts(["itap of a w3."])[0])
    assert bank.norm(dim=-1).flatten().tolist() == pytest.approx([1.0] * 7 * (C + U))
    assert len(set(TEMPLATES)) == 7 and all(t.endswith("{}.") or "{} in" in t for t in TEMPLATES)


@pytest.mark.parametrize("contexts", CONTEXTS)
def test_cross_modal_loss_is_the_written_out_sum(contexts: str) -> None:
    method, task, params = make(contexts=contexts, loss_weight=0.5)
    batch, bank = make_batch(), task.frozen["bank"]
    noise = method.noise(8, task, torch_generator(0))
    share, templates = float(noise["share"]), noise["template"].tolist()
    rows = [
        slow_mixed(h, bank[y, r].tolist(), share)
        for h, y, r in zip(batch.pooled.tolist(), batch.labels.tolist(), templates, strict=True)
    ]
    slow = 0.5 * slow_loss(slow_features(params, task), rows, batch.labels.tolist())
    assert float(step_loss(method, params, batch, task)) == pytest.approx(slow, rel=1e-12)


def test_class_centre_loss_is_the_written_out_sum() -> None:
    method, task, params = make(mixing="class_centre")
    batch = make_batch()
    labels, images = batch.labels.tolist(), batch.pooled.tolist()
    assert 1 < len(set(labels)) < len(labels)
    share = float(method.noise(8, task, torch_generator(0))["share"])
    rows = []
    for h, y in zip(images, labels, strict=True):
        own = [g for g, z in zip(images, labels, strict=True) if z == y]
        mean = [sum(column) / len(own) for column in zip(*own, strict=True)]
        rows.append(slow_mixed(h, slow_mixed(mean, mean, 1.0), share))
    slow = slow_loss(slow_features(params, task), rows, labels)
    assert float(step_loss(method, params, batch, task)) == pytest.approx(slow, rel=1e-12)


def test_without_mixing_and_with_negative_texts() -> None:
    batch = make_batch()
    for count in (0, 3):
        method, task, params = make(mixing="none", negative_texts=count)
        noise = method.noise(8, task, torch_generator(0))
        rows, labels = batch.pooled.tolist(), batch.labels.tolist()
        for i in range(count):
            word, template = int(noise["word"][i]), int(noise["word_template"][i])
            rows.append(task.frozen["bank"][C + word, template].tolist())
            labels.append(C + word)
        slow = slow_loss(slow_features(params, task), rows, labels)
        assert float(step_loss(method, params, batch, task)) == pytest.approx(slow, rel=1e-12)


def test_limits_of_mixing() -> None:
    """Share 1 is the image, share 0 the text; an image alone in its class is its own centre."""
    method, task, params = make()
    batch = make_batch()
    noise = method.noise(8, task, torch_generator(0))
    ends = [method.mix(batch, task, {**noise, "share": torch.tensor(s)}) for s in (1.0, 0.0)]
    torch.testing.assert_close(ends[0], batch.pooled, rtol=0, atol=1e-12)
    texts = task.frozen["bank"][batch.labels, noise["template"]]
    torch.testing.assert_close(ends[1], texts, rtol=0, atol=1e-12)
    alone = Batch(batch.pooled[:C], None, torch.arange(C))
    method, task, params = make(mixing="class_centre")
    mixed = method.mix(alone, task, {"share": torch.tensor(0.3)})
    torch.testing.assert_close(mixed, alone.pooled, rtol=0, atol=1e-12)


@pytest.mark.parametrize("contexts", CONTEXTS)
@pytest.mark.parametrize("mixing", ["cross_modal", "class_centre"])
def test_gradients_by_finite_differences(contexts: str, mixing: str) -> None:
    method, task, params = make(contexts=contexts, mixing=mixing, negative_texts=2)
    check_gradients(method, params, make_batch(), task, 3)


@pytest.mark.parametrize("alpha", [0.02, 0.1, 0.5, 1.0, 3.0, 40.0])
def test_shares_follow_the_beta_distribution(alpha: float) -> None:
    """Kolmogorov-Smirnov below one half, where floats resolve small shares; sides are even."""
    drawn = symmetric_beta(alpha, (20000,), torch_generator(0, "beta")).numpy()
    assert drawn.min() >= 0 and drawn.max() <= 1
    low = drawn[drawn < 0.5]
    assert stats.kstest(low, lambda x: 2 * stats.beta(alpha, alpha).cdf(x)).pvalue > 1e-3
    assert stats.binomtest(len(low), len(drawn)).pvalue > 1e-3
    wrong = stats.beta(1.2 * alpha, 1.2 * alpha)
    assert stats.kstest(low, lambda x: 2 * wrong.cdf(x)).pvalue < 1e-3


@given(alpha=st.floats(1e-6, 1e6), seed=st.integers(0, 2**40))
@settings(max_examples=50, deadline=None)
def test_shares_are_shares_for_every_alpha(alpha: float, seed: int) -> None:
    drawn = symmetric_beta(alpha, (64,), torch.Generator().manual_seed(seed))
    assert bool(((drawn >= 0) & (drawn <= 1)).all())


def test_noise_is_the_generators_alone() -> None:
    method, task, _ = make(fold=True, negative_texts=5)
    before = torch.get_rng_state()
    draws = [method.noise(400, task, torch_generator(seed)) for seed in (0, 0, 1)]
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(draws[0][name], draws[1][name]) for name in draws[0])
    assert draws[0]["share"] != draws[2]["share"]
    assert all(one["share"].dtype == torch.float64 and one["share"] <= 0.5 for one in draws)
    assert draws[0]["template"].unique().tolist() == list(range(7))
    assert int(draws[0]["word"].min()) >= 0 and int(draws[0]["word"].max()) < U
    assert float(make()[0].noise(1, task, torch_generator(2))["share"]) > 0.5  # not folded


def test_scores_are_grouped_neglabel_and_mcm() -> None:
    method, task, params = make(groups=2, score_scale=5.0)
    logits = cosines(method.encode(params, task), make_batch().pooled)
    assert logits.ood is not None
    # Five words make two groups of two; which word is left out is fixed by seed 0.
    order = torch.randperm(U, generator=torch_generator(0, "neglabel")).tolist()
    slow = []
    for ids, oods in zip(logits.id.tolist(), logits.ood.tolist(), strict=True):
        mass = sum(math.exp(5.0 * a) for a in ids)
        parts = [sum(math.exp(5.0 * oods[u]) for u in order[2 * g : 2 * g + 2]) for g in (0, 1)]
        slow.append(1.0 - sum(mass / (mass + part) for part in parts) / 2)
    assert torch.sigmoid(method.score(logits, task)).tolist() == pytest.approx(slow, rel=1e-10)
    mcm = FedLAPT(FedLAPT.Config(score="mcm", temperature=0.5)).score(logits, task)
    largest = (logits.id / 0.5).softmax(dim=1).amax(dim=1)
    assert (-mcm).exp().tolist() == pytest.approx(largest.tolist(), rel=1e-12)


@pytest.mark.parametrize(("words", "groups"), [(99, 1), (199, 1), (200, 2)])
def test_groups_follow_the_number_of_words(words: int, groups: int) -> None:
    generator = torch_generator(0, "cosines")
    drawn = 0.2 * torch.randn(8, C + words, generator=generator, dtype=torch.float64)
    logits, task = Logits(drawn[:, :C], drawn[:, C:]), make_task()
    automatic = FedLAPT().score(logits, task)
    stated = FedLAPT(FedLAPT.Config(groups=groups)).score(logits, task)
    other = FedLAPT(FedLAPT.Config(groups=groups + 1)).score(logits, task)
    assert torch.equal(automatic, stated)
    assert not torch.allclose(automatic, other)


@pytest.mark.parametrize("contexts", CONTEXTS)
def test_server_averages_by_samples_and_by_class(contexts: str) -> None:
    method, task, _ = make(contexts=contexts)
    generator = torch_generator(3)
    server = Server(method.init(task, generator).shared)
    counts = torch.tensor([[3, 0, 1, 0], [1, 2, 0, 0]])

    def drawn() -> Params:
        return {n: torch.randn(v.shape, generator=generator) for n, v in server.shared.items()}

    updates = [ClientUpdate(k, drawn(), int(c.sum()), c, 0.0) for k, c in enumerate(counts)]
    after = method.aggregate(server, updates, task).shared
    assert after.keys() == server.shared.keys()
    for name, value in after.items():
        one, two = (update.shared[name] for update in updates)
        slow = 4 / 7 * one + 3 / 7 * two
        if contexts == "class_specific" and name == "id":
            slow = torch.stack(
                [0.75 * one[0] + 0.25 * two[0], two[1], one[2], server.shared["id"][3]]
            )
        torch.testing.assert_close(value, slow)


@pytest.mark.parametrize("contexts", CONTEXTS)
@pytest.mark.parametrize("mixing", ["cross_modal", "class_centre"])
def test_clients_together_are_clients_alone(contexts: str, mixing: str) -> None:
    method, task, params = make(contexts=contexts, mixing=mixing, negative_texts=2)
    sizes, local = (7, 0, 5, 1), LocalSettings(epochs=2, batch_size=4, lr=0.3, momentum=0.5)
    batches = [make_batch(size, seed=k) for k, size in enumerate(sizes)]
    data = [LabelledFeatures(b.pooled, None, b.labels) for b in batches]
    states = [State(params) for _ in sizes]
    trained = trained_alike(method, states, data, task, local)
    for found, images in zip(trained, data, strict=True):
        for name, value in found.shared.items():
            assert bool(len(images)) != torch.equal(value, params[name])


def test_shapes_of_contexts() -> None:
    shapes = {c: {n: tuple(v.shape) for n, v in make(contexts=c)[2].items()} for c in CONTEXTS}
    assert shapes["separate"] == {"id": (N_TOKENS, WIDTH), "ood": (N_TOKENS, WIDTH)}
    assert shapes["unified"] == {"context": (N_TOKENS, WIDTH)}
    assert shapes["class_specific"] == {"id": (C, N_TOKENS, WIDTH), "ood": (U, N_TOKENS, WIDTH)}


def test_no_words_and_too_many_groups_are_refused() -> None:
    bare = replace(make_task(), ood_names=None)
    told = re.escape("negatives.count above 0")
    with pytest.raises(MethodError, match=told):
        FedLAPT().prepare(bare)
    with pytest.raises(MethodError, match=told):
        FedLAPT().init(bare, torch_generator(0))
    with pytest.raises(MethodError, match=f"{U} words cannot make {U + 1} groups"):
        make(groups=U + 1)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("method.context_tokens=0", "the least allowed is 1"),
        ("method.contexts=shared", "separate, unified, class_specific"),
        ("method.mixing=pixel", "cross_modal, class_centre, none"),
        ("method.alpha=0", "more than 0"),
        ("method.negative_texts=-1", "the least allowed is 0"),
        ("method.score=negative_label", "unknown score"),
    ],
)
def test_settings_out_of_range_are_refused(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        load(None, ["method.name=fedlapt", override])
