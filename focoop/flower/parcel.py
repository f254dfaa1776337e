"""The content of a message in one piece, as it travels between the coordinator and the sites.

Flower stores every record, array and piece of an array of a message by itself and moves each with a
request of its own: about ten for an update of a few kilobytes. A parcel is the same content as the
bytes of one record, so that a message is three such pieces. Whoever is sent a parcel answers with
one, and content that is too large for it travels as Flower sends it.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.serverapp import Grid

from focoop.errors import FederationError

PARCEL, BYTES = "focoop.parcel", "bytes"
MOST_BYTES = 4 * 2**20  # Flower cuts what is larger than 5 MB into pieces


def packed(content: RecordDict) -> RecordDict:
    """The content as a parcel, or as it is if it is too large.

    Args:
        content: What a message holds.

    Returns:
        One record with the bytes of all others, or `content` itself.
    """
    data = recorddict_to_proto(content).SerializeToString(deterministic=True)
    if len(data) > MOST_BYTES:
        return content
    return RecordDict({PARCEL: ConfigRecord({BYTES: data})})


def is_parcel(content: RecordDict) -> bool:
    """Say whether content is a parcel.

    Args:
        content: The content of a message.

    Returns:
        Whether it is.
    """
    return list(content) == [PARCEL]


def parcel_content(content: RecordDict) -> RecordDict:
    """Return the content of a parcel; any other content as it is.

    Args:
        content: The content of a message.

    Returns:
        The content inside.

    Raises:
        FederationError: The parcel is damaged.
    """
    if not is_parcel(content):
        return content
    record = content[PARCEL]
    data = record.get(BYTES) if isinstance(record, ConfigRecord) else None
    if not isinstance(data, bytes):
        raise FederationError("a parcel without content")
    proto = ProtoRecordDict()
    try:
        proto.ParseFromString(data)
        return recorddict_from_proto(proto)
    except Exception as error:  # protobuf's, and Flower's checks of names and types
        raise FederationError(f"a damaged parcel ({type(error).__name__})") from error


def push_parcels(grid: Grid, messages: Iterable[Message]) -> Iterable[str | None]:
    """Push messages to the SuperLink, each with its content in a parcel.

    Args:
        grid: The connection to the SuperLink; one within this process gets them as they are.
        messages: What to send. Their contents are afterwards as before.

    Returns:
        The names of the messages, None for those that the SuperLink refused.
    """
    those = list(messages)
    if not hasattr(grid, "_runtime_client"):
        return grid.push_messages(those)
    with _in_parcels(those):
        return list(grid.push_messages(those))


@contextmanager
def _in_parcels(messages: list[Message]) -> Iterator[None]:
    contents = [message.content for message in messages]
    try:
        for message, content in zip(messages, contents, strict=True):
            message.content = packed(content)
        yield
    finally:
        for message, content in zip(messages, contents, strict=True):
            message.content = content


class Wrapping:
    """Opens the order of a task and answers it the way it came; one for the process of a task.

    Args:
        pull: Flower's `pull_task_input`: the client -> the message and more.
        push: Flower's `push_message`, of the client, the reply and its context.
    """

    def __init__(self, pull: Callable[[Any], Any], push: Callable[[Any, Any, Any], None]) -> None:
        self._pull, self._push, self.parcels = pull, push, False

    def pull(self, client: Any) -> Any:
        """Take the order and open it.

        Args:
            client: Flower's client of the SuperNode.

        Returns:
            The order and what Flower gives with it.
        """
        message, *more = self._pull(client)
        if message.has_content() and is_parcel(message.content):
            self.parcels = True
            # A damaged one is left as it is: the site's app refuses it, and both sides hear of it.
            with suppress(FederationError):
                message.content = parcel_content(message.content)
        return (message, *more)

    def push(self, client: Any, message: Any, context: Any) -> None:
        """Send the reply.

        Args:
            client: Flower's client of the SuperNode.
            message: The reply.
            context: The node's context.
        """
        if self.parcels and message.has_content():
            message.content = packed(message.content)
        self._push(client, message, context)
