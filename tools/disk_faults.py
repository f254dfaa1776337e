"""Let the disk fail at every single call of a run, and resume it.

    python tools/disk_faults.py --cases 480 --seed 0 --docs docs/reliability.md
    python tools/disk_faults.py --crash --cases 250 --seed 0 --docs docs/reliability.md

A small run with private tensors writes its folder. At one of its calls (open, write, flush, fsync,
rename, link, remove, mkdir) the disk is full, broken or read-only, for that call alone or from then
on; with `--crash` the process ends there, before the call or after it. The run must end with a
`RunError` that names what to do, or go on as if nothing had happened, and resumed it must end with
the bytes of a run that nothing disturbed. Anything else is printed; the exit code is then 1.
"""

import argparse
import builtins
import errno
import io
import os
import random
import shutil
import sys
import tempfile
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import focoop  # noqa: E402
from focoop import runs  # noqa: E402
from focoop.errors import FocoopError  # noqa: E402
from tools.fuzz import Ground  # noqa: E402
from tools.promises import Promise, write_promise  # noqa: E402

ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT)
CALLS = ("replace", "fsync", "unlink", "link", "mkdir")
SETTINGS: dict[str, Any] = {
    "method.name": "promptfolio",
    "method.context_tokens": 1,
    "partition.clients": 3,
    "federation.rounds": 3,
    "federation.evaluate_every": 2,
}


class Crash(BaseException):
    """Stands for the end of the process; no `except Exception` may survive it."""


@dataclass
class Disk:
    """Counts calls that write below a folder, and fails at one of them.

    Attributes:
        folder: the folder.
        moment: the call that fails, from 1 on; 0: none.
        problem: what is raised there.
        lasting: whether all later calls fail too.
        after: whether the call is done before it fails.
        count: how many calls there were.
        counting: held while a call takes its number; files are also written by threads.
    """

    folder: Path
    moment: int
    problem: Callable[[], BaseException]
    lasting: bool = False
    after: bool = False
    count: int = 0
    counting: threading.Lock = field(default_factory=threading.Lock)

    def call(self, work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Do a call, unless it fails."""
        with self.counting:
            self.count += 1
            now = self.count == self.moment or (self.lasting and 0 < self.moment < self.count)
        if now and not self.after:
            raise self.problem()
        result = work(*arguments, **options)
        if now:
            raise self.problem()
        return result

    def inside(self, path: Any) -> bool:
        """Return whether a path lies in the folder."""
        if not isinstance(path, str | os.PathLike):
            return False
        return os.path.abspath(path).startswith(str(self.folder))


class Guarded:
    """A file whose writing may fail."""

    def __init__(self, file: Any, disk: Disk) -> None:
        self.file, self.disk = file, disk

    def write(self, content: Any) -> int:
        """Write, unless the disk fails."""
        return int(self.disk.call(self.file.write, content))

    def flush(self) -> None:
        """Flush, unless the disk fails."""
        self.disk.call(self.file.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> "Guarded":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


@contextmanager
def failing(disk: Disk) -> Iterator[None]:
    """Put a disk under this process's calls.

    Args:
        disk: The disk.

    Yields:
        Nothing.
    """
    real_open = builtins.open
    real = {name: getattr(os, name) for name in CALLS}

    def opened(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if not set(mode) & set("wax+") or not disk.inside(file):
            return real_open(file, mode, *rest, **options)
        return Guarded(disk.call(real_open, file, mode, *rest, **options), disk)

    def counted(name: str) -> Callable[..., Any]:
        def call(first: Any, *rest: Any, **options: Any) -> Any:
            if name == "fsync":  # these runs end processes, not machines: nobody waits for a disk
                return disk.call(lambda handle: None, first)
            if not disk.inside(first):
                return real[name](first, *rest, **options)
            return disk.call(real[name], first, *rest, **options)

        return call

    builtins.open = io.open = opened  # type: ignore[assignment]
    for name in CALLS:
        setattr(os, name, counted(name))
    try:
        yield
    finally:
        builtins.open = io.open = real_open
        for name, function in real.items():
            setattr(os, name, function)


def train(ground: Ground, path: Path) -> None:
    """Run the small federation to its end, from where it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        focoop.run(ground.tree, SETTINGS, out=path, resume=path.exists(), use_tuned=False)


def content(path: Path) -> dict[str, bytes]:
    """Return all bytes that must agree: everything but files with times or process ids."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in runs.TIMED
    }


def case(ground: Ground, disk: Disk, wanted: dict[str, bytes]) -> str:
    """Run with a failing disk, then resume with a whole one.

    Args:
        ground: Where the toy dataset lies.
        disk: The disk.
        wanted: The bytes of an undisturbed run.

    Returns:
        `told`, `harmless`, `ended` where the process did, or what is wrong.
    """
    shutil.rmtree(disk.folder, ignore_errors=True)
    leave = runs.RunFolder.__exit__
    try:
        with failing(disk):
            if disk.problem is Crash:  # what a context manager would tidy up does not happen then
                runs.RunFolder.__exit__ = lambda self, *_: self._lock.release()  # type: ignore[assignment, method-assign]
            train(ground, disk.folder)
        how = "harmless"
    except FocoopError:
        how = "told"
    except Crash:
        how = "ended"
    except Exception:
        return traceback.format_exc(limit=-8)
    finally:
        runs.RunFolder.__exit__ = leave  # type: ignore[method-assign]
    try:
        train(ground, disk.folder)
    except Exception:
        return "resumed: " + traceback.format_exc(limit=-8)
    found = content(disk.folder)
    if found == wanted:
        return how
    names = [name for name in {*found, *wanted} if found.get(name) != wanted.get(name)]
    return f"{how}, and other bytes after resuming: {', '.join(sorted(names))}"


def attack(cases: int, seed: int, *, crash: bool, every: int = 1) -> tuple[Counter[str], int]:
    """Let the disk fail at every call in turn, in random ways.

    Args:
        cases: How many.
        seed: Seed of the ways.
        crash: Whether the process ends instead.
        every: How many calls further the next case is.

    Returns:
        Counts of what happened, and how many calls a run has.
    """
    counts, draw = Counter[str](), random.Random(seed)
    with (
        tempfile.TemporaryDirectory() as place,
        mock.patch.dict(os.environ, FOCOOP_CACHE=f"{place}/cache"),
    ):
        ground = Ground(Path(place))
        train(ground, Path(place) / "whole")
        whole = Disk(Path(place) / "run", 0, Crash)
        with failing(whole):
            train(ground, whole.folder)
        wanted, calls = content(Path(place) / "whole"), whole.count
        for number in range(cases):
            moment = 1 + number * every % calls
            if crash:
                disk = Disk(whole.folder, moment, Crash, after=bool(number * every // calls % 2))
            else:
                code = draw.choice(ERRORS)
                problem = lambda code=code: OSError(code, os.strerror(code))  # noqa: E731
                disk = Disk(whole.folder, moment, problem, lasting=draw.random() < 0.5)
            outcome = case(ground, disk, wanted)
            if outcome not in ("told", "harmless", "ended"):
                print(f"call {moment} of {calls}: {outcome}", flush=True)
                outcome = "broken"
            counts[outcome] += 1
    return counts, calls


def main() -> int:
    """Run the tool; 1 where a run was lost or ended in a traceback."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=480)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--crash", action="store_true", help="end the process instead")
    parser.add_argument("--docs", type=Path, help="write the counts into this page")
    given = parser.parse_args()
    counts, calls = attack(given.cases, given.seed, crash=given.crash)
    print(dict(counts), f"{calls} calls in a run")
    if given.docs:
        command = f"python tools/disk_faults.py{' --crash' * given.crash}"
        command += f" --cases {given.cases} --seed {given.seed}"
        if given.crash:
            promise = "A process that dies at a file call loses nothing"
            attacked = f"ended before or after each of {calls} calls of a run, then resumed"
            happened = f"{counts['ended']:,} ended and resumed to the same bytes, "
            happened += f"{counts['harmless']:,} went on to them"
        else:
            promise = "A full or broken disk is told, and nothing is lost"
            attacked = f"an error at each of {calls} calls of a run, once or lasting, then resumed"
            happened = f"{counts['told']:,} told, {counts['harmless']:,} harmless; "
            happened += "all resumed to the same bytes"
        row = Promise(promise, attacked, counts.total(), happened, counts["broken"], command)
        write_promise(given.docs, row)
    return 1 if counts["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
