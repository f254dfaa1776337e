"""Run pieces of work on one core each: a product that cores share may round otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Found = TypeVar("Found")


def cores() -> int:
    """Return the number of CPU cores this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    return len(allowed(0)) if allowed else os.cpu_count() or 1


@contextmanager
def one_core() -> Iterator[None]:
    """Run torch's operations on a single thread inside this context, in new threads too.

    Yields:
        Nothing.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def side_by_side(job: Callable[[int], Found], count: int, device: torch.device) -> list[Found]:
    """Run numbered jobs, on a CPU as many at once as torch may use threads.

    Every job has one core, however many there are, so that its bits do not depend on the machine.

    Args:
        job: Is called with 0 to count - 1.
        count: Number of jobs.
        device: Where the jobs compute; on a GPU they run one after another.

    Returns:
        What the jobs returned, in their order.
    """
    threads = min(torch.get_num_threads(), count)
    if device.type != "cpu":
        return [job(piece) for piece in range(count)]
    with one_core():
        if threads <= 1:
            return [job(piece) for piece in range(count)]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(job, range(count)))
