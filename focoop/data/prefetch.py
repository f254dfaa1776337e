"""Read images ahead of the encoder: threads fill the coming batches while one is encoded."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

from focoop.threads import cores as allowed_cores

AHEAD = 2  # batches: with one alone, threads would idle while its last images are decoded
MOST = 32  # threads; decoding leaves the interpreter free, what is around it does not
Fill = Callable[[range, Tensor], None]  # (rows, where their pixels go)


def read_ahead(
    batches: Sequence[range],
    fill: Fill,
    shape: Sequence[int],
    dtype: torch.dtype = torch.float32,
    *,
    pinned: bool = False,
    threads: int = 0,
) -> Generator[Tensor]:
    """Give the pixels of each batch in turn, while threads read the coming ones.

    A tensor is overwritten once the next one is asked for. What `fill` raises is raised where its
    batch is due.

    Args:
        batches: Rows of each batch.
        fill: Writes the pixels of some rows into a tensor.
        shape: Shape of one image's pixels.
        dtype: Type of the pixels.
        pinned: Use memory that is copied to a GPU without a stop.
        threads: Number of threads; 0: one for each core.

    Yields:
        Pixels (N, *shape) of a batch.
    """
    threads = threads or cores()
    largest = max(map(len, batches), default=0)
    slots = min(AHEAD + 1, len(batches))
    buffers = [torch.empty(largest, *shape, dtype=dtype, pin_memory=pinned) for _ in range(slots)]
    coming: deque[list[Future[None]]] = deque()
    with readers(threads) as pool:
        for number in range(len(batches) + AHEAD):
            if number < len(batches):
                rows, buffer = batches[number], buffers[number % slots]
                step = -(-len(rows) // (2 * threads))  # two parts a thread: the last one is short
                parts = [(rows[i : i + step], buffer[i:]) for i in range(0, len(rows), step)]
                coming.append([pool.submit(fill, *part) for part in parts])
            if number >= AHEAD:
                for part in coming.popleft():
                    part.result()
                due = number - AHEAD
                yield buffers[due % slots][: len(batches[due])]


@contextmanager
def readers(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Open a pool of threads that each compute on one core.

    What has not begun is dropped at the end.

    Args:
        threads: Number of threads.

    Yields:
        The pool.
    """
    computing = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(computing)  # threads that start later take the last number set


def cores() -> int:
    """Return the number of processors this process may use, up to a bound."""
    return min(MOST, allowed_cores())
