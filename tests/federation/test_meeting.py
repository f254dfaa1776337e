"""Runs whose clients train as one batch end as each alone would; errors stay with their run."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from focoop.clip.text.tower import Names
from focoop.errors import MethodError
from focoop.federation.batched_training import Together, Train
from focoop.federation.client import LocalSettings
from focoop.federation.client_batch import Recipe, Request
from focoop.federation.meeting import Known, Meeting, same_task
from focoop.federation.simulator import MemoryStore, RoundResult, Schedule, simulate
from focoop.methods import create
from focoop.methods.base import Batch, Method, Params, Task, Text
from focoop.methods.promptfl import PromptFL
from focoop.seeds import torch_generator
from tests.federation.test_batched_training import PLAIN, TOGETHER, start_states
from tests.methods.contract_toy import Tower, make_clients, make_task, spread

SIZES = [5, 0, 4, 6]


class Counting(Tower):
    """Remembers the contexts of every pass."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(dtype)
        self.passes: list[tuple[int, ...]] = []

    def forward(self, contexts: Tensor, names: Names) -> Tensor:
        self.passes.append(tuple(contexts.shape))
        return super().forward(contexts, names)


def task_of(method: Method, tower: Tower, dtype: torch.dtype = torch.float32) -> Task:
    """A run's own task on a tower that other runs use too."""
    task = make_task(method, dtype=dtype)
    return replace(task, encode=tower, texts=tower.texts, embed=tower.embed)


def run(
    method: Method,
    tower: Tower,
    seed: int,
    train: Train | None,
    *,
    rounds: int = 2,
    lr: float = 0.2,
) -> RoundResult:
    """The last round of a federation of four clients."""
    task = task_of(method, tower)
    schedule = Schedule(rounds, 1.0, replace(PLAIN, lr=lr), together=8)
    clients = make_clients(method, task, spread(SIZES))
    *_, last = simulate(method, task, clients, schedule, MemoryStore(), seed=seed, train=train)
    return last


def assert_same(one: RoundResult, other: RoundResult) -> None:
    assert one.round_index == other.round_index
    assert one.loss == pytest.approx(other.loss, rel=1e-5)
    for name, value in one.server.shared.items():
        torch.testing.assert_close(value, other.server.shared[name], rtol=1e-5, atol=1e-5)


def jobs_of(tower: Tower, runs: Sequence[tuple[str, int]]) -> list[Callable[[Train], RoundResult]]:
    return [partial(run, create(name), tower, seed) for name, seed in runs]


@pytest.mark.parametrize("name", TOGETHER)
def test_requests_of_seeds_and_of_other_methods_are_requests_alone(name: str) -> None:
    """In float64: two runs of a method at other rates, and one of PromptFL, in one call."""
    tower = Tower(torch.float64)
    requests, again = [], []
    for run_index, kind in enumerate((name, name, "promptfl")):
        method = create(kind)
        task = task_of(method, tower, torch.float64)
        states, data = start_states(method, task, SIZES if run_index != 1 else [3, 7])
        if run_index == 1:  # another seed's server sent other tensors
            moved = {
                n: v + 0.1 * torch.randn(v.shape, generator=torch_generator(7, n)).to(v)
                if v.is_floating_point()
                else v
                for n, v in states[0].shared.items()
            }
            states = [replace(state, shared=moved) for state in states]
        recipe = Recipe(method, task, replace(PLAIN, momentum=0.5, prox=0.3))
        for found in (requests, again):
            generators = [torch_generator(k, "client", run_index) for k in range(len(data))]
            found.append(Request(recipe, states, data, 0.1 + 0.1 * run_index, generators))
    known = Known()
    together = Together(torch.device("cpu"))
    joined = together.train([replace(r, recipe=known.recipe(r.recipe)) for r in requests])
    for request, found_of in zip(again, joined, strict=True):
        (alone,) = Together(torch.device("cpu")).train([request])
        for (a, loss_a), (b, loss_b) in zip(alone, found_of, strict=True):
            torch.testing.assert_close(loss_a, loss_b, rtol=1e-9, atol=1e-9, equal_nan=True)
            for part_a, part_b in ((a.shared, b.shared), (a.private, b.private)):
                for tensor, value in part_a.items():
                    torch.testing.assert_close(part_b[tensor], value, rtol=1e-9, atol=1e-9)
    for one, other in zip(requests, again, strict=True):
        for g, h in zip(one.generators, other.generators, strict=True):
            assert torch.equal(g.get_state(), h.get_state())


def test_seeds_in_a_meeting_are_seeds_alone() -> None:
    runs = [("focoop_plus", 0), ("focoop_plus", 1), ("focoop_plus", 2)]
    alone = [job(None) for job in jobs_of(Tower(torch.float32), runs)]  # type: ignore[arg-type]
    met = Meeting[RoundResult]().run(jobs_of(Tower(torch.float32), runs))
    for one, other in zip(alone, met, strict=True):
        assert_same(one, other)
    assert not torch.allclose(
        met[0].server.shared["global"], met[1].server.shared["global"], atol=1e-3
    )


def test_methods_share_passes_through_the_tower() -> None:
    """Prompts of one form for equal names are one batch, whichever run they belong to."""
    runs = [("focoop", 0), ("focoop", 1), ("promptfl", 0), ("local_only", 0)]
    towers = [Counting() for _ in range(3)]
    alone = [job(None) for job in jobs_of(towers[0], runs)]  # type: ignore[arg-type]
    met = Meeting[RoundResult]().run(jobs_of(towers[1], runs))
    for one, other in zip(alone, met, strict=True):
        assert_same(one, other)
    jobs_of(towers[2], runs[:1])[0](None)  # type: ignore[arg-type]
    # All steps: class and OOD prompts of both FOCoOps, the context of both others.
    assert len(towers[1].passes) == len(towers[2].passes) * 3 // 2
    assert len(towers[0].passes) == 2 * len(towers[1].passes)
    groups = {shape[0] for shape in towers[1].passes}
    assert max(groups) == 6  # three clients with images of two runs


def test_a_limit_cuts_batches_and_changes_no_result() -> None:
    runs = [("focoop", 0), ("focoop", 1), ("promptfl", 0)]
    tower = Counting()
    whole = Meeting[RoundResult]().run(jobs_of(Tower(torch.float32), runs))
    cut = Meeting[RoundResult](limit=3).run(jobs_of(tower, runs))
    for one, other in zip(whole, cut, strict=True):
        assert_same(one, other)
    assert max(shape[0] for shape in tower.passes) <= 3


def test_runs_may_end_at_different_rounds() -> None:
    tower, method = Tower(torch.float32), create("promptfl")
    lengths = (1, 3, 2)
    jobs = [partial(run, method, tower, 0, rounds=n) for n in lengths]
    for found, rounds in zip(Meeting[RoundResult]().run(jobs), lengths, strict=True):
        assert_same(found, run(method, tower, 0, None, rounds=rounds))


def test_a_run_that_diverges_fails_alone() -> None:
    tower, method = Tower(torch.float32), create("promptfl")
    others: list[RoundResult] = []

    def good(train: Train) -> RoundResult:
        others.append(run(method, tower, 1, train))
        return others[-1]

    with pytest.raises(MethodError, match="diverged"):
        Meeting[RoundResult]().run([good, partial(run, method, tower, 0, lr=math.inf), good])
    assert len(others) == 2
    for found in others:
        assert_same(found, run(method, tower, 1, None))


class Broken(PromptFL):
    """Cannot be trained."""

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        raise ZeroDivisionError("a method's own mistake")


def test_an_error_belongs_to_the_run_that_made_it() -> None:
    tower, others = Tower(torch.float32), []

    def good(train: Train) -> RoundResult:
        others.append(run(create("focoop"), tower, 3, train))
        return others[-1]

    with pytest.raises(ZeroDivisionError, match="own mistake"):
        Meeting[RoundResult]().run([partial(run, Broken(), tower, 0), good])
    assert_same(others[0], run(create("focoop"), tower, 3, None))


def test_what_stops_one_stops_all() -> None:
    tower, ended = Tower(torch.float32), []

    def stops(train: Train) -> RoundResult:
        run(create("promptfl"), tower, 0, train, rounds=1)
        raise KeyboardInterrupt

    def goes_on(train: Train) -> RoundResult:
        try:
            return run(create("promptfl"), tower, 1, train, rounds=50)
        except KeyboardInterrupt:
            ended.append("told")
            raise

    with pytest.raises(KeyboardInterrupt):
        Meeting[RoundResult]().run([goes_on, stops, goes_on])
    assert ended == ["told", "told"]


def test_tasks_are_the_same_by_their_values() -> None:
    tower, method = Tower(torch.float32), create("fedlapt")
    one, other = task_of(method, tower), task_of(method, tower)
    assert one is not other and same_task(one, other)
    assert not same_task(one, replace(other, logit_scale=11.0))
    assert not same_task(one, task_of(method, Tower(torch.float32)))
    moved = {n: v + 1.0 for n, v in other.frozen.items()}
    assert moved and not same_task(one, replace(other, frozen=moved))
    assert not same_task(one, replace(other, ood_names=other.id_names))
    known = Known()
    first = known.recipe(Recipe(method, one, PLAIN))
    assert known.recipe(Recipe(method, other, replace(PLAIN, lr=9.0))) is first
    later = known.recipe(Recipe(method, other, LocalSettings(1, 2, 0.1)))
    assert later is not first and later.task.id_names is first.task.id_names


def test_no_runs_are_no_results() -> None:
    assert Meeting[RoundResult]().run([]) == []
