"""A machine with too much to do: slow answers are waited for, and stopping says nothing strange."""

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from focoop.errors import FederationError
from focoop.flower.deploy import control, tls_front


class Slow:
    """Stands for Flower's client: the first answers do not come in time."""

    def __init__(self, late: int) -> None:
        self.late, self.asked = late, 0

    def ListRuns(self, request: Any) -> Any:  # noqa: N802 - Flower's name
        self.asked += 1
        if self.asked <= self.late:
            raise httpx.ReadTimeout("The read operation timed out")
        status = SimpleNamespace(status="running", sub_status="", details="")
        return SimpleNamespace(run_dict={7: SimpleNamespace(status=status)})


@pytest.mark.parametrize("late", [0, 3, control.ATTEMPTS - 1])
def test_a_slow_superlink_is_asked_again(late: int) -> None:
    asked = control.Control.__new__(control.Control)
    asked.client = Slow(late)  # type: ignore[assignment]
    assert asked.status(7) == ("running", "")


def test_one_that_never_answers_is_told() -> None:
    asked = control.Control.__new__(control.Control)
    asked.client = Slow(1000)  # type: ignore[assignment]
    with pytest.raises(FederationError, match="asking for the runs failed: The read operation"):
        asked.runs()
    assert asked.client.asked == control.ATTEMPTS  # type: ignore[attr-defined]


def test_a_connection_that_comes_while_the_port_closes_is_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.new_event_loop()
    try:
        loop.set_exception_handler(tls_front._unless_stopping)
        error = asyncio.InvalidStateError("invalid state")
        loop.call_exception_handler({"message": "accepted", "exception": error})
        assert caplog.text == ""
        loop.call_exception_handler({"message": "another", "exception": ValueError("told")})
        assert "another" in caplog.text
    finally:
        loop.close()
