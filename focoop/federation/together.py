"""Many clients' local training in one batch: the same steps as one client at a time.

Clients never meet: each has its own parameters, rows of stacked tensors, its own images and its own
generator, asked for the same numbers in the same order as alone. Only the frozen tower and the
products see one large batch, so that results agree with `client.train` up to rounding. Clients
whose batches differ in size take their steps in groups of equal size.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from focoop.clip.text import Names
from focoop.federation.client import ClientData, LocalSettings, batches, check_loss, distance
from focoop.methods._base import Batch, Method, Params, State, Task


def train_together(
    method: Method,
    states: Sequence[State],
    data: Sequence[ClientData],
    task: Task,
    settings: LocalSettings,
    generators: Sequence[torch.Generator],
) -> list[tuple[State, float]]:
    """`client.train` for clients that received the same shared tensors, as one batch."""
    results: list[tuple[State, float]] = [(state, math.nan) for state in states]
    busy = [k for k, images in enumerate(data) if len(images)]
    if not busy:
        return results
    group = Group(method, [states[k] for k in busy], [data[k] for k in busy], task, settings)
    orders = [batches(len(data[k]), settings, generators[k]) for k in busy]
    while True:
        due = [(row, index) for row, order in enumerate(orders) for index in [next(order, None)]]
        steps = [(row, index) for row, index in due if index is not None]
        if not steps:
            break
        for size in sorted({len(index) for _, index in steps}):
            rows = [row for row, index in steps if len(index) == size]
            chosen = torch.stack([index for _, index in steps if len(index) == size])
            noise = [method.noise(size, task, generators[busy[row]]) for row in rows]
            group.step(rows, chosen, noise)
    for k, result in zip(busy, group.results(), strict=True):
        results[k] = result
    return results


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
        self.method, self.task, self.settings = method, task, settings
        first = states[0]
        self.shared, self.private = list(first.shared), list(first.private)
        # What the server sent in whole numbers, such as words, is the same for all clients.
        self.common = {n: v for n, v in first.shared.items() if not v.is_floating_point()}
        self.received = {n: v for n, v in first.shared.items() if v.is_floating_point()}
        self.params: Params = {
            name: torch.stack([{**s.shared, **s.private}[name] for s in states])
            for name in (*self.received, *self.private)
        }
        self.momentum: Params = {}
        self.pooled = self.padded([d.pooled for d in data])  # (K, n, D)
        self.labels = self.padded([d.labels for d in data])
        patches = [d.patches for d in data if d.patches is not None]
        self.patches = self.padded(patches) if patches else None
        self.losses: list[tuple[list[int], Tensor]] = []

    def padded(self, tensors: Sequence[Tensor]) -> Tensor:
        """Clients' rows as one tensor; padding is never looked up."""
        return pad_sequence(list(tensors), batch_first=True).to(self.task.device)

    def step(self, rows: Sequence[int], index: Tensor, noise: Sequence[Params]) -> None:
        """One SGD step of the clients at `rows` (k,) on their images `index` (k, B)."""
        device = self.task.device
        where = torch.tensor(rows, device=device)
        everyone = len(rows) == len(self.pooled)
        chosen = {n: v if everyone else v[where] for n, v in self.params.items()}
        leaves = {
            n: v.detach().requires_grad_(True) if v.is_floating_point() else v
            for n, v in chosen.items()
        }
        index = index.to(device)
        drawn = {n: torch.stack([one[n] for one in noise]).to(device) for n in noise[0]}
        losses = self.loss(leaves, where, index, drawn)
        self.losses.append((list(rows), losses.detach()))
        total = losses.sum()
        if self.settings.prox > 0:
            total = total + self.settings.prox / 2 * distance(leaves, self.received)
        trained = [name for name, value in leaves.items() if value.requires_grad]
        gradients = torch.autograd.grad(total, [leaves[name] for name in trained])
        for name, gradient in zip(trained, gradients, strict=True):
            self.descend(name, chosen[name], gradient, None if everyone else where)

    def loss(self, params: Params, where: Tensor, index: Tensor, noise: Params) -> Tensor:
        """(k,) loss of each client on its own batch."""
        method, task = self.method, self.task
        images = {"pooled": self.pooled[where[:, None], index]}
        if self.patches is not None:
            images["patches"] = self.patches[where[:, None], index]

        def one(p: Params, f: Params, x: Params, labels: Tensor, noise: Params) -> Tensor:
            p = {**p, **self.common}
            batch = Batch(x["pooled"], x.get("patches"), labels)
            return method.loss(p, method.text(p, f, task), batch, task, noise)

        labels = self.labels[where[:, None], index]
        mapped = torch.func.vmap(one, in_dims=(0, 0, 0, 0, 0 if noise else None))
        losses: Tensor = mapped(params, self.features(params), images, labels, noise)
        return losses

    def features(self, params: Params) -> Params:
        """All clients' prompts through the tower in one batch: name -> (k, N, D)."""
        names: dict[str, Names] = {}

        def contexts(p: Params) -> Params:
            prompts = self.method.prompts({**p, **self.common}, self.task)
            names.update({name: prompt.names for name, prompt in prompts.items()})
            return {name: prompt.contexts for name, prompt in prompts.items()}

        features = {}
        for name, stacked in torch.func.vmap(contexts)(params).items():
            if stacked.dim() == 3:  # one context per client for all its names
                stacked = stacked[:, None].expand(-1, len(names[name]), -1, -1)
            features[name] = self.task.encode(stacked, names[name])
        return features

    def descend(self, name: str, value: Tensor, gradient: Tensor, where: Tensor | None) -> None:
        """`torch.optim.SGD`'s step on the rows `where` of one tensor, on all without it."""
        settings = self.settings
        if settings.weight_decay:
            gradient = gradient + settings.weight_decay * value
        if settings.momentum:
            kept = self.momentum.setdefault(name, torch.zeros_like(self.params[name]))
            gradient = gradient + settings.momentum * (kept if where is None else kept[where])
            self._write(self.momentum, name, gradient, where)
        self._write(self.params, name, value - settings.lr * gradient, where)

    @staticmethod
    def _write(params: Params, name: str, value: Tensor, where: Tensor | None) -> None:
        params[name] = value if where is None else params[name].index_copy(0, where, value)

    def results(self) -> list[tuple[State, float]]:
        """Each client's new state and mean loss."""
        taken: list[list[Tensor]] = [[] for _ in self.pooled]
        for rows, losses in self.losses:
            for row, loss in zip(rows, losses.cpu(), strict=True):
                taken[row].append(loss)
        found = []
        for row, losses_of_row in enumerate(taken):
            mine = {**{n: v[row] for n, v in self.params.items()}, **self.common}
            state = State({n: mine[n] for n in self.shared}, {n: mine[n] for n in self.private})
            mean = check_loss(float(torch.stack(losses_of_row).mean()), self.settings)
            found.append((state, mean))
        return found
