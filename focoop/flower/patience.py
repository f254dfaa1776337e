"""How long parts of a federation wait before they look again for something that is under way.

Flower's own programs look again after half a second, one second or three, however short the wait
was expected to be. Most of a short round would be such waits. Here a pause is a share of the time
waited so far: short waits end soon, and long ones cost few requests.
"""

import inspect
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

FIRST_LOOK, LAST_LOOK = 0.02, 1.0  # seconds between two tries to get a part of a message
SHARE = 0.1  # of the time waited so far
HELD = 0.5  # seconds of an empty answer that was held back, and not only slow
AT_ONCE = 0.01  # seconds


def soon(pull: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of Flower's that pulls objects try again soon, instead of after a second.

    A message is announced before its objects are stored, so the first try often comes too early.

    Args:
        pull: `pull_objects` or `pull_and_inflate_object_from_tree` of Flower.

    Returns:
        The function with short pauses, bounded by its time limit alone. A function that has no such
        settings, as of another version of Flower, is returned as it is.
    """
    settings = {
        "initial_backoff": FIRST_LOOK,
        "backoff_cap": LAST_LOOK,
        "max_tries_per_object": None,
    }
    known = inspect.signature(pull).parameters
    return partial(pull, **settings) if set(settings) <= set(known) else pull


class Pause:
    """How long to pause after a look that found nothing.

    Args:
        seconds: The pause where the other side answers at once that there is nothing.
    """

    def __init__(self, seconds: float = 0.2) -> None:
        self.seconds, self.held = seconds, False

    def after(self, took: float, seconds: float | None = None) -> float:
        """Return the seconds to sleep after a look.

        A server that holds empty answers (`held.py`) has waited for us: it is asked again at once.

        Args:
            took: Seconds that the look took.
            seconds: Seconds to sleep at most.

        Returns:
            The seconds.

        >>> pause = Pause(0.2)
        >>> pause.after(0.05), pause.after(1.0), pause.after(0.05)
        (0.15, 0.01, 0.01)
        """
        self.held = self.held or took >= HELD
        pause = self.seconds if seconds is None else seconds
        return AT_ONCE if self.held else round(max(AT_ONCE, pause - took), 6)


class Clock:
    """`time` for the loop of Flower's node, which sleeps between two looks.

    It sleeps a share of the time waited so far, and less if it is rung.

    Args:
        least: Seconds of the shortest sleep, for a wait in this machine.
        least_remote: Seconds of the shortest sleep, for a wait that asks the other machine.
    """

    def __init__(self, least: float = 0.02, least_remote: float = 0.1) -> None:
        self.least, self.least_remote = least, least_remote
        self.since, self.took = time.monotonic(), 0.0
        self.remote, self.bell = Pause(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def looked(self, took: float, had_message: bool) -> None:
        """Note a look for messages, or a message sent: after what was found a new wait begins.

        Args:
            took: Seconds that the look took.
            had_message: Whether a message came or was sent.
        """
        self.took = took
        if had_message:
            self.since = time.monotonic()

    def ring(self) -> None:
        """End a sleep for a task of this machine: the task may be done."""
        self.bell.set()

    def sleep(self, seconds: float) -> None:
        """Sleep a share of the time waited so far.

        Flower sleeps a second or more where it asks the SuperLink, and less for its own tasks.

        Args:
            seconds: Seconds at most.
        """
        share = SHARE * (time.monotonic() - self.since)
        if seconds < 1.0:
            self.bell.wait(min(seconds, max(self.least, share)))
            self.bell.clear()
        else:
            pause = min(seconds, max(self.least_remote, share))
            time.sleep(self.remote.after(self.took, pause))
