"""Check rules of the contract whose breach no run would notice, though its results depend on them.

A method that breaks one of them may run for days: its numbers then depend on the size of a batch,
cannot be repeated, or differ between a CPU and a GPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from focoop.clip import LabelledFeatures
from focoop.errors import FocoopError, MethodError
from focoop.federation.batched_training import BatchedTrainer
from focoop.federation.client import LocalSettings, make_update, train
from focoop.federation.contract import called, check_contract
from focoop.methods import Method, Params, Server, State, Task, unread_text
from focoop.seeds import torch_generator

if TYPE_CHECKING:
    from torch import Tensor

SEED = 0
# Largest difference that rounding of float32 explains, relative to the largest number.
ROUNDING = 1e-3


@dataclass(frozen=True)
class RuleCheck:
    """A rule of the contract, and how a method breaks it.

    Attributes:
        rule: The rule in words.
        problem: What is wrong and what to do; empty where the method keeps the rule.
        grave: Whether a run's numbers cannot be trusted where it is broken; a run then refuses.
    """

    rule: str
    problem: str = ""
    grave: bool = True

    @property
    def kept(self) -> bool:
        """Return whether the method keeps the rule."""
        return not self.problem


def check_rules(method: Method, task: Task, images: LabelledFeatures) -> list[RuleCheck]:
    """Check a method against every rule of the contract that a few images can tell.

    Args:
        method: The method.
        task: The task, with what `prepare` made of it.
        images: A few training images.

    Returns:
        The rules in order; the first one alone where types or shapes are wrong, and none at all
        without an image to try the method on.
    """
    if not len(images):
        return []
    first = RuleCheck("every function returns the types, names and shapes of the contract")
    try:
        check_contract(method, task, images)
    except FocoopError as error:
        return [replace(first, problem=str(error))]
    checks = [first]
    trial = _Trial(method, task, images.rows(torch.arange(len(images)), task.device))
    for rule, problems, grave in trial.rules():
        try:
            problem = next(problems(), "")
        except FocoopError as error:
            problem = str(error)
        checks.append(RuleCheck(rule, problem, grave))
    return checks


def require_rules(method: Method, task: Task, images: LabelledFeatures) -> list[str]:
    """Refuse a method that breaks a grave rule of the contract.

    Args:
        method: The method.
        task: The task, with what `prepare` made of it.
        images: A few training images.

    Returns:
        What is wrong with it otherwise.

    Raises:
        MethodError: It breaks a grave rule.
    """
    broken = [check for check in check_rules(method, task, images) if not check.kept]
    if grave := [check.problem for check in broken if check.grave]:
        raise MethodError(grave[0])
    return [check.problem for check in broken]


@dataclass(frozen=True)
class _Trial:
    """A method at its start, with the images it is tried on."""

    method: Method
    task: Task
    images: LabelledFeatures

    def rules(self) -> Iterator[tuple[str, Callable[[], Iterator[str]], bool]]:
        """The rules that apply: what finds what is wrong, and whether that is grave."""
        yield "shares and keeps say what travels and what stays", self.stated, False
        yield "answers and scores depend on their own image alone", self.company, True
        if not self.method.trains:
            return
        pure = "loss is a function of its arguments: it draws, changes and keeps nothing"
        yield pure, self.pure, True
        yield "equal updates leave the server as it is", self.equal_updates, False
        if self.method.together and not self.method.closed_form:
            batched = "clients that train in one batch take the steps they take alone"
            yield batched, self.batched, True

    def state(self) -> State:
        """The state of a client before its first round."""
        return self.state_of(self.images)

    def state_of(self, images: LabelledFeatures) -> State:
        """The state of the client that has these images."""
        state = self.method.init(self.task, torch_generator(SEED, "init"))
        if not state.private:
            return state
        counts = images.counts(len(self.task.classes))
        return State(state.shared, self.method.personalise(state.private, counts, self.task))

    def params(self) -> Params:
        """Its tensors by name."""
        state = self.state()
        return {**state.shared, **state.private}

    def stated(self) -> Iterator[str]:
        """The phrases that `focoop methods` shows against the tensors there are."""
        state = self.method.init(self.task, torch_generator(SEED, "init"))
        for attribute, tensors in (("shares", state.shared), ("keeps", state.private)):
            phrase = getattr(self.method, attribute)
            # A client's own counts are there for its prior (`Answering.unknown_counts`).
            names = ", ".join(name for name in tensors if name != "counts")
            if names and phrase == "nothing":
                yield f'the class says {attribute} = "nothing" and init gives {names}: name it'
            if phrase != "nothing" and not tensors:
                yield f"the class says {attribute} = {phrase!r} and init gives nothing of the kind"

    def company(self) -> Iterator[str]:
        """Answers to all images at once against answers to one at a time."""
        method, task, images = self.method, self.task, self.images
        with torch.no_grad():
            text = method.encode(self.params(), task)

            def answers(rows: slice) -> tuple[Tensor, Tensor]:
                patches = None if images.patches is None else images.patches[rows]
                logits = method.logits(text, images.pooled[rows], patches)
                return logits.id, method.score(logits, task)

            together = answers(slice(None))
            alone = [answers(slice(row, row + 1)) for row in range(len(images))]
        for place, function in enumerate(("logits", "score")):
            parts = torch.cat([one[place] for one in alone])
            if _far(parts, together[place]):
                yield (
                    f"{function} of an image changes with the images beside it: take no mean, "
                    "maximum or norm over the batch"
                )

    def pure(self) -> Iterator[str]:
        """The same step twice."""
        method, task, images = self.method, self.task, self.images
        params = self.params()
        before, kept = copy.deepcopy(params), dict(vars(method))
        outside = torch.random.get_rng_state()
        losses = []
        for _ in range(2):
            noise = method.noise(len(images), task, torch_generator(SEED, "check"))
            noise = {name: value.to(task.device) for name, value in noise.items()}
            text = method.encode(params, task) if method.reads_text else unread_text()
            losses.append(method.loss(params, text, images, task, noise))
        if not torch.equal(torch.random.get_rng_state(), outside):
            torch.random.set_rng_state(outside)
            yield "loss draws random numbers: draw them in noise, from its generator"
        if changed := [name for name in params if not torch.equal(params[name], before[name])]:
            yield f"loss writes into {changed[0]!r}: make a new tensor instead"
        if not torch.equal(losses[0], losses[1]):
            yield "loss differs between two equal calls: draw random numbers in noise"
        now = vars(method)
        if now.keys() != kept.keys() or any(now[name] is not kept[name] for name in kept):
            yield "loss keeps something on self: what must be remembered goes into the state"

    def equal_updates(self) -> Iterator[str]:
        """The server's step over clients that all send the same."""
        kind, task, state = type(self.method), self.task, self.state()
        settings = kind.identity_settings
        method = kind(replace(self.method.config, **settings)) if settings else self.method
        update = make_update(method, 0, state, self.images, task, 1.0)
        server = method.aggregate(
            Server(dict(state.shared)), [update, replace(update, client=1)], task
        )
        for name, value in server.shared.items():
            if name in method.server_made or (method.closed_form and name in method.untrained):
                continue  # the server makes it anew
            if _far(value, update.shared[name]):
                yield (
                    f"aggregate changes {name!r} although all clients sent the same: an average "
                    "would not (are the weights divided by their sum?). Where it is meant to, "
                    "name the settings that turn it off in identity_settings"
                )

    def batched(self) -> Iterator[str]:
        """A step of two clients in one batch against the step of each."""
        method, task, count = self.method, self.task, len(self.images)
        # The other client has half of the images, each twice: other counts of classes.
        data = [self.images, self.images.rows(torch.arange(count) // 2)]
        states = [self.state_of(images) for images in data]
        local = LocalSettings(epochs=1, batch_size=count, lr=1e-2)
        alone = [
            train(method, state, images, task, local, torch_generator(SEED, "check", k))[0]
            for k, (state, images) in enumerate(zip(states, data, strict=True))
        ]
        generators = [torch_generator(SEED, "check", k) for k in range(len(data))]
        trainer = BatchedTrainer(method, task, local)
        try:
            results = called(method, "loss", trainer.train, states, data, local.lr, generators)
        except MethodError as error:
            yield (
                f"{error}. A GPU trains many clients at once (torch.func.vmap): no .item(), no if "
                "on a tensor's value, no indexing by a mask. Or set together = False in the class"
            )
            return
        for (batched, _), single, before in zip(results, alone, states, strict=True):
            for name, value in {**batched.shared, **batched.private}.items():
                other = {**single.shared, **single.private}[name]
                first = {**before.shared, **before.private}[name]
                if value.is_floating_point() and _far(value - first, other - first):
                    yield (
                        f"{name!r} takes another step when clients train in one batch: look for "
                        "sums over the wrong dimension, or set together = False in the class"
                    )


def _far(value: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ by more than rounding."""
    if value.shape != other.shape:
        return True
    largest = max(float(other.abs().amax()), 1e-6) if other.numel() else 1.0
    return bool((value - other).abs().gt(ROUNDING * largest).any())
