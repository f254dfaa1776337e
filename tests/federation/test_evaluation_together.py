"""All clients at once, as a GPU evaluates them, against one client at a time."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from focoop.clip import LabelledFeatures
from focoop.federation import Evaluation, EvaluationSets, Owned, evaluate, summary_of
from focoop.federation.evaluation.answers import chunk_size
from focoop.federation.evaluation.texts import encoded, encoded_together
from focoop.federation.evaluation.together import evaluate_together
from focoop.methods import Method, Params, Task, available, create, lookup
from focoop.seeds import torch_generator
from tests.methods.contract_toy import PATCHES, make_task

CPU = torch.device("cpu")


def drawn(count: int, task: Task, name: str, patches: bool) -> LabelledFeatures:
    generator, dim = torch_generator(0, name), task.anchors.shape[1]
    labels = torch.arange(count) % len(task.classes)
    pooled = task.anchors[labels] + torch.randn(count, dim, generator=generator)
    local = torch.randn(count, PATCHES, dim, generator=generator) if patches else None
    unit = None if local is None else F.normalize(local, dim=-1)
    return LabelledFeatures(F.normalize(pooled, dim=-1), unit, labels)


def sets_of(
    task: Task, index: Sequence[Sequence[int]], patches: bool, calibrated: bool = False
) -> EvaluationSets:
    own = [np.array(rows, dtype=np.int64) for rows in index]
    corrupted = {
        f"fog@{level}": Owned(drawn(24, task, f"fog {level}", patches), [own[0], own[2], own[1]])
        for level in (1, 2)
    }
    ood = {name: drawn(n, task, name, patches) for name, n in (("near", 15), ("far", 31))}
    calibration = None
    if calibrated:
        index = [np.arange(25), np.zeros(0, dtype=np.int64), np.arange(25, 30)]
        calibration = Owned(drawn(30, task, "calibration", patches), index)
    test = Owned(drawn(24, task, "test", patches), own)
    return EvaluationSets(test, corrupted, ood, calibration)


def models(method: Method, task: Task) -> list[Params]:
    """Three clients with the same shared tensors and private ones of their own."""
    state = method.init(task, torch_generator(0, "start"))
    found = []
    for client in range(3):
        counts = torch.tensor([3, 0, 2, 1]).roll(client)
        private = method.personalise(state.private, counts, task)
        generator = torch_generator(client, "private")
        moved = {
            name: v + 0.3 * torch.randn(v.shape, generator=generator)
            if v.is_floating_point()
            else v
            for name, v in private.items()
        }
        found.append({**state.shared, **moved})
    return found


def together(
    method: Method, task: Task, params: Any, sets: EvaluationSets, size: int = 7, **given: Any
) -> Evaluation | None:
    there = sets.on(CPU, len(task.classes))
    assert sets.on(CPU, len(task.classes)) is there  # images are brought once
    found = evaluate_together(
        method, task, params, sets, there, size=partial(chunk_size, most=size), **given
    )
    return None if found is None else Evaluation(summary_of(found[0], found[1], sets), found[0])


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Every number of an evaluation by its path."""
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value))
    else:
        return {name: value}
    return {k: v for key, part in pairs for k, v in flat(part, f"{name}/{key}").items()}


UNEQUAL = [[0, 4, 8, 12, 1], [2, 6, 10], [3, 7, 11, 15, 5, 9, 13]]
EMPTY = [[0, 1, 4, 5], [], [2, 3, 6, 7, 10]]


@pytest.mark.parametrize("name", available())
def test_all_at_once_is_one_by_one(name: str) -> None:
    method = create(name)
    task = make_task(method)
    sets = sets_of(task, UNEQUAL, patches=bool(method.patch_kind))
    given = models(method, task)
    same = not method.init(task, torch_generator(0, "start")).private
    one = evaluate(method, task, given.__getitem__, sets, same_for_all=same)
    found = together(method, task, given.__getitem__, sets, same_for_all=same)
    assert found is not None
    assert flat(found.clients) == pytest.approx(flat(one.clients), abs=1e-6)
    assert flat(found.summary) == pytest.approx(flat(one.summary), abs=1e-6)


@pytest.mark.parametrize("name", ["promptfl", "focoop", "fedlda", "fedotp", "fedgallop"])
def test_points_without_a_prior_are_those_of_every_open_share(name: str) -> None:
    """Own classes alone, all without a prior, and the area between do not know the dial."""
    kind = lookup(name)
    task = make_task(kind())
    sets = sets_of(task, UNEQUAL, patches=bool(kind.patch_kind))
    trained = models(kind(kind.Config(open_share=0.5)), task)
    counts = [model["counts"] for model in trained]
    summaries = []
    for share in (0.0, 0.3, 1.0):
        method = kind(kind.Config(open_share=share))
        summary = evaluate(method, task, trained.__getitem__, sets).summary
        summaries.append(summary)
        found = together(method, task, trained.__getitem__, sets, same_for_all=False)
        assert found is not None
        for key in ("accuracy_own_alone", "accuracy_all_open"):
            assert found.summary[key] == pytest.approx(summary[key], abs=1e-12)
    # The dial does turn, but where nobody has told of any class.
    assert kind.closed_form or len({s["accuracy_own"] for s in summaries}) > 1
    for key in ("accuracy_own_alone", "accuracy_all_open"):
        assert len({s[key] for s in summaries}) == 1
    assert len({s["frontier"]["ausuc"] for s in summaries}) == 1
    if all(len(set(part[part > 0].tolist())) == 1 for part in counts):
        pytest.fail("clients must have uneven counts, or a prior among own classes shows nothing")
    assert summaries[2]["accuracy_all_open"] == summaries[2]["accuracy_all"]


@pytest.mark.parametrize("index", [UNEQUAL, EMPTY, [range(8), range(8, 16), range(16, 24)]])
def test_thresholds_come_from_calibration_images(index: list[list[int]]) -> None:
    """One client has many of them, one none, one few; some test images are nobody's or none is."""
    method = create("focoop")
    task, given = make_task(method), models(method, make_task(method))
    sets = sets_of(task, index, patches=False, calibrated=True)
    one = evaluate(method, task, given.__getitem__, sets)
    found = together(method, task, given.__getitem__, sets, same_for_all=False)
    assert found is not None
    assert flat(found.clients) == pytest.approx(flat(one.clients), abs=1e-6)
    assert flat(found.summary) == pytest.approx(flat(one.summary), abs=1e-6)
    assert found.clients[0]["kept"] is not None and found.clients[0]["num_calibration"] == 25


@pytest.mark.parametrize("size", [1, 10**6])
def test_pieces_and_clients_without_images_change_nothing(size: int) -> None:
    method = create("focoop")
    task, given = make_task(method), models(method, make_task(method))
    sets = sets_of(task, EMPTY, patches=False)
    one = evaluate(method, task, given.__getitem__, sets)
    found = together(method, task, given.__getitem__, sets, size, same_for_all=False)
    assert found is not None
    assert [row["client"] for row in found.clients] == [0, 2]
    assert flat(found.clients) == pytest.approx(flat(one.clients), abs=1e-6)
    assert flat(found.summary) == pytest.approx(flat(one.summary), abs=1e-6)


def test_what_has_no_number_is_left_to_one_by_one() -> None:
    method = create("focoop")
    task, given = make_task(method), models(method, make_task(method))
    sets = sets_of(task, UNEQUAL, patches=False)
    broken = {**given[1], "local": torch.full_like(given[1]["local"], torch.nan)}
    asked = [given[0], broken, given[2]]
    assert together(method, task, asked.__getitem__, sets, same_for_all=False) is None
    nobody = EvaluationSets(Owned(sets.test.images, [np.zeros(0, dtype=np.int64)]), {}, sets.ood)
    assert together(method, task, given.__getitem__, nobody, same_for_all=False) is None


def test_prompts_that_clients_share_are_encoded_once() -> None:
    method = create("focoop")
    task, calls = make_task(method), []
    given = models(method, task)
    plain = task.encode

    def encode(contexts: Any, names: Any) -> Any:
        calls.append((contexts.numel() // contexts[..., 0, 0, 0].numel(), tuple(contexts.shape)))
        return plain(contexts, names)

    object.__setattr__(task, "encode", encode)
    expected = [method.encode(model, task) for model in given]
    calls.clear()
    found = encoded_together(method, given, task)
    assert [shape[0] for _, shape in calls] == [3, 1]  # classes of three clients, words of all
    calls.clear()
    first, known = encoded(method, given[:2], task, {})
    last, _ = encoded(method, given[2:], task, known)
    assert len(calls) == 4  # classes of three clients, words
    for text, again, alone in zip(found, first + last, expected, strict=True):
        for one, other in ((text.id, alone.id), (text.ood, alone.ood)):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
        assert torch.equal(again.id, alone.id)
