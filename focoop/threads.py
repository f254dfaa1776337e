"""Pieces of work, one core each: a product that several cores share may round otherwise."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
