"""focoop's commands as processes of one test's folder: keys, a coordinator and its sites."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from focoop.features.lookup import save_splits
from focoop.flower.deploy import processes
from focoop.scenario.split import Split
from tests.flower.federations import opened
from tests.toy_setting import CLASSES

SAID = ("--classes", "; ".join(CLASSES))
Started = list["subprocess.Popen[bytes]"]


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Parties:
    """A coordinator and sites called `names`, each command with a log of its own in `folder`."""

    def __init__(self, folder: Path, started: Started, names: Sequence[str]) -> None:
        self.folder, self.started, self.names = folder, started, names
        (self.port,) = free_ports(1)
        sites = [text for name in names for text in ("--site", name)]
        assert self.begin("keys", "keys", "keys", "--host", "127.0.0.1", *sites).wait(60) == 0
        for name in names:
            opened(folder, folder / "keys" / "sites" / name)  # the OOD sets of the run are files

    def begin(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        """A command whose output goes to `name`.log."""
        with open(self.folder / f"{name}.log", "wb") as log:
            command = [sys.executable, "-m", "focoop", *arguments]
            # One core each, as the simulator's clients have: toy products round by their threads.
            env = {**os.environ, "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, env=env)
        self.started.append(process)
        return process

    def log(self, name: str) -> str:
        """What a command has written."""
        return (self.folder / f"{name}.log").read_text()

    def coordinate(self, deadline: int) -> "subprocess.Popen[bytes]":
        """A coordinator of `run.toml` that is ready for its sites."""
        server = self.begin(
            "coordinator",
            *("coordinator", "run.toml", "--keys", "keys", *SAID, "--port", str(self.port)),
            *("--out", "run", "--quorum", "1.0", "--deadline", str(deadline)),
        )
        processes.await_server(f"127.0.0.1:{self.port}", self.folder / "keys" / "ca.crt", 120)
        return server

    def give_images(self, split: Split, client: int) -> tuple[str, str]:
        """A site's own images and nothing else; the option that names them."""
        own = {
            "train": split.train.select(split.train_index[client]),
            "test": split.test.select(split.test_index[client]),
        }
        file = f"{self.names[client]}.safetensors"
        save_splits(self.folder / file, own)
        return "--data", f"file:{file}"

    def join(self, client: int, data: tuple[str, str]) -> None:
        """Start a site."""
        name = self.names[client]
        self.begin(
            name,
            *("site", "join", f"127.0.0.1:{self.port}", "--keys", f"keys/sites/{name}"),
            *(*data, "--state", f"state/{name}"),
        )
