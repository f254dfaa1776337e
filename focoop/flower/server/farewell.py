"""What sites are told when a run fails at the coordinator, so that they do not merely see it gone.

The coordinator sends every connected site a last message. A site notes it in its journal; `focoop
site status` shows it until the coordinator asks for something again.
"""

import time
from collections.abc import Iterable
from logging import WARNING

from flwr.app import Message
from flwr.common.logger import log
from flwr.serverapp import Grid

from focoop.errors import FederationError
from focoop.flower.journal import printable
from focoop.flower.records import RUN_FAILED, failure
from focoop.flower.server.pull import pull_each

PATIENCE, PAUSE = 10.0, 0.2  # seconds that sites have to hear of it, and between two looks
OTHER = "an error in the coordinator's program"


def told_sites(error: Exception) -> str:
    """Say what all sites may know of an error at the coordinator.

    What single sites answered is in brackets in such errors, and is not for the others.

    Args:
        error: The error.

    Returns:
        A sentence.

    >>> told_sites(FederationError("round 2 has 1 updates of 2 needed (lille: no images): mend it"))
    'round 2 has 1 updates of 2 needed'
    >>> told_sites(OSError("/srv/run: no space left"))
    "an error in the coordinator's program"
    """
    return printable(str(error).split(" (")[0]) if isinstance(error, FederationError) else OTHER


def tell(grid: Grid, nodes: Iterable[int], error: Exception, seconds: float = PATIENCE) -> None:
    """Tell sites that their run has failed, and wait a little for them to hear it.

    Whatever goes wrong here is logged and nothing else: the error itself is what matters.

    Args:
        grid: The connection to the SuperLink.
        nodes: Nodes of the sites.
        error: Why the run has failed.
        seconds: How long to wait for answers.
    """
    try:
        content = failure(told_sites(error))
        messages = [Message(content, node, RUN_FAILED, ttl=seconds) for node in nodes]
        pushed: list[str | None] = list(grid.push_messages(messages)) if messages else []
        waiting = {identifier for identifier in pushed if identifier is not None}
        until = time.monotonic() + seconds
        while waiting and time.monotonic() < until:
            for identifier, _ in pull_each(grid, sorted(waiting)):
                waiting.discard(identifier)
            time.sleep(PAUSE if waiting else 0.0)
    except Exception as second:
        log(WARNING, "the sites were not told that the run failed: %s", second)
