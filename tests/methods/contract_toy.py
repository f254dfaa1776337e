"""A task any method can learn in a blink: a smooth tower, separable images with patches, outliers.

Class centres lie near the template's text features, as in a trained CLIP; outliers lie where no
class and no template is. Some of an image's patches show its class, the others its background.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focoop.clip.base import LabelledFeatures
from focoop.clip.text.tower import Names
from focoop.federation.client import LocalSettings
from focoop.federation.participation import Schedule
from focoop.federation.rounds import client_state, start
from focoop.federation.simulator import MemoryStore, RoundResult, simulate
from focoop.methods.base import Batch, Method, Server, State, Task
from focoop.seeds import torch_generator

CLASSES = ("apple", "pear", "plum", "fig")
WORDS = ("fog", "haste", "tax", "verb", "week")
WIDTH, HIDDEN, DIM = 6, 24, 16
PATCHES, SHOWN = 6, 5  # per image; of these, patches that show its class
LOCAL = LocalSettings(epochs=2, batch_size=4, lr=1.0)
ROUNDS, SEED = 4, 5


class Tower(nn.Module):
    """A frozen tanh network of a weighted mean of context tokens and the name.

    Plain texts are read as if in the context that fits images; a fresh prompt is far from it.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch_generator(0, "contract tower")

        def draw(*shape: int, scale: float) -> nn.Parameter:
            values = scale * torch.randn(*shape, generator=generator, dtype=torch.float64)
            return nn.Parameter(values.to(dtype), requires_grad=False)

        self.mix = draw(WIDTH, HIDDEN, scale=0.7)
        self.word = draw(WIDTH, HIDDEN, scale=0.7)
        self.out = draw(HIDDEN, DIM, scale=1.0)
        self.fitting = draw(WIDTH, scale=2.0)

    def forward(self, contexts: Tensor, names: Names) -> Tensor:
        """(n, d_t), (..., 1, n, d_t) or (..., N, n, d_t) contexts, N names -> (..., N, D) unit."""
        if contexts.dim() == 2:
            contexts = contexts.expand(len(names), -1, -1)
        assert contexts.shape[-3] in (1, len(names))
        place = torch.arange(contexts.shape[-2], dtype=contexts.dtype)
        weights = (1.0 + 0.3 * torch.sin(place)) / len(place) ** 0.5
        hidden = torch.einsum("...nd,n->...d", contexts, weights) @ self.mix
        return self.read(hidden + names.embeddings[:, 0] @ self.word)

    def read(self, hidden: Tensor) -> Tensor:
        """(..., H) -> (..., D) of unit length."""
        return F.normalize(torch.tanh(hidden) @ self.out, dim=-1)

    def names(self, texts: Sequence[str], *, period: bool = True) -> Names:
        """Names whose one embedding is a draw that depends on the word alone."""
        rows = torch.stack([self.token(text) for text in texts])
        if period:
            rows = rows + 0.1 * self.token(".")
        return Names(tuple(texts), rows[:, None], torch.ones(len(texts), dtype=torch.int64))

    def token(self, word: str) -> Tensor:
        """(d_t,) embedding of a word."""
        generator = torch_generator(zlib.crc32(word.encode()), "token")
        return torch.randn(WIDTH, generator=generator, dtype=torch.float64).to(self.mix.dtype)

    def embed(self, text: str) -> Tensor:
        """(n, d_t) embeddings of the words of a text."""
        return torch.stack([self.token(word) for word in text.lower().split()])

    @torch.no_grad()
    def texts(self, texts: Sequence[str]) -> Tensor:
        """(N, D) features of a text's first known name, moved a little by its other words."""
        rows = []
        for text in texts:
            words = text.lower().replace(".", " ").split() or ["."]
            name = next((word for word in words if word in CLASSES + WORDS), words[-1])
            others = torch.stack(
                [self.token(word) for word in words if word != name] or [self.fitting]
            )
            context = self.fitting + 0.2 * others.mean(dim=0)
            rows.append(self.read(context @ self.mix + self.token(name) @ self.word))
        return torch.stack(rows)


def make_task(
    method: Method,
    *,
    classes: Sequence[str] = CLASSES,
    words: Sequence[str] = WORDS,
    dtype: torch.dtype = torch.float32,
) -> Task:
    """The task, with what `method` prepares from it; `words` may be empty."""
    tower = Tower(dtype)
    task = Task(
        classes=tuple(classes),
        encode=tower,
        id_names=tower.names(classes),
        ood_names=tower.names(words) if words else None,
        anchors=tower.texts([f"a photo of a {name}." for name in classes]),
        logit_scale=10.0,
        width=WIDTH,
        bare_names=tower.names(classes, period=False),
        texts=tower.texts,
        embed=tower.embed,
    )
    return replace(task, frozen=method.prepare(task))


@dataclass(frozen=True)
class World:
    """Where images come from: class centres (C, D) and an orthonormal base of what is no class."""

    centres: Tensor
    elsewhere: Tensor

    def images(self, labels: Tensor, seed: object, patches: bool) -> LabelledFeatures:
        """Images of the classes `labels` (n,); -1: outliers."""
        generator = torch_generator(0, "contract images", str(seed))
        dtype, count = self.centres.dtype, len(labels)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        known = (labels >= 0).to(dtype)[:, None]
        meant = self.centres[labels.clamp(min=0)] * known
        background = F.normalize(draw(count, PATCHES, len(self.elsewhere)), dim=-1) @ self.elsewhere
        pooled = meant + (1.0 - 0.7 * known) * background[:, 0]
        shown = (torch.arange(PATCHES) < SHOWN).to(dtype)[None, :, None] * known[:, None]
        local = shown * meant[:, None] + (1.0 - 0.7 * shown) * background
        local = local + 0.05 * draw(count, PATCHES, DIM)
        return LabelledFeatures(
            F.normalize(pooled + 0.05 * draw(count, DIM), dim=-1),
            F.normalize(local, dim=-1) if patches else None,
            labels.clamp(min=0),
        )


def make_world(task: Task) -> World:
    """Centres near the task's anchors; outliers in the complement of both."""
    generator = torch_generator(0, "contract centres")
    offsets = torch.randn(len(task.classes), DIM, generator=generator, dtype=torch.float64)
    anchors = task.anchors.double()
    centres = F.normalize(anchors + 0.4 * F.normalize(offsets, dim=-1), dim=-1)
    _, _, base = torch.linalg.svd(torch.cat([centres, anchors]))
    dtype = task.anchors.dtype
    return World(centres.to(dtype), base[2 * len(centres) :].to(dtype))


def make_clients(
    method: Method, task: Task, held: Sequence[Sequence[int]]
) -> list[Callable[[], LabelledFeatures]]:
    """Client k holds the labels `held[k]`; where a method pools images, one party holds all."""
    world, patches = make_world(task), bool(method.patch_kind)
    data = [
        world.images(torch.tensor(labels, dtype=torch.int64), client, patches)
        for client, labels in enumerate(held)
    ]
    if method.pools_data:
        data = [join(data)]
    return [lambda one=one: one for one in data]  # type: ignore[misc]


def join(data: Sequence[LabelledFeatures]) -> LabelledFeatures:
    """All images in one place."""
    patches = [one.patches for one in data if one.patches is not None]
    return LabelledFeatures(
        torch.cat([one.pooled for one in data]),
        torch.cat(patches) if patches else None,
        torch.cat([one.labels for one in data]),
    )


def spread(sizes: Sequence[int], classes: int = len(CLASSES)) -> list[list[int]]:
    """Labels of clients of these sizes, who hold all classes in turn."""
    return [[(i + client) % classes for i in range(size)] for client, size in enumerate(sizes)]


@dataclass(frozen=True)
class Outcome:
    """A federation after `rounds`, or before its first where there are none."""

    method: Method
    task: Task
    clients: list[Callable[[], LabelledFeatures]]
    rounds: list[RoundResult]
    store: MemoryStore

    @property
    def server(self) -> Server:
        """What the server keeps."""
        return self.rounds[-1].server if self.rounds else Server(self.initial.shared)

    @property
    def initial(self) -> State:
        """What everybody started from."""
        return start(self.method, self.task, SEED)

    def state(self, client: int) -> State:
        """A client's model."""
        return client_state(
            self.method,
            self.task,
            self.initial,
            self.server,
            self.store.load(client),
            lambda: self.clients[client]().counts(len(self.task.classes)),
        )

    def images(self, labels: Sequence[int], seed: str) -> LabelledFeatures:
        """Images of the classes `labels`, outliers where -1, that no client holds."""
        patches = bool(self.method.patch_kind)
        return make_world(self.task).images(torch.tensor(labels), seed, patches)

    @torch.no_grad()
    def answers(self, client: int, data: LabelledFeatures) -> tuple[Tensor, Tensor]:
        """(N, C) class logits and (N,) scores, computed the way an evaluation does."""
        state = self.state(client)
        text = self.method.encode({**state.shared, **state.private}, self.task)
        logits = self.method.logits(text, data.pooled, data.patches)
        return logits.id, self.method.score(logits, self.task)


def federate(
    method: Method,
    task: Task,
    held: Sequence[Sequence[int]],
    *,
    rounds: int = 2,
    local: LocalSettings = LOCAL,
    store: MemoryStore | None = None,
    resume: tuple[int, Server] | None = None,
    order: Callable[[list[int]], list[int]] | None = None,
) -> Outcome:
    """Run `rounds` rounds of `method` on clients that hold the labels `held`."""
    store = store or MemoryStore()
    schedule = Schedule(rounds=rounds, participation=1.0, local=local)
    clients = make_clients(method, task, held)
    results = simulate(
        method, task, clients, schedule, store, seed=SEED, resume=resume, order=order
    )
    return Outcome(method, task, clients, list(results), store)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether two sets of named tensors are equal to the bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def as_batch(data: LabelledFeatures) -> Batch:
    """All of a client's images at once."""
    return Batch(data.pooled, data.patches, data.labels)


@torch.no_grad()
def mean_loss(outcome: Outcome, client: int, draws: int = 16) -> float:
    """A client's loss on all its images, over draws of noise that are the same for all states."""
    method, task, state = outcome.method, outcome.task, outcome.state(client)
    params, data = {**state.shared, **state.private}, outcome.clients[client]()
    text = method.encode(params, task)
    noises = [method.noise(len(data), task, torch_generator(i, "loss")) for i in range(draws)]
    losses = [method.loss(params, text, as_batch(data), task, noise) for noise in noises]
    return float(torch.stack(losses).mean())
