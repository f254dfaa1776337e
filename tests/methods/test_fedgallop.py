"""FedGalLoP's prompts, loss, scores and server step against slow float64 loops."""

import math
import re
from collections.abc import Mapping
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
from focoop.methods.fedgallop import FedGalLoP
from focoop.seeds import torch_generator
from tests.federation.batched import trained_alike
from tests.helpers import toy_backbone
from tests.methods.toy import DIM, WIDTH, C, check_gradients, make_batch, make_task, step_loss

TOKENS, WIDE, PATCHES = 4, 7, 5  # n of "A photo of a", D' of patches before the projection, P
Row = list[float]


def patch_task(*, projected: bool = False) -> Task:
    """The toy task with a tower for four tokens and, `projected`, a frozen matrix (D', D)."""
    generator = torch_generator(1, "patch tower")
    mix = torch.randn(TOKENS * WIDTH, DIM, generator=generator, dtype=torch.float64)
    word = torch.randn(WIDTH, DIM, generator=generator, dtype=torch.float64)
    frozen = torch.randn(WIDE, DIM, generator=generator, dtype=torch.float64)

    def encode(contexts: Tensor, names: Names) -> Tensor:
        hidden = torch.tanh(contexts.flatten(-2) @ mix + names.embeddings[:, 0] @ word)
        return F.normalize(hidden, dim=-1)

    return replace(make_task(), encode=encode, patch_projection=frozen if projected else None)


def patch_batch(size: int = 6, seed: int = 0, width: int = DIM) -> Batch:
    """Patches of any length, as `lf_c` ones are."""
    generator = torch_generator(seed, "patches")
    patches = torch.randn(size, PATCHES, width, generator=generator, dtype=torch.float64)
    return replace(make_batch(size, seed), patches=patches)


def make_method(**settings: object) -> FedGalLoP:
    config = FedGalLoP.Config(**{"top_k": (1, 3, 20), **settings})  # type: ignore[arg-type]
    return FedGalLoP(config)


def make_params(method: FedGalLoP, task: Task, noise: float = 0.3) -> dict[str, Tensor]:
    """The starting parameters, each moved a little: prompts that differ, a matrix of full rank."""
    state = method.init(task, torch_generator(0))
    generator = torch_generator(3, "params")
    return {
        name: v + noise * torch.randn(v.shape, generator=generator, dtype=torch.float64)
        for name, v in {**state.shared, **state.private}.items()
    }


def dot(a: Row, b: Row) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def unit(a: Row) -> Row:
    return [x / math.sqrt(dot(a, a)) for x in a]


def softmax(values: Row) -> Row:
    total = sum(math.exp(v) for v in values)
    return [math.exp(v) / total for v in values]


class Slow:
    """One model as nested lists: features by prompt and class, patches row by row."""

    def __init__(self, method: FedGalLoP, params: Mapping[str, Tensor], task: Task) -> None:
        def encoded(contexts: Tensor) -> list[list[Row]]:
            names = task.bare_names
            return [task.encode(one.expand(C, -1, -1), names).tolist() for one in contexts]

        self.whole, self.local = encoded(params["global"]), encoded(params["local"])
        matrix, frozen = params["projection"], task.patch_projection
        self.columns = (matrix if frozen is None else matrix @ frozen).T.tolist()  # (D, D')
        self.top_k = method.config.top_k

    def projected(self, patches: list[Row]) -> list[Row]:
        return [unit([dot(x, column) for column in self.columns]) for x in patches]

    def pooled_cosines(self, h: Row) -> list[Row]:
        return [[dot(h, e) for e in classes] for classes in self.whole]  # (N_g, C)

    def top_cosines(self, patches: list[Row]) -> list[Row]:
        """(N_l, C): for each prompt and class the mean over the patches that fit it best."""
        found = []
        for classes, k in zip(self.local, self.top_k, strict=True):
            rows = []
            for e in classes:
                best = sorted((dot(f, e) for f in self.projected(patches)), reverse=True)[:k]
                rows.append(sum(best) / len(best))
            found.append(rows)
        return found

    def patch_cosines(self, patches: list[Row]) -> list[Row]:
        """(P, C), the mean over local prompts."""
        rows = self.projected(patches)
        return [mean_rows([[dot(f, e) for e in one] for one in self.local]) for f in rows]


def mean_rows(rows: list[Row]) -> Row:
    return [sum(column) / len(column) for column in zip(*rows, strict=True)]


def images(batch: Batch) -> list[tuple[Row, list[Row], int]]:
    assert batch.patches is not None
    lists = (batch.pooled.tolist(), batch.patches.tolist(), batch.labels.tolist())
    return list(zip(*lists, strict=True))


@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize(("dropout", "kept"), [(0.75, 1), (0.5, 2), (0.0, 4), (1.0, 1)])
def test_loss_is_the_written_out_sum(projected: bool, dropout: float, kept: int) -> None:
    task = patch_task(projected=projected)
    batch = patch_batch(width=WIDE if projected else DIM)
    method = make_method(dropout=dropout)
    params = make_params(method, task)
    noise = method.noise(len(batch.labels), task, torch_generator(4))
    assert noise["kept"].shape == (len(batch.labels), kept)
    slow = Slow(method, params, task)
    pooled, local = [], []
    for (h, patches, y), drawn in zip(images(batch), noise["kept"].tolist(), strict=True):
        cosines = mean_rows([slow.pooled_cosines(h)[j] for j in drawn])
        pooled.append(-math.log(softmax([task.logit_scale * v for v in cosines])[y]))
        for row in slow.top_cosines(patches):
            local.append(-math.log(softmax([task.logit_scale * v for v in row])[y]))
    expected = sum(pooled) / len(pooled) + sum(local) / len(local)
    fast = step_loss(method, params, batch, task, seed=4)
    assert float(fast) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("projected", [False, True])
def test_prediction_and_score_are_the_written_out_means(projected: bool) -> None:
    task = patch_task(projected=projected)
    batch = patch_batch(width=WIDE if projected else DIM)
    method = make_method(temperature=0.2, patch_weight=0.5)
    params = make_params(method, task)
    slow = Slow(method, params, task)
    logits = method.logits(method.encode(params, task), batch.pooled, batch.patches)
    scores, answers = [], []
    for h, patches, _ in images(batch):
        whole = mean_rows(slow.pooled_cosines(h))
        best = mean_rows(slow.top_cosines(patches))
        answers.append([(a + b) / 2 for a, b in zip(whole, best, strict=True)])
        image = max(softmax([v / 0.2 for v in whole]))
        patch = max(max(softmax([v / 0.2 for v in row])) for row in slow.patch_cosines(patches))
        scores.append(1 - image + 0.5 * (1 - patch))
    assert logits.id.tolist() == [pytest.approx(row, rel=1e-11) for row in answers]
    assert method.score(logits, task).tolist() == pytest.approx(scores, rel=1e-11)


@pytest.mark.parametrize("projected", [False, True])
def test_gradients_by_finite_differences(projected: bool) -> None:
    task = patch_task(projected=projected)
    batch, method = patch_batch(width=WIDE if projected else DIM), make_method(dropout=0.5)
    params = make_params(method, task)
    check_gradients(method, params, batch, task, 3)


def test_starts_as_the_template_without_period() -> None:
    backbone = toy_backbone()
    classes = ("apple", "snow pea", "fig")
    task = replace(
        make_task(),
        classes=classes,
        encode=backbone.encode_prompts,
        anchors=backbone.encode_texts(classes),
        width=backbone.width,
        bare_names=backbone.names(classes, period=False),
        embed=backbone.embed,
    )
    method = FedGalLoP()
    state = method.init(task, torch_generator(0))
    assert state.shared["global"].shape == (4, TOKENS, backbone.width)
    assert state.private["local"].shape == (4, TOKENS, backbone.width)
    assert torch.equal(state.private["projection"], torch.eye(backbone.dim))
    text = method.encode({**state.shared, **state.private}, task)
    expected = backbone.encode_texts([f"A photo of a {name}" for name in classes])
    for part in (text.id, *text.parts["global"], *text.parts["local"]):
        torch.testing.assert_close(part, expected, rtol=1e-4, atol=1e-6)
    # An untrained matrix changes nothing: patches keep their direction.
    patches = F.normalize(torch.randn(2, 3, backbone.dim, generator=torch_generator(1)), dim=-1)
    logits = method.logits(text, patches[:, 0], patches)
    assert logits.patches is not None
    torch.testing.assert_close(logits.patches, patches @ expected.T, rtol=1e-4, atol=1e-6)


def test_patch_matrix_has_the_width_before_the_frozen_one() -> None:
    state = FedGalLoP().init(patch_task(projected=True), torch_generator(0))
    assert torch.equal(state.private["projection"], torch.eye(WIDE, dtype=torch.float64))


def test_dropout_draws_every_prompt_equally_and_by_its_generator() -> None:
    task, method = patch_task(), make_method(dropout=0.75)
    drawn = method.noise(4000, task, torch_generator(0))["kept"]
    counts = torch.bincount(drawn.flatten(), minlength=4).double() / 4000
    # Four standard deviations of a share of 1/4 among 4000.
    assert float((counts - 0.25).abs().max()) < 4 * math.sqrt(0.25 * 0.75 / 4000)
    assert torch.equal(drawn, method.noise(4000, task, torch_generator(0))["kept"])
    many = make_method(global_prompts=100, dropout=0.29)
    assert many.noise(1, task, torch_generator(0))["kept"].shape == (1, 71)


def test_dropout_does_nothing_to_a_single_prompt() -> None:
    task, batch = patch_task(), patch_batch()
    values = []
    for dropout in (0.0, 0.9):
        method = make_method(global_prompts=1, dropout=dropout)
        params = make_params(method, task)
        values.append(float(step_loss(method, params, batch, task, seed=8)))
    assert values[0] == values[1]


def test_server_averages_the_global_prompts_by_samples() -> None:
    task, method = patch_task(), make_method()
    state = method.init(task, torch_generator(0))
    generator = torch_generator(5)
    prompts = [torch.randn(4, TOKENS, WIDTH, generator=generator).double() for _ in range(3)]
    counts = torch.ones(C, dtype=torch.int64)
    sizes = enumerate((5, 1, 2))
    updates = [ClientUpdate(k, {"global": prompts[k]}, n, counts, 0.0) for k, n in sizes]
    found = method.aggregate(Server(state.shared), updates, task)
    assert found.shared.keys() == {"global"} and not found.memory
    slow = (5 * prompts[0] + prompts[1] + 2 * prompts[2]) / 8
    torch.testing.assert_close(found.shared["global"], slow, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("projected", [False, True])
def test_clients_together_are_clients_alone(projected: bool) -> None:
    task = patch_task(projected=projected)
    method, width = make_method(dropout=0.5), WIDE if projected else DIM
    shared = {"global": make_params(method, task)["global"]}
    sizes = (7, 4, 0, 6)
    states, data = [], []
    for k, size in enumerate(sizes):
        own = make_params(method, task, noise=0.1 * (k + 1))
        states.append(State(shared, {name: own[name] for name in ("local", "projection")}))
        batch = patch_batch(size, seed=k, width=width)
        data.append(LabelledFeatures(batch.pooled, batch.patches, batch.labels))
    settings = LocalSettings(epochs=2, batch_size=4, lr=0.05, momentum=0.5)
    trained = trained_alike(method, states, data, task, settings)
    for name, value in trained[0].private.items():
        assert not torch.equal(value, states[0].private[name])


def test_refuses_images_without_patches() -> None:
    task, method = patch_task(), make_method()
    with pytest.raises(MethodError, match=r"data\.with_patches"):
        step_loss(method, make_params(method, task), make_batch(), task)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("method.top_k=[]", "a value for each local prompt"),
        ("method.top_k=[5, 0]", "the least allowed is 1"),
        ("method.dropout=1.5", "the most allowed is 1"),
        ("method.global_prompts=0", "the least allowed is 1"),
        ("method.start=' '", "must hold a word"),
        ("method.temperature=0.0", "more than 0"),
        ("method.topk=[5]", "method.top_k"),
    ],
)
def test_settings_out_of_range_are_refused(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        load(None, ["method.name=fedgallop", override])
