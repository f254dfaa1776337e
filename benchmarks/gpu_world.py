"""What benchmarks/gpu.py measures on: towers of ViT-B/16's sizes, names, clients, one federation.

Weights and image features are random: times do not depend on them. The protocol is CIFAR-100's:
each client holds 8 images of each of 10 classes, 16 context tokens, U = 100 WordNet nouns.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from text_engine import CLASSES
from torch import Tensor, nn

from focoop.clip.base import LabelledFeatures
from focoop.clip.text.tower import TextShape, TextTower
from focoop.clip.tokenizer import Tokenizer
from focoop.federation.batched_training import BatchedTrainer
from focoop.federation.client import LocalSettings
from focoop.federation.evaluation.evaluate import evaluate
from focoop.federation.evaluation.sets import EvaluationSets, Owned
from focoop.federation.participation import Schedule
from focoop.federation.rounds import client_state, start
from focoop.federation.simulator import MemoryStore, RoundResult, simulate
from focoop.methods import available, create
from focoop.methods.base import Method, Params, Server, Task
from focoop.scenario.schedule import TOGETHER
from focoop.scenario.wordnet import candidates

HELD, SHOTS = 10, 8
LOCAL = LocalSettings(epochs=2, batch_size=32, lr=0.01)


@dataclass(frozen=True)
class Sizes:
    """How large everything is: the real sizes, or `tiny` ones to try every part on a CPU."""

    text: TextShape
    pixels: int = 224
    patch: int = 16
    image_width: int = 768
    image_layers: int = 12
    image_heads: int = 12
    classes: int = 100
    words: int = 100
    test: int = 10_000
    ood: int = 5_640


REAL = Sizes(TextShape(512, 12, 8, 512, context_length=77, activation="quick_gelu"))
TINY = Sizes(
    TextShape(128, 2, 2, 64, context_length=77, activation="quick_gelu"),
    pixels=32, image_width=64, image_layers=2, image_heads=2, classes=20, words=6, test=200, ood=50,
)  # fmt: skip


def wait(device: torch.device) -> None:
    """Until the device has done all it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def clock(
    step: Callable[[], object], device: torch.device, repeats: int, warm: int = 3, inner: int = 1
) -> float:
    """Median seconds of a step, `inner` at a time: events on a GPU, wall time on a CPU."""
    for _ in range(warm):
        step()
    wait(device)
    found = []
    for _ in range(repeats):
        if device.type == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            for _ in range(inner):
                step()
            last.record()
            torch.cuda.synchronize()
            found.append(first.elapsed_time(last) / 1e3 / inner)
        else:
            began = time.perf_counter()
            step()
            found.append(time.perf_counter() - began)
    return float(np.median(found))


def make_tower(sizes: Sizes, device: torch.device) -> TextTower:
    """Random weights, bfloat16 in training on a GPU, as `backbone.precision = auto` has it."""
    torch.manual_seed(0)
    tower = TextTower(sizes.text, nn.Embedding(49408, sizes.text.width))
    nn.init.normal_(tower.tok.weight, std=0.02)  # type: ignore[arg-type]
    nn.init.normal_(tower.pos, std=0.01)
    tower.freeze().to(device)
    return tower.train_in(torch.bfloat16 if device.type == "cuda" else None)


def nouns(count: int, classes: Sequence[str]) -> list[str]:
    """WordNet nouns at even distances that are no classes."""
    words = candidates().without(classes).nouns
    return list(words[:: max(1, len(words) // count)][:count])


def class_names(count: int) -> list[str]:
    """CIFAR-100's, and WordNet nouns where more are wanted."""
    return CLASSES[:count] if count <= len(CLASSES) else nouns(count, [])


def make_task(tower: TextTower, classes: int, words: int) -> Task:
    """The text side of a run."""
    tokenize = Tokenizer(tower.shape.context_length)
    names = class_names(classes)

    def texts(plain: Sequence[str]) -> Tensor:
        return tower.encode_tokens(tokenize(list(plain)))

    return Task(
        classes=tuple(names),
        encode=tower,
        id_names=tower.prepare(tokenize, names),
        ood_names=tower.prepare(tokenize, nouns(words, names)),
        anchors=texts([f"a photo of a {name.replace('_', ' ')}." for name in names]),
        logit_scale=100.0,
        width=tower.width,
        bare_names=tower.prepare(tokenize, names, period=False),
        texts=texts,
        embed=lambda text: torch.zeros(1, tower.width, device=tower.device),
    )


def features(count: int, dim: int, seed: int) -> Tensor:
    """(count, dim) unit rows on the host."""
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(count, dim, generator=generator), dim=-1)


def make_clients(count: int, classes: int, dim: int) -> list[Callable[[], LabelledFeatures]]:
    """Clients of HELD classes with SHOTS images each, features on the host as in a run."""
    held = min(HELD, classes)
    labels = [(torch.arange(held) + held * k) % classes for k in range(count)]
    data = [
        LabelledFeatures(features(held * SHOTS, dim, k), None, own.repeat_interleave(SHOTS))
        for k, own in enumerate(labels)
    ]
    return [partial(lambda one: one, one) for one in data]


def make_sets(sizes: Sizes, clients: int, classes: int) -> EvaluationSets:
    """Test images of the clients' classes and two OOD sets."""
    dim = sizes.text.dim
    labels = np.arange(sizes.test) % classes
    owner = labels // min(HELD, classes) % clients
    rows = [np.flatnonzero(owner == k) for k in range(clients)]
    ood = {
        f"random {i}": LabelledFeatures(
            features(sizes.ood, dim, -i), None, torch.zeros(sizes.ood).long()
        )
        for i in (1, 2)
    }
    test = LabelledFeatures(features(sizes.test, dim, 7), None, torch.from_numpy(labels))
    return EvaluationSets(Owned(test, rows), {}, ood)


@dataclass
class Clocks:
    """Seconds of each part of a round, summed since the last `take`."""

    device: torch.device
    spent: dict[str, float] = field(default_factory=dict)

    def timed(self, name: str, function: Callable[..., Any], *, synced: bool) -> Callable[..., Any]:
        """The function with its time counted; `synced` waits for the device on both sides."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if synced:
                wait(self.device)
            began = time.perf_counter()
            found = function(*args, **kwargs)
            if synced:
                wait(self.device)
            self.spent[name] = self.spent.get(name, 0.0) + time.perf_counter() - began
            return found

        return call

    def take(self) -> dict[str, float]:
        """What was counted; counting starts anew."""
        found, self.spent = self.spent, {}
        return found


@contextmanager
def parts_timed(method: Method, device: torch.device) -> Iterator[Clocks]:
    """Counts training, noise and the server's step of a simulation apart."""
    clocks, train = Clocks(device), BatchedTrainer.train
    method.noise = clocks.timed("noise", method.noise, synced=False)  # type: ignore[method-assign]
    method.aggregate = clocks.timed(  # type: ignore[method-assign]
        "server", method.aggregate, synced=True
    )
    BatchedTrainer.train = clocks.timed(  # type: ignore[method-assign]
        "training", train, synced=True
    )
    try:
        yield clocks
    finally:
        BatchedTrainer.train = train  # type: ignore[method-assign]


@dataclass
class Federation:
    """A method, its clients and their schedule."""

    task: Task
    clients: list[Callable[[], LabelledFeatures]]
    name: str = "focoop"
    settings: dict[str, Any] = field(default_factory=dict)
    together: int = TOGETHER

    def __post_init__(self) -> None:
        self.task = replace(self.task, frozen=self.method().prepare(self.task))

    def method(self) -> Method:
        """A fresh instance."""
        return create(self.name, available()[self.name].Config(**self.settings))

    def rounds(self, count: int, *, timed: bool = False) -> list[dict[str, float]]:
        """Seconds of each round, by part where `timed`."""
        method, found = self.method(), []
        device = self.task.device
        with parts_timed(method, device) if timed else nullcontext(Clocks(device)) as clocks:
            began = time.perf_counter()
            for result in self.simulated(method, MemoryStore(), count):
                wait(self.task.device)
                now = time.perf_counter()
                row = {"round": now - began, **clocks.take()}
                row |= {f"server/{n}": v for n, v in result.server.report.items()}
                found.append(row)
                began = time.perf_counter()
        return found

    def simulated(
        self,
        method: Method,
        store: MemoryStore,
        count: int,
        seed: int = 0,
    ) -> Iterator[RoundResult]:
        """The simulator's rounds."""
        schedule = Schedule(count, 1.0, LOCAL, together=self.together)
        return simulate(method, self.task, self.clients, schedule, store, seed=seed)

    def whole(self, rounds: int, sets: EvaluationSets, every: int) -> tuple[float, float]:
        """Seconds of a whole run with evaluation, and those of evaluation alone."""
        wait(self.task.device)
        began, spent = time.perf_counter(), 0.0
        method, store = self.method(), MemoryStore()
        for result in self.simulated(method, store, rounds):
            if result.round_index == rounds or (every and result.round_index % every == 0):
                wait(self.task.device)
                asked = time.perf_counter()
                self.evaluate(method, result.server, store, sets)
                spent += time.perf_counter() - asked
        wait(self.task.device)
        return time.perf_counter() - began, spent

    def evaluate(
        self, method: Method, server: Server, store: MemoryStore, sets: EvaluationSets
    ) -> None:
        """Every client on every set, as a run does."""
        initial, task = start(method, self.task, 0), self.task

        def params(client: int) -> Params:
            kept = store.load(client) if initial.private else None
            counts = partial(self.clients[client]().counts, len(task.classes))
            state = client_state(method, task, initial, server, kept, counts)
            return {**state.shared, **state.private}

        evaluate(method, task, params, sets, same_for_all=not initial.private)
