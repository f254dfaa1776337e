"""Reading ahead: the same pixels in the same order, really ahead, and errors where they belong."""

import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from focoop.data.prefetch import AHEAD, cores, read_ahead, readers
from focoop.errors import DataError


def numbered(rows: range, into: Tensor) -> None:
    """Row i is filled with i."""
    for place, row in zip(into, rows, strict=False):
        place.fill_(row)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 9), max_size=9), st.integers(1, 5))
def test_batches_come_whole_and_in_order(sizes: list[int], threads: int) -> None:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    batches = [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]
    got = [
        part[:, 1, 0].tolist()
        for part in read_ahead(batches, numbered, (2, 3), torch.int64, threads=threads)
    ]
    assert got == [list(batch) for batch in batches]


def test_coming_batches_are_read_while_one_is_held_and_no_more() -> None:
    begun: dict[int, threading.Event] = {row: threading.Event() for row in range(6)}

    def fill(rows: range, into: Tensor) -> None:
        begun[rows[0]].set()

    coming = read_ahead([range(i, i + 1) for i in range(6)], fill, (1,), threads=2)
    places = set()
    for held, part in enumerate(coming):
        places.add(part.data_ptr())
        for later in range(held + 1, min(held + AHEAD, 5) + 1):
            assert begun[later].wait(10), f"batch {later} is not read while {held} is held"
        time.sleep(0.01)
        assert not any(begun[later].is_set() for later in range(held + AHEAD + 1, 6))
    assert len(places) == AHEAD + 1


def test_an_error_is_raised_where_its_batch_is_due() -> None:
    def fill(rows: range, into: Tensor) -> None:
        if 5 in rows:
            raise DataError("image 5 cannot be read")
        numbered(rows, into)

    coming = read_ahead([range(0, 3), range(3, 6), range(6, 9)], fill, (1,), threads=3)
    assert next(coming)[:, 0].tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="image 5"):
        next(coming)
    assert not [thread for thread in threading.enumerate() if "ThreadPool" in thread.name]


def test_readers_compute_on_one_core_each_and_leave_the_others_as_they_were() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with readers(2) as pool:
            inside = list(pool.map(lambda _: torch.get_num_threads(), range(8)))
            assert torch.get_num_threads() == 2  # the encoder's own
        assert set(inside) == {1} and torch.get_num_threads() == 2
        later: list[int] = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert later == [2]
    finally:
        torch.set_num_threads(before)
    assert 1 <= cores() <= 32


def test_a_reader_that_is_left_early_drops_what_has_not_begun() -> None:
    done: list[int] = []

    def fill(rows: range, into: Tensor) -> None:
        time.sleep(0.01)
        done.append(rows[0])

    coming = read_ahead([range(i, i + 8) for i in range(0, 800, 8)], fill, (1,), threads=1)
    next(coming)
    coming.close()
    assert len(done) < 3 * (AHEAD + 1)
    assert not [thread for thread in threading.enumerate() if "ThreadPool" in thread.name]
