"""Many runs in few processes: a worker makes one run after the other and keeps features open.

Workers are spawned once, so that imports and a GPU's start are paid once each. A worker that dies
(out of memory, kill -9) fails the run it was at; a fresh one takes its place. Runs live in run
folders, so whatever is stopped here goes on with the same command.
"""

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from focoop import caching
from focoop.config import RunConfig, from_dict, to_dict
from focoop.errors import ConfigError, FocoopError
from focoop.experiments.answering import measure_answers, read_answers
from focoop.experiments.running import run_to_end
from focoop.runs import collect, start
from focoop.threads import cores
from focoop.tracking import Listener, RoundEvent, Tracker, as_hooks

PATIENCE = 5.0  # seconds a stopped worker has to note where it is before it is killed
GPU_JOBS = 4  # runs at a time on one GPU, unless told otherwise
UNDER_WAY = "under way"
KEPT_SHARE = 0.25  # of the machine's memory, for features that all workers together keep open


@dataclass(frozen=True)
class Job:
    """A run to make or to finish: a configuration and its folder.

    Attributes:
        config: The configuration.
        folder: The folder.
        answers: Scores and priors to measure the finished run under, values by dotted key.
        track: Trackers that the run writes to, as texts.
        watched: Whether hooks of the process that gave the job are to be told of its moments.
        notes: What the user was told before it began, for its log.
    """

    config: RunConfig
    folder: Path
    answers: tuple[dict[str, Any], ...] = ()
    track: tuple[str, ...] = ()
    watched: bool = False
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the run's name for hooks, `SETTING/LABEL/seedN`."""
        return "/".join(self.folder.parts[-3:])

    @property
    def rest(self) -> tuple[Any, ...]:
        """Return all but configuration and folder, in the order of the fields."""
        return self.answers, self.track, self.watched, self.notes


@dataclass(frozen=True)
class News:
    """What happened to a job, by its number: it is `under way`, `finished` or `failed`.

    `summary` is the last evaluation without its rows per client, `event` what hooks are told.
    """

    job: int
    kind: str
    round: int = 0
    summary: dict[str, Any] | None = None
    error: str = ""
    exit_code: int = 0
    event: RoundEvent | None = None


Report = Callable[[News], None]
Numbered = tuple[int, Job]


def default_jobs(devices: Sequence[str]) -> int:
    """Return how many runs go on at a time: one per core on the CPU, a few on a GPU.

    Args:
        devices: Devices of the runs.

    Returns:
        Their number.
    """
    return cores() if all(device == "cpu" for device in devices) else min(GPU_JOBS, cores())


def run_jobs(jobs: Sequence[Job], report: Report, *, workers: int) -> None:
    """Make all runs in the order given, `workers` at a time; a failed one does not stop the others.

    Args:
        jobs: the runs to make or to finish.
        report: called in this process with all news of all jobs.
        workers: how many processes make runs at a time; 0 makes them in this process.

    Raises:
        ConfigError: `workers` is negative.
    """
    if workers < 0:
        raise ConfigError(f"--jobs {workers} is not allowed: the least is 0 (in this process)")
    if workers == 0:
        for number, job in enumerate(jobs):
            report(execute(number, job, report))
        return
    crew = _Crew(deque(enumerate(jobs)), min(workers, len(jobs)))
    try:
        crew.fill()
        while crew.members:
            for connection in wait(list(crew.members)):
                for news in crew.listen(connection):  # type: ignore[arg-type]
                    report(news)
    finally:
        crew.dismiss()


def execute(number: int, job: Job, report: Report) -> News:
    """Make or resume one run, or find it finished; an error is returned as news and not raised.

    Args:
        number: The job's number.
        job: The job.
        report: Called with every piece of news.

    Returns:
        The last news.
    """
    try:
        hooks = [Listener(_Reporter(number, job, report)), *as_hooks(job.track)]
        with start(job.folder, job.config, collect(job.config), resume=True) as folder:
            if folder.status != "finished":
                run_to_end(job.config, folder, hooks, job.name, job.notes)
            summary = short(folder.metrics()[-1]) or {}
            if job.answers:
                found = read_answers(folder, job.answers)
                summary["answers"] = found or measure_answers(folder, job.answers)
            return News(number, "finished", folder.last_round(), summary)
    except FocoopError as error:
        return News(number, "failed", error=str(error), exit_code=error.exit_code)
    except Exception:
        return News(number, "failed", error=traceback.format_exc().strip(), exit_code=1)


class _Reporter(Tracker):
    """Reports committed rounds, and where hooks are elsewhere also what they are told."""

    def __init__(self, number: int, job: Job, report: Report) -> None:
        super().__init__("news of the run")
        self._number, self._watched, self._report = number, job.watched, report

    def begin(self, event: RoundEvent) -> None:
        """Report the begin.

        Args:
            event: The run.
        """
        if self._watched:
            self._report(News(self._number, UNDER_WAY, event=event))

    def round(self, event: RoundEvent) -> None:
        """Report a round.

        Args:
            event: The round.
        """
        summary = short(event.evaluation)
        told = replace(event, evaluation=summary) if self._watched else None
        self._report(News(self._number, UNDER_WAY, event.round, summary, event=told))

    def end(self, event: RoundEvent) -> None:
        """Report the end.

        Args:
            event: The run.
        """
        if self._watched:
            self._report(News(self._number, UNDER_WAY, event=event))


def short(line: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return an evaluation without its rows per client, which may be many.

    Args:
        line: The evaluation.

    Returns:
        The shortened evaluation.
    """
    return None if line is None else {key: line[key] for key in line if key != "clients"}


@dataclass
class _Worker:
    process: SpawnProcess
    job: int = -1  # the number of the job it is at


class _Crew:
    """The processes at work and the jobs that wait for one."""

    def __init__(self, waiting: deque[Numbered], size: int) -> None:
        self.members: dict[Connection, _Worker] = {}
        self._waiting = waiting
        self._size = size

    def fill(self) -> None:
        """Start workers until there are enough of them or nothing waits."""
        while self._waiting and len(self.members) < self._size:
            context = multiprocessing.get_context("spawn")
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, self._size), daemon=True)
            with _surroundings(max(1, cores() // self._size)):
                process.start()
            theirs.close()  # else the pipe would not end with the worker
            self.members[ours] = _Worker(process)
            self._give(ours)

    def listen(self, connection: Connection) -> Iterator[News]:
        """What a worker has to say; then its next job, or a fresh worker if it is dead."""
        worker = self.members[connection]
        try:
            news: News = connection.recv()
        except (EOFError, OSError):
            del self.members[connection]
            connection.close()
            worker.process.join()
            yield News(worker.job, "failed", error=_obituary(worker.process), exit_code=1)
            self.fill()
            return
        yield news
        if news.kind == UNDER_WAY:
            return
        if self._waiting:
            self._give(connection)
        else:
            del self.members[connection]
            connection.close()  # the worker reads the end of the pipe and leaves
            worker.process.join()

    def dismiss(self) -> None:
        """Stop who is still at work; the run folders say how far they came."""
        for worker in self.members.values():
            worker.process.terminate()
        end = time.monotonic() + PATIENCE
        for connection, worker in self.members.items():
            worker.process.join(max(0.0, end - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            connection.close()
        self.members.clear()

    def _give(self, connection: Connection) -> None:
        number, job = self._waiting.popleft()
        self.members[connection].job = number
        with contextlib.suppress(OSError):  # a dead worker is met by the next `listen`
            connection.send((number, to_dict(job.config), str(job.folder), *job.rest))


@contextlib.contextmanager
def _surroundings(threads: int) -> Iterator[None]:
    """What a worker is born with: its threads, and Ctrl-C blocked.

    OpenMP reads its variables when torch is loaded. Ctrl-C reaches all processes of a terminal; the
    parent alone acts on it and tells the workers, so that each is told once.
    """
    wanted = {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(threads)}
    before = {name: os.environ.get(name) for name in wanted}
    resource_tracker.ensure_running()  # started later it would unblock Ctrl-C again
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _obituary(process: SpawnProcess) -> str:
    code = process.exitcode or 0
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    advice = "; if memory ran out, use fewer --jobs" if code == -signal.SIGKILL else ""
    return f"the worker process {how}{advice}; the same command goes on where it stopped"


def shorten_warnings() -> None:
    """Let this process show a warning in one line, without the line of code that gave it."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"


def _serve(connection: Connection, size: int) -> None:
    """A worker's life: jobs until the pipe ends."""
    shorten_warnings()
    signals: list[int] = []

    def leave(signum: int, frame: FrameType | None) -> None:
        signals.append(signum)
        raise SystemExit(128 + signum)

    signal.signal(signal.SIGTERM, leave)
    torch.set_num_threads(max(1, cores() // size))
    keep_open(int(KEPT_SHARE * _memory() / size))
    while True:
        try:
            number, tree, where, *rest = connection.recv()
        except (EOFError, OSError):
            return

        def report(news: News) -> None:
            if signals:  # the exit was raised in code that swallows it, as some imports do
                raise SystemExit(128 + signals[0])
            try:
                connection.send(news)
            except OSError as error:  # the parent is gone: nobody waits for this run
                raise SystemExit(1) from error

        report(execute(number, Job(from_dict(tree), Path(where), *rest), report))


def keep_open(limit: int) -> None:
    """Let all runs of this process share feature files and the backbone.

    Args:
        limit: Bytes of feature files to keep.
    """
    caching.FEATURES.limit = limit
    caching.BACKBONES.limit = 1


def _memory() -> int:
    """Physical memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
