"""Pieces of work, one core each: a product that several cores share may round otherwise."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import TypeVar

import torch

Found = TypeVar("Found")


@contextmanager
def one_core() -> Iterator[None]:
    """Torch's operations on a single thread, also those of threads that start meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_of_one_core(count: int) -> ThreadPoolExecutor:
    """A pool of `count` threads, all of them running, whose operations have one core each."""
    pool, everyone = ThreadPoolExecutor(count), Barrier(count)

    def settle(_: int) -> None:
        torch.set_num_threads(1)
        everyone.wait()  # so that each thread comes here once

    with one_core():
        list(pool.map(settle, range(count)))
    return pool


def side_by_side(job: Callable[[int], Found], count: int, device: torch.device) -> list[Found]:
    """`job(0)` to `job(count - 1)`: on a CPU as many at once as torch may use threads.

    Every job has one core, however many there are, so that its bits do not depend on the machine.
    """
    threads = min(torch.get_num_threads(), count)
    if device.type != "cpu":
        return [job(piece) for piece in range(count)]
    with one_core():
        if threads <= 1:
            return [job(piece) for piece in range(count)]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(job, range(count)))
