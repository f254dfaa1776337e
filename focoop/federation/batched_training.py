"""Many clients' local training in one batch: the same steps as one client at a time.

Clients never meet: each has its own parameters, rows of stacked tensors, its own images and its own
generator, asked for the same numbers in the same order as alone. Only the frozen tower and the
products see one large batch, so that results agree with `client.train` up to rounding. Clients
whose batches differ in size take their steps in groups of equal size. Clients of one recipe may
belong to several runs (seeds); those of other recipes (methods) share the passes through the tower.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import zip_longest

import torch
from torch import Tensor

from focoop.clip import Names
from focoop.federation.client import ClientData, LocalSettings, check_loss, distance
from focoop.federation.client_batch import Lot, Recipe, Request, Step, part
from focoop.federation.cuda_graphs import Graphs, Pool, branches
from focoop.methods import Batch, Method, Params, Prompt, State, Task
from focoop.threads import one_core

# At most, that draw clients' noise beside a GPU.
THREADS = 16
# New states and mean losses (), which may still be on their way; NaN without images.
Results = list[tuple[State, Tensor]]
Train = Callable[[Request], Results]


class Together:
    """Trains clients in batches; keep it for a whole run, it remembers its steps.

    `limit` is how many train as one batch; None: all that are asked for.
    """

    def __init__(self, device: torch.device, limit: int | None = None) -> None:
        self.limit = limit
        self.pool = Pool()
        self.steps: dict[tuple[Recipe, ...], Graphs] = {}
        count = min(THREADS, os.cpu_count() or 1)
        self.threads = None if device.type == "cpu" else ThreadPoolExecutor(count)

    def train(self, requests: Sequence[Request]) -> list[Results]:
        """`client.train` of every request's clients.

        Where the device's memory is too small for all, they train by halves.
        """
        total = sum(map(len, requests))
        size = min(self.limit or total, total)
        if size < total:
            found: list[Results] = [[] for _ in requests]
            for batch in packed(requests, size):
                for (number, _), results in zip(
                    batch, self.train([r for _, r in batch]), strict=True
                ):
                    found[number] += results
            return found
        try:
            with rewound(requests):
                return self.train_all(requests)
        except torch.OutOfMemoryError:
            if size <= 1:
                raise
        self.steps.clear()
        self.pool = Pool()
        self.limit = (size + 1) // 2
        return self.train(requests)

    def train_all(self, requests: Sequence[Request]) -> list[Results]:
        """As `train`, all in one batch."""
        # Threads draw noise beside this one: an operation on all cores would wait for all of them.
        with one_core() if self.threads else nullcontext():
            return self._train_all(requests)

    def _train_all(self, requests: Sequence[Request]) -> list[Results]:
        lots = [Lot(alike) for alike in grouped(requests)]
        lots = [lot for lot in lots if lot.places]
        for lot in lots:
            lot.in_step = len(lots) == 1 and len({len(images) for images in lot.data}) == 1
        steps = [lot.next_steps(self.threads) for lot in lots]
        try:
            for lot in lots:
                lot.gather()  # while threads draw noise
            while any(steps):
                for taken in zip_longest(*steps):
                    self.take([(lot, step) for lot, step in zip(lots, taken, strict=True) if step])
                steps = [lot.next_steps(self.threads) for lot in lots]
        finally:
            for step in (one for of_lot in steps for one in of_lot):
                step.noise.ready()  # nobody may go on drawing from these generators
        nothing = torch.full((), math.nan, device=requests[0].recipe.task.device)
        found: list[Results] = [[(state, nothing) for state in r.states] for r in requests]
        for lot in lots:
            for (number, client), state, loss in lot.results():
                found[number][client] = state, loss
        return found

    def take(self, pairs: Sequence[tuple[Lot, Step]]) -> None:
        """A step of some lots' clients at once, recorded where that pays."""
        inputs: Params = {}
        constants: Params = {}
        for at, (lot, step) in enumerate(pairs):
            inputs |= {f"{at}/{n}": v for n, v in lot.inputs(step).items()}
            constants |= {f"{at}/{n}": v for n, v in lot.constants.items()}
        recipes = tuple(lot.recipe for lot, _ in pairs)
        if recipes not in self.steps:
            self.steps[recipes] = Graphs(partial(type(self).step, recipes), self.pool)
        outputs = self.steps[recipes](inputs, constants)
        for at, (lot, step) in enumerate(pairs):
            lot.keep(step, part(outputs, str(at)))

    @staticmethod
    def step(recipes: Sequence[Recipe], inputs: Params) -> Params:
        """One SGD step of lots of k clients: parameters in, parameters and losses (k,) out.

        All names begin with the place of a lot's recipe among `recipes`.
        """
        lots = [part(inputs, str(at)) for at in range(len(recipes))]
        leaves = [{n: v.detach() for n, v in part(lot, "param").items()} for lot in lots]
        floats = [[n for n, v in params.items() if v.is_floating_point()] for params in leaves]
        trained = [(at, name) for at, names in enumerate(floats) for name in names]
        for at, name in trained:
            leaves[at][name].requires_grad_(True)
        encoded = encode(recipes, leaves, lots)
        jobs = [
            partial(losses, *given) for given in zip(recipes, leaves, encoded, lots, strict=True)
        ]
        found = branches(jobs, inputs["0/rate"].device)
        total = torch.stack([one.sum() for one in found]).sum()
        for recipe, params, lot in zip(recipes, leaves, lots, strict=True):
            received = {**part(lot, "received"), **part(lot, "one/received")}
            if recipe.settings.prox > 0:
                total = total + recipe.settings.prox / 2 * distance(params, received)
        gradients = torch.autograd.grad(total, [leaves[at][name] for at, name in trained])
        outputs = {f"{at}/loss": one.detach() for at, one in enumerate(found)}
        for (at, name), gradient in zip(trained, gradients, strict=True):
            # The step of torch.optim.SGD.
            settings, lot = recipes[at].settings, lots[at]
            param, rate = lot[f"param/{name}"], lot["rate"]
            if settings.weight_decay:
                gradient = gradient + settings.weight_decay * param
            if settings.momentum:
                gradient = gradient + settings.momentum * lot[f"momentum/{name}"]
                outputs[f"{at}/momentum/{name}"] = gradient
            rate = rate.to(param.dtype).view(-1, *[1] * (param.dim() - 1))
            outputs[f"{at}/param/{name}"] = torch.addcmul(param, rate, gradient, value=-1.0)
        return outputs


def losses(recipe: Recipe, params: Params, features: Params, lot: Params) -> Tensor:
    """(k,) loss of each client on its own batch."""
    method, task = recipe.method, recipe.task
    own, common = untrained(lot)

    def one(p: Params, own: Params, f: Params, x: Params, noise: Params) -> Tensor:
        p = {**p, **own, **common}
        batch = Batch(x["pooled"], x.get("patches"), x["labels"])
        return method.loss(p, method.text(p, f, task), batch, task, noise)

    noise = part(lot, "noise")
    dims = (0, 0 if own else None, 0, 0, 0 if noise else None)
    mapped = torch.func.vmap(one, in_dims=dims)
    found: Tensor = mapped(params, own, features, part(lot, "image"), noise)
    return found


def untrained(lot: Params) -> tuple[Params, Params]:
    """What nobody trains: each client's own (k, ...), and what is one for all of a lot."""
    return part(lot, "fixed"), {**part(lot, "common"), **part(lot, "one/fixed")}


def prompted(recipe: Recipe, params: Params, lot: Params) -> dict[str, Prompt]:
    """What a lot's clients send through the tower: contexts (k, N or 1, n, d_t) by name."""
    names: dict[str, Names] = {}
    own, common = untrained(lot)

    def contexts(p: Params, own: Params) -> Params:
        prompts = recipe.method.prompts({**p, **own, **common}, recipe.task)
        names.update({name: prompt.names for name, prompt in prompts.items()})
        return {name: prompt.contexts for name, prompt in prompts.items()}

    found = torch.func.vmap(contexts, in_dims=(0, 0 if own else None))(params, own)
    # (k, n, d_t): one context per client for all its names.
    stacked = {n: v[:, None] if v.dim() == 3 else v for n, v in found.items()}
    return {name: Prompt(value, names[name]) for name, value in stacked.items()}


def encode(
    recipes: Sequence[Recipe], params: Sequence[Params], lots: Sequence[Params]
) -> list[Params]:
    """All clients' prompts through the tower: of each lot, name -> (k, N, D).

    Prompts of one form for the same names are one batch; sets of names run side by side.
    """
    prompts = [prompted(*given) for given in zip(recipes, params, lots, strict=True)]
    wanted: dict[int, dict[object, list[tuple[int, str]]]] = {}
    for at, mine in enumerate(prompts):
        for name, prompt in mine.items():
            form = (recipes[at].task.encode, prompt.contexts.shape[1:])
            wanted.setdefault(id(prompt.names), {}).setdefault(form, []).append((at, name))
    features: list[Params] = [{} for _ in recipes]

    def through(forms: dict[object, list[tuple[int, str]]]) -> None:
        for batch in forms.values():
            first = batch[0]
            contexts = [prompts[at][name].contexts for at, name in batch]
            joined = contexts[0] if len(contexts) == 1 else torch.cat(contexts)
            found = recipes[first[0]].task.encode(joined, prompts[first[0]][first[1]].names)
            for (at, name), one in zip(
                batch, torch.split(found, [*map(len, contexts)]), strict=True
            ):
                features[at][name] = one

    branches([partial(through, forms) for forms in wanted.values()], recipes[0].task.device)
    return features


@contextmanager
def rewound(requests: Sequence[Request]) -> Iterator[None]:
    """The requests' generators as they were before, where the block fails."""
    generators = [generator for request in requests for generator in request.generators]
    before = [generator.get_state() for generator in generators]
    try:
        yield
    except Exception:
        for generator, kept in zip(generators, before, strict=True):
            generator.set_state(kept)
        raise


def packed(requests: Sequence[Request], size: int) -> Iterator[list[tuple[int, Request]]]:
    """Requests cut into batches of `size` clients, each part with the number of its request."""
    batch: list[tuple[int, Request]] = []
    room = size
    for number, request in enumerate(requests):
        done = 0
        while done < len(request):
            rows = slice(done, done + room)
            batch.append((number, request.part(rows)))
            done, room = rows.stop, room - len(batch[-1][1])
            if room == 0:
                yield batch
                batch, room = [], size
    if batch:
        yield batch


def grouped(requests: Sequence[Request]) -> list[list[tuple[int, Request]]]:
    """Requests with their numbers, those together that one lot can hold."""
    groups: list[list[tuple[int, Request]]] = []
    for number, request in enumerate(requests):
        if not len(request):
            continue
        for group in groups:
            if alike(group[0][1], request):
                group.append((number, request))
                break
        else:
            groups.append([(number, request)])
    return groups


def alike(one: Request, other: Request) -> bool:
    """Whether clients of both can be rows of the same tensors."""
    if one.recipe is not other.recipe:
        return False
    mine, others = one.states[0].shared, other.states[0].shared
    whole = [n for n, v in mine.items() if not v.is_floating_point()]
    return all(torch.equal(mine[name], others[name]) for name in whole)


def train_together(
    method: Method,
    states: Sequence[State],
    data: Sequence[ClientData],
    task: Task,
    settings: LocalSettings,
    generators: Sequence[torch.Generator],
) -> list[tuple[State, float]]:
    """`client.train` for clients that received the same shared tensors, as one batch."""
    request = Request(Recipe(method, task, settings), states, data, settings.lr, generators)
    (results,) = Together(task.device).train([request])
    losses = on_host([loss for _, loss in results])
    for loss, images in zip(losses, data, strict=True):
        if len(images):
            check_loss(loss, settings.lr)
    return [(state, loss) for (state, _), loss in zip(results, losses, strict=True)]


def on_host(losses: Sequence[Tensor | float]) -> list[float]:
    """Losses () as numbers; the host waits for the device once."""
    given = [loss for loss in losses if isinstance(loss, Tensor)]
    numbers = iter(torch.stack(given).tolist() if given else [])
    return [next(numbers) if isinstance(loss, Tensor) else loss for loss in losses]
