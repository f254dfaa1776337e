"""Several runs that train their clients as one batch: seeds, methods, trials of a tuning.

Each run is a thread, of which one moves at a time: a run that asks for training stands still until
every other one has asked too or has ended; then all that was asked for passes through the tower as
one batch. So runs keep their own order of events, and nothing in them need know of the others.
Results are those of a run alone up to rounding, as in `together.py`.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from focoop.clip import Names
from focoop.federation.batched_training import Results, Together, Train, rewound
from focoop.federation.client_batch import Recipe, Request
from focoop.methods import Task

Made = TypeVar("Made")


@dataclass
class _Asked:
    """What a waiting run asked for, and what came of it."""

    place: int
    request: Request
    results: Results | None = None
    error: Exception | None = None


class Meeting(Generic[Made]):
    """Where runs wait for each other; `limit` clients at most train as one batch."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._together: Together | None = None
        self._turn = threading.Condition()  # whoever holds it moves
        self._present = 0
        self._asked: list[_Asked] = []
        self._stopped: BaseException | None = None
        self._known = Known()

    def run(self, jobs: Sequence[Callable[[Train], Made]]) -> list[Made]:
        """What the jobs return; the first error of one that raised, once all have ended.

        What interrupts the caller (Ctrl-C, a signal) reaches every job at its next request.
        """
        outcomes: list[Made | BaseException] = [RuntimeError("not begun")] * len(jobs)

        def take_part(place: int) -> None:
            with self._turn:
                try:
                    outcomes[place] = jobs[place](partial(self.train, place))
                except BaseException as error:
                    outcomes[place] = error
                    if not isinstance(error, Exception):
                        self._stop(error)
                finally:
                    self._present -= 1
                    self._train_if_all_asked()
                    if not self._present:
                        over.set()

        # Not Thread.join: interrupted once, it takes a thread that goes on for one that ended.
        over = threading.Event()
        threads = [
            threading.Thread(target=take_part, args=(place,), daemon=True)
            for place in range(len(jobs))
        ]
        try:
            with self._turn:  # none moves before all are there
                for thread in threads:
                    thread.start()
                    self._present += 1
            while self._present:
                over.wait()
        except BaseException as error:
            self._stop(error)
            while self._present:
                over.wait()
            raise
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes  # type: ignore[return-value]

    def train(self, place: int, request: Request) -> Results:
        """For the run at `place`: wait for the others' requests, then for the training of all."""
        self._leave_if_stopped()
        mine = _Asked(place, replace(request, recipe=self._known.recipe(request.recipe)))
        self._asked.append(mine)
        self._train_if_all_asked()
        while mine.results is None and mine.error is None:
            self._turn.wait()
            self._leave_if_stopped()
        if mine.error is not None:
            raise mine.error
        assert mine.results is not None
        return mine.results

    def _stop(self, error: BaseException) -> None:
        self._stopped = error
        with self._turn:
            self._turn.notify_all()

    def _leave_if_stopped(self) -> None:
        if self._stopped is not None:
            raise self._stopped

    def _train_if_all_asked(self) -> None:
        if self._stopped is not None or not self._asked or len(self._asked) < self._present:
            return
        # By place: who came first changes neither rounding nor which step was recorded before.
        asked, self._asked = sorted(self._asked, key=lambda one: one.place), []
        if self._together is None:
            self._together = Together(asked[0].request.recipe.task.device, self._limit)
        requests = [one.request for one in asked]
        try:
            with rewound(requests):
                found = self._together.train(requests)
            for one, results in zip(asked, found, strict=True):
                one.results = results
        except Exception:
            self._one_by_one(self._together, asked)
        self._turn.notify_all()

    def _one_by_one(self, together: Together, asked: Sequence[_Asked]) -> None:
        """Each request alone, so that an error belongs to the run that made it."""
        for one in asked:
            try:
                (one.results,) = together.train([one.request])
            except Exception as error:
                one.error = error


class Known:
    """Recipes and names that were met before: those of runs that are alike become the same."""

    def __init__(self) -> None:
        self._recipes: list[tuple[Recipe, Recipe]] = []  # as given, as used
        self._names: list[Names] = []

    def recipe(self, given: Recipe) -> Recipe:
        """The recipe to use for this one: an earlier one that trains alike, if there is any."""
        for earlier, used in self._recipes:
            if earlier is given:
                return used
        used = next((u for _, u in self._recipes if same_recipe(u, given)), None) or self._new(
            given
        )
        self._recipes.append((given, used))
        return used

    def _new(self, given: Recipe) -> Recipe:
        task = given.task
        changed = replace(
            task,
            id_names=self.names(task.id_names),
            ood_names=None if task.ood_names is None else self.names(task.ood_names),
            bare_names=self.names(task.bare_names),
        )
        return replace(given, task=changed)

    def names(self, given: Names) -> Names:
        """Equal names that were met before, or these."""
        found = next((one for one in self._names if same_names(one, given)), None)
        if found is None:
            self._names.append(given)
        return found or given


def same_recipe(one: Recipe, other: Recipe) -> bool:
    """Whether clients of both may be rows of the same tensors; learning rates may differ."""
    return (
        type(one.method) is type(other.method)
        and one.method.config == other.method.config
        and replace(one.settings, lr=0.0) == replace(other.settings, lr=0.0)
        and same_task(one.task, other.task)
    )


def same_task(one: Task, other: Task) -> bool:
    """Whether two tasks hold equal values and the same tower."""
    return all(
        _equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(Task)
    )


def same_names(one: Names, other: Names) -> bool:
    """Whether names are the same in the same order, embedded alike."""
    return (
        one.vocabulary == other.vocabulary
        and one.known == other.known
        and _equal(one.index, other.index)
        and _equal(one.embeddings, other.embeddings)
    )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.device == other.device and torch.equal(one, other)
    if isinstance(one, Names) and isinstance(other, Names):
        return same_names(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return False
    return bool(one == other)
