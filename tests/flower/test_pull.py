"""All replies come with one request, and one that cannot be read harms no other."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
)

from focoop.errors import FederationError
from focoop.flower.in_process import identify
from focoop.flower.server.pull import pull_each


class Link:
    """A SuperLink's Runtime interface that holds some replies."""

    def __init__(self) -> None:
        self.replies: dict[str, tuple[Any, Any]] = {}
        self.objects: dict[str, bytes] = {}
        self.asked: list[list[str]] = []
        self.confirmed: list[str] = []
        self.broken = False

    def answer(self, order: str, spoil: bool = False) -> None:
        identify()
        asked = Message(RecordDict(), 7, "train")
        asked.metadata.__dict__["_message_id"] = order
        reply = Message(RecordDict({"a": ConfigRecord({"order": order})}), reply_to=asked)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        tree = get_object_tree(reply)
        for name, part in get_all_nested_objects(reply).items():
            self.objects[name] = part.deflate()
        if spoil:
            self.objects[reply.object_id] = b"Message \x00nonsense"
        self.replies[order] = message_to_proto(remove_content_from_message(reply)), tree

    def PullMessages(self, request: Any) -> Any:
        if self.broken:
            raise httpx.ConnectError("gone")
        self.asked.append(list(request.message_ids))
        found = [self.replies.pop(k) for k in request.message_ids if k in self.replies]
        return PullAppMessagesResponse(
            messages_list=[one for one, _ in found],
            message_object_trees=[tree for _, tree in found],
        )

    def PullObject(self, request: Any) -> Any:
        content = self.objects.get(request.object_id)
        return PullObjectResponse(
            object_found=content is not None,
            object_available=content is not None,
            object_content=content or b"",
        )

    def ConfirmMessageReceived(self, request: Any) -> Any:
        self.confirmed.append(request.message_object_id)
        return ConfirmMessageReceivedResponse()


@pytest.fixture
def link() -> Link:
    return Link()


def pulled(link: Link, ids: list[str]) -> dict[str, Message | FederationError]:
    grid: Any = SimpleNamespace(
        _runtime_client=link, node=Node(node_id=1), run=SimpleNamespace(run_id=1)
    )
    return dict(pull_each(grid, ids))


def test_one_request_brings_all_replies_that_are_there(link: Link) -> None:
    ids = ["a" * 64, "b" * 64, "c" * 64]
    for name in ids[:2]:
        link.answer(name)
    found = pulled(link, ids)
    assert link.asked == [ids] and sorted(found) == ids[:2]
    for name, reply in found.items():
        assert isinstance(reply, Message) and reply.content["a"] == {"order": name}
        assert reply.metadata.reply_to_message_id == name
        assert reply.metadata.message_id in link.confirmed
    assert pulled(link, []) == {} and len(link.asked) == 1


def test_a_reply_that_cannot_be_read_harms_no_other(link: Link) -> None:
    ids = ["a" * 64, "b" * 64, "c" * 64]
    link.answer(ids[0])
    link.answer(ids[1], spoil=True)
    link.answer(ids[2])
    found = pulled(link, ids)
    assert [type(found[name]) for name in ids] == [Message, FederationError, Message]
    assert "cannot be read" in str(found[ids[1]])


def test_a_reply_whose_parts_never_came_is_late(link: Link) -> None:
    link.answer("a" * 64)
    link.objects.pop(get_object_id(next(iter(link.objects.values()))))
    (reply,) = pulled(link, ["a" * 64]).values()
    assert isinstance(reply, FederationError) and "in time" in str(reply)


def test_a_lost_connection_is_no_sites_fault(link: Link) -> None:
    link.broken = True
    with pytest.raises(httpx.ConnectError):
        pulled(link, ["a" * 64])
