"""A federation of separate hosts on one machine: network namespaces, a coordinator, sites.

The coordinator and each site have a network namespace, an address and a cable to a switch of their
own, so that nothing but TLS over the network is between them. `tools/flower_faults.py` and the slow
tests of faults use it.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from focoop.config import loading as configuration
from focoop.config import writing
from focoop.config.schema import RunConfig
from focoop.features.demo import demo_path
from focoop.features.feature_set import FeatureSet
from focoop.features.lookup import save_splits
from focoop.features.storage import load_split
from focoop.flower.journal import events, sentence
from focoop.scenario.assignment import make_split

ROOT = Path(__file__).resolve().parents[1]
CLASSES = 12
OVERRIDES = (
    "method.name=focoop",
    "data.corrupted=[]",
    "partition.kind=pathological",
    "partition.shots=0",
    "negatives.count=12",
    "federation.epochs=1",
    "federation.batch_size=16",
    "federation.evaluate_every=0",
    "backbone.logit_scale=10",
    "federation.lr=6",
)


@dataclass
class Network:
    """Hosts by name, each in a namespace; without namespaces all are this machine."""

    separate: bool
    name: str = field(default_factory=lambda: f"fc{os.getpid()}")
    addresses: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> "Network":
        if self.separate:
            ip("netns", "add", self.name)
            self._in("ip", "link", "add", "switch", "type", "bridge")
            self._in("ip", "link", "set", "switch", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for host in [*self.addresses, ""] if self.separate else []:
            for process in pids(self.space(host)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            ip("netns", "del", self.space(host))

    def space(self, host: str) -> str:
        """The host's namespace; the switch's for no host."""
        return f"{self.name}-{host}" if host else self.name

    def add(self, host: str) -> str:
        """Plug in a host; its address."""
        if not self.separate:
            self.addresses[host] = "127.0.0.1"
            return "127.0.0.1"
        number, space = len(self.addresses) + 1, self.space(host)
        self.addresses[host] = f"10.77.0.{number}"
        ip("netns", "add", space)
        cable = f"port{number}"
        self._in("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
        self._in("ip", "link", "set", cable, "master", "switch", "up")
        for command in (
            ("link", "set", "lo", "up"),
            ("addr", "add", f"{self.addresses[host]}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
        ):
            ip("netns", "exec", space, "ip", *command)
        return self.addresses[host]

    def on(self, host: str) -> list[str]:
        """What a command starts with to run on the host."""
        return ["ip", "netns", "exec", self.space(host)] if self.separate else []

    def _in(self, *command: str) -> None:
        ip("netns", "exec", self.name, *command)


def ip(*arguments: str) -> str:
    """The output of iproute2's `ip`."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def pids(space: str) -> list[int]:
    """Processes in a namespace."""
    return [int(text) for text in ip("netns", "pids", space).split()]


def separable() -> bool:
    """Whether namespaces with cables can be made here."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    try:
        with Network(True, name=f"fct{os.getpid()}") as network:
            network.add("a")
    except (subprocess.CalledProcessError, OSError):
        return False
    return True


@dataclass
class Federation:
    """A coordinator and its sites as processes, with their files in `folder`."""

    folder: Path
    config: RunConfig
    network: Network
    port: int
    sites: list[str] = field(default_factory=list)
    started: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def prepare(self) -> None:
        """Keys and each site's own images; the coordinator keeps none."""
        split = make_split(self.config)
        self.sites = [f"site-{k}" for k in range(self.config.partition.clients)]
        server = self.network.add("coordinator")
        for k, name in enumerate(self.sites):
            self.network.add(name)
            own = {
                "train": split.train.select(split.train_index[k]),
                "test": split.test.select(split.test_index[k]),
            }
            save_splits(self.folder / f"{name}.safetensors", own)
        self.classes = "; ".join(split.classes)
        self.address = f"{server}:{self.port}"
        (self.folder / "run.toml").write_text(writing.to_toml(self.config))
        names = [text for name in self.sites for text in ("--site", name)]
        made = self.begin("coordinator", "keys", "keys", "keys", "--host", server, *names)
        if made.wait(120):
            raise RuntimeError((self.folder / "keys.log").read_text())

    def begin(
        self, host: str, log: str, *arguments: str, module: str = "focoop"
    ) -> "subprocess.Popen[bytes]":
        """A focoop command on a host."""
        command = [*self.network.on(host), sys.executable, "-m", module, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with open(self.folder / f"{log}.log", "ab") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=file, cwd=self.folder, env=environment
            )
        self.started.append(process)
        return process

    def coordinate(self, *options: str) -> "subprocess.Popen[bytes]":
        """Start the coordinator."""
        host = self.address.partition(":")[0]
        where = ("--host", host, "--port", str(self.port), "--out", "run", "--keys", "keys")
        said = ("--classes", self.classes, "--wait", "300", *options)
        return self.begin("coordinator", "coordinator", "coordinator", "run.toml", *where, *said)

    def join(self, k: int) -> "subprocess.Popen[bytes]":
        """Start site k's node."""
        name = self.sites[k]
        own = ("--keys", f"keys/sites/{name}", "--data", f"file:{name}.safetensors")
        state = ("--state", f"state/{name}")
        return self.begin(name, name, "site", "join", self.address, *own, *state)

    def journal(self) -> list[dict[str, Any]]:
        """What happened so far."""
        return list(events(self.folder / "run-flower" / "journal.jsonl"))

    def wait(self, event: str, since: int = 0, seconds: float = 900, **facts: Any) -> int:
        """Wait for an event with these facts after the first `since`; how many there are then."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found = self.journal()
            for number, one in enumerate(found[since:], since + 1):
                if one["event"] == event and facts.items() <= one.items():
                    return number
            time.sleep(0.2)
        raise TimeoutError(f"no {event} {facts} within {seconds} s:\n" + self.told())

    def told(self) -> str:
        """The journal and the coordinator's output, for people."""
        lines = [f"{one['time']}  {sentence(one)}" for one in self.journal()]
        return "\n".join([*lines, (self.folder / "coordinator.log").read_text()])

    def kill(
        self, process: "subprocess.Popen[bytes]", program: str = "", *, last: bool = False
    ) -> int:
        """SIGKILL to a process and all it has started, or to its `program` alone; how many.

        With `last`, only to the youngest descendant of these.
        """
        found = [pid for pid in family(process.pid) if program in cmdline(pid)]
        found = found[-1:] if last else found
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(found)

    def close(self) -> None:
        """End what is left."""
        for process in self.started:
            if process.poll() is None:
                process.terminate()
        for process in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(25)
            if process.poll() is None:
                self.kill(process)
                process.wait()


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    try:  # any thread of it may have started one
        tasks = [*Path(f"/proc/{pid}/task").iterdir()]
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
    return [pid, *(one for child in children for one in family(int(child)))]


def cmdline(pid: int) -> str:
    """A process's command line; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


@contextlib.contextmanager
def federation(
    folder: Path,
    wanted: RunConfig,
    port: int,
    *,
    separate: bool,
    kind: type[Federation] = Federation,
) -> Iterator[Federation]:
    """A federation that leaves no process and no namespace behind."""
    with Network(separate) as network:
        made = kind(folder, wanted, network, port)
        try:
            made.prepare()
            yield made
        finally:
            made.close()


def small(folder: Path, clients: int, rounds: int, *overrides: str) -> RunConfig:
    """Twelve classes of the packaged CIFAR-100 features."""

    def part(split: str) -> FeatureSet:
        found = load_split(demo_path("cifar100"), split)
        rows = found.labels < CLASSES
        return FeatureSet(found.pooled[rows], None, found.labels[rows], found.classes[:CLASSES])

    folder.mkdir(parents=True, exist_ok=True)
    splits = {name: part(name) for name in ("train", "test")}
    save_splits(folder / "id.safetensors", splits)
    settings = (
        f"data.id=file:{folder}/id.safetensors",
        f"partition.clients={clients}",
        f"federation.rounds={rounds}",
    )
    return configuration.load(None, [*OVERRIDES, *settings, *overrides])
