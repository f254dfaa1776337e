"""How long parts of a federation wait before they look again for something that is under way.

Flower's own programs look again after half a second, one second or three, however short the wait
was expected to be. Most of a short round would be such waits. Here a pause is a share of the time
waited so far: short waits end soon, and long ones cost few requests.
"""

import inspect
import time
from collections.abc import Callable
from functools import partial
from typing import Any

FIRST_LOOK, LAST_LOOK = 0.02, 1.0  # seconds between two tries to get a part of a message
SHARE = 0.1  # of the time waited so far


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


class Clock:
    """`time` for a loop of Flower's that sleeps between two looks: it sleeps a share of its wait.

    Args:
        least: Seconds of the shortest sleep, for a wait in this machine.
        least_remote: Seconds of the shortest sleep, for a wait that asks the other machine.
    """

    def __init__(self, least: float = 0.02, least_remote: float = 0.1) -> None:
        self.least, self.least_remote = least, least_remote
        self.since = time.monotonic()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def mark(self) -> None:
        """Note that what was waited for has come: the next wait begins now."""
        self.since = time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep a share of the time waited so far, at most `seconds`.

        Flower sleeps a second or more where it asks the SuperLink, and less for its own tasks.
        """
        waited = time.monotonic() - self.since
        least = self.least if seconds < 1.0 else self.least_remote
        time.sleep(min(seconds, max(least, SHARE * waited)))
