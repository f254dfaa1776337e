"""What a round costs where nothing is learned: Flower's own floor and ours, in one run.

A SuperLink with TLS and node keys and some sites, all on this machine: first Flower's own programs
and an app of Flower's alone (one message down, one up, no arrays), then focoop's (PromptFL, four
images at each site: one step). Flower's own start a process for every message, so most of a round
is the start of Python; focoop's fork one that has everything imported. Prints of a round the median
seconds, the seconds of a processor that all processes together use and the seconds in which none of
them works because all wait (`process_meter.py`): these two still tell on a loaded machine. Before
them come the seconds (wall and of a processor) that a site's process spends on imports.

`python benchmarks/flower_floor.py --sites 2 --rounds 5`
"""

import argparse
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from process_meter import Meter

from focoop.config.loading import load
from focoop.config.writing import to_flat
from focoop.features.lookup import FeatureSet, save_splits
from focoop.flower.deploy import processes
from focoop.flower.deploy.control import ENDED, check
from focoop.flower.deploy.keys import make_keys
from focoop.flower.deploy.serving import serving
from focoop.flower.identity import registered
from focoop.flower.journal import Tail
from focoop.runs import RunFolder
from focoop.seeds import torch_generator

CLASSES = ("apple", "boat", "cat", "drum")
DIM = 256  # of mini
PROJECT = """[project]
name = "emptyapp"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "focoop"
[tool.flwr.app.components]
serverapp = "emptyapp.server_app:app"
clientapp = "emptyapp.client_app:app"
[tool.flwr.app.config]
rounds = {rounds}
out = "{out}"
"""
CLIENT = """from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()
@app.train()
def train(message, context):
    return Message(RecordDict(), reply_to=message)
"""
SERVER = """import json, time
from pathlib import Path
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    seconds, progress = [], Path(context.run_config["out"] + ".progress")
    for index in range(context.run_config["rounds"]):
        progress.write_text("." * (index + 1))
        began = time.perf_counter()
        content = RecordDict({"config": ConfigRecord({"round": index})})
        nodes = grid.get_node_ids()
        orders = [Message(content, node, MessageType.TRAIN, ttl=600.0) for node in nodes]
        replies = list(grid.send_and_receive(orders, timeout=600.0))
        assert all(reply.has_content() for reply in replies) and replies
        seconds.append(time.perf_counter() - began)
    Path(context.run_config["out"]).write_text(json.dumps(seconds))
"""
IMPORTS = {
    "Python alone": "pass",
    "Flower's process": "import flwr.supernode.cli.flwr_clientapp",
    "Flower's process and torch": "import flwr.supernode.cli.flwr_clientapp, torch",
    "focoop's process": "import flwr.supernode.cli.flwr_clientapp, focoop.flower.site.client_app",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sites", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--port", type=int, default=22080)
    parser.add_argument("--imports-only", action="store_true")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # then the sites end too
    found: dict[str, Any] = {"imports": imports()}
    for name, (wall, processor) in found["imports"].items():
        print(f"{wall:7.2f} s, {processor:.2f} s of a processor  {name}")
    if not given.imports_only:
        with tempfile.TemporaryDirectory() as folder:
            found |= measure(Path(folder), given.sites, given.rounds, given.port)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


def imports(repeats: int = 3) -> dict[str, tuple[float, float]]:
    """Seconds (wall, of a processor) of processes that only import, the least of some each."""
    found = {}
    for name, code in IMPORTS.items():
        walls, processor = [], []
        for _ in range(repeats):
            began, used = time.perf_counter(), children()
            subprocess.run([sys.executable, "-c", code], check=True)
            walls.append(time.perf_counter() - began)
            processor.append(children() - used)
        found[name] = round(min(walls), 3), round(min(processor), 3)
    return found


def children() -> float:
    """Processor seconds of all processes started here and ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass(frozen=True)
class Cost:
    """Seconds of each round, and what a round costs: of a processor, and of waiting."""

    rounds: list[float]
    processor: float
    waiting: float

    @property
    def median(self) -> float:
        """Seconds of a usual round."""
        return statistics.median(self.rounds)


def measure(root: Path, sites: int, rounds: int, port: int) -> dict[str, object]:
    """Rounds of Flower's empty app and of ours."""
    names = [f"site-{k}" for k in range(sites)]
    make_keys(root / "keys", ["127.0.0.1"], names)
    costs = {
        "Flower, empty app": run_empty(root, names, rounds, port),
        "focoop": run_ours(root, names, rounds, port),
    }
    print("  round  processor  waiting   (seconds)")
    for name, cost in costs.items():
        each = " ".join(f"{one:.1f}" for one in cost.rounds)
        numbers = f"{cost.median:7.2f}  {cost.processor:9.2f}  {cost.waiting:7.2f}"
        print(f"{numbers}   {name}  (rounds: {each})")
    empty, ours = costs.values()
    ratio = ours.median / empty.median
    print(f"{ratio:7.2f}   ratio, {sites} sites, {rounds} rounds, load {os.getloadavg()[0]:.1f}")
    return {
        "sites": sites,
        "empty": empty.rounds,
        "focoop": ours.rounds,
        "ratio": round(ratio, 3),
        "costs": {name: asdict(cost) for name, cost in costs.items()},
    }


def start(command: list[str], home: Path) -> "subprocess.Popen[bytes]":
    return processes.begin(command, processes.environment(home), home / "log.txt")


def flwr(home: Path, *words: str) -> Any:
    """The answer of a `flwr` command."""
    done = subprocess.run(
        [processes.program("flwr"), *words, "--format", "json"],
        env=processes.environment(home),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout[done.stdout.find("{") :])


def write_images(path: Path, name: str) -> None:
    """One training and one test image of each class."""
    sets = {}
    for split in ("train", "test"):
        noise = torch.randn(len(CLASSES), DIM, generator=torch_generator(0, name, split))
        sets[split] = FeatureSet(F.normalize(noise, dim=-1), None, torch.arange(4), CLASSES)
    save_splits(path, sets)


def run_empty(root: Path, names: list[str], rounds: int, port: int) -> Cost:
    """Flower's own SuperLink and nodes with an app that does nothing."""
    app, out, home, keys = root / "app", root / "empty.json", root / "home", root / "keys"
    (app / "emptyapp").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT.format(rounds=rounds, out=out))
    for name, code in (("__init__", ""), ("client_app", CLIENT), ("server_app", SERVER)):
        (app / "emptyapp" / f"{name}.py").write_text(code)
    home.mkdir()
    trust = f'address = "127.0.0.1:{port}"\nroot-certificates = "{keys}/ca.crt"\n'
    (home / "config.toml").write_text(f"[superlink.here]\n{trust}")
    command = [
        processes.program("flower-superlink"),
        "--port",
        str(port),
        "--enable-supernode-auth",
    ]
    command += ["--ssl-ca-certfile", f"{keys}/ca.crt", "--ssl-certfile", f"{keys}/server.pem"]
    command += ["--ssl-keyfile", f"{keys}/server.key", "--disable-runtime-dependency-installation"]
    running = [start(command, home)]
    progress = Path(f"{out}.progress")
    meter = Meter(lambda: progress.stat().st_size if progress.exists() else 0)
    meter.start()
    try:
        processes.await_server(f"127.0.0.1:{port}", keys / "ca.crt", 120)
        for k, name in enumerate(names):
            place = keys / "sites" / name
            flwr(home, "supernode", "register", str(place / "key.pub"), "here", "--name", name)
            command = [processes.program("flower-supernode"), "--superlink", f"127.0.0.1:{port}"]
            command += ["--root-certificates", f"{place}/ca.crt", "--port", str(port + 1 + k)]
            command += ["--auth-supernode-private-key", f"{place}/key"]
            running.append(start(command, root / f"{name}-plain"))
        until = time.monotonic() + 180
        while True:
            nodes = flwr(home, "supernode", "list", "here")["nodes"]
            if sum(node["status"] == "online" for node in nodes) == len(names):
                break
            if time.monotonic() > until:
                raise SystemExit("the sites' nodes did not connect")
        flwr(home, "run", str(app), "here")
        while not out.exists() and time.monotonic() < until + 60.0 * rounds:
            time.sleep(1.0)
        time.sleep(1.0)
    finally:
        meter.stop()
        processes.stop(running)
    seconds: list[float] = json.loads(out.read_text())
    return Cost(seconds, *meter.each(1, rounds))


def run_ours(root: Path, names: list[str], rounds: int, port: int) -> Cost:
    """Our SuperLink, front and nodes with PromptFL, one step at each site."""
    settings = ["method.name=promptfl", f"federation.rounds={rounds}", "federation.epochs=1"]
    settings += ["data.corrupted=[]", "data.ood=[]", "federation.evaluate_every=0"]
    config = load(None, [*settings, "partition.shots=0"])
    told: dict[str, str | int] = {
        "classes": "; ".join(CLASSES),
        "keys": str(root / "keys"),
        "sites": len(names),
    }
    journal, committed = Tail(root / "journal.jsonl"), [0]
    flat = {**to_flat(config), **told, "out": str(root / "run"), "quorum": 1.0}
    flat["journal"] = str(journal.path)

    def done() -> int:
        committed[0] += sum(line["event"] == "committed" for line in journal.new())
        return committed[0]

    meter = Meter(done)
    running: list[subprocess.Popen[bytes]] = []
    with serving(root / "keys", "127.0.0.1", port, root / "run-flower", print) as served:
        meter.start()
        try:
            for k, site in registered(root / "keys").items():
                keys, home = root / "keys" / "sites" / site.name, root / f"{site.name}-home"
                write_images(root / f"{site.name}.safetensors", site.name)
                node: dict[str, str | int | bool] = {
                    "partition-id": k,
                    "name": site.name,
                    "keys": str(keys),
                    "data": f"file:{root}/{site.name}.safetensors",
                    "state": str(root / f"{site.name}-state"),
                }
                secret = processes.new_secret(home)
                where = f"127.0.0.1:{port}"
                command = processes.supernode(keys, where, processes.free_port(), node, secret)
                running.append(start(command, home))
            number = served.control.submit(flat)
            while not (state := served.control.status(number))[0].startswith(ENDED):
                time.sleep(1.0)
            check(number, *state)
        finally:
            meter.stop()
            processes.stop(running)
    entries = RunFolder.open(root / "run").manifest["rounds"]
    # The last round's time holds an evaluation too.
    seconds = [entry["seconds"] for entry in entries if 0 < entry["round"] < rounds]
    return Cost(seconds, *meter.each(1, rounds))


if __name__ == "__main__":
    main()
