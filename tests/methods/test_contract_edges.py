"""Where images, classes or words run out: every method goes on, or refuses and says why."""

import math
from dataclasses import replace

import pytest
import torch

from focoop.clip.base import LabelledFeatures
from focoop.errors import MethodError
from focoop.federation.client import LocalSettings, train
from focoop.federation.rounds import start
from focoop.methods import available, create
from focoop.seeds import torch_generator
from tests.methods.contract_toy import (
    CLASSES,
    LOCAL,
    Outcome,
    federate,
    make_task,
    same,
    spread,
)

TRAINED = [name for name, kind in available().items() if kind.trains]
trained_ones = pytest.mark.parametrize("name", TRAINED)
EDGES = {
    "an empty client": [[0, 1, 2, 3], [], [3, 2, 1]],
    "a client of one image": [[2], [0, 1, 2, 3, 0]],
    "one client": [[0, 1, 2, 3, 1]],
    "one client of one image": [[1]],
    "clients of one class": [[0, 0, 0, 0, 0], [1, 1], [2, 3]],
    "a class nobody holds": [[0, 1, 0, 1], [1, 2, 2]],
    "equal clients": [[0, 1, 2, 3], [0, 1, 2, 3]],
}


def check_numbers(outcome: Outcome) -> None:
    """All tensors, answers and reports are finite."""
    tensors = [*outcome.server.shared.values()]
    tensors += [v for params in outcome.store.params.values() for v in params.values()]
    assert all(torch.isfinite(tensor).all() for tensor in tensors)
    report = outcome.server.report
    assert all(math.isfinite(value) for value in report.values())
    assert math.isfinite(outcome.rounds[-1].loss)
    count = len(outcome.task.classes)
    logits, scores = outcome.answers(0, outcome.images([*range(count), -1], "edge"))
    assert logits.shape == (count + 1, count) and scores.shape == (count + 1,)
    assert torch.isfinite(logits).all() and torch.isfinite(scores).all()


@trained_ones
@pytest.mark.parametrize("case", EDGES)
def test_few_images_are_no_special_case(name: str, case: str) -> None:
    method = create(name)
    methods = [method]
    if method.closed_form:  # nothing at all is told
        methods.append(create(name, replace(method.config, least_images=5)))
    for method in methods:
        check_numbers(federate(method, make_task(method), EDGES[case]))


@trained_ones
def test_a_round_without_images_changes_nothing(name: str) -> None:
    method = create(name)
    task = make_task(method)
    outcome = federate(method, task, [[], []], rounds=1)
    assert same(outcome.server.shared, outcome.initial.shared)
    assert not outcome.store.params


@trained_ones
def test_batches_of_one_image(name: str) -> None:
    method = create(name)
    task = make_task(method)
    local = LocalSettings(epochs=1, batch_size=1, lr=LOCAL.lr)
    check_numbers(federate(method, task, spread([3, 2]), rounds=1, local=local))


@trained_ones
def test_one_class_works_or_is_refused(name: str) -> None:
    method = create(name)
    try:
        task = make_task(method, classes=CLASSES[:1])
        outcome = federate(method, task, [[0, 0, 0], [0]])
    except MethodError as refusal:
        assert len(str(refusal)) > 20  # noqa: PT017 - a refusal is one of two good ends
    else:
        check_numbers(outcome)


@trained_ones
@pytest.mark.parametrize("count", [0, 1])
def test_few_words_work_or_are_refused_by_those_who_need_them(name: str, count: int) -> None:
    method = create(name)
    words = ("fog",)[:count]
    if method.needs_ood and count == 0:
        with pytest.raises(MethodError, match=r"negatives\.count"):
            start(method, make_task(method, words=words), 0)
        return
    task = make_task(method, words=words)
    check_numbers(federate(method, task, spread([5, 4])))


@pytest.mark.parametrize("name", [n for n, kind in available().items() if kind.patch_kind])
def test_those_who_need_patches_refuse_images_without(name: str) -> None:
    method = create(name)
    outcome = federate(method, make_task(method), spread([2]), rounds=0)
    images = outcome.images([0, 1], "bare")
    bare = LabelledFeatures(images.pooled, None, images.labels)
    with pytest.raises(MethodError, match=r"data\.with_patches"):
        outcome.answers(0, bare)
    with pytest.raises(MethodError, match=r"data\.with_patches"):
        train(method, outcome.state(0), bare, outcome.task, LOCAL, torch_generator(0))
