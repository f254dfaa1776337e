"""Many clients as one batch take the steps each would take alone; FedProx pulls what it should."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from focoop.clip.base import LabelledFeatures
from focoop.clip.text.names import Names
from focoop.federation.batched_training import BatchedTrainer
from focoop.federation.client import LocalSettings, train
from focoop.methods import available, create
from focoop.methods.base import (
    Batch,
    ClientUpdate,
    Logits,
    Method,
    Params,
    Prompt,
    Server,
    State,
    Task,
    Text,
)
from focoop.methods.focoop import FOCoOpConfig
from focoop.seeds import torch_generator
from tests.federation.batched import train_together
from tests.methods.contract_toy import federate, make_clients, make_task, spread

TOGETHER = [n for n, kind in available().items() if kind.trains and create(n).together]
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
PLAIN = LocalSettings(epochs=2, batch_size=4, lr=0.2)


def start_states(method: Method, task: Task, sizes: Sequence[int]) -> tuple[list[State], list[Any]]:
    """Clients after different personal starts: same shared tensors, private ones moved apart."""
    held = spread(sizes)
    outcome = federate(method, task, held, rounds=0)
    data = [client() for client in make_clients(method, task, held)]
    dtype, states = task.anchors.dtype, []
    for client in range(len(data)):
        state = outcome.state(client)
        generator = torch_generator(client, "private start")
        private = {
            name: (v + 0.05 * torch.randn(v.shape, generator=generator)).to(dtype)
            if v.is_floating_point()
            else v
            for name, v in state.private.items()
        }
        shared = {n: v.to(dtype) if v.is_floating_point() else v for n, v in state.shared.items()}
        states.append(State(shared, private))
    return states, data


def assert_agree(
    method: Method, task: Task, sizes: Sequence[int], settings: LocalSettings
) -> list[tuple[State, float]]:
    """Train both ways; the generators must also end in the same state."""
    states, data = start_states(method, task, sizes)
    tolerance = TOLERANCE[task.anchors.dtype]
    alone_generators = [torch_generator(k, "client") for k in range(len(data))]
    generators = [torch_generator(k, "client") for k in range(len(data))]
    alone = [
        train(method, state, images, task, settings, generator)
        for state, images, generator in zip(states, data, alone_generators, strict=True)
    ]
    together = train_together(method, states, data, task, settings, generators)
    for (a, loss_a), (b, loss_b) in zip(alone, together, strict=True):
        assert loss_a == pytest.approx(loss_b, rel=tolerance, nan_ok=True)
        for one, other in ((a.shared, b.shared), (a.private, b.private)):
            assert one.keys() == other.keys()
            for name, value in one.items():
                torch.testing.assert_close(other[name], value, rtol=tolerance, atol=tolerance)
    for one_generator, other_generator in zip(alone_generators, generators, strict=True):
        assert torch.equal(one_generator.get_state(), other_generator.get_state())
    return together


CASES = {
    "equal clients": ([8, 8, 8], PLAIN),
    "unequal clients": ([9, 4, 1, 6], PLAIN),
    "empty clients": ([0, 5, 0, 4], PLAIN),
    "momentum and decay": ([7, 4], replace(PLAIN, momentum=0.9, weight_decay=0.05)),
    "prox": ([7, 4], replace(PLAIN, momentum=0.5, prox=2.0)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", TOGETHER)
def test_together_is_one_by_one_in_float64(name: str, case: str) -> None:
    method = create(name)
    sizes, settings = CASES[case]
    assert_agree(method, make_task(method, dtype=torch.float64), sizes, settings)


# The preset `focoop-paper`, its cheaper form, and the default's ascent, all on prompts.
PROMPT_SPACE: dict[str, dict[str, Any]] = {
    "paper": {
        "ascent": "alg2", "normalised_steps": False, "id_radius": 0.0, "ood_radius": 0.0,
        "step_size": 0.1, "tau_id": 10.0, "tau_ood": 10.0, "mu": 0.1, "outer": "paper",
    },
    "monotone": {},
}  # fmt: skip


@pytest.mark.parametrize("kind", PROMPT_SPACE)
def test_together_is_one_by_one_where_the_ascent_moves_prompts(kind: str) -> None:
    method = create("focoop", FOCoOpConfig(space="prompt", **PROMPT_SPACE[kind]))
    assert not method.reads_text
    found = assert_agree(method, make_task(method, dtype=torch.float64), [6, 3], PLAIN)
    still = create("focoop", FOCoOpConfig(space="prompt", ascent="none", **{
        name: value for name, value in PROMPT_SPACE[kind].items() if name != "ascent"
    }))  # fmt: skip
    other = assert_agree(still, make_task(still, dtype=torch.float64), [6, 3], PLAIN)
    assert not torch.allclose(found[0][0].shared["ood"], other[0][0].shared["ood"])


def test_together_is_one_by_one_as_the_released_code_trains() -> None:
    method = create("focoop", FOCoOpConfig(released=True))
    found = assert_agree(method, make_task(method, dtype=torch.float64), [6, 3], PLAIN)
    plain = create("focoop", FOCoOpConfig())
    other = assert_agree(plain, make_task(plain, dtype=torch.float64), [6, 3], PLAIN)
    assert not torch.allclose(found[0][0].shared["ood"], other[0][0].shared["ood"])


@pytest.mark.parametrize("name", TOGETHER)
def test_together_is_one_by_one_in_float32(name: str) -> None:
    method = create(name)
    settings = replace(PLAIN, epochs=1, momentum=0.9)
    assert_agree(method, make_task(method), [7, 4], settings)


class SmallMemory:
    """A text tower on a device whose memory holds a few clients at most."""

    def __init__(self, task: Task, holds: int) -> None:
        self.tower, self.holds = task.encode, holds
        self.asked: list[int] = []

    def __call__(self, contexts: Tensor, names: Names) -> Tensor:
        self.asked.append(len(contexts))
        if len(contexts) > self.holds:
            raise torch.OutOfMemoryError("too many clients")
        return self.tower(contexts, names)


def test_where_memory_is_too_small_clients_train_by_halves() -> None:
    method = create("focoop")
    task = make_task(method, dtype=torch.float64)
    states, data = start_states(method, task, [5, 4, 6, 3, 7])
    generators = [torch_generator(k, "client") for k in range(len(data))]
    expected = train_together(method, states, data, task, PLAIN, generators)
    again = [torch_generator(k, "client") for k in range(len(data))]
    small = SmallMemory(task, 2)
    trainer = BatchedTrainer(method, replace(task, encode=small), PLAIN)
    found = trainer.train(states, data, PLAIN.lr, again)
    assert trainer.limit == 2 and max(small.asked) > 2
    for (a, loss_a), (b, loss_b) in zip(expected, found, strict=True):
        assert loss_a == pytest.approx(float(loss_b), rel=1e-9)
        for name, value in {**a.shared, **a.private}.items():
            torch.testing.assert_close({**b.shared, **b.private}[name], value, rtol=1e-9, atol=1e-9)
    for one, other in zip(generators, again, strict=True):
        assert torch.equal(one.get_state(), other.get_state())
    small.asked.clear()
    trainer.train(states, data, PLAIN.lr, again)
    assert max(small.asked) == 2  # it does not try again what did not fit


def test_one_client_that_does_not_fit_is_an_error() -> None:
    method = create("promptfl")
    task = make_task(method)
    states, data = start_states(method, task, [5])
    trainer = BatchedTrainer(method, replace(task, encode=SmallMemory(task, 0)), PLAIN)
    with pytest.raises(torch.OutOfMemoryError):
        trainer.train(states, data, PLAIN.lr, [torch_generator(0, "client")])


class Bowl(Method):
    """a/2 |x - t|^2 + b/2 |y - t|^2 with x shared, y private and t the mean of a batch's images."""

    a, b = 3.0, 0.5

    @dataclass(frozen=True)
    class Config:
        """None."""

    def init(self, task: Task, generator: torch.Generator) -> State:
        width = task.anchors.shape[1]
        start = torch.linspace(-1, 1, width, dtype=torch.float64)
        return State({"x": start}, {"y": start.clone()})

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        return {}

    def text(self, params: Params, features: Params, task: Task) -> Text:
        return Text(task.anchors)

    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        return Logits(pooled @ text.id.T)

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        target = batch.pooled.mean(dim=0)
        shared = self.a / 2 * (params["x"] - target).square().sum()
        return shared + self.b / 2 * (params["y"] - target).square().sum()

    def score(self, logits: Logits, task: Task) -> Tensor:
        return -logits.id.amax(dim=1)

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        return server


def bowl_after(settings: LocalSettings, count: int) -> tuple[State, State, LabelledFeatures]:
    """(received, trained, images) of one client, whose batches all hold all its images."""
    method = Bowl()
    task = make_task(method, dtype=torch.float64)
    (client,) = make_clients(method, task, spread([count]))
    first = method.init(task, torch_generator(0))
    last, _ = train(method, first, client(), task, settings, torch_generator(0))
    return first, last, client()


@pytest.mark.parametrize("prox", [0.0, 0.7, 5.0])
def test_prox_is_the_closed_form_on_a_bowl(prox: float) -> None:
    """x_n = x* + (1 - lr (a + mu))^n (x_0 - x*), x* = (a t + mu x_0) / (a + mu); y has no mu."""
    steps, rate = 6, 0.1
    settings = LocalSettings(epochs=steps, batch_size=8, lr=rate, prox=prox)
    first, last, images = bowl_after(settings, 8)
    target, start = images.pooled.mean(dim=0), first.shared["x"]
    best = (Bowl.a * target + prox * start) / (Bowl.a + prox)
    expected = best + (1 - rate * (Bowl.a + prox)) ** steps * (start - best)
    torch.testing.assert_close(last.shared["x"], expected, rtol=1e-12, atol=1e-12)
    own = target + (1 - rate * Bowl.b) ** steps * (first.private["y"] - target)
    torch.testing.assert_close(last.private["y"], own, rtol=1e-12, atol=1e-12)


def test_a_strong_pull_keeps_shared_near_what_was_received_and_private_free() -> None:
    free = bowl_after(LocalSettings(epochs=50, batch_size=8, lr=1e-3), 8)
    held = bowl_after(LocalSettings(epochs=50, batch_size=8, lr=1e-3, prox=900.0), 8)

    def moved(found: tuple[State, State, LabelledFeatures]) -> float:
        return float((found[1].shared["x"] - found[0].shared["x"]).norm())

    assert moved(held) < 0.05 * moved(free)
    assert torch.equal(held[1].private["y"], free[1].private["y"])


def test_prox_together_is_prox_alone() -> None:
    method = Bowl()
    task = make_task(method, dtype=torch.float64)
    assert_agree(method, task, [6, 3, 5], replace(PLAIN, prox=1.5, momentum=0.3))


def test_the_reported_loss_is_the_methods_own_without_the_pull() -> None:
    method = Bowl()
    task = make_task(method, dtype=torch.float64)
    (client,) = make_clients(method, task, spread([8]))
    first = method.init(task, torch_generator(0))
    target, x, y = client().pooled.mean(dim=0), first.shared["x"], first.private["y"]
    losses = []
    for _ in range(4):
        gap_x, gap_y = x - target, y - target
        losses.append(Bowl.a / 2 * gap_x.square().sum() + Bowl.b / 2 * gap_y.square().sum())
        x = x - 0.1 * (Bowl.a * gap_x + 3.0 * (x - first.shared["x"]))
        y = y - 0.1 * Bowl.b * gap_y
    settings = LocalSettings(epochs=4, batch_size=8, lr=0.1, prox=3.0)
    _, loss = train(method, first, client(), task, settings, torch_generator(0))
    assert loss == pytest.approx(float(torch.stack(losses).mean()), rel=1e-12)
