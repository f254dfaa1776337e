"""Nodes that speak Flower's protocol in a thread: no process per message, and they may lie.

TLS, node keys, heartbeats and reconnection are those of Flower's own SuperNode, whose connection
this uses; see `fleet_http_connection.py` of flwr 1.41.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.config import get_fused_config_from_fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
)
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_connection import http_request_response

from focoop.flower.deploy.supervise import keep
from focoop.flower.identity import read_site
from focoop.flower.in_process import CLIENT_RAISED, identify
from focoop.flower.parcel import parcel_content
from focoop.flower.records import Order
from focoop.flower.site import client_app
from focoop.flower.site.policy import policy_file

SELF = "tests.flower.light"
# Seconds a light site waits before it trains: it can be killed before, and in round 3 of
# test_hosts.py another has the time to come back.
SLOW = {3: 40.0}
Answer = Callable[[Message, Context], Message]


class LightNode(threading.Thread):
    """A site's node until `stop`; `answer` is its app."""

    def __init__(self, keys: Path, server: str, node: dict[str, Any], answer: Answer) -> None:
        super().__init__(daemon=True, name=keys.name)
        self.keys, self.server, self.node, self.answer = keys, server, node, answer
        self.stopped = threading.Event()
        # Its complaints about a server that is away would outlive the test.
        logging.getLogger("flwr").addFilter(lambda record: record.threadName != self.name)
        identify()

    def stop(self) -> None:
        """Leave, as a node does that is stopped gently."""
        self.stopped.set()

    def run(self) -> None:
        """Answer until stopped."""
        private = load_ssh_private_key((self.keys / "key").read_bytes(), None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        keys = private, private.public_key()
        certificate = str(self.keys / "ca.crt")
        with http_request_response(self.server, False, certificate, keys) as connection:
            self.id, self.receive, self.send, self.get_run, self.get_fab = connection[:5]
            self.pull_object, self.push_object, self.confirm = connection[5:]
            print(f"SuperNode ID: {self.id}", flush=True)
            while not self.stopped.is_set():
                try:
                    if not self._one():
                        self.stopped.wait(0.3)
                except RunNotRunningException:
                    continue

    def _one(self) -> bool:
        got = self.receive()
        if got is None:
            return False
        head, tree = got
        run = head.metadata.run_id
        contents = pull_objects(
            [one.object_id for one in iterate_object_tree(tree)],
            pull_object_fn=lambda name: self.pull_object(run, name),
        )
        self.confirm(run, head.metadata.message_id)
        message = inflate_object_from_contents(head.metadata.message_id, contents)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = head.metadata.message_id
        message.content = parcel_content(message.content)
        info = self.get_run(run)
        settings = get_fused_config_from_fab(self.get_fab(info.fab_hash, run).content, info)
        context = Context(run, self.id, dict(self.node), RecordDict(), settings)
        try:
            reply = self.answer(message, context)
        except Exception as error:  # as Flower does
            reply = Message(Error(CLIENT_RAISED, f"{error}"), reply_to=message)
        self.push(reply)
        return True

    def push(self, reply: Message) -> bool:
        """Send a reply; whether the SuperLink wanted any of it."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        tree = get_object_tree(reply)
        objects = get_all_nested_objects(reply)
        wanted, session = self.send(reply, tree, 0.0)
        run = reply.metadata.run_id
        for name in wanted:
            self.push_object(run, session, name, objects[name].deflate())
        return bool(wanted)


def main(server: str, keys: str, data: str, state: str, *once: str) -> None:
    """A light site as a process: `focoop site join` but for the process per message."""
    if not once:
        command = [sys.executable, "-m", SELF, server, keys, data, state, "once"]
        return keep(lambda: command, os.environ, Path(state) / "node.log", print)
    folder = Path(keys).resolve()
    site = read_site(folder)
    node = {"partition-id": site.client, "name": site.name, "keys": str(folder)}
    node |= {"data": data, "state": state}
    if (policy := policy_file(None, folder)) is not None:
        node["policy"] = str(policy)

    def slowly(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train":
            time.sleep(SLOW.get(Order.read(message.content).round_index, 2.0))
        return client_app.app(message, context)

    return LightNode(folder, server, node, slowly).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
