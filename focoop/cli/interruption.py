"""Signals that stop a command: one line, the right exit code, no process left, within seconds.

`watch` is called before anything else is imported, so that this file imports nothing that takes
time; before that Python itself answers, in its own words. While a command computes (`computing`), a
signal raises `Stopped`, a `KeyboardInterrupt`, so that run folders are closed and worker processes
end. Before and after that there is nothing to close, and the process ends on the spot. A command
that does not end by itself, because a library swallowed the exception or computes for long without
looking, is ended by a thread.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from types import FrameType
    from typing import Any

SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
PATIENCE = 7.0  # seconds a command has to end by itself
_state: dict[str, Any] = {"computing": False, "received": 0, "announced": False}


class Stopped(KeyboardInterrupt):
    """A signal asks the command to stop.

    Args:
        signum: the signal's number, an attribute too.
    """

    def __init__(self, signum: int = signal.SIGINT) -> None:
        super().__init__(signum)
        self.signum = signum


def watch() -> None:
    """Answer signals from now on; one that the caller of this process ignores stays ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _arrived)
    usual = sys.unraisablehook

    def unraisable(problem: Any) -> None:
        if isinstance(problem.exc_value, Stopped):  # raised where nobody can catch it: once more
            import threading

            again = (os.getpid(), problem.exc_value.signum)
            threading.Timer(0.05, os.kill, again).start()
        else:
            usual(problem)

    sys.unraisablehook = unraisable


def computing() -> AbstractContextManager[None]:
    """Let signals raise `Stopped` inside, so that what is open can be closed.

    Returns:
        The context.
    """
    from contextlib import contextmanager

    return contextmanager(_computing)()


def _computing() -> Iterator[None]:
    if signal.getsignal(signal.SIGTERM) is not _arrived:  # not started as a command
        yield
        return
    _state["computing"] = True
    _guard()
    try:
        yield
    finally:
        _state["computing"] = False


def received() -> int:
    """Return the number of the signal that arrived, or 0."""
    return int(_state["received"])


def mark_announced() -> None:
    """Note that the command has said that it was stopped."""
    _state["announced"] = True


def line(signum: int) -> str:
    """Return what a stopped command says.

    Args:
        signum: The signal's number.

    Returns:
        One line, empty where the command said something better already.
    """
    if _state["announced"]:
        return ""
    return "interrupted" if signum == signal.SIGINT else f"stopped by {signal.Signals(signum).name}"


def _arrived(signum: int, frame: FrameType | None) -> None:
    _state["received"] = _state["received"] or signum  # the first one says why the command ends
    if _state["computing"] and not _importing(frame):
        raise Stopped(_state["received"])
    leave(_state["received"])


def _importing(frame: FrameType | None) -> bool:
    """Whether a module is being loaded: some that are written in C swallow the exception."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def leave(signum: int) -> None:
    """End this process and its worker processes at once.

    Args:
        signum: The signal that asked for it.
    """
    module = sys.modules.get("multiprocessing.process")  # perhaps only half of it is loaded
    children = getattr(module, "active_children", tuple)
    for child in children():
        try:
            child.kill()
        except Exception:  # it has ended
            continue
    text = line(signum)
    _state["announced"] = True
    try:
        if text:
            os.write(2, f"{text}\n".encode())
    finally:
        os._exit(128 + signum)


def _guard() -> None:
    """Start a thread that ends the process some seconds after a signal, whatever it does.

    The system writes the signal's number into a pipe at once, even while a library computes.
    """
    import threading

    if _state.get("guarded") or threading.current_thread() is not threading.main_thread():
        return
    _state["guarded"] = True
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def wait() -> None:
        import time

        while True:
            numbers = os.read(reader, 1)
            if numbers and numbers[0] in SIGNALS:
                break
        time.sleep(PATIENCE)
        leave(numbers[0])

    threading.Thread(target=wait, name="focoop signals", daemon=True).start()
