"""Replies are taken from the SuperLink one by one, so that one that cannot be read harms no other.

Flower decodes all replies of a request before it hands out any, and has deleted them by then: a
single malformed one would lose the others and end the run.
"""

from collections.abc import Iterable, Iterator

from flwr.app import Message
from flwr.serverapp import Grid

from focoop.errors import FederationError

NETWORK = ("httpx", "httpcore")


def pull_each(grid: Grid, ids: Iterable[str]) -> Iterator[tuple[str, Message | FederationError]]:
    """Ask for the reply to each message.

    Args:
        grid: the connection to the SuperLink.
        ids: names of the messages sent.

    Yields:
        The message's name, and its reply or why that cannot be read; nothing while there is none.

    Raises:
        Exception: what the connection itself raises, which is no site's fault.
    """
    for identifier in ids:
        try:
            replies = list(grid.pull_messages([identifier]))
        except Exception as error:
            if of_the_connection(error):
                raise
            yield identifier, FederationError(f"its reply cannot be read ({type(error).__name__})")
            continue
        for reply in replies:
            yield identifier, reply


def of_the_connection(error: Exception) -> bool:
    """Whether the error is the network's or the SuperLink's and not of one reply's content."""
    names = [kind.__name__ for kind in type(error).__mro__]
    modules = [kind.__module__.partition(".")[0] for kind in type(error).__mro__]
    return (
        isinstance(error, OSError)
        or "FlowerError" in names
        or any(module in NETWORK for module in modules)
    )
