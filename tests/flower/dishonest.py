"""Dishonest parties of a federation, as processes: a coordinator led by hand and a site that lies.

`python -m tests.flower.dishonest coordinator SOCKET WORD...` is `focoop WORD...` (such as
`federation start FOLDER`) with its own SuperLink, front and certificates; only the app that its
worker runs is another. For every run it connects to the Unix socket SOCKET and does what it is told
there (`Hand`). A Unix socket is a file, so a test outside the coordinator's network namespace can
lead it.

`python -m tests.flower.dishonest site BUNDLE DATA STATE` joins by a bundle and lies (`lies`).
"""

import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid, ServerApp

from focoop.flower import settings
from focoop.flower.deploy import processes, worker
from focoop.flower.deploy.control import Control
from focoop.flower.deploy.join_bundle import invitation_of, send_key, settle
from focoop.flower.parcel import BYTES, PARCEL
from focoop.flower.records import METRICS, STATS, UPDATE
from focoop.flower.server import server_app
from focoop.flower.site import client_app
from tests.flower.light import LightNode

SELF = "tests.flower.dishonest"
PAUSE = 0.1  # seconds between two looks for answers
Told = tuple[str, RecordDict]  # kind of a message, and its content


@dataclass(frozen=True)
class Answer:
    """What a site answered: content, or the text of an error."""

    content: RecordDict | None
    error: str = ""


# --- the coordinator ----------------------------------------------------------------------------


def coordinator(path: str, *words: str) -> None:
    """Be focoop's command, but start a worker whose app is led by hand."""
    from focoop.__main__ import main

    def hand(*given: Any) -> list[str]:
        told = [str(one) for one in given if one is not None]
        return [sys.executable, "-P", "-m", SELF, "worker", path, *told]

    processes.replaced(processes, "worker", hand)
    sys.argv = ["focoop", *words]
    main()


def hand_worker(path: str, kind: str, address: str, secret: str, certificate: str) -> None:
    """focoop's worker; the app that it runs asks the Unix socket `path` what to do."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        control = Control(address, Path(certificate), Path(secret).parent)
        with connected(path) as link:
            link.send(context.run_id)
            obey(link, grid, context, control)

    server_app.app = app
    sys.argv = ["worker", kind, address, secret, certificate]
    worker.main()


def connected(path: str) -> "Connection[Any, Any]":
    """A connection to the Unix socket."""
    one = socket.socket(socket.AF_UNIX)
    one.connect(path)
    return Connection(one.detach())


def obey(link: "Connection[Any, Any]", grid: Grid, context: Context, control: Control) -> None:
    """Do what comes over the connection until it says `end`."""
    while True:
        what, given = link.recv()
        if what == "end":
            return
        if what == "submit":
            link.send(control.submit(given))
        elif what == "nodes":
            link.send({info.name: info.node_id for info in grid.get_nodes()})
        elif what == "ask":
            link.send(ask(grid, *given))
        elif what == "be honest":
            try:
                server_app.main(grid, context)
                link.send("")
            except Exception as error:
                link.send(f"{type(error).__name__}: {error}")
                raise


def ask(grid: Grid, node: int, messages: Sequence[Told], seconds: float) -> list[Answer]:
    """Send all messages to a node at once, and wait for the answers."""
    orders = [Message(content, node, kind, ttl=seconds) for kind, content in messages]
    ids: list[str] = list(grid.push_messages(orders))
    found: dict[str, Answer] = {}
    until = time.monotonic() + seconds
    while len(found) < len(ids) and time.monotonic() < until:
        for reply in grid.pull_messages([one for one in ids if one not in found]):
            error = f"{reply.error.reason}" if reply.has_error() else ""
            content = reply.content if reply.has_content() else None
            found[reply.metadata.reply_to_message_id] = Answer(content, error)
        time.sleep(PAUSE)
    return [found.get(one, Answer(None, "no answer")) for one in ids]


class Hand:
    """A run of the dishonest coordinator, led from a test."""

    def __init__(self, link: "Connection[Any, Any]", patience: float = 120.0) -> None:
        self.link, self.patience = link, patience
        self.run = self._heard()
        self.nodes: dict[str, int] = {}

    def submit(self, settings: Mapping[str, bool | int | float | str]) -> None:
        """Have another run started; its hand connects by itself."""
        self._told("submit", dict(settings))

    def ask(self, site: str, kind: str, content: RecordDict) -> Answer:
        """What a site answers to a message."""
        return self.ask_all(site, [(kind, content)])[0]

    def ask_all(self, site: str, messages: Sequence[Told]) -> list[Answer]:
        """What a site answers to messages that come at once."""
        until = time.monotonic() + self.patience
        while site not in self.nodes:
            assert time.monotonic() < until, f"{site} has not come"
            self.nodes = self._told("nodes", None)
            time.sleep(0.2)
        found: list[Answer] = self._told("ask", (self.nodes[site], messages, self.patience))
        return found

    def be_honest(self) -> str:
        """Run focoop's own server to the end of the run; its error, if it had one."""
        error: str = self._told("be honest", None, 5 * self.patience)
        return error

    def end(self) -> None:
        """End the run, unless it has failed."""
        with suppress(OSError):
            self.link.send(("end", None))
        self.link.close()

    def _told(self, what: str, given: Any, seconds: float | None = None) -> Any:
        self.link.send((what, given))
        return self._heard(seconds)

    def _heard(self, seconds: float | None = None) -> Any:
        patience = seconds or self.patience + 30
        assert self.link.poll(patience), f"the coordinator is silent for {patience:g} s"
        return self.link.recv()


# --- the site -----------------------------------------------------------------------------------


class Undecodable(MetricRecord):
    """Numbers that Flower's own decoder cannot read, under a hash that is right."""

    def deflate(self) -> bytes:
        """Bytes that are no record."""
        return b"MetricRecord  4\x00\xff\xff\xff\xff"


def with_header(text: bytes) -> Array:
    """An array whose NumPy header is `text`."""
    head = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    return Array("float32", (16, 192), "numpy.ndarray", head)


HEADERS = {
    1: b"{[]:1}",
    2: b"((((",
    3: b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 5000 + b",)}",
}
TIMES = 50  # as many images are claimed as there are
# How the coordinator must call the lies, by step and round.
CALLED = {
    ("train", 1): "context is not an array",
    ("train", 2): "context is not an array",
    ("train", 3): "context is not an array",
    ("train", 4): "its reply cannot be read",
    ("train", 5): "it counts 2000 images, and it told of 40 when it joined",
    ("evaluate", 0): "accuracy_own is 7, and must lie between 0 and 1",
    ("evaluate", 2): "it tells of 2400 test images, 43 times the median",
    ("evaluate", 4): "it is of round 3",
    ("evaluate", 5): "its reply cannot be read",
}
LYING_ROUNDS, EVALUATE_EVERY = 5, 2


def lies(reply: Message) -> Message:
    """An honest reply made a lie, by its step and round; replies of other kinds stay honest."""
    content = reply.content
    metrics = content.get(METRICS)
    if not isinstance(metrics, MetricRecord):
        return reply
    number = int(metrics["round"])  # type: ignore[arg-type]
    if UPDATE not in content:
        return _lying_row(reply, metrics, number)
    arrays, stats = content[UPDATE], content[STATS]
    assert isinstance(arrays, ArrayRecord) and isinstance(stats, ArrayRecord)
    if number in HEADERS:
        arrays["context"] = with_header(HEADERS[number])
    elif number == 4:
        content[METRICS] = Undecodable({"client": 2, "round": number})
    else:
        stats["class-counts"] = Array(stats["class-counts"].numpy() * np.int64(TIMES))
        metrics["num-examples"] = TIMES * int(metrics["num-examples"])  # type: ignore[arg-type]
    return reply


def _lying_row(reply: Message, metrics: MetricRecord, number: int) -> Message:
    if number == 0:
        metrics["row/accuracy_own"] = 7.0
    elif number == 2:
        metrics["row/num_test"] = TIMES * int(metrics["row/num_test"])  # type: ignore[arg-type]
    elif number == 4:
        metrics["round"] = 3
    else:
        reply.content = RecordDict({PARCEL: ConfigRecord({BYTES: b"torn"})})
    return reply


def lying(message: Message, context: Context) -> Message:
    """Lie in runs whose participants are known, and be honest in those that draw them secretly."""
    reply = client_app.app(message, context)
    told = settings.sent_settings(context.run_config)
    return reply if told.get("privacy.secret-draw") or reply.has_error() else lies(reply)


def site(bundle: str, data: str, state: str) -> None:
    """Join by a bundle as `focoop site join` does, and answer with lies."""
    keys = settle(Path(bundle), Path(state)).resolve()
    server = invitation_of(keys).server
    processes.await_server(server, keys / "ca.crt", 300)
    send_key(keys)
    node = {"partition-id": 2, "name": "mallory", "keys": str(keys), "data": data, "state": state}
    LightNode(keys, server, node, lying).run()


def main() -> None:
    """Be one of the parties."""
    parties: dict[str, Callable[..., None]] = {
        "coordinator": coordinator,
        "worker": hand_worker,
        "site": site,
    }
    parties[sys.argv[1]](*sys.argv[2:])


if __name__ == "__main__":
    from tests.flower import dishonest  # what it sends must have this module's name elsewhere too

    dishonest.main()
