"""Noise drawn by threads is noise drawn in turn; recorded steps are read in time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from focoop.clip.base import LabelledFeatures
from focoop.federation import batched_training
from focoop.federation.batched_training import BatchedTrainer, Results, on_host
from focoop.federation.client_batch import ClientBatch, Draws, Step, part
from focoop.federation.cuda_graphs import CHANGES, SETTLED, Settling, branches, sent
from focoop.federation.participation import Schedule
from focoop.federation.rounds import RoundSetup, client_round
from focoop.methods import create
from focoop.methods.base import Method, Params, State, Task
from focoop.seeds import torch_generator
from tests.federation.test_batched_training import PLAIN, start_states
from tests.methods.contract_toy import make_task


def toy(name: str = "focoop") -> tuple[Method, Task]:
    method = create(name)
    return method, make_task(method)


def test_threads_draw_what_one_thread_draws() -> None:
    method, task = toy()
    mine, others = ([torch_generator(k, "client") for k in range(5)] for _ in range(2))
    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            one = Draws(method, task, 3, mine, pool).ready()
            other = Draws(method, task, 3, others, None).ready()
            assert one.keys() == other.keys() == {"id", "ood"}
            assert all(torch.equal(one[name], other[name]) for name in one)
    for k, row in enumerate(other["id"]):
        alone = torch_generator(k, "client")
        drawn = [method.noise(3, task, alone) for _ in range(3)]
        assert torch.equal(row, drawn[-1]["id"])


def test_what_a_thread_raises_is_raised_where_noise_is_needed() -> None:
    method, task = toy()

    class Broken(type(method)):  # type: ignore[misc]
        def noise(self, *_: object) -> None:
            raise ValueError("no noise")

    with ThreadPoolExecutor(2) as pool, pytest.raises(ValueError, match="no noise"):
        Draws(Broken(method.config), task, 3, [torch_generator(0)], pool).ready()


def test_losses_come_to_the_host_as_they_are() -> None:
    assert on_host([]) == []
    assert on_host([0.5, torch.tensor(1.5), 2.5, torch.tensor(3.5)]) == [0.5, 1.5, 2.5, 3.5]


def test_constants_are_recorded_while_they_are_few_and_again_once_they_stay() -> None:
    """Words change every round, then settle: as inputs meanwhile, recorded a round after that."""
    settling = Settling()
    # Rounds of six steps each: ten rounds of other words, then the same ones.
    worth = [
        [settling.worth((("words", min(number, 10)),)) for _ in range(6)] for number in range(13)
    ]
    assert all(all(steps) for steps in worth[:CHANGES])
    assert not any(any(steps) for steps in worth[CHANGES:11])
    assert SETTLED == 6
    assert all(worth[11])
    assert all(worth[12])
    # A long round of other words settles later than the last one did, and so on.
    for patience in (12, 24):
        steps = [settling.worth((("words", 100 + patience),)) for _ in range(40)]
        assert steps.index(True) == patience


def test_on_a_cpu_jobs_run_in_turn() -> None:
    cpu, seen = torch.device("cpu"), []
    found = branches([lambda k=k: seen.append(k) or k for k in range(3)], cpu)  # type: ignore[misc,func-returns-value]
    assert found == seen == [0, 1, 2]
    tensor = torch.ones(2)
    assert sent(tensor, cpu) is tensor


class Overwritten:
    """A recorded step at its worst: a call spoils whatever any call returned before."""

    returned: ClassVar[list[Tensor]] = []

    def __init__(self, step: Callable[[Params], Params]) -> None:
        self.step = step

    def __call__(self, inputs: Params, constants: Params) -> Params:
        read = {name: value.clone() for name, value in {**inputs, **constants}.items()}
        for earlier in self.returned:
            earlier.fill_(torch.nan)
        outputs = {name: value.clone() for name, value in self.step(read).items()}
        self.returned.extend(outputs.values())
        return outputs


CASES = {
    "equal clients": [7, 7, 7],
    "unequal clients": [9, 4, 1, 6],
    "equal at first": [8, 5],
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_read_from_a_recorded_step_after_another(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, task = toy()
    states, data = start_states(method, task, CASES[case])
    settings = replace(PLAIN, momentum=0.5)

    def trained(trainer: BatchedTrainer) -> Results:
        generators = [torch_generator(k, "client") for k in range(len(data))]
        return trainer.train(states, data, 0.1, generators)

    expected = trained(BatchedTrainer(method, task, settings))
    monkeypatch.setattr(batched_training, "Graphs", Overwritten)
    Overwritten.returned.clear()
    trainer = BatchedTrainer(method, task, settings)
    first, second = trained(trainer), trained(trainer)
    for found in (first, second):  # what a round returned outlives the next
        for (a, loss_a), (b, loss_b) in zip(expected, found, strict=True):
            assert torch.equal(loss_a, loss_b)
            for name, value in {**a.shared, **a.private}.items():
                assert torch.equal({**b.shared, **b.private}[name], value), name


def test_a_training_begun_ahead_is_the_same_training() -> None:
    """The first noise may be drawn long before: the clients' own numbers come in the same order."""
    method, task = toy()
    states, data = start_states(method, task, [3, 0, 2])
    schedule = Schedule(2, 1.0, PLAIN, together=3)
    setups = [RoundSetup(method, task, schedule, seed=0) for _ in range(2)]
    shared, sizes, group = states[0].shared, [len(images) for images in data], range(3)
    with ThreadPoolExecutor(2) as pool:
        # As on a GPU; on a CPU nobody draws ahead, and `begin` keeps nothing.
        setups[0].begin(1, group, sizes)
        assert not setups[0].begun
        setups[0].trainer.threads = pool
        for promised in (sizes, [3, 0, 4]):  # the second time the images are others than promised
            setups[0].begin(1, group, promised)
            assert len(setups[0].begun) == 1
            mine, other = (client_round(s, 1, shared, group, data, None) for s in setups)
            assert not setups[0].begun
            for one, two in zip(mine, other, strict=True):
                assert one.loss is two.loss is None or torch.equal(one.loss, two.loss)  # type: ignore[arg-type]
                for name, value in one.update.shared.items():
                    assert torch.equal(value, two.update.shared[name]), name
        setups[0].trainer.threads = None


KINDS = ("trained", "untrained", "whole")
tensors = st.lists(st.tuples(st.sampled_from(KINDS), st.lists(st.integers(0, 3), max_size=2)))


@settings(max_examples=60, deadline=None)
@given(tensors, tensors, st.lists(st.integers(0, 3), min_size=1, max_size=5), st.data())
def test_a_step_changes_the_trained_rows_of_its_clients_and_nothing_else(
    shared: list[tuple[str, list[int]]],
    private: list[tuple[str, list[int]]],
    sizes: list[int],
    data: st.DataObject,
) -> None:
    """Whatever tensors there are, each client gets back what it gave, or its own new rows."""
    generator, kinds = torch_generator(0, "rows"), {}

    def drawn(part: str, told: list[tuple[str, list[int]]]) -> Params:
        params = {}
        for place, (kind, shape) in enumerate(told):
            kinds[f"{part}{place}"] = kind
            value = torch.randn(shape, generator=generator)
            params[f"{part}{place}"] = (100 * value).long() if kind == "whole" else value
        return params

    common = {"always": torch.randn(2, generator=generator), **drawn("shared", shared)}
    states = [State(common, drawn("private", private)) for _ in sizes]
    method, task = toy()
    untrained = tuple(name for name, kind in kinds.items() if kind == "untrained")
    method = type("Toy", (type(method),), {"untrained": untrained, "server_made": ()})()
    clients = [client for client, size in enumerate(sizes) if size]
    assume(clients)
    images = [LabelledFeatures(torch.randn(n, 4), None, torch.zeros(n).long()) for n in sizes]
    batch = ClientBatch(method, task, PLAIN, states, images, 0.1, clients)
    batch.gather()
    rows = sorted(data.draw(st.sets(st.integers(0, len(clients) - 1), min_size=1)))
    step = Step(rows, torch.zeros(len(rows), 1).long(), NoNoise())
    inputs = batch.inputs(step)
    own = {**part(inputs, "param"), **part(inputs, "held")}
    new = {name: value + 1.0 for name, value in part(inputs, "param").items()}
    assert {kinds.get(name, "trained") for name in new} <= {"trained"}
    outputs = {f"param/{name}": value for name, value in new.items()}
    batch.keep(step, {**outputs, "loss": torch.ones(len(rows))})
    for row, (client, state, _) in enumerate(batch.results()):
        before = {**states[client].shared, **states[client].private}
        after = {**state.shared, **state.private}
        assert [*before] == [*after] and client == clients[row]
        for name, value in before.items():
            moved = row in rows and kinds.get(name, "trained") == "trained"
            assert torch.equal(after[name], value + 1.0 if moved else value), name
            if name in own and row in rows:
                assert torch.equal(own[name][rows.index(row)], value)


class NoNoise(Draws):
    """A step that draws nothing."""

    def __init__(self) -> None:
        self.rows, self.pending = {}, []
