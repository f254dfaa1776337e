"""A federation in network namespaces, with a dishonest coordinator and a dishonest site.

ghent and lille are honest and joined by `focoop site join`; mallory lies. The coordinator is
`focoop federation start` with its app led by hand (`dishonest.py`): it can send any message through
its own SuperLink and front, and start runs with any settings.
"""

import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from flwr.app import RecordDict

from focoop.caching import write_whole
from focoop.cli.coordinator import study_settings
from focoop.config.loading import load
from focoop.config.schema import RunConfig
from focoop.config.writing import config_hash, to_toml
from focoop.features.demo import demo_path
from focoop.features.feature_set import FeatureSet
from focoop.features.lookup import save_splits
from focoop.features.storage import load_split
from focoop.federation.rounds import start
from focoop.flower.journal import events
from focoop.flower.records import CONFIG, GLOBAL, Order, to_arrays
from focoop.flower.site.client import own_scenario
from focoop.scenario.scenario import Scenario
from tests.flower.dishonest import EVALUATE_EVERY, LYING_ROUNDS, SELF, Hand
from tools.flower_hosts import Federation, Network

CLASSES, PORT = 8, 8000
START = 300.0  # seconds that processes may take to start on a machine that has other work
NAMES = ("ghent", "lille", "mallory")
PATIENT = "jane_doe"  # in the name of ghent's file of images
STUDY = (
    "name=fed",  # what `federation create fed` calls its run
    "method.name=promptfl",
    "data.corrupted=[]",
    "data.id=folder:images",
    f"partition.clients={len(NAMES)}",
    "partition.shots=0",
    "negatives.count=12",
    f"federation.rounds={LYING_ROUNDS}",
    f"federation.evaluate_every={EVALUATE_EVERY}",
    "federation.epochs=1",
    "federation.batch_size=16",
    "backbone.logit_scale=10",
)
# Seconds of federation.toml, which the tests have less of.
WAITS = {
    "deadline": (3600.0, 100.0),
    "wait": (86400.0, 100.0),
    "rejoin": (60.0, 5.0),
}
# Which of the 16 training and 20 test images of each class a site has.
TRAIN = {"ghent": range(6), "lille": range(6, 11), "mallory": range(11, 16)}
TEST = {"ghent": range(7), "lille": range(7, 14), "mallory": range(14, 20)}


def study(*overrides: str) -> RunConfig:
    """The study's settings, with others over them."""
    return load(None, [*STUDY, *overrides])


def key() -> str:
    """A federation's name that no site has heard before."""
    return secrets.token_hex(8)


def part(split: str, rows: range, drop: dict[int, range] | None = None) -> FeatureSet:
    """Packaged CIFAR-100 features: these images of each class, others for the classes in `drop`."""
    found = load_split(demo_path("cifar100"), split)
    index = []
    for label in range(CLASSES):
        own = torch.nonzero(found.labels == label).flatten()
        index += own[list((drop or {}).get(label, rows))].tolist()
    keep = torch.tensor(index)
    return FeatureSet(found.pooled[keep], None, found.labels[keep], found.classes[:CLASSES])


@dataclass
class Besieged(Federation):
    """The parties, and what an attacker and a test do with them."""

    listener: socket.socket = field(default_factory=lambda: socket.socket(socket.AF_UNIX))
    data: dict[str, Path] = field(default_factory=dict)
    hands: dict[int, Hand] = field(default_factory=dict)

    def prepare(self) -> None:
        """Make the federation by its command; each party has a folder, and a site its images."""
        server = self.network.add("coordinator")
        self.address = f"{server}:{PORT}"
        for name in NAMES:
            self.network.add(name)
            (self.folder / name).mkdir()
            file = PATIENT if name == "ghent" else "own"
            self.data[name] = self.folder / name / f"{file}.safetensors"
            self.data[name].write_bytes(self.images(name))
        self.classes = "; ".join(part("train", range(1)).classes)
        (self.folder / "run.toml").write_text(to_toml(self.config))
        made = self.begin(
            "coordinator",
            "create",
            *("federation", "create", "fed", "--host", self.address, "--sites", ",".join(NAMES)),
            *("--classes", self.classes, "--config", "run.toml", "--untuned"),
        )
        assert made.wait(START) == 0, (self.folder / "create.log").read_text()
        settings = self.folder / "fed" / "federation.toml"
        text = settings.read_text()
        for key, (usual, short) in WAITS.items():
            assert f"{key} = {usual}" in text
            text = text.replace(f"{key} = {usual}", f"{key} = {short}")
        settings.write_text(text)
        for name in NAMES:
            bundle = self.folder / "fed" / "bundles" / f"{name}.focoop"
            shutil.copy(bundle, self.folder / name)

    def images(self, name: str, mended: int | None = None) -> bytes:
        """A site's file of images; `mended`: with another image of that class.

        lille has one image of class 0: fewer than FOCoOp+ tells of.
        """
        few = {0: range(6, 7)} if name == "lille" else {}
        if mended is not None:
            before = few.get(mended, TRAIN[name])
            few[mended] = range(before.start + 1, before.stop + 1)
        parts = {"train": part("train", TRAIN[name], few), "test": part("test", TEST[name])}
        draft = self.folder / name / "draft"
        save_splits(draft, parts)
        content = draft.read_bytes()
        draft.unlink()
        return content

    @contextmanager
    def other_images(self, name: str, content: bytes) -> Iterator[None]:
        """Let a site have another file of images for a while."""
        before = self.data[name].read_bytes()
        write_whole(self.data[name], content)
        try:
            yield
        finally:
            write_whole(self.data[name], before)

    def open(self) -> Hand:
        """Start the coordinator and all sites; the hand of the study's own run."""
        path = self.folder / "hand"
        self.listener.bind(str(path))
        self.listener.listen()
        self.begin(
            "coordinator",
            "coordinator",
            *("coordinator", str(path), "federation", "start", "fed", "--status-port", "0"),
            module=SELF,
        )
        for name in ("ghent", "lille"):
            words = ("site", "join", f"{name}/{name}.focoop", "--data", f"file:{self.data[name]}")
            self.begin(name, name, *words, "--state", f"{name}/state")
        own = ("mallory/mallory.focoop", f"file:{self.data['mallory']}", "mallory/state")
        self.begin("mallory", "mallory", "site", *own, module=SELF)
        return self.hand()

    def hand(self) -> Hand:
        """The hand of the run that began last."""
        self.listener.settimeout(START)
        made = Hand(Connection(self.listener.accept()[0].detach()))
        self.hands[made.run] = made
        return made

    @contextmanager
    def run(self, config: RunConfig, others: dict[str, Any] | None = None) -> Iterator[Hand]:
        """A run of the dishonest coordinator with settings of its choice, `others` over them."""
        self.study.submit({**self.settings(config), **(others or {})})
        hand = self.hand()
        try:
            yield hand
        finally:
            hand.end()

    def settings(self, config: RunConfig, out: str = "other") -> dict[str, Any]:
        """All settings of a run, as `focoop federation start` sends them."""
        waits = {key: short for key, (_, short) in WAITS.items()}
        path, keys = self.folder / "fed" / out, self.folder / "fed" / "keys"
        return study_settings(config, keys, self.classes, path, quorum=0.5, **waits)

    @contextmanager
    def policy(self, text: str, *names: str) -> Iterator[None]:
        """Give sites another policy, which holds from the next message on."""
        files = [self.state(name) / "keys" / "policy.toml" for name in names]
        before = [file.read_text() for file in files]
        for file in files:
            file.write_text(text)
        try:
            yield
        finally:
            for file, old in zip(files, before, strict=True):
                file.write_text(old)

    def state(self, name: str) -> Path:
        """A site's state folder."""
        return self.folder / name / "state"

    @property
    def study(self) -> Hand:
        """The hand of the study's own run."""
        return next(iter(self.hands.values()))

    def noted(self, name: str, event: str) -> list[dict[str, Any]]:
        """Events of a kind in a site's own journal."""
        found = events(self.state(name) / "journal.jsonl")
        return [one for one in found if one["event"] == event]

    def scenario(self, config: RunConfig, name: str) -> Scenario:
        """A site's images and the task, as it has them itself."""
        own_scenario.cache_clear()  # its images may have changed
        names = tuple(self.classes.split("; "))
        return own_scenario(config, f"file:{self.data[name]}", names, NAMES.index(name), len(NAMES))

    def first(self, config: RunConfig, name: str = "ghent") -> dict[str, torch.Tensor]:
        """The shared tensors of a run's start."""
        found = self.scenario(config, name)
        return dict(start(found.method, found.task, config.seed).shared)

    def told(self) -> str:
        """All parties' output, for people."""
        texts = [path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log"))]
        return "\n".join(texts)


@contextmanager
def besieged(folder: Path) -> Iterator[Besieged]:
    """The federation, until the test ends; no process and no namespace stays."""
    with Network(True) as network:
        made = Besieged(folder, study(), network, PORT)
        try:
            made.prepare()
            yield made
        finally:
            made.close()
            made.listener.close()


def order(
    config: RunConfig, round_index: int, key: str, shared: dict[str, torch.Tensor] | None = None
) -> RecordDict:
    """An order about a round of the federation `key`, with shared tensors where it has any."""
    content = RecordDict({CONFIG: Order(round_index, key, config_hash(config)).record()})
    if shared is not None:
        content[GLOBAL] = to_arrays(shared)
    return content
