"""A federation ends with the same tensors whether its clients train one by one or as one batch."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import focoop
from focoop.federation.contract_rules import check_rules
from focoop.federation.participation import Schedule
from focoop.federation.rounds import RoundSetup
from focoop.federation.simulator import MemoryStore, RoundResult, simulate
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
from focoop.seeds import torch_generator
from tests.federation.test_batched_training import PLAIN
from tests.methods.contract_toy import make_clients, make_task, spread

SIZES = [5, 0, 4, 6, 3]  # of clients: unequal, one without images
# Both ways add the same float64 numbers in another order; seven digits are left to spare.
TOLERANCE = 1e-9


class Scaffold(Method):
    """A context whose steps a client's own control corrects; nobody may train the control."""

    shares, keeps = "context", "a control"
    untrained = ("control",)

    def init(self, task: Task, generator: torch.Generator) -> State:
        context = focoop.first_context(task, generator, 2)
        return State({"context": context}, {"control": torch.zeros_like(context)})

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        return {"id": Prompt(params["context"], task.id_names)}

    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        return focoop.cosines(text, pooled)

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        logits = task.logit_scale * self.logits(text, batch.pooled, batch.patches).id
        correction = (params["control"] * params["context"]).sum()
        return torch.nn.functional.cross_entropy(logits, batch.labels) + correction

    def score(self, logits: Logits, task: Task) -> Tensor:
        return focoop.scores.mcm(logits.id)

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        return focoop.federated_average(server, updates, self.by_class)


class EveryKind(Scaffold):
    """A tensor of every kind that the contract knows, each of which moves the loss."""

    shares, keeps = "context, class means, a pace, an order", "a control, a bias, class counts"
    untrained = ("control", "means")
    server_made = ("pace",)
    by_class = ("means",)

    def init(self, task: Task, generator: torch.Generator) -> State:
        state, rows = super().init(task, generator), len(task.classes)
        shared = {
            "means": torch.zeros_like(task.anchors),
            "pace": task.anchors.new_ones(1),
            "order": torch.arange(rows).flip(0),
        }
        private = {"bias": task.anchors.new_zeros(rows), "counts": torch.zeros(rows).long()}
        return State({**state.shared, **shared}, {**state.private, **private})

    def personalise(self, private: Params, class_counts: Tensor, task: Task) -> Params:
        return {**private, "counts": class_counts}

    def measure(self, params: Params, images: Batch, task: Task) -> Params:
        onehot = torch.nn.functional.one_hot(images.labels, len(task.classes)).to(images.pooled)
        sums, counts = onehot.T @ images.pooled, onehot.sum(dim=0)[:, None]
        return {"means": torch.where(counts > 0, sums / counts.clamp(min=1), params["means"])}

    def remember(self, private: Params, images: Batch, task: Task) -> Params:
        control = private["control"]
        return {**private, "control": control / 2 + images.pooled[:, : control.shape[1]].mean(0)}

    def text(self, params: Params, features: Params, task: Task) -> Text:
        known = params["pace"] * params["means"] + features["id"]
        share = params["counts"].to(known) / params["counts"].sum().clamp(min=1)
        return Text(known, parts={"bias": (params["bias"] + share)[params["order"]]})

    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        return Logits(pooled @ text.id.T + text.parts["bias"])

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        averaged = super().aggregate(server, updates, task)
        rounds = averaged.memory.get("rounds", torch.zeros(1)) + 1
        pace = averaged.shared["pace"] * 0.9
        return Server({**averaged.shared, "pace": pace}, {"rounds": rounds})


def in_double(method: Method) -> Method:
    """The same method, whose tensors begin in float64."""
    kind = type(method)

    def init(self: Method, task: Task, generator: torch.Generator) -> State:
        state = kind.init(self, task, generator)
        return State(*(
            {n: v.double() if v.is_floating_point() else v for n, v in params.items()}
            for params in (state.shared, state.private)
        ))  # fmt: skip

    return type(kind.__name__, (kind,), {"init": init})(method.config)


def federated(method: Method, together: int) -> tuple[RoundResult, dict[int, Params]]:
    """Two rounds on unequal clients: the last one, and what every client keeps."""
    task = make_task(method, dtype=torch.float64)
    clients, store = make_clients(method, task, spread(SIZES)), MemoryStore()
    schedule = Schedule(2, 1.0, replace(PLAIN, epochs=1), together=together)
    *_, last = simulate(method, task, clients, schedule, store, seed=1)
    return last, store.params


METHODS = [*(n for n, kind in available().items() if kind.trains), EveryKind, Scaffold]


@pytest.mark.parametrize("kind", METHODS, ids=[getattr(kind, "__name__", kind) for kind in METHODS])
def test_groups_of_any_size_end_with_the_same_tensors(kind: str | type[Method]) -> None:
    method = in_double(create(kind) if isinstance(kind, str) else kind())
    alone, kept = federated(method, 1)
    for size in (2, 10):
        last, others = federated(method, size)
        same = {"rtol": TOLERANCE, "atol": TOLERANCE}
        assert last.loss == pytest.approx(alone.loss, rel=TOLERANCE, nan_ok=True)
        torch.testing.assert_close(last.server.shared, alone.server.shared, **same)
        torch.testing.assert_close(last.server.memory, alone.server.memory, **same)
        assert kept.keys() == others.keys()
        for client, params in kept.items():
            torch.testing.assert_close(others[client], params, **same)


def test_a_control_that_nobody_trains_stays_where_it_is() -> None:
    _, kept = federated(in_double(Scaffold()), 10)
    assert [*kept] == [0, 2, 3, 4] and not any(one["control"].any() for one in kept.values())


def test_the_toy_with_every_kind_of_tensor_keeps_the_contract_and_moves_all_of_them() -> None:
    method = in_double(EveryKind())
    task = make_task(method, dtype=torch.float64)
    (data,) = make_clients(method, task, [[0, 1, 2, 3, 0]])
    assert all(rule.kept for rule in check_rules(method, task, data()))
    first = method.init(task, torch_generator(1, "init"))
    last, kept = federated(method, 10)
    for name, value in {**last.server.shared, **kept[0]}.items():
        moved = not torch.equal(value, {**first.shared, **first.private}[name])
        assert moved == (name != "order"), name
    assert last.server.memory["rounds"].item() == 2  # an average keeps what the server remembers


def test_a_closed_form_of_ones_own_never_trains_as_one_batch() -> None:
    """It trains nothing, and a batch would take steps."""
    method = type("Measured", (EveryKind,), {"closed_form": True})()
    task = make_task(method, dtype=torch.float64)
    assert not RoundSetup(method, task, Schedule(1, 1.0, PLAIN, together=10), 0).batched
