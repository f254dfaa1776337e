"""A federation of three clients, small enough to run several times in a test file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context, Message

from focoop.config import loading
from focoop.config.schema import RunConfig
from focoop.experiments.running import run_experiment
from focoop.flower import in_process
from focoop.flower.site import client_app
from focoop.runs import RunFolder, start
from focoop.runs.manifest import collect
from tests.toy_setting import write_setting

CLIENTS = 3
Answer = Callable[[Message, Context], Message]


def toy_config(folder: Path, *overrides: str) -> RunConfig:
    """Three clients, two rounds, every round evaluated."""
    file = write_setting(folder / "setting")
    settings = (
        f"partition.clients={CLIENTS}",
        "partition.kind=iid",
        "federation.evaluate_every=1",
        "negatives.count=6",
        *overrides,
    )
    return loading.load(file, settings)


def simulated(wanted: RunConfig, path: Path) -> RunFolder:
    """What the simulator makes of it."""
    with start(path, wanted, collect(wanted), resume=False) as folder:
        run_experiment(wanted, folder)
        folder.finish("finished")
    return RunFolder.open(path)


def federated(
    wanted: RunConfig,
    path: Path,
    answers: Sequence[Answer] | None = None,
    **settings: bool | float,
) -> RunFolder:
    """What Flower's apps make of it."""
    in_process.run(wanted, path, CLIENTS, answers=answers, **settings)
    return RunFolder.open(path)


def opened(folder: Path, keys: Path | None = None) -> str:
    """A policy under which a site lets the run read `folder`; its file's name."""
    path = (keys or folder) / "policy.toml"
    path.write_text(f'folders = ["{folder}"]\n')
    return str(path)


def state(folder: RunFolder) -> bytes:
    """The committed tensors."""
    return (folder.path / "state.safetensors").read_bytes()


def lines(folder: RunFolder) -> list[dict[str, object]]:
    """Metrics without what needs all clients' scores in one place."""
    found = folder.metrics()
    for line in found:
        for one in line["ood"].values():
            one.pop("pooled", None)
    return found


@dataclass(frozen=True)
class Tampered:
    """A client that spoils its answers of one kind."""

    spoil: Callable[[Message, Message], Message]
    kind: str = "train"
    app: Answer = client_app.app

    def __call__(self, message: Message, context: Context) -> Message:
        reply = self.app(message, context)
        if message.metadata.message_type != self.kind:
            return reply
        return self.spoil(message, reply)
