"""A real SuperLink with TLS and node keys: its death, its ServerApp's, and hostile neighbours."""

import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from focoop.flower.deploy import processes
from focoop.flower.deploy.keys import make_keys
from focoop.flower.records import METRICS, UPDATE, Order
from focoop.flower.site import client_app
from focoop.runs import RunFolder
from tests.flower.federations import CLIENTS, federated, opened, simulated, state, toy_config
from tests.flower.light import Answer, LightNode
from tools.flower_hosts import Federation, Network, cmdline, family

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc"),
    pytest.mark.filterwarnings("ignore:.verify=:DeprecationWarning"),  # of flwr's use of httpx
]
SETTINGS = (
    "method.name=promptfl",
    "partition.shots=0",
    "partition.kind=pathological",
    "federation.evaluate_every=0",
    "federation.rounds=6",
)


class Links:
    """A federation whose sites are threads of this process."""

    def __init__(self, folder: Path) -> None:
        self.config = toy_config(folder, *SETTINGS)
        self.made = Federation(folder, self.config, Network(False), free_port())
        self.made.prepare()
        self.folder = folder
        self.nodes: list[LightNode] = []

    def join(self, k: int, answer: Answer = client_app.app) -> LightNode:
        """Site k, with its own images alone."""
        keys = self.folder / "keys" / "sites" / f"site-{k}"
        node = {
            "partition-id": k,
            "name": keys.name,
            "keys": str(keys),
            "data": f"file:{self.folder}/site-{k}.safetensors",
            "policy": opened(self.folder),
            "state": f"{self.folder}/state-{k}",
        }
        found = LightNode(keys, self.made.address, node, answer)
        found.start()
        self.nodes.append(found)
        return found

    def listen(self, seconds: float = 200) -> None:
        """Wait until the coordinator has let all sites in: a node that is refused ends."""
        until = time.monotonic() + seconds
        while "listening on" not in self.log():
            assert time.monotonic() < until, self.log()
            time.sleep(0.2)

    def close(self) -> None:
        for node in self.nodes:
            node.stop()
        for node in self.nodes:
            node.join(10)
        self.made.close()

    def log(self) -> str:
        return (self.folder / "coordinator.log").read_text()


@pytest.fixture
def links(tmp_path: Path) -> Iterator[Links]:
    found = Links(tmp_path)
    yield found
    found.close()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def round_of(message: Message) -> int:
    """The round of an order to train; 0 for other messages."""
    kind = message.metadata.message_type
    return Order.read(message.content).round_index if kind == "train" else 0


def test_server_deaths_in_the_middle_of_a_round_change_no_bit(links: Links) -> None:
    made, deaths = (
        links.made,
        {2: "focoop.flower.deploy.worker", 3: "focoop.flower.deploy.superlink"},
    )
    running: list[subprocess.Popen[bytes]] = []

    def kills(message: Message, context: Context) -> Message:
        """Client 0 pulls the server's plug while the others train."""
        program = deaths.pop(round_of(message), None)
        if program is not None:
            # Of the worker only the process that it forked, which runs the ServerApp.
            assert made.kill(running[-1], program, last=program.endswith("worker"))
        return client_app.app(message, context)

    options = ("--deadline", "300", "--quorum", "1.0")
    running.append(made.coordinate(*options))
    links.listen()
    for k in range(CLIENTS):
        links.join(k, kills if k == 0 else client_app.app)
    for told in ("the server's process died in a round", "the SuperLink ended (killed by signal 9"):
        assert running[-1].wait(300) == 7, links.log()
        assert told in links.log() and "continue with --resume" in links.log()
        running.append(made.coordinate(*options, "--resume"))
    assert running[-1].wait(300) == 0, links.log()
    run = RunFolder.open(made.folder / "run")
    plain = simulated(links.config, made.folder / "plain")
    assert run.status == "finished" and state(run) == state(plain)
    assert [entry["round"] for entry in run.manifest["rounds"]] == list(range(7))
    assert all(entry["accepted"] == [0, 1, 2] for entry in run.manifest["rounds"][1:])
    began = [one["reason"] for one in made.journal() if one["event"] == "began"]
    assert began == ["after round 0", "after round 1", "after round 2"]


class Undecodable(MetricRecord):
    """Numbers that Flower's own decoder cannot read, under a hash that is right."""

    def deflate(self) -> bytes:
        return b"MetricRecord  4\x00\xff\xff\xff\xff"


def with_header(text: bytes) -> Array:
    """An array whose header is no header."""
    head = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    return Array("float32", (16, 192), "numpy.ndarray", head)


class Hostile:
    """Client 2: honest in round 1, then it replays, sends a wrong shape, far too much, a header
    that Python cannot parse, and a message that Flower cannot decode.
    """

    def __init__(self) -> None:
        self.node: LightNode | None = None
        self.first: Message | None = None
        self.refused: list[bool] = []

    def __call__(self, message: Message, context: Context) -> Message:
        number = round_of(message)
        if number == 2:
            assert self.first is not None and self.node is not None
            # What was taken once, under the old order and then under the new one.
            self.refused.append(self.node.push(self.first))
            return Message(self.first.content, reply_to=message)
        reply = client_app.app(message, context)
        if number == 1:
            self.first = reply
            twice = Message(self.changed(reply, lambda a: a + 1), reply_to=message)
            assert self.node is not None
            self.node.push(reply)
            self.refused.append(self.node.push(twice))
        if number == 3:
            return Message(self.changed(reply, lambda a: a[1:]), reply_to=message)
        if number == 4:
            return Message(self.changed(reply, lambda a: np.tile(a, (2000, 1))), reply_to=message)
        if number == 5:
            reply.content[UPDATE]["context"] = with_header(b"{[]:1}")  # type: ignore[index]
        if number == 6:
            reply.content[METRICS] = Undecodable({"client": 2, "round": 6})
        return reply

    @staticmethod
    def changed(reply: Message, change: Any) -> RecordDict:
        """The reply's content with another prompt context."""
        content = RecordDict({name: reply.content[name] for name in reply.content})
        before = content[UPDATE]
        assert isinstance(before, ArrayRecord)
        arrays = {name: before[name] for name in before}
        arrays["context"] = Array(change(arrays["context"].numpy()))
        content[UPDATE] = ArrayRecord(arrays)
        return content


def test_hostile_neighbours_are_refused_and_the_run_is_unharmed(links: Links) -> None:
    made, hostile = links.made, Hostile()
    server = made.coordinate("--deadline", "300")
    links.listen()
    strangers = strange_sites(links)

    def patient(message: Message, context: Context) -> Message:
        """Client 0 trains long enough for the strangers to be turned away meanwhile."""
        until = time.monotonic() + 150
        while round_of(message) == 3 and not turned_away(links) and time.monotonic() < until:
            time.sleep(0.5)
        return client_app.app(message, context)

    links.join(0, patient)
    links.join(1)
    hostile.node = links.join(CLIENTS - 1, hostile)
    assert server.wait(400) == 0, links.log()
    run = RunFolder.open(links.folder / "run")
    refused = [entry["refused"].get("site-2", "") for entry in run.manifest["rounds"][1:]]
    assert refused[0] == ""
    expected = ("of round 1", "has shape (15, ", "MB large", "is not an array", "cannot be read")
    for reason, words in zip(refused[1:], expected, strict=True):
        assert words in reason, refused
        assert f"site-2 left out: {reason}" in links.log()
    assert hostile.refused == [False, False]  # a second answer to one order, and a late one
    check_strangers(links, strangers)

    def silent(message: Message, context: Context) -> Message:
        if round_of(message) > 1:
            raise RuntimeError("nothing to say")
        return client_app.app(message, context)

    answers = [*[client_app.app] * (CLIENTS - 1), silent]
    assert state(run) == state(federated(links.config, links.folder / "alone", answers))


def strange_sites(links: Links) -> dict[str, "subprocess.Popen[bytes]"]:
    """Sites with a key nobody registered, with another authority, and without TLS."""
    folder, made = links.folder, links.made
    make_keys(folder / "others", ["127.0.0.1"], ["site-0"])
    stranger = folder / "stranger"
    stranger.mkdir()
    for name in ("key", "key.pub", "site.toml"):
        (stranger / name).write_bytes((folder / "others/sites/site-0" / name).read_bytes())
    (stranger / "key").chmod(0o600)
    (stranger / "ca.crt").write_bytes((folder / "keys" / "ca.crt").read_bytes())
    found = {}
    for name, keys in (("unregistered", stranger), ("authority", folder / "others/sites/site-0")):
        data = ("--data", "file:site-0.safetensors", "--state", f"state-{name}")
        arguments = ("site", "join", made.address, "--keys", str(keys), *data)
        found[name] = made.begin("coordinator", name, *arguments)
    command = [processes.program("flower-supernode"), "--insecure", "--superlink", made.address]
    command += ["--port", str(free_port())]
    home = processes.environment(folder / "plain-home")
    found["plain"] = processes.begin(command, home, folder / "plain.log")
    made.started.append(found["plain"])
    return found


def turned_away(links: Links) -> bool:
    """Whether the sites with a wrong authority and with an unknown key have been told."""
    words = {"authority": "keys of another federation", "unregistered": "does not let this key in"}
    return all(text in (links.folder / f"{name}.log").read_text() for name, text in words.items())


def check_strangers(links: Links, found: dict[str, "subprocess.Popen[bytes]"]) -> None:
    assert turned_away(links)
    assert found["authority"].wait(60) == 7
    assert found["unregistered"].poll() is None  # it tries again: it may be registered later
    text = (links.folder / "plain.log").read_text()
    assert "SuperNode ID" not in text and "activat" not in text.lower(), text
    assert not any("worker" in cmdline(pid) for pid in family(found["plain"].pid))
