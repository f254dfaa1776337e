"""One worker thread that answers what waits, many questions at a time."""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Asked = TypeVar("Asked")
Found = TypeVar("Found")


class QueueFull(Exception):
    """More questions wait than may."""


class Stopped(Exception):
    """The worker takes no more questions."""


@dataclass
class _Waiting(Generic[Asked, Found]):
    group: Hashable
    asked: Asked
    answer: "Future[Found]" = field(default_factory=Future)


class Batcher(Generic[Asked, Found]):
    """Collects questions of many threads and answers those of one group together.

    The first question of a batch waits for others as long as `wait`, or until the batch is full or
    nobody else is on the way. A question whose future was cancelled meanwhile is left out.

    Args:
        work: Answers a group's questions, in their order. What it raises, all of them raise.
        batch: Questions that are answered together, at most.
        wait: Seconds.
        queue: Questions that may wait.
        coming: Gives how many questions wait or are on the way; None: that is not known.
    """

    def __init__(
        self,
        work: Callable[[Hashable, Sequence[Asked]], Sequence[Found]],
        *,
        batch: int,
        wait: float,
        queue: int,
        coming: Callable[[], int] | None = None,
    ) -> None:
        self._coming = coming
        self._work, self._batch, self._wait, self._queue = work, batch, wait, queue
        self._waiting: deque[_Waiting[Asked, Found]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="focoop-batches", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Return whether questions are taken and answered."""
        return self._thread.is_alive() and not self._stopping

    @property
    def waiting(self) -> int:
        """Return how many questions wait."""
        return len(self._waiting)

    def ask(self, group: Hashable, questions: Sequence[Asked]) -> "list[Future[Found]]":
        """Put questions in the queue, all or none.

        Args:
            group: What must be equal for questions to be answered together.
            questions: The questions.

        Returns:
            A future for each.

        Raises:
            QueueFull: They do not fit.
            Stopped: The worker has been told to stop.
        """
        entries = [_Waiting[Asked, Found](group, question) for question in questions]
        with self._changed:
            if self._stopping:
                raise Stopped
            if len(self._waiting) + len(entries) > self._queue:
                raise QueueFull
            self._waiting.extend(entries)
            self._changed.notify_all()
        return [entry.answer for entry in entries]

    def stop(self, seconds: float) -> bool:
        """Take no more questions, answer those that wait, and end.

        Args:
            seconds: The time for it. What is not answered then is cancelled.

        Returns:
            Whether all was answered in time.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(seconds)
        with self._changed:
            left = list(self._waiting)
            self._waiting.clear()
        for entry in left:
            entry.answer.cancel()
        return not left and not self._thread.is_alive()

    def _run(self) -> None:
        while (entries := self._next()) is not None:
            running = [one for one in entries if one.answer.set_running_or_notify_cancel()]
            if not running:
                continue
            try:
                found = self._work(running[0].group, [one.asked for one in running])
                for one, answer in zip(running, found, strict=True):
                    one.answer.set_result(answer)
            except BaseException as error:  # one bad batch must not end the worker
                for one in running:
                    if not one.answer.done():
                        one.answer.set_exception(error)

    def _next(self) -> list[_Waiting[Asked, Found]] | None:
        """The next batch: of the group that has waited longest; None when all is done."""
        with self._changed:
            while not self._waiting:
                if self._stopping:
                    return None
                self._changed.wait()
            group, until = self._waiting[0].group, time.monotonic() + self._wait
            while len(self._waiting) < self._batch and not self._stopping:
                if self._coming is not None and self._coming() <= len(self._waiting):
                    break
                left = until - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            taken: list[_Waiting[Asked, Found]] = []
            rest: deque[_Waiting[Asked, Found]] = deque()
            while self._waiting:
                one = self._waiting.popleft()
                fits = one.group == group and len(taken) < self._batch
                (taken if fits else rest).append(one)
            self._waiting = rest
            return taken
