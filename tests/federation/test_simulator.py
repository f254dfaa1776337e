"""The simulator: order, seeds, participation, empty clients and what may leave a client."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from focoop.errors import ConfigError, MethodError
from focoop.federation.client import ClientData, LocalSettings, learning_rate, train
from focoop.federation.round import aggregate, num_bytes, sample_clients
from focoop.federation.simulator import (
    MemoryStore,
    RoundResult,
    Schedule,
    client_state,
    simulate,
    start,
)
from focoop.methods import available, create
from focoop.methods._base import ClientUpdate, Method, Server, State, Task
from focoop.seeds import torch_generator
from tests.helpers import toy_backbone

CLASSES = ("apple", "pear", "plum", "fig")
WORDS = ("fog", "haste", "tax")
TRAINED = [name for name, method in available().items() if method.trains]


@pytest.fixture(scope="module")
def task() -> Task:
    backbone = toy_backbone()
    return Task(
        classes=CLASSES,
        encode=backbone.encode_prompts,
        id_names=backbone.names(CLASSES),
        ood_names=backbone.names(WORDS),
        anchors=backbone.encode_texts([f"a photo of a {name}." for name in CLASSES]),
        logit_scale=10.0,
        width=backbone.width,
        bare_names=backbone.names(CLASSES, period=False),
        texts=backbone.encode_texts,
        embed=backbone.embed,
    )


def make_clients(sizes: list[int], dim: int = 12) -> list[Callable[[], ClientData]]:
    """Clients with images near their class centres; client k's labels start at class k."""
    centres = F.normalize(torch.randn(4, dim, generator=torch_generator(0, "centres")), dim=-1)
    clients = []
    for client, size in enumerate(sizes):
        generator = torch_generator(0, "images", client)
        labels = (torch.arange(size) + client) % 4
        noise = 0.2 * torch.randn(size, dim, generator=generator)
        pooled = F.normalize(centres[labels] + noise, dim=-1)
        clients.append(lambda p=pooled, y=labels: ClientData(p, None, y))
    return clients


def run(method: Method, task: Task, sizes: list[int], **options: object) -> list[RoundResult]:
    schedule = Schedule(
        rounds=int(options.pop("rounds", 3)),  # type: ignore[call-overload]
        participation=float(options.pop("participation", 1.0)),  # type: ignore[arg-type]
        local=LocalSettings(epochs=2, batch_size=4, lr=0.5),
    )
    store = options.pop("store", None) or MemoryStore()
    clients = make_clients(sizes)
    return list(simulate(method, task, clients, schedule, store, seed=5, **options))  # type: ignore[arg-type]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", TRAINED)
def test_order_of_execution_changes_nothing(name: str, task: Task) -> None:
    stores = MemoryStore(), MemoryStore()
    forward = run(create(name), task, [7, 5, 6], store=stores[0])
    backward = run(create(name), task, [7, 5, 6], store=stores[1], order=lambda c: c[::-1])
    assert same(forward[-1].server.shared, backward[-1].server.shared)
    assert forward[-1].loss == backward[-1].loss
    for client in range(3):
        if stores[0].load(client) is not None:
            assert same(stores[0].params[client], stores[1].params[client])


@pytest.mark.parametrize("name", TRAINED)
def test_same_seed_same_bits_and_loss_falls(name: str, task: Task) -> None:
    one = run(create(name), task, [8, 8], rounds=6)
    two = run(create(name), task, [8, 8], rounds=6)
    assert same(one[-1].server.shared, two[-1].server.shared)
    assert [r.loss for r in one] == [r.loss for r in two]
    assert one[-1].loss < one[0].loss


@pytest.mark.parametrize("name", TRAINED)
def test_a_resumed_run_ends_where_the_whole_run_ends(name: str, task: Task) -> None:
    whole_store, store = MemoryStore(), MemoryStore()
    whole = run(create(name), task, [6, 6], rounds=4, store=whole_store)
    half = run(create(name), task, [6, 6], rounds=2, store=store)
    rest = run(create(name), task, [6, 6], rounds=4, store=store, resume=(2, half[-1].server))
    assert [r.round_index for r in rest] == [3, 4]
    assert same(whole[-1].server.shared, rest[-1].server.shared)
    assert all(same(whole_store.params[k], store.params[k]) for k in whole_store.params)


@pytest.mark.parametrize("name", TRAINED)
def test_private_tensors_never_travel_and_the_tower_gets_no_gradient(name: str, task: Task) -> None:
    method = create(name)
    initial = start(method, task, seed=0)
    data = make_clients([8])[0]()
    settings = LocalSettings(epochs=1, batch_size=4, lr=0.5)
    trained, _ = train(method, initial, data, task, settings, torch_generator(0))
    assert trained.shared.keys() == initial.shared.keys()
    assert not set(initial.private) & set(trained.shared)
    tower = task.encode.__self__.text  # type: ignore[attr-defined]
    assert all(p.grad is None and not p.requires_grad for p in tower.parameters())
    for before, after in ((initial.shared, trained.shared), (initial.private, trained.private)):
        for key, value in before.items():
            if value.is_floating_point():
                assert not torch.equal(value, after[key]), f"{key} did not train"


@pytest.mark.parametrize("name", TRAINED)
def test_empty_one_image_and_single_clients(name: str, task: Task) -> None:
    with_empty = run(create(name), task, [6, 0, 5])
    assert all(torch.isfinite(v).all() for v in with_empty[-1].server.shared.values())
    assert torch.isfinite(torch.tensor(run(create(name), task, [1])[-1].loss))
    nobody = run(create(name), task, [0, 0], rounds=1)
    initial = start(create(name), task, seed=5)
    assert same(nobody[-1].server.shared, initial.shared)


def test_participation_is_seeded_sorted_and_covers_everyone(task: Task) -> None:
    draws = [sample_clients(10, 0.3, seed=1, round_index=r) for r in range(60)]
    assert draws == [sample_clients(10, 0.3, seed=1, round_index=r) for r in range(60)]
    assert all(len(set(d)) == 3 and d == sorted(d) for d in draws)
    assert {c for d in draws for c in d} == set(range(10))
    assert sample_clients(3, 0.01, seed=0, round_index=1) != []
    with pytest.raises(ConfigError, match="participation"):
        sample_clients(3, 0.0, seed=0, round_index=1)


def test_only_participants_get_private_state(task: Task) -> None:
    store = MemoryStore()
    rounds = run(create("focoop"), task, [4] * 6, rounds=1, participation=0.5, store=store)
    assert tuple(sorted(store.params)) == rounds[0].participants


def test_bytes_count_what_travels(task: Task) -> None:
    rounds = run(create("promptfl"), task, [4, 4, 4], rounds=1)
    context = 16 * 16 * 4  # n tokens of width 16 in float32
    assert rounds[0].bytes_down == 3 * context
    assert rounds[0].bytes_up == 3 * (context + 4 * 8)  # and four int64 class counts
    assert num_bytes({"a": torch.zeros(3, dtype=torch.int64)}) == 24


def test_updates_are_sorted_and_a_client_may_not_vote_twice(task: Task) -> None:
    method = create("promptfl")
    shared = start(method, task, seed=0).shared
    counts = torch.ones(4, dtype=torch.int64)
    updates = [
        ClientUpdate(k, {"context": shared["context"] * (k + 1)}, 3 + k, counts, 0.0)
        for k in range(4)
    ]
    ordered = aggregate(method, Server(shared), updates, task)
    shuffled = aggregate(method, Server(shared), updates[::-1], task)
    assert same(ordered.shared, shuffled.shared)
    with pytest.raises(MethodError, match="two updates"):
        aggregate(method, Server(shared), [updates[0], updates[0]], task)


def test_divergence_is_named(task: Task) -> None:
    method = create("promptfl")
    data = make_clients([8])[0]()
    broken = ClientData(data.pooled * float("nan"), None, data.labels)
    settings = LocalSettings(epochs=1, batch_size=4, lr=0.5)
    with pytest.raises(MethodError, match=r"federation\.lr"):
        train(method, start(method, task, 0), broken, task, settings, torch_generator(0))


def test_client_state_takes_private_from_the_store(task: Task) -> None:
    initial = State({"a": torch.zeros(1)}, {"b": torch.zeros(1)})
    store = MemoryStore()
    server = Server({"a": torch.ones(1)})
    assert client_state(initial, server, store, 0).private["b"].item() == 0.0
    store.save(0, 1, {"b": torch.full((1,), 7.0)})
    assert client_state(initial, server, store, 0).private["b"].item() == 7.0
    assert client_state(initial, server, store, 0).shared["a"].item() == 1.0


def test_learning_rate_schedules() -> None:
    rates = [learning_rate(1.0, "cosine", r, 4) for r in range(1, 5)]
    assert rates[0] == 1.0 and rates == sorted(rates, reverse=True) and rates[-1] > 0
    assert learning_rate(1.0, "constant", 3, 4) == 1.0
    with pytest.raises(ConfigError, match="constant, cosine"):
        learning_rate(1.0, "linear", 1, 2)
