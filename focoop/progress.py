"""Who is told how far long work on images is: nobody, unless someone watches.

The command line does. What works on images tells it here, so that no function between the two has
to hand a callback on.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watcher = Callable[[str, int, int], None]  # what is done, images so far, images in all
_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Tell `watcher` of the work done inside."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def tell(what: str, done: int, total: int) -> None:
    """Say how far some work is; every work begins with 0 or what an earlier attempt left."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher(what, done, total)
