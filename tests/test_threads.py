"""Pieces of work side by side: in order, one core each, and all cores back afterwards."""

import threading

import pytest
import torch

from focoop.threads import one_core, side_by_side

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("three_threads")


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_pieces_come_back_in_order_and_have_a_core_each(count: int) -> None:
    found = side_by_side(lambda piece: (piece, torch.get_num_threads()), count, CPU)
    assert found == [(piece, 1) for piece in range(count)]
    assert torch.get_num_threads() == 3


def test_pieces_run_at_once() -> None:
    meeting = threading.Barrier(3)  # none goes on before all three are there
    assert side_by_side(lambda _: meeting.wait(20) >= 0, 3, CPU) == [True] * 3


def test_a_device_is_asked_piece_by_piece() -> None:
    asked: list[tuple[int, bool, int]] = []

    def job(piece: int) -> None:
        here = threading.current_thread() is threading.main_thread()
        asked.append((piece, here, torch.get_num_threads()))

    side_by_side(job, 3, torch.device("meta"))
    assert asked == [(piece, True, 3) for piece in range(3)]


@pytest.mark.parametrize("count", [1, 5])
def test_an_error_is_raised_and_the_cores_are_given_back(count: int) -> None:
    with pytest.raises(ZeroDivisionError):
        side_by_side(lambda piece: 1 // (piece - count + 1), count, CPU)
    assert torch.get_num_threads() == 3
    with pytest.raises(KeyError), one_core():
        assert torch.get_num_threads() == 1
        raise KeyError
    assert torch.get_num_threads() == 3
