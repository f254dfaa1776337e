"""What every method keeps, found by the scan of focoop/methods: no method is named here."""

import copy
import dataclasses
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from focoop.clip.base import LabelledFeatures
from focoop.federation.client import train, trains
from focoop.federation.rounds import aggregate, start
from focoop.federation.simulator import MemoryStore
from focoop.federation.traffic import num_bytes
from focoop.fields import fields_of
from focoop.methods import available, create
from focoop.methods.base import ClientUpdate, Method, Server, Task
from focoop.runs.private_store import dump, read
from focoop.seeds import torch_generator
from tests.methods.contract_toy import (
    CLASSES,
    LOCAL,
    ROUNDS,
    Outcome,
    Tower,
    as_batch,
    federate,
    make_task,
    mean_loss,
    same,
    spread,
)

ALL = list(available())
TRAINED = [name for name, kind in available().items() if kind.trains]
HELD = spread([10, 8, 9])
every = pytest.mark.parametrize("name", ALL)
trained_ones = pytest.mark.parametrize("name", TRAINED)


@cache
def trained(name: str) -> Outcome:
    """A method after ROUNDS rounds on separable images; nobody may change what is in it."""
    method = create(name)
    return federate(method, make_task(method), HELD, rounds=ROUNDS if method.trains else 0)


@cache
def untrained(name: str) -> Outcome:
    """The same before its first round."""
    method = create(name)
    return federate(method, make_task(method), HELD, rounds=0)


@cache
def halfway(name: str) -> tuple[Outcome, list[ClientUpdate]]:
    """The same after half of the rounds, with all updates that reached the server."""
    method = create(name)
    arrived: list[ClientUpdate] = []
    original = method.aggregate

    def recorded(server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        arrived.extend(updates)
        return original(server, updates, task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(method, "aggregate", recorded)
        return federate(method, make_task(method), HELD, rounds=ROUNDS // 2), arrived


@every
def test_it_says_what_it_is(name: str) -> None:
    kind = available()[name]
    module = __import__(kind.__module__, fromlist=["__doc__"]).__doc__ or ""
    for part in ("Paper:", "Shared:", "Private:", "Differs from the authors' code:"):
        assert part in module, f"the file's docstring lacks {part!r}"
    assert kind.paper and kind.shares and kind.keeps and kind.scores_by and kind.__doc__
    for one, _ in fields_of(kind.Config):
        assert one.metadata.get("doc"), f"setting {one.name} has no line of documentation"
        grid = one.metadata.get("grid", ())
        assert not grid or one.default in grid, f"the grid of {one.name} lacks its default"


@every
def test_what_is_stated_about_parameters_is_so(name: str) -> None:
    kind = available()[name]
    state = start(create(name), make_task(create(name)), 0)
    assert bool(state.shared) == (kind.shares != "nothing")
    assert bool(state.private) == (kind.keeps != "nothing")
    assert not set(state.shared) & set(state.private)
    places = {t.untyped_storage().data_ptr() for t in state.shared.values()}
    assert not places & {t.untyped_storage().data_ptr() for t in state.private.values()}


@trained_ones
def test_loss_falls_and_the_classes_are_learned(name: str) -> None:
    fall, right = [], []
    for client, data in enumerate(trained(name).clients):
        fall.append(mean_loss(untrained(name), client) - mean_loss(trained(name), client))
        logits, _ = trained(name).answers(client, data())
        right.append((logits.argmax(dim=1) == data().labels).double().mean())
    # Closed forms that read the template are right about these classes from the start.
    # Some are sure of it, too: their loss is small and can fall by no more than all of it.
    first = min(mean_loss(untrained(name), client) for client in range(len(fall)))
    assert min(fall) > (min(0.1, 0.3 * first) if create(name).closed_form else 0.2)
    assert min(right) > 0.85


@every
def test_outliers_score_above_images_of_the_classes(name: str) -> None:
    known = trained(name).images([0, 1, 2, 3] * 10, "known")
    unknown = trained(name).images([-1] * 40, "unknown")
    logits, inside = trained(name).answers(0, known)
    _, outside = trained(name).answers(0, unknown)
    assert logits.shape == (40, len(CLASSES)) and inside.shape == outside.shape == (40,)
    assert torch.isfinite(torch.cat([inside, outside])).all()
    truth = [0] * 40 + [1] * 40
    assert roc_auc_score(truth, torch.cat([inside, outside]).numpy()) > 0.9


@every
def test_an_answer_does_not_depend_on_the_other_images(name: str) -> None:
    images = trained(name).images([0, 1, 2, 3, -1, -1], "company")
    logits, scores = trained(name).answers(0, images)
    for row in range(len(images)):
        part = slice(row, row + 1)
        patches = None if images.patches is None else images.patches[part]
        alone = LabelledFeatures(images.pooled[part], patches, images.labels[part])
        own_logits, own_score = trained(name).answers(0, alone)
        torch.testing.assert_close(own_logits, logits[part], rtol=0, atol=1e-4)
        torch.testing.assert_close(own_score, scores[part], rtol=1e-4, atol=1e-4)


@trained_ones
def test_the_tower_stays_frozen_and_everything_else_trains(name: str) -> None:
    outcome = untrained(name)
    method, task = outcome.method, outcome.task
    assert isinstance(task.encode, Tower)
    held = copy.deepcopy((task.encode.state_dict(), task.frozen, task.anchors))
    first = outcome.state(0)
    last, _ = train(method, first, outcome.clients[0](), task, LOCAL, torch_generator(0))
    assert all(p.grad is None and not p.requires_grad for p in task.encode.parameters())
    assert same(task.encode.state_dict(), held[0]) and same(task.frozen, held[1])
    assert torch.equal(task.anchors, held[2]) and task.anchors.grad is None
    for before, after in ((first.shared, last.shared), (first.private, last.private)):
        assert before.keys() == after.keys()
        for key, value in before.items():
            assert torch.equal(value, after[key]) != trains(method, key, value), key
            assert not after[key].requires_grad


@trained_ones
def test_a_step_is_pure(name: str) -> None:
    """Same arguments, same bits; nothing changed, nothing drawn, nothing kept on the method."""
    outcome = trained(name)
    method, task, state, data = outcome.method, outcome.task, outcome.state(0), outcome.clients[0]()
    params = {**state.shared, **state.private}
    before = copy.deepcopy(params)
    inside, outside = copy.deepcopy(vars(method)), torch.random.get_rng_state()
    losses, draws = [], []
    for _ in range(2):
        noise = method.noise(len(data), task, torch_generator(3, "step"))
        draws.append(copy.deepcopy(noise))
        text = method.encode(params, task)
        losses.append(method.loss(params, text, as_batch(data), task, noise))
        assert same(noise, draws[0])
    assert torch.equal(losses[0], losses[1]) and losses[0].shape == ()
    assert same(params, before) and vars(method) == inside
    assert torch.equal(torch.random.get_rng_state(), outside), "it drew from the global generator"


@trained_ones
def test_private_tensors_never_appear_in_an_update(name: str) -> None:
    outcome, arrived = halfway(name)
    initial, participants = outcome.initial, outcome.rounds[-1].participants
    sends = outcome.method.sent(initial.shared)
    assert len(arrived) == len(outcome.rounds) * len(participants)
    assert bool(outcome.store.params) == bool(initial.private)
    for update in arrived:
        assert update.shared.keys() == sends.keys()
        for kept in outcome.store.params.get(update.client, {}).values():
            assert not any(torch.equal(kept, sent) for sent in update.shared.values())
    sent = num_bytes(sends) + 8 * len(CLASSES)  # and the int64 class counts
    assert outcome.rounds[-1].bytes_up == sent * len(participants)


def identity_method(name: str) -> Method:
    """The method with the settings under which its server step is an average."""
    method = create(name)
    return type(method)(dataclasses.replace(method.config, **method.identity_settings))


@trained_ones
@pytest.mark.parametrize("clients", [1, 3])
def test_equal_updates_come_back_as_they_are(name: str, clients: int) -> None:
    task, shared = trained(name).task, trained(name).server.shared
    method = identity_method(name)
    server = untrained(name).server
    sizes = [7, 5, 11]
    measured = method.measure(shared, as_batch(trained(name).clients[0]()), task)
    sends = {**method.sent(shared), **measured}
    updates = [
        ClientUpdate(k, dict(sends), sizes[k], torch.arange(1, 5) + k, 0.0) for k in range(clients)
    ]
    result = aggregate(method, server, updates, task)
    assert result.shared.keys() == shared.keys()
    for key, value in result.shared.items():
        if method.closed_form and key.endswith("weight"):
            assert not value.any()  # a report of the round, which is over
            continue
        if method.closed_form and key not in measured:
            continue  # the server solves for it anew: how many images there are matters too
        torch.testing.assert_close(value, sends[key], rtol=1e-6, atol=1e-7)


def scattered(name: str, shift: int = 0) -> list[ClientUpdate]:
    """Three different updates from clients 0..2; `shift` renames the clients in a circle."""
    updates = []
    sends = trained(name).method.sent(trained(name).server.shared)
    for k in range(3):
        generator = torch_generator(k, "scatter")
        shared = {
            key: value + 0.1 * torch.randn(value.shape, generator=generator)
            if value.is_floating_point()
            else value
            for key, value in sends.items()
        }
        counts = torch.randint(1, 5, (len(CLASSES),), generator=generator)
        updates.append(ClientUpdate((k + shift) % 3, shared, int(counts.sum()), counts, 0.0))
    return updates


@trained_ones
def test_permuting_clients_changes_nothing(name: str) -> None:
    method, task, server = trained(name).method, trained(name).task, untrained(name).server
    updates = scattered(name)
    ordered = aggregate(method, server, updates, task)
    shuffled = aggregate(method, server, [updates[k] for k in (2, 0, 1)], task)
    assert same(ordered.shared, shuffled.shared) and same(ordered.memory, shuffled.memory)
    assert dict(ordered.report) == dict(shuffled.report)
    renamed = aggregate(method, server, scattered(name, shift=1), task)
    for key, value in renamed.shared.items():  # sums in another order: equal up to rounding
        torch.testing.assert_close(value, ordered.shared[key], rtol=1e-5, atol=1e-5)


@trained_ones
def test_same_seed_same_bits_in_any_order_of_execution(name: str) -> None:
    method, (forward, _) = create(name), halfway(name)
    backward = federate(
        method, make_task(method), HELD, rounds=ROUNDS // 2, order=lambda clients: clients[::-1]
    )
    assert same(forward.server.shared, backward.server.shared)
    assert same(forward.server.memory, backward.server.memory)
    assert [r.loss for r in forward.rounds] == [r.loss for r in backward.rounds]
    kept, again = forward.store.params, backward.store.params
    assert kept.keys() == again.keys() and all(same(kept[k], again[k]) for k in kept)


@trained_ones
def test_a_run_goes_on_from_files_as_if_it_had_not_stopped(name: str, tmp_path: Path) -> None:
    def through_a_file(params: dict[str, Tensor]) -> dict[str, Tensor]:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.safetensors"
        path.write_bytes(dump(params, {}))
        found = read(path)[0]
        assert same(found, params)
        return found

    whole, (half, _), store = trained(name), halfway(name), MemoryStore()
    server = Server(through_a_file(half.server.shared), through_a_file(half.server.memory))
    store.params = {k: through_a_file(params) for k, params in half.store.params.items()}
    resume = (ROUNDS // 2, server)
    rest = federate(whole.method, whole.task, HELD, rounds=ROUNDS, store=store, resume=resume)
    assert [r.round_index for r in rest.rounds] == list(range(ROUNDS // 2 + 1, ROUNDS + 1))
    assert same(rest.server.shared, whole.server.shared)
    assert all(same(store.params[k], whole.store.params[k]) for k in whole.store.params)
