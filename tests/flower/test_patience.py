"""Waits of a federation: short ones end soon, long ones ask seldom."""

import time
from functools import partial
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.supercore.inflatable.inflatable_utils import (
    ObjectUnavailableError,
    pull_and_inflate_object_from_tree,
    pull_objects,
)

from focoop.flower import patience
from focoop.flower.deploy import processes, supernode


def test_a_pause_is_a_share_of_the_time_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 6))
        now[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    clock = patience.Clock(least=0.02, least_remote=0.1)
    monkeypatch.setattr(clock.bell, "wait", sleep)
    clock.sleep(3)  # a message may come at once
    clock.sleep(0.5)  # a task of this machine
    now[0] = 110.0
    clock.sleep(3)
    clock.sleep(0.5)
    now[0] = 1000.0
    clock.sleep(3)  # no message for long
    clock.looked(0.02, had_message=True)
    clock.sleep(3)
    assert slept == [0.1, 0.02, 1.0, 0.5, 3.0, 0.08]
    clock.looked(10.0, had_message=False)  # the SuperLink waited for us
    clock.sleep(3)
    clock.looked(0.05, had_message=False)
    clock.sleep(3)
    assert slept[-1] == patience.AT_ONCE
    assert clock.perf_counter is time.perf_counter  # the rest is Python's


def test_a_task_that_is_done_ends_the_nodes_sleep() -> None:
    clock = patience.Clock(least=5.0)
    clock.ring()
    began = time.monotonic()
    clock.sleep(0.9)
    assert time.monotonic() - began < 0.5 and not clock.bell.is_set()


def test_the_node_notes_messages_that_come_and_go() -> None:
    clock = patience.Clock()
    for found, marks in ((None, False), (("message", "tree"), True)):
        clock.since = -1.0
        assert supernode.noted(lambda *_, found=found: found, clock)("given") is found
        assert (clock.since > -1.0) is marks


def test_an_object_that_is_late_is_asked_for_again_soon() -> None:
    tries: list[str] = []

    def get(identifier: str) -> bytes:
        tries.append(identifier)
        if len(tries) < 4:
            raise ObjectUnavailableError(identifier)
        return b"content"

    began = time.monotonic()
    assert patience.soon(pull_objects)(["a"], get) == {"a": b"content"}
    assert time.monotonic() - began < 0.9  # Flower's own first pause is a second


def test_flowers_functions_have_the_settings_and_others_are_left_alone() -> None:
    for function in (pull_objects, pull_and_inflate_object_from_tree):
        assert isinstance(patience.soon(function), partial)

    def other(ids: list[str], get: Any) -> None:
        """A version of Flower without pauses to set."""

    assert patience.soon(other) is other


def test_threads_that_wait_leave_the_processor_unless_the_user_says_otherwise(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert processes.environment(tmp_path)["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert processes.environment(tmp_path)["OMP_WAIT_POLICY"] == "ACTIVE"
