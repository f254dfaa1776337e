"""Local training of many clients in one batch: the steps are those of `client.train`.

Clients share no mutable state: each has its own parameters (rows of stacked tensors), its own
images and its own generator, which is asked for the same numbers in the same order as when the
client trains alone. Only the frozen text tower and the matrix products see one large batch, so the
results agree with `client.train` up to rounding. Clients whose batches differ in size take their
steps in groups of equal size.
"""

import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from focoop.clip import LabelledFeatures, Names
from focoop.federation.client import LocalSettings, distance
from focoop.federation.client_batch import ClientBatch, Step, Turns, part
from focoop.federation.cuda_graphs import Graphs, branches
from focoop.methods import Method, Params, Prompt, State, Task, unread_text
from focoop.threads import one_core

# At most, that draw clients' noise beside a GPU.
THREADS = 16
# New states and mean losses (), which may still be on their way; NaN without images.
Results = list[tuple[State, Tensor]]


@dataclass(frozen=True, eq=False)
class SgdStep:
    """One SGD step of k clients as a pure function of named tensors, which a GPU can record."""

    method: Method
    task: Task
    settings: LocalSettings

    def __call__(self, inputs: Params) -> Params:
        """One SGD step of k clients: parameters in, parameters and losses (k,) out."""
        leaves = {n: v.detach().requires_grad_(True) for n, v in part(inputs, "param").items()}
        params = {**leaves, **part(inputs, "held")}
        features = self._encode(params, inputs) if self.method.reads_text else {}
        losses = self._losses(params, features, inputs)
        total = losses.sum()
        if self.settings.prox > 0:
            total = total + self.settings.prox / 2 * distance(leaves, part(inputs, "received"))
        gradients = torch.autograd.grad(total, [*leaves.values()])
        outputs = {"loss": losses.detach()}
        for name, gradient in zip(leaves, gradients, strict=True):
            # The step of torch.optim.SGD.
            param, rate = inputs[f"param/{name}"], inputs["rate"]
            if self.settings.weight_decay:
                gradient = gradient + self.settings.weight_decay * param
            if self.settings.momentum:
                gradient = gradient + self.settings.momentum * inputs[f"momentum/{name}"]
                outputs[f"momentum/{name}"] = gradient
            rate = rate.to(param.dtype).view(-1, *[1] * (param.dim() - 1))
            outputs[f"param/{name}"] = torch.addcmul(param, rate, gradient, value=-1.0)
        return outputs

    def _losses(self, params: Params, features: Params, inputs: Params) -> Tensor:
        """(k,) loss of each client on its own batch."""
        common = untrained(inputs)

        def client_loss(p: Params, f: Params, x: Params, noise: Params) -> Tensor:
            p = {**p, **common}
            batch = LabelledFeatures(x["pooled"], x.get("patches"), x["labels"])
            text = self.method.text(p, f, self.task) if self.method.reads_text else unread_text()
            return self.method.loss(p, text, batch, self.task, noise)

        noise = part(inputs, "noise")
        dims = (0, 0 if features else None, 0, 0 if noise else None)
        mapped = torch.func.vmap(client_loss, in_dims=dims)
        losses: Tensor = mapped(params, features, part(inputs, "image"), noise)
        return losses

    def _prompts(self, params: Params, inputs: Params) -> dict[str, Prompt]:
        """What the clients send through the tower: contexts (k, N or 1, n, d_t) by name."""
        names: dict[str, Names] = {}
        common = untrained(inputs)

        def contexts(p: Params) -> Params:
            prompts = self.method.prompts({**p, **common}, self.task)
            names.update({name: prompt.names for name, prompt in prompts.items()})
            return {name: prompt.contexts for name, prompt in prompts.items()}

        mapped = torch.func.vmap(contexts)(params)
        # (k, n, d_t): one context per client for all its names.
        stacked = {n: v[:, None] if v.dim() == 3 else v for n, v in mapped.items()}
        return {name: Prompt(value, names[name]) for name, value in stacked.items()}

    def _encode(self, params: Params, inputs: Params) -> Params:
        """All clients' prompts through the tower: name -> (k, N, D).

        Prompts of one shape for the same names are one batch; sets of names run side by side.
        """
        prompts = self._prompts(params, inputs)
        wanted: dict[int, dict[object, list[str]]] = {}
        for name, prompt in prompts.items():
            shapes = wanted.setdefault(id(prompt.names), {})
            shapes.setdefault(prompt.contexts.shape[1:], []).append(name)
        features: Params = {}

        def through(shapes: dict[object, list[str]]) -> None:
            for batch in shapes.values():
                contexts = [prompts[name].contexts for name in batch]
                joined = contexts[0] if len(contexts) == 1 else torch.cat(contexts)
                encodings = self.task.encode(joined, prompts[batch[0]].names)
                parts = torch.split(encodings, [*map(len, contexts)])
                features.update(zip(batch, parts, strict=True))

        branches([partial(through, shapes) for shapes in wanted.values()], self.task.device)
        return features


@dataclass(frozen=True)
class Begun:
    """A training whose first noise is drawn before its tensors are there."""

    turns: Turns
    steps: list[Step]


class BatchedTrainer:
    """Trains the clients of one run in batches; it keeps the recorded steps between rounds."""

    def __init__(
        self, method: Method, task: Task, settings: LocalSettings, limit: int | None = None
    ) -> None:
        """Prepare for the training of a run's clients.

        Args:
            method: the method of all clients.
            task: classes, tower and device of all clients.
            settings: local settings of all clients; `train` gives the learning rate.
            limit: how many clients train as one batch at most; None: all that are given.
        """
        self.method, self.task, self.settings = method, task, settings
        self.limit = limit
        self.graphs = Graphs(SgdStep(self.method, self.task, self.settings))
        count = min(THREADS, os.cpu_count() or 1)
        self.threads = None if task.device.type == "cpu" else ThreadPoolExecutor(count)

    def begin(self, sizes: Sequence[int], generators: Sequence[torch.Generator]) -> Begun | None:
        """Draw what the first steps of a coming training need, while the device is busy.

        Args:
            sizes: number of images of each client.
            generators: each client's own random numbers, which nobody else may use.

        Returns:
            What `train` takes; None where no threads draw, or clients train by parts.
        """
        if self.threads is None or len(sizes) > (self.limit or len(sizes)):
            return None
        turns = Turns(self.method, self.task, self.settings, sizes, generators)
        return Begun(turns, turns.next_steps(self.threads))

    def train(
        self,
        states: Sequence[State],
        data: Sequence[LabelledFeatures],
        lr: float,
        generators: Sequence[torch.Generator],
        begun: Begun | None = None,
    ) -> Results:
        """Train clients that received the same shared tensors, as `client.train` would.

        Where the device's memory is too small for all of them, they train by halves.

        Args:
            states: what each client starts from; the shared tensors are equal.
            data: each client's images.
            lr: learning rate of this round.
            generators: each client's own random numbers.
            begun: what `begin` made from generators of the same seeds; then those are used.

        Returns:
            Each client's new state and its mean loss (); NaN for a client without images.

        Raises:
            torch.OutOfMemoryError: the memory is too small for one client.
        """
        total = len(states)
        size = min(self.limit or total, total)
        if size < total:
            results: Results = []
            for first in range(0, total, size):
                rows = slice(first, first + size)
                results += self.train(states[rows], data[rows], lr, generators[rows])
            return results
        try:
            # Threads draw noise beside this one: an operation on all cores would wait for them.
            with rewound(generators), one_core() if self.threads else nullcontext():
                if begun is None or begun.turns.sizes != [len(images) for images in data]:
                    sizes = [len(images) for images in data]
                    turns = Turns(self.method, self.task, self.settings, sizes, generators)
                    begun = Begun(turns, turns.next_steps(self.threads))
                return self._train_all(states, data, lr, begun)
        except torch.OutOfMemoryError:
            if size <= 1:
                raise
        self.graphs = Graphs(SgdStep(self.method, self.task, self.settings))
        self.limit = (size + 1) // 2
        return self.train(states, data, lr, generators)

    def _train_all(
        self,
        states: Sequence[State],
        data: Sequence[LabelledFeatures],
        lr: float,
        begun: Begun,
    ) -> Results:
        nothing = torch.full((), math.nan, device=self.task.device)
        results: Results = [(state, nothing) for state in states]
        turns, steps = begun.turns, begun.steps
        batch = ClientBatch(self.method, self.task, self.settings, states, data, lr, turns.clients)
        if not batch.clients:
            return results
        try:
            batch.gather()  # while threads draw noise
            while steps:
                for step in steps:
                    self._take(batch, step)
                steps = turns.next_steps(self.threads)
        finally:
            for step in steps:
                step.noise.ready()  # nobody may go on drawing from these generators
        for client, state, loss in batch.results():
            results[client] = state, loss
        return results

    def _take(self, batch: ClientBatch, step: Step) -> None:
        """A step of some clients at once, recorded where that pays."""
        batch.keep(step, self.graphs(batch.inputs(step), batch.constants))


def untrained(inputs: Params) -> Params:
    """Pick the tensors that no client trains and all clients share, such as the numbers of words.

    Args:
        inputs: What a step reads, by `part/name`.

    Returns:
        Those tensors by name.
    """
    return {**part(inputs, "common"), **part(inputs, "fixed")}


@contextmanager
def rewound(generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Set generators back to where they were before, if the block fails.

    Args:
        generators: The generators.

    Yields:
        Nothing.
    """
    before = [generator.get_state() for generator in generators]
    try:
        yield
    except Exception:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)
        raise


def on_host(losses: Sequence[Tensor | float]) -> list[float]:
    """Return losses as numbers; the host waits for the device once.

    Args:
        losses: Scalars.

    Returns:
        Numbers.
    """
    given = [loss for loss in losses if isinstance(loss, Tensor)]
    numbers = iter(torch.stack(given).tolist() if given else [])
    return [next(numbers) if isinstance(loss, Tensor) else loss for loss in losses]
