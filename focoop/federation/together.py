"""Many clients' local training in one batch: the same steps as one client at a time.

Clients never meet: each has its own parameters, rows of stacked tensors, its own images and its own
generator, asked for the same numbers in the same order as alone. Only the frozen tower and the
products see one large batch, so that results agree with `client.train` up to rounding. Clients
whose batches differ in size take their steps in groups of equal size.
"""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from focoop.clip.text import Names
from focoop.federation.client import (
    ClientData,
    LocalSettings,
    batches,
    check_loss,
    distance,
    trains,
)
from focoop.federation.graphs import Graphs
from focoop.methods._base import Batch, Method, Params, State, Task

# That draw clients' noise beside a GPU.
THREADS = 8


class Together:
    """Trains groups of clients of one method; keep it for a whole run, it remembers its steps."""

    def __init__(self, method: Method, task: Task, settings: LocalSettings) -> None:
        self.method, self.task, self.settings = method, task, settings
        self.advance = Graphs(self.step)
        self.limit: int | None = None  # clients that fit the device's memory, once it was too small
        self.threads = None if task.device.type == "cpu" else ThreadPoolExecutor(THREADS)

    def train(
        self,
        states: Sequence[State],
        data: Sequence[ClientData],
        lr: float,
        generators: Sequence[torch.Generator],
    ) -> list[tuple[State, float]]:
        """`client.train` at rate `lr` for clients that received the same shared tensors.

        Where the device's memory is too small for all, they train by halves.
        """
        size = min(self.limit or len(states), len(states))
        if size < len(states):
            parts = [slice(at, at + size) for at in range(0, len(states), size)]
            found = [self.train(states[p], data[p], lr, generators[p]) for p in parts]
            return [result for part in found for result in part]
        before = [generator.get_state() for generator in generators]
        try:
            return self.train_all(states, data, lr, generators)
        except torch.OutOfMemoryError:
            if size <= 1:
                raise
        self.advance.forget()
        self.limit = (size + 1) // 2
        for generator, kept in zip(generators, before, strict=True):
            generator.set_state(kept)
        return self.train(states, data, lr, generators)

    def train_all(
        self,
        states: Sequence[State],
        data: Sequence[ClientData],
        lr: float,
        generators: Sequence[torch.Generator],
    ) -> list[tuple[State, float]]:
        """As `train`, all in one batch."""
        results: list[tuple[State, float]] = [(state, math.nan) for state in states]
        busy = [k for k, images in enumerate(data) if len(images)]
        if not busy:
            return results
        group = Group(
            self.method,
            [states[k] for k in busy],
            [data[k] for k in busy],
            self.task,
            self.settings,
        )
        rate = torch.full((), lr, dtype=torch.float64, device=self.task.device)
        orders = [batches(len(data[k]), self.settings, generators[k]) for k in busy]
        while steps := [(r, i) for r, order in enumerate(orders) for i in _next(order)]:
            for size in sorted({len(index) for _, index in steps}):
                rows = [row for row, index in steps if len(index) == size]
                chosen = torch.stack([index for _, index in steps if len(index) == size])
                noise = self.noise(size, [generators[busy[row]] for row in rows])
                inputs = group.inputs(rows, chosen, noise)
                group.keep(rows, self.advance({**inputs, "rate": rate}, group.constants))
        for k, (state, loss) in zip(busy, group.results(), strict=True):
            results[k] = state, check_loss(loss, lr)
        return results

    def noise(self, size: int, generators: Sequence[torch.Generator]) -> list[Params]:
        """Each client's draws for a step; beside a GPU by many threads, while it works."""
        draw = partial(self.method.noise, size, self.task)
        return [*(map if self.threads is None else self.threads.map)(draw, generators)]

    def step(self, inputs: Params) -> Params:
        """One SGD step of k clients: parameters in, parameters and losses (k,) out."""
        params = _part(inputs, "param")
        leaves = {n: v.detach() for n, v in params.items()}
        trained = [n for n, v in leaves.items() if v.is_floating_point()]
        for name in trained:
            leaves[name].requires_grad_(True)
        losses = self.losses(leaves, inputs)
        total = losses.sum()
        if self.settings.prox > 0:
            total = total + self.settings.prox / 2 * distance(leaves, _part(inputs, "received"))
        gradients = torch.autograd.grad(total, [leaves[name] for name in trained])
        outputs = {"loss": losses.detach()}
        for name, gradient in zip(trained, gradients, strict=True):
            # The step of torch.optim.SGD.
            if self.settings.weight_decay:
                gradient = gradient + self.settings.weight_decay * params[name]
            if self.settings.momentum:
                gradient = gradient + self.settings.momentum * inputs[f"momentum/{name}"]
                outputs[f"momentum/{name}"] = gradient
            outputs[f"param/{name}"] = params[name] - inputs["rate"] * gradient
        return outputs

    def losses(self, params: Params, inputs: Params) -> Tensor:
        """(k,) loss of each client on its own batch."""
        method, task = self.method, self.task
        common = {**_part(inputs, "common"), **_part(inputs, "fixed")}

        def one(p: Params, f: Params, x: Params, noise: Params) -> Tensor:
            p = {**p, **common}
            batch = Batch(x["pooled"], x.get("patches"), x["labels"])
            return method.loss(p, method.text(p, f, task), batch, task, noise)

        noise = _part(inputs, "noise")
        mapped = torch.func.vmap(one, in_dims=(0, 0, 0, 0 if noise else None))
        features = self.features(params, common)
        losses: Tensor = mapped(params, features, _part(inputs, "image"), noise)
        return losses

    def features(self, params: Params, common: Params) -> Params:
        """All clients' prompts through the tower in one batch: name -> (k, N, D)."""
        names: dict[str, Names] = {}

        def contexts(p: Params) -> Params:
            prompts = self.method.prompts({**p, **common}, self.task)
            names.update({name: prompt.names for name, prompt in prompts.items()})
            return {name: prompt.contexts for name, prompt in prompts.items()}

        features = {}
        for name, stacked in torch.func.vmap(contexts)(params).items():
            if stacked.dim() == 3:  # (k, n, d_t): one context per client for all its names
                stacked = stacked[:, None]
            features[name] = self.task.encode(stacked, names[name])
        return features


def train_together(
    method: Method,
    states: Sequence[State],
    data: Sequence[ClientData],
    task: Task,
    settings: LocalSettings,
    generators: Sequence[torch.Generator],
) -> list[tuple[State, float]]:
    """`client.train` for clients that received the same shared tensors, as one batch."""
    return Together(method, task, settings).train(states, data, settings.lr, generators)


class Group:
    """K clients in training: stacked parameters (K, ...), images padded to the largest client."""

    def __init__(
        self,
        method: Method,
        states: Sequence[State],
        data: Sequence[ClientData],
        task: Task,
        settings: LocalSettings,
    ) -> None:
        self.device = task.device
        first = states[0]
        self.shared, self.private = list(first.shared), list(first.private)
        # What the server sent in whole numbers, such as words, is the same for all clients.
        self.common = {n: v for n, v in first.shared.items() if not v.is_floating_point()}
        self.constants = {f"common/{n}": v.cpu() for n, v in self.common.items()}
        received = {n: v for n, v in first.shared.items() if trains(method, n, v)}
        # So is what nobody trains, but a round's is not the next one's.
        same = {*self.common, *received}
        self.fixed = {n: v for n, v in first.shared.items() if n not in same}
        self.received = received if settings.prox > 0 else {}
        self.params: Params = {
            name: torch.stack([{**s.shared, **s.private}[name] for s in states])
            for name in (*received, *self.private)
        }
        self.momentum: Params = {}
        if settings.momentum:
            floats = {n: v for n, v in self.params.items() if v.is_floating_point()}
            self.momentum = {n: torch.zeros_like(v) for n, v in floats.items()}
        self.images = {
            "pooled": self.padded([d.pooled for d in data]),  # (K, n, D)
            "labels": self.padded([d.labels for d in data]),
        }
        patches = [d.patches for d in data if d.patches is not None]
        if patches:
            self.images["patches"] = self.padded(patches)
        self.losses: list[tuple[Sequence[int], Tensor]] = []
        self.places: dict[tuple[int, ...], Tensor] = {}

    def padded(self, tensors: Sequence[Tensor]) -> Tensor:
        """Clients' rows as one tensor; padding is never looked up."""
        return pad_sequence(list(tensors), batch_first=True).to(self.device)

    def inputs(self, rows: Sequence[int], index: Tensor, noise: Sequence[Params]) -> Params:
        """What a step of the clients at `rows` (k,) on their images `index` (k, B) reads."""
        where, index = self.where(rows), self.sent(index)
        every = len(rows) == len(self.images["pooled"])
        found = {f"received/{n}": v for n, v in self.received.items()}
        found |= {f"fixed/{n}": v for n, v in self.fixed.items()}
        for part, params in (("param", self.params), ("momentum", self.momentum)):
            found |= {f"{part}/{n}": v if every else v[where] for n, v in params.items()}
        found |= {f"image/{n}": v[where[:, None], index] for n, v in self.images.items()}
        for name in noise[0]:
            found[f"noise/{name}"] = self.sent([one[name] for one in noise])
        return found

    def where(self, rows: Sequence[int]) -> Tensor:
        """The rows as a tensor on the device."""
        if tuple(rows) not in self.places:
            self.places[tuple(rows)] = torch.tensor(rows, device=self.device)
        return self.places[tuple(rows)]

    def sent(self, tensors: Tensor | Sequence[Tensor]) -> Tensor:
        """One stacked tensor on the device; the host does not wait for it to arrive."""
        first = tensors[0]
        if self.device.type == "cpu":
            return torch.stack(tuple(tensors))
        there = torch.empty(len(tensors), *first.shape, dtype=first.dtype, pin_memory=True)
        torch.stack(tuple(tensors), out=there)
        return there.to(self.device, non_blocking=True)

    def keep(self, rows: Sequence[int], outputs: Params) -> None:
        """Write a step's results into the rows they belong to."""
        where = self.where(rows)
        self.losses.append((rows, outputs["loss"].clone()))
        for part, params in (("param", self.params), ("momentum", self.momentum)):
            for name, value in _part(outputs, part).items():
                params[name] = params[name].index_copy(0, where, value)

    def results(self) -> list[tuple[State, float]]:
        """Each client's new state and mean loss."""
        taken: list[list[Tensor]] = [[] for _ in self.images["pooled"]]
        for rows, losses in self.losses:
            for row, loss in zip(rows, losses.cpu(), strict=True):
                taken[row].append(loss)
        found = []
        for row, losses_of_row in enumerate(taken):
            mine = {**{n: v[row] for n, v in self.params.items()}, **self.common, **self.fixed}
            state = State({n: mine[n] for n in self.shared}, {n: mine[n] for n in self.private})
            found.append((state, float(torch.stack(losses_of_row).mean())))
        return found


def _part(tensors: Params, part: str) -> Params:
    """The tensors named `part/...`, without the part."""
    start = f"{part}/"
    return {n.removeprefix(start): v for n, v in tensors.items() if n.startswith(start)}


def _next(order: Iterator[Tensor]) -> Iterator[Tensor]:
    """The next batch of a client, or nothing once it is through."""
    index = next(order, None)
    if index is not None:
        yield index
