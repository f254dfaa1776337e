"""Report the progress of long work on images to an optional listener, such as a progress bar.

Work reports here, so that no function between the command line and the work has to hand a callback
on. Without a listener nothing happens.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watcher = Callable[[str, int, int], None]  # what is done, images so far, images in all
_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Send reports of the work done inside this context to a listener.

    Args:
        watcher: Is called with what is done, images so far, and images in all.

    Yields:
        Nothing.
    """
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def tell(what: str, done: int, total: int) -> None:
    """Report how far some work is.

    Args:
        what: The work, in words.
        done: Images so far. The first report has 0, or what an earlier attempt left.
        total: Images in all.
    """
    watcher = _watcher.get()
    if watcher is not None:
        watcher(what, done, total)
