"""Evaluation against hand-counted answers of a model whose logits the test writes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from focoop.clip.base import LabelledFeatures
from focoop.errors import DataError
from focoop.federation.evaluation import answers as answering
from focoop.federation.evaluation.answers import answers, chunk_size
from focoop.federation.evaluation.evaluate import evaluate
from focoop.federation.evaluation.sets import EvaluationSets, Owned
from focoop.functional import metrics, scores
from focoop.methods import create
from focoop.methods.base import (
    Batch,
    ClientUpdate,
    Logits,
    Method,
    Params,
    Prompt,
    Server,
    State,
    Task,
    Text,
    cosines,
)
from focoop.seeds import torch_generator
from tests.methods.contract_toy import make_task


class Written(Method):
    """Pooled features are read as logits: the first C columns classes, the last the score.

    A client's parameter `shift` is added to class 0, so that clients differ.
    """

    def init(self, task: Task, generator: torch.Generator) -> State:
        return State({})

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        return {}

    def text(self, params: Params, features: Params, task: Task) -> Text:
        return Text(params["shift"])

    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        cosines = pooled[:, :3].clone()
        cosines[:, 0] += text.id
        return Logits(cosines, pooled[:, 3:])

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        raise AssertionError

    def score(self, logits: Logits, task: Task) -> Tensor:
        assert logits.ood is not None
        return logits.ood[:, 0]

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        raise AssertionError


NOT_READ: Any = None
TASK = Task(
    classes=("a", "b", "c"),
    encode=NOT_READ,
    id_names=NOT_READ,
    ood_names=None,
    anchors=torch.zeros(3, 4),
    logit_scale=1.0,
    width=4,
    bare_names=NOT_READ,
    texts=NOT_READ,
    embed=NOT_READ,
)


def images(rows: list[tuple[int, int, float]]) -> LabelledFeatures:
    """(label, predicted, score) per image."""
    pooled = torch.zeros(len(rows), 4)
    for i, (_, predicted, score) in enumerate(rows):
        pooled[i, predicted] = 1.0
        pooled[i, 3] = score
    return LabelledFeatures(pooled, None, torch.tensor([label for label, _, _ in rows]))


# Client 0 owns rows 0-2 (3 of 3 right), client 1 rows 3-4 (1 of 2 right).
TEST = images([(0, 0, 0.0), (1, 1, 0.1), (1, 1, 0.2), (2, 2, 0.9), (2, 1, 0.5)])
OWNED = Owned(TEST, [np.array([0, 1, 2]), np.array([3, 4])])
OOD = images([(0, 0, 1.0), (0, 0, 0.15), (0, 0, 0.6)])


def test_counts_by_hand() -> None:
    corrupted = {
        "noise@1": Owned(images([(0, 0, 0), (2, 0, 0)]), [np.array([0]), np.array([1])]),
        "noise@2": Owned(images([(0, 0, 0), (2, 2, 0)]), [np.array([0]), np.array([1])]),
    }
    sets = EvaluationSets(OWNED, corrupted, {"x": OOD})
    result = evaluate(Written(), TASK, lambda k: {"shift": torch.zeros(())}, sets)
    assert result.summary["accuracy_own"] == pytest.approx(4 / 5)
    assert result.summary["accuracy_own_macro"] == pytest.approx((1 + 0.5) / 2)
    assert result.summary["accuracy_all"] == pytest.approx(4 / 5)
    assert result.summary["corrupted"] == {"noise@1": 0.5, "noise@2": 1.0}
    assert result.summary["accuracy_corrupted"] == pytest.approx(0.75)
    assert result.summary["corrupted_by_type"] == {"noise": pytest.approx(0.75)}
    # Client 0 keeps scores <= 0.2: both others (0.9, 0.5) are flagged. Client 1 keeps <= 0.9.
    assert [row["cross_alarm"] for row in result.clients] == [1.0, 0.0]
    assert result.summary["cross_alarm"] == pytest.approx(0.5)
    # OOD at or below the threshold is accepted: 1 of 3, then 2 of 3.
    assert [row["ood"]["x"]["fpr95"] for row in result.clients] == [
        pytest.approx(1 / 3),
        pytest.approx(2 / 3),
    ]
    # Client 0: of 9 pairs OOD above ID in 3 + 2 + 3 of them.
    assert result.clients[0]["ood"]["x"]["auroc"] == pytest.approx(8 / 9)
    pooled = result.summary["ood"]["x"]["pooled"]
    assert pooled["fpr95"] == pytest.approx(4 / 6)  # threshold 0.9 over all five own scores


def test_each_client_is_judged_by_its_own_model() -> None:
    sets = EvaluationSets(OWNED, {}, {"x": OOD})
    shift = {0: 0.0, 1: 5.0}  # client 1 answers class 0 always
    result = evaluate(Written(), TASK, lambda k: {"shift": torch.tensor(shift[k])}, sets)
    assert [row["accuracy_own"] for row in result.clients] == [1.0, 0.0]
    assert [row["accuracy_all"] for row in result.clients] == [0.8, 0.2]
    assert result.summary["accuracy_corrupted"] is None


def test_the_alarm_s_threshold_comes_from_calibration_images() -> None:
    # Client 0 has 39 of them, of which the 38th counts; client 1 two, of which the larger does.
    many = [(0, 0, 0.01 * i) for i in range(39)] + [(2, 2, 0.6), (2, 2, 0.4)]
    aside = Owned(images(many), [np.arange(39), np.arange(39, 41)])
    sets = EvaluationSets(OWNED, {}, {"x": OOD}, aside)
    params = {"shift": torch.zeros(())}
    result = evaluate(Written(), TASK, lambda k: params, sets)
    first, second = result.clients
    assert first["threshold"] == pytest.approx(0.37) and second["threshold"] == pytest.approx(0.6)
    assert (first["num_calibration"], second["num_calibration"]) == (39, 2)
    # Client 0 keeps its three images and flags both others; client 1 flags its image of 0.9 alone.
    assert (first["kept"], second["kept"]) == (1.0, 0.5)
    assert (first["cross_alarm"], second["cross_alarm"]) == (1.0, 0.0)
    assert result.summary["kept"] == pytest.approx(4 / 5)
    assert evaluate(Written(), TASK, lambda k: params, sets, same_for_all=True) == result
    without = evaluate(Written(), TASK, lambda k: params, replace(sets, calibration=None))
    assert without.summary["kept"] is None and without.clients[0]["num_calibration"] == 0


def test_one_model_for_all_gives_the_same_as_one_by_one() -> None:
    sets = EvaluationSets(OWNED, {}, {"x": OOD})
    params = {"shift": torch.zeros(())}
    one = evaluate(Written(), TASK, lambda k: params, sets)
    other = evaluate(Written(), TASK, lambda k: params, sets, same_for_all=True)
    assert one == other


def test_clients_without_test_images_are_left_out_and_none_at_all_is_refused() -> None:
    empty = np.zeros(0, dtype=np.int64)
    sets = EvaluationSets(Owned(TEST, [np.arange(5), empty]))
    result = evaluate(Written(), TASK, lambda k: {"shift": torch.zeros(())}, sets)
    assert result.summary["num_clients"] == 1
    assert result.summary["cross_alarm"] is None  # nobody else owns an image
    nobody = EvaluationSets(Owned(TEST, [empty, empty]))
    with pytest.raises(DataError, match="no client has a test image"):
        evaluate(Written(), TASK, lambda k: {"shift": torch.zeros(())}, nobody)


class Cosines(Written):
    """Cosines with classes, words and, where there are any, patches."""

    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        self.seen.append(len(pooled))
        found = cosines(text, pooled)
        return Logits(found.id, found.ood, None if patches is None else patches @ text.id.T)

    def score(self, logits: Logits, task: Task) -> Tensor:
        assert logits.ood is not None
        score = scores.id_mass(logits.id, logits.ood, 30.0)
        return score if logits.patches is None else score + scores.gl_mcm(logits.id, logits.patches)

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []


def drawn(count: int, patches: int = 0) -> tuple[Text, LabelledFeatures]:
    generator = torch_generator(0, "chunks")

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    labels = torch.randint(5, (count,), generator=generator)
    parts = draw(count, patches, 8) if patches else None
    return Text(draw(5, 8), draw(7, 8)), LabelledFeatures(draw(count, 8), parts, labels)


@pytest.mark.parametrize("patches", [0, 3])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_chunks_answer_as_the_whole_set(patches: int, size: int) -> None:
    text, images = drawn(50, patches)
    method = Cosines()
    found = answers(method, text, images, TASK, most=size)
    assert max(method.seen) == min(size, 50)
    logits = method.logits(text, images.pooled, images.patches)
    assert np.array_equal(found.predicted, logits.id.argmax(1).numpy())
    np.testing.assert_allclose(found.score, method.score(logits, TASK).numpy(), rtol=1e-9)
    assert (found.predicted.dtype, found.score.dtype) == (np.int32, np.float64)


@pytest.mark.parametrize("name", ["zeroshot", "focoop"])
def test_evaluation_does_not_depend_on_the_number_of_threads(name: str) -> None:
    method = create(name)
    task = make_task(method)
    count, before, found = len(task.classes), torch.get_num_threads(), []
    state = method.init(task, torch_generator(0, "start"))
    generator = torch.Generator().manual_seed(3)
    pooled = F.normalize(torch.randn(40, task.anchors.shape[1], generator=generator), dim=-1)
    test = LabelledFeatures(pooled[:20], None, torch.arange(20) % count)
    sets = EvaluationSets(
        Owned(test, [np.arange(20)[k::5] for k in range(5)]),
        ood={"far": LabelledFeatures(pooled[20:], None, torch.zeros(20).long())},
    )
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            params = {**state.shared, **state.private}
            found.append(evaluate(method, task, lambda _, p=params: p, sets, most=7))  # type: ignore[misc]
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert found[0] == found[1]


def test_a_set_without_images_has_no_answers() -> None:
    text, images = drawn(0)
    found = answers(Cosines(), text, images, TASK)
    assert (len(found.predicted), len(found.score)) == (0, 0)


def test_chunks_shrink_with_prompts_and_patches() -> None:
    def size(classes: int, words: int, patches: int, width: int = 512) -> int:
        text = Text(
            torch.zeros(1, 1).expand(classes, width), torch.zeros(1, 1).expand(words, width)
        )
        parts = torch.zeros(1, 1, 1).expand(9, patches, width) if patches else None
        return chunk_size(text, LabelledFeatures(torch.zeros(9, 4), parts, torch.zeros(9)))

    assert size(100, 100, 0) == answering.CHUNK
    for case in ((1000, 1000, 0), (1000, 100, 196), (100, 100, 16), (100, 0, 196)):
        classes, words, patches = case
        cells = 8 * (classes + words) + patches * (classes + 512)
        assert size(*case) * cells <= answering.CELLS < (size(*case) + 1) * cells
    assert size(10**7, 10**7, 1) == 1


def test_one_model_for_all_pools_as_if_every_client_had_answered() -> None:
    text, images = drawn(60)
    outside = drawn(40, 2)[1].pooled
    sets = EvaluationSets(
        Owned(images, np.array_split(np.arange(60), 6)),
        {},
        {"x": LabelledFeatures(outside, None, torch.zeros(40).long())},
    )

    class Fixed(Cosines):
        def encode(self, params: Params, task: Task) -> Text:
            return text

    task = replace(TASK, classes=("a", "b", "c", "d", "e"))
    one = evaluate(Fixed(), task, lambda k: {}, sets)
    shared = Fixed()
    other = evaluate(shared, task, lambda k: {}, sets, same_for_all=True)
    assert len(shared.seen) == 2  # one pass over each set
    assert other.clients == one.clients
    pooled = other.summary["ood"]["x"].pop("pooled")
    assert pooled == pytest.approx(one.summary["ood"]["x"].pop("pooled"), abs=1e-12)
    assert other.summary == one.summary
    method = Cosines()
    by_hand = [
        method.score(method.logits(text, part, None), TASK).numpy()
        for part in (images.pooled, outside.repeat(6, 1))
    ]
    assert pooled == pytest.approx(metrics.detection(*by_hand), abs=1e-12)


@pytest.mark.parametrize("same_for_all", [False, True])
def test_the_frontier_is_what_a_bias_on_own_classes_gives(same_for_all: bool) -> None:
    """Every client's curve against answers with the bias added, client by client, bias by bias."""
    generator = torch_generator(4, "frontier")
    logits = torch.randn(80, 6, generator=generator)
    labels = torch.randint(5, (80,), generator=generator).numpy()  # nobody has the sixth class
    logits[torch.arange(80), torch.from_numpy(labels)] += 1.0
    # Client 0 has all images of two classes; 1 and 2 share one; 3 has an image of every class.
    index = [
        np.flatnonzero(np.isin(labels, [0, 1])),
        np.flatnonzero(labels == 2)[::2],
        np.flatnonzero(np.isin(labels, [2, 3]))[1::2],
        np.array([np.flatnonzero(labels == c)[0] for c in range(5)]),
    ]

    class Read(Written):
        def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
            return Logits(pooled, pooled[:, :1])

    task = replace(TASK, classes=tuple("abcdef"))
    sets = EvaluationSets(Owned(LabelledFeatures(logits, None, torch.from_numpy(labels)), index))
    params = {"shift": torch.zeros(())}
    result = evaluate(Read(), task, lambda k: params, sets, same_for_all=same_for_all)
    assert result.clients[3]["frontier"] is None
    areas = []
    for client in range(3):
        own = np.unique(labels[index[client]])
        found = result.clients[client]["frontier"]
        points = []
        for bias in [-99.0, *np.linspace(-8, 8, 4001), 99.0, 0.0, found["bias"]]:
            moved = logits.double().numpy().copy()
            moved[:, own] += bias
            right = moved.argmax(axis=1) == labels
            other = ~np.isin(labels, own)
            points.append((right[other].mean(), right[index[client]].mean()))
        curve = np.array(points[:-2])
        assert found["own_only"] == curve[-1, 1] and found["other_only"] == curve[0, 0]
        area = -np.trapezoid(curve[:, 1], curve[:, 0])
        assert found["ausuc"] == pytest.approx(area, abs=1e-3)
        harmonic = [2 * a * b / (a + b) if a + b else 0.0 for a, b in points]
        assert found["harmonic"] == pytest.approx(harmonic[-2])
        assert found["harmonic_best"] == pytest.approx(harmonic[-1])
        assert found["harmonic_best"] == pytest.approx(max(harmonic), abs=1e-12)
        for x, y in found["curve"].items():
            reached = curve[curve[:, 0] >= int(x) / 100 - 1e-9]
            assert y == pytest.approx(reached[:, 1].max() if len(reached) else 0.0)
        areas.append(found["ausuc"])
        alone = result.clients[client]["accuracy_own_alone"]
        assert alone == pytest.approx(found["own_only"])
    plain = result.summary["accuracy_all_open"]
    assert plain == pytest.approx((logits.argmax(dim=1).numpy() == labels).mean())
    assert result.summary["frontier"]["ausuc"] == pytest.approx(np.mean(areas))
    assert result.summary["frontier"]["curve"]["0"] == pytest.approx(
        np.mean([row["frontier"]["own_only"] for row in result.clients[:3]])
    )
