"""Replies are taken from the SuperLink so that one that cannot be read harms no other.

Flower decodes all replies of a request before it hands out any, and has deleted them by then: a
single malformed one would lose the others and end the run.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import Message
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    pull_and_inflate_object_from_tree,
)

from focoop.errors import FederationError
from focoop.flower.held import WAIT
from focoop.flower.parcel import parcel_content
from focoop.flower.patience import soon

NETWORK = ("httpx", "httpcore")
Pulled = Iterator[tuple[str, Message | FederationError]]


def pull_each(
    grid: Grid, ids: Iterable[str], wait: float = 0.0
) -> Iterator[tuple[str, Message | FederationError]]:
    """Ask for the replies to messages.

    Args:
        grid: the connection to the SuperLink.
        ids: names of the messages sent.
        wait: seconds that the SuperLink may hold the answer if there is no reply yet.

    Yields:
        The message's name, and its reply or why that cannot be read; nothing while there is none.

    Raises:
        Exception: what the connection itself raises, which is no site's fault.
    """
    waiting = list(ids)
    client = getattr(grid, "_runtime_client", None)
    if waiting and client is not None and hasattr(client, "PullMessages"):
        yield from _at_once(grid, client, waiting, wait)
    else:  # no SuperLink, or another version of Flower: a request for each reply
        for identifier in waiting:
            yield from _read(identifier, lambda name: grid.pull_messages([name]))


def _at_once(grid: Any, client: Any, ids: list[str], wait: float) -> Pulled:
    """Ask for all replies in one request and get the content of each by itself."""
    run = grid.run.run_id
    get = make_pull_object_fn_protobuf(client.PullObject, grid.node, run)
    confirm = make_confirm_message_received_fn_protobuf(
        client.ConfirmMessageReceived, grid.node, run
    )
    pull = soon(pull_and_inflate_object_from_tree)
    with _held(client, wait):
        answer = client.PullMessages(PullAppMessagesRequest(message_ids=ids))
    for proto, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
        name = str(proto.metadata.reply_to_message_id)

        def inflated(_: str, tree: Any = tree) -> Iterator[Message]:
            message = pull(tree, get, confirm, return_type=Message)
            message.metadata.__dict__["_message_id"] = tree.object_id
            if message.has_content():
                message.content = parcel_content(message.content)
            yield message

        yield from _read(name, inflated)


@contextmanager
def _held(client: Any, wait: float) -> Iterator[None]:
    """Let the SuperLink hold its answers; where Flower's client has no headers it never does."""
    headers = getattr(getattr(client, "_client", None), "headers", None)
    if wait <= 0 or headers is None:
        yield
        return
    headers[WAIT] = f"{wait:.3f}"
    try:
        yield
    finally:
        del headers[WAIT]


def _read(identifier: str, pull: Any) -> Pulled:
    """Get the replies to one message, or say why they cannot be read."""
    try:
        replies = list(pull(identifier))
    except ObjectPullError:
        yield identifier, FederationError("its answer did not come in time")
        return
    except Exception as error:
        if of_the_connection(error):
            raise
        yield identifier, FederationError(f"its reply cannot be read ({type(error).__name__})")
        return
    for reply in replies:
        yield identifier, reply


def of_the_connection(error: Exception) -> bool:
    """Say whether an error is the network's or the SuperLink's and not of one reply's content.

    Args:
        error: The error.

    Returns:
        Whether it is.
    """
    names = [kind.__name__ for kind in type(error).__mro__]
    modules = [kind.__module__.partition(".")[0] for kind in type(error).__mro__]
    return (
        isinstance(error, OSError)
        or "FlowerError" in names
        or any(module in NETWORK for module in modules)
    )
