"""Noise drawn by threads is noise drawn in turn; requests are cut and grouped without loss."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from focoop.federation import batched_training
from focoop.federation.batched_training import Together, alike, grouped, on_host, packed
from focoop.federation.client_batch import Draws, Recipe, Request
from focoop.federation.cuda_graphs import branches, sent
from focoop.methods import create
from focoop.methods.base import Params
from focoop.seeds import torch_generator
from tests.federation.test_batched_training import PLAIN, start_states
from tests.methods.contract_toy import make_task


def request_of(name: str = "focoop", clients: int = 5) -> Request:
    method = create(name)
    task = make_task(method)
    states, data = start_states(method, task, [3] * clients)
    generators = [torch_generator(k, "client") for k in range(clients)]
    return Request(Recipe(method, task, PLAIN), states, data, 0.1, generators)


def test_threads_draw_what_one_thread_draws() -> None:
    request, again = request_of(), request_of()
    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            one = Draws(request.recipe, 3, request.generators, pool).ready()
            other = Draws(again.recipe, 3, again.generators, None).ready()
            assert one.keys() == other.keys() == {"id", "ood"}
            assert all(torch.equal(one[name], other[name]) for name in one)
    for k, row in enumerate(other["id"]):
        alone = torch_generator(k, "client")
        drawn = [again.recipe.method.noise(3, again.recipe.task, alone) for _ in range(3)]
        assert torch.equal(row, drawn[-1]["id"])


def test_what_a_thread_raises_is_raised_where_noise_is_needed() -> None:
    request = request_of()

    class Broken(type(request.recipe.method)):  # type: ignore[misc]
        def noise(self, *_: object) -> None:
            raise ValueError("no noise")

    recipe = replace(request.recipe, method=Broken(request.recipe.method.config))
    with ThreadPoolExecutor(2) as pool, pytest.raises(ValueError, match="no noise"):
        Draws(recipe, 3, request.generators, pool).ready()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_packed_requests_are_all_there_in_order(size: int) -> None:
    requests = [request_of(clients=5), request_of("promptfl", 4), request_of(clients=2)]
    batches = list(packed(requests, size))
    total = sum(map(len, requests))
    counts = [sum(len(part) for _, part in batch) for batch in batches]
    assert counts == [size] * (total // size) + ([total % size] if total % size else [])
    for number, request in enumerate(requests):
        parts = [part for batch in batches for n, part in batch if n == number]
        assert [g for part in parts for g in part.generators] == list(request.generators)
        assert all(part.recipe is request.recipe for part in parts)


def test_requests_share_a_lot_where_recipe_and_words_are_the_same() -> None:
    one = request_of()
    other = replace(one, lr=0.7)
    assert alike(one, other)
    shared = {**one.states[0].shared, "ood_words": one.states[0].shared["ood_words"].flip(0)}
    turned = replace(one, states=[replace(state, shared=shared) for state in one.states])
    assert not alike(one, turned)
    assert not alike(one, request_of())  # equal, but not the same recipe
    empty = replace(one, states=[], data=[], generators=[])
    groups = grouped([one, turned, empty, other])
    assert [[number for number, _ in group] for group in groups] == [[0, 3], [1]]


def test_losses_come_to_the_host_as_they_are() -> None:
    assert on_host([]) == []
    assert on_host([0.5, torch.tensor(1.5), 2.5, torch.tensor(3.5)]) == [0.5, 1.5, 2.5, 3.5]


def test_on_a_cpu_jobs_run_in_turn() -> None:
    cpu, seen = torch.device("cpu"), []
    found = branches([lambda k=k: seen.append(k) or k for k in range(3)], cpu)  # type: ignore[misc,func-returns-value]
    assert found == seen == [0, 1, 2]
    tensor = torch.ones(2)
    assert sent(tensor, cpu) is tensor


class Overwritten:
    """A recorded step at its worst: a call spoils whatever any call returned before."""

    returned: ClassVar[list[Tensor]] = []

    def __init__(self, step: Callable[[Params], Params], pool: object) -> None:
        self.step = step

    def __call__(self, inputs: Params, constants: Params) -> Params:
        read = {name: value.clone() for name, value in {**inputs, **constants}.items()}
        for earlier in self.returned:
            earlier.fill_(torch.nan)
        outputs = {name: value.clone() for name, value in self.step(read).items()}
        self.returned.extend(outputs.values())
        return outputs


CASES = {
    "equal clients": [("focoop", [7, 7, 7])],
    "unequal clients": [("focoop", [9, 4, 1, 6])],
    "equal at first": [("focoop", [8, 5])],
    "methods of unequal clients": [("focoop", [9, 4]), ("promptfl", [3, 5]), ("focoop", [2, 2])],
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_read_from_a_recorded_step_after_another(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def requests() -> list[Request]:
        found = []
        for number, (name, sizes) in enumerate(CASES[case]):
            method = create(name)
            task = make_task(method)
            states, data = start_states(method, task, sizes)
            generators = [torch_generator(k, "client", number) for k in range(len(sizes))]
            recipe = Recipe(method, task, replace(PLAIN, momentum=0.5))
            found.append(Request(recipe, states, data, 0.1, generators))
        return found

    cpu = torch.device("cpu")
    expected = Together(cpu).train(requests())
    monkeypatch.setattr(batched_training, "Graphs", Overwritten)
    Overwritten.returned.clear()
    trained = Together(cpu)
    first, second = trained.train(requests()), trained.train(requests())
    for found in (first, second):  # what a round returned outlives the next
        for one, other in zip(expected, found, strict=True):
            for (a, loss_a), (b, loss_b) in zip(one, other, strict=True):
                assert torch.equal(loss_a, loss_b)
                for name, value in {**a.shared, **a.private}.items():
                    assert torch.equal({**b.shared, **b.private}[name], value), name
