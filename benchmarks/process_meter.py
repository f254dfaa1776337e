"""What the processes of a benchmark do while it runs: seconds of a processor and of waiting.

Wall seconds depend on what else a machine does. Two numbers depend on it far less: the processor
seconds that all processes use together, and the time in which none of them runs or is ready to run,
because all of them wait: for a pause to end, for a disk or for a network. Needs Linux's /proc.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

EVERY = 0.1  # seconds between two samples
PROC, TICK = Path("/proc"), os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sample:
    """One look at all processes."""

    time: float
    processor: float
    working: bool
    done: int


class Meter(threading.Thread):
    """Samples this process and all it has started until `stop`.

    Args:
        done: How many steps of the benchmark are done.
    """

    def __init__(self, done: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self.done, self.samples = done, list[Sample]()
        self.ended = threading.Event()

    def run(self) -> None:
        """Take samples."""
        while not self.ended.wait(EVERY):
            processor, working = look(os.getpid(), {threading.get_native_id()})
            now = time.perf_counter()
            self.samples.append(Sample(now, processor - time.thread_time(), working, self.done()))

    def stop(self) -> None:
        """Take no more samples."""
        self.ended.set()
        self.join()

    def each(self, first: int, last: int) -> tuple[float, float]:
        """Seconds of a processor, and of waiting, for each step after `first` until `last`.

        (nan, nan) where there are too few samples.
        """
        found = [sample for sample in self.samples if first <= sample.done < last]
        if len(found) < 2:
            return float("nan"), float("nan")
        whole, steps = found[-1].time - found[0].time, last - first
        waiting = sum(not sample.working for sample in found) / len(found)
        used = found[-1].processor - found[0].processor
        return round(used / steps, 3), round(whole * waiting / steps, 3)


def look(process: int, ignored: set[int]) -> tuple[float, bool]:
    """Processor seconds of a process and its descendants, and whether any of their threads works.

    Args:
        process: The number of the process.
        ignored: Numbers of threads that do not count as working.
    """
    total, working, rest = 0.0, False, [process]
    while rest:
        folder = PROC / str(rest.pop())
        try:
            total += sum(map(int, _fields(folder)[11:15])) / TICK
            for task in (folder / "task").iterdir():
                working |= _fields(task)[0] == "R" and int(task.name) not in ignored
                rest += map(int, (task / "children").read_text().split())
        except OSError:  # it ended meanwhile; its seconds are its parent's
            continue
    return total, working


def _fields(folder: Path) -> list[str]:
    """What /proc tells of a process or thread, from its state on."""
    return (folder / "stat").read_text().rpartition(")")[2].split()
