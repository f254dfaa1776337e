"""Stack the tensors, batches and noise of clients, so that they train as one batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.utils.rnn import pad_sequence

from focoop.clip import LabelledFeatures
from focoop.federation.client import LocalSettings, batches, trains
from focoop.federation.cuda_graphs import sent
from focoop.methods import Method, Params, State, Task

if TYPE_CHECKING:
    from torch import Tensor


class Draws:
    """The noise (k, ...) of a step of k clients, by name; an executor's threads may draw it.

    Each client's numbers come from its own generator, in the order in which it would draw alone.
    """

    def __init__(
        self,
        method: Method,
        task: Task,
        size: int,
        generators: Sequence[torch.Generator],
        by: Executor | None,
    ) -> None:
        self.method, self.task, self.size, self.generators = method, task, size, generators
        self.rows: Params = {}
        self.lock = threading.Lock()
        self.pending: list[Future[None]] = []
        for row in range(len(generators)):
            if by is None:
                self.draw(row)
            else:
                self.pending.append(by.submit(self.draw, row))

    def draw(self, row: int) -> None:
        """Draw one client's numbers, straight into the memory that a GPU copies from.

        Args:
            row: The client's row.
        """
        noise = self.method.noise(self.size, self.task, self.generators[row])
        pinned = self.task.device.type == "cuda"
        for name, value in noise.items():
            with self.lock:
                if name not in self.rows:
                    shape = (len(self.generators), *value.shape)
                    self.rows[name] = torch.empty(shape, dtype=value.dtype, pin_memory=pinned)
            self.rows[name][row] = value

    def ready(self) -> Params:
        """Return all numbers by name, once they are drawn."""
        for future in self.pending:
            future.result()
        return self.rows


@dataclass(frozen=True)
class Step:
    """The clients at `rows` (k,) take a step on their images at `index` (k, B)."""

    rows: Sequence[int]
    index: Tensor
    noise: Draws


class Turns:
    """The coming steps of the clients that have images, each step with its images and noise."""

    def __init__(
        self,
        method: Method,
        task: Task,
        settings: LocalSettings,
        sizes: Sequence[int],
        generators: Sequence[torch.Generator],
    ) -> None:
        self.method, self.task, self.sizes = method, task, list(sizes)
        # Which of all clients these are.
        self.clients = [client for client, size in enumerate(sizes) if size]
        self.generators = [generators[client] for client in self.clients]
        self.orders = [
            batches(sizes[client], settings, generator)
            for client, generator in zip(self.clients, self.generators, strict=True)
        ]

    def next_steps(self, by: Executor | None) -> list[Step]:
        """Return the next step of every client that has one; batches of equal size form one step.

        Args:
            by: Draws numbers in its threads; None: here.

        Returns:
            The steps.
        """
        row_batches = [
            (row, index) for row, order in enumerate(self.orders) for index in _next(order)
        ]
        steps = []
        for size in sorted({len(index) for _, index in row_batches}):
            rows = [row for row, index in row_batches if len(index) == size]
            index = torch.stack([index for _, index in row_batches if len(index) == size])
            generators = [self.generators[row] for row in rows]
            steps.append(Step(rows, index, Draws(self.method, self.task, size, generators, by)))
        return steps


class ClientBatch:
    """K clients in training: stacked parameters (K, ...), images padded to one length."""

    def __init__(
        self,
        method: Method,
        task: Task,
        settings: LocalSettings,
        states: Sequence[State],
        data: Sequence[LabelledFeatures],
        lr: float,
        clients: Sequence[int],
    ) -> None:
        self.method, self.task, self.settings, self.lr = method, task, settings, lr
        self.device = task.device
        # The client of every row: those without images do not train.
        self.clients = clients
        self.states = [states[client] for client in clients]
        self.data = [data[client] for client in clients]
        self.taken = [0] * len(clients)  # steps
        # Whether all clients take every step.
        self.in_step = len({len(images) for images in self.data}) == 1

    def gather(self) -> None:
        """Stack what the clients hold."""
        settings, states, first = self.settings, self.states, self.states[0]
        # What the server sent in whole numbers, such as words, is the same for all clients.
        self.common = {n: v for n, v in first.shared.items() if not v.is_floating_point()}
        self.constants = {f"common/{n}": v.cpu() for n, v in self.common.items()}
        trained = [n for n, v in first.shared.items() if trains(self.method, n, v)]
        own = [n for n, v in first.private.items() if trains(self.method, n, v)]
        # So is what nobody trains, within a round.
        still = [n for n in first.shared if n not in self.common and n not in trained]
        self.fixed = {n: first.shared[n] for n in still}
        self.received = {n: first.shared[n] for n in trained} if settings.prox > 0 else {}
        self.params: Params = {
            name: torch.stack([{**s.shared, **s.private}[name] for s in states])
            for name in (*trained, *own)
        }
        # What a client holds for itself and nobody trains.
        self.held = {
            n: torch.stack([s.private[n] for s in states]) for n in first.private if n not in own
        }
        self.momentum: Params = {}
        if settings.momentum:
            self.momentum = {n: torch.zeros_like(v) for n, v in self.params.items()}
        self.rates = sent(torch.full((len(states),), self.lr, dtype=torch.float64), self.device)
        self.losses = torch.zeros(len(states), device=self.device)  # sums over steps
        self.images = {
            "pooled": self.padded([d.pooled for d in self.data]),  # (K, n, D)
            "labels": self.padded([d.labels for d in self.data]),
        }
        patches = [d.patches for d in self.data if d.patches is not None]
        if patches:
            self.images["patches"] = self.padded(patches)
        self.everywhere: dict[tuple[int, ...], Tensor] = {}

    def padded(self, tensors: Sequence[Tensor]) -> Tensor:
        """Join clients' rows to one tensor, padded to the longest; no step reads the padding.

        Args:
            tensors: One tensor per client.

        Returns:
            The joined tensor.
        """
        equal = len({len(tensor) for tensor in tensors}) == 1
        rows = torch.stack([*tensors]) if equal else pad_sequence([*tensors], batch_first=True)
        return sent(rows, self.device)

    def inputs(self, step: Step) -> Params:
        """Collect what a step reads.

        Args:
            step: The step.

        Returns:
            Tensors by `part/name`: the clients' rows (k, ...); what all share, once.
        """
        where, index = self.where(step.rows), sent(step.index, self.device)
        every = len(step.rows) == len(self.states)
        step_inputs = {"rate": self.rates if every else self.rates[where]}
        for kind, tensors in (("received", self.received), ("fixed", self.fixed)):
            step_inputs |= {f"{kind}/{name}": value for name, value in tensors.items()}
        stacked = (("param", self.params), ("momentum", self.momentum), ("held", self.held))
        for kind, params in stacked:
            step_inputs |= {f"{kind}/{n}": v if every else v[where] for n, v in params.items()}
        step_inputs |= {f"image/{n}": v[where[:, None], index] for n, v in self.images.items()}
        noise = step.noise.ready()
        return step_inputs | {f"noise/{n}": sent(v, self.device) for n, v in noise.items()}

    def where(self, rows: Sequence[int]) -> Tensor:
        """Return row numbers as a tensor on the device.

        Args:
            rows: The rows.

        Returns:
            The tensor.
        """
        key = tuple(rows)
        if key not in self.everywhere:
            self.everywhere[key] = sent(torch.tensor(rows), self.device)
        return self.everywhere[key]

    def keep(self, step: Step, outputs: Params) -> None:
        """Copy a step's results into the rows of the clients that took it.

        The next recorded step may write over its outputs. They need no copy where all clients take
        every step, because the next step then reads all of them before it writes.

        Args:
            step: The step.
            outputs: Its results by name.
        """
        where, every = self.where(step.rows), len(step.rows) == len(self.states)
        loss = outputs["loss"]
        self.losses = self.losses.to(loss.dtype).index_add(0, where, loss)
        for row in step.rows:
            self.taken[row] += 1
        for kind, params in (("param", self.params), ("momentum", self.momentum)):
            for name, value in part(outputs, kind).items():
                if every:
                    params[name] = value if self.in_step else value.clone()
                else:
                    params[name] = params[name].index_copy(0, where, value)

    def results(self) -> list[tuple[int, State, Tensor]]:
        """Return each client's number, its new state and its mean loss, all still on the device."""
        means = (self.losses / sent(torch.tensor(self.taken), self.device)).unbind()
        params = {name: value.clone().unbind() for name, value in self.params.items()}
        results = []
        for row, (client, state) in enumerate(zip(self.clients, self.states, strict=True)):
            new = {name: value[row] for name, value in params.items()}
            shared = {name: new.get(name, value) for name, value in state.shared.items()}
            private = {name: new.get(name, value) for name, value in state.private.items()}
            results.append((client, State(shared, private), means[row]))
        return results


def part(tensors: Params, name: str) -> Params:
    """Pick the tensors of one part.

    Args:
        tensors: Tensors by `part/name`.
        name: The part.

    Returns:
        Tensors by name.
    """
    start = f"{name}/"
    return {n.removeprefix(start): v for n, v in tensors.items() if n.startswith(start)}


def _next(order: Iterator[Tensor]) -> Iterator[Tensor]:
    """The next batch of a client, or nothing once it is through."""
    index = next(order, None)
    if index is not None:
        yield index
