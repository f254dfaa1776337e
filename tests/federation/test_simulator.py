"""The simulator: participation, order of updates, bytes and what a client starts from.

What every method keeps in it is in tests/methods/test_contract.py.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from focoop.clip.base import LabelledFeatures
from focoop.errors import ConfigError, MethodError
from focoop.federation.client import LocalSettings, learning_rate, train
from focoop.federation.participation import Schedule, sample_clients
from focoop.federation.rounds import aggregate, client_state, start
from focoop.federation.simulator import MemoryStore, RoundResult, simulate
from focoop.federation.traffic import num_bytes
from focoop.methods import create
from focoop.methods.base import ClientUpdate, Method, Params, Server, State, Task
from focoop.methods.local_only import LocalOnly
from focoop.seeds import torch_generator
from tests.helpers import toy_backbone

CLASSES = ("apple", "pear", "plum", "fig")
WORDS = ("fog", "haste", "tax")


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


def make_clients(sizes: list[int], dim: int = 12) -> list[Callable[[], LabelledFeatures]]:
    """Clients with images near their class centres; client k's labels start at class k."""
    centres = F.normalize(torch.randn(4, dim, generator=torch_generator(0, "centres")), dim=-1)
    clients = []
    for client, size in enumerate(sizes):
        generator = torch_generator(0, "images", client)
        labels = (torch.arange(size) + client) % 4
        noise = 0.2 * torch.randn(size, dim, generator=generator)
        pooled = F.normalize(centres[labels] + noise, dim=-1)
        clients.append(lambda p=pooled, y=labels: LabelledFeatures(p, None, y))
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
    rounds = run(create("local_only"), task, [4] * 6, rounds=1, participation=0.5, store=store)
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
    assert torch.equal(ordered.shared["context"], shuffled.shared["context"])
    with pytest.raises(MethodError, match="two updates"):
        aggregate(method, Server(shared), [updates[0], updates[0]], task)


def test_divergence_is_named(task: Task) -> None:
    method = create("promptfl")
    data = make_clients([8])[0]()
    broken = LabelledFeatures(data.pooled * float("nan"), None, data.labels)
    settings = LocalSettings(epochs=1, batch_size=4, lr=0.5)
    with pytest.raises(MethodError, match=r"federation\.lr"):
        train(method, start(method, task, 0), broken, task, settings, torch_generator(0))


class Counting(LocalOnly):
    """Starts its private tensor from the client's own class counts."""

    def personalise(self, private: Params, class_counts: Tensor, task: Task) -> Params:
        return {"b": private["b"] + class_counts}


def test_client_state_is_personal_at_first_and_then_what_was_kept(task: Task) -> None:
    initial = State({"a": torch.zeros(1)}, {"b": torch.zeros(4)})
    server, method = Server({"a": torch.ones(1)}), Counting()

    def unasked() -> Tensor:
        raise AssertionError("class counts are for a client's first round")

    counts = torch.tensor([3, 0, 1, 0])
    first = client_state(method, task, initial, server, None, lambda: counts)
    assert first.private["b"].tolist() == [3.0, 0.0, 1.0, 0.0]
    assert first.shared["a"].item() == 1.0
    kept = {"b": torch.full((4,), 7.0)}
    later = client_state(method, task, initial, server, kept, unasked)
    assert later.private["b"].tolist() == [7.0] * 4
    public = client_state(method, task, State(initial.shared), server, None, unasked)
    assert public.private == {} and public.shared["a"].item() == 1.0


def test_learning_rate_schedules() -> None:
    rates = [learning_rate(1.0, "cosine", r, 4) for r in range(1, 5)]
    assert rates[0] == 1.0 and rates == sorted(rates, reverse=True) and rates[-1] > 0
    assert learning_rate(1.0, "constant", 3, 4) == 1.0
    with pytest.raises(ConfigError, match="constant, cosine"):
        learning_rate(1.0, "linear", 1, 2)


def late_run(name: str, task: Task, late: int) -> tuple[list[RoundResult], MemoryStore]:
    schedule = Schedule(3, 1.0, LocalSettings(2, 4, 0.5), "cosine", late=late)
    store, method = MemoryStore(), create(name)
    results = simulate(method, task, make_clients([8, 8, 8]), schedule, store, seed=5)
    return list(results), store


def test_late_clients_join_in_the_last_round_alone(task: Task) -> None:
    results, store = late_run("promptfolio", task, 1)
    assert [r.participants for r in results] == [(0, 1), (0, 1), (2,)]
    for key, value in results[1].server.shared.items():
        assert torch.equal(results[2].server.shared[key], value)  # an average would forget others
    # The late client trained its private context in its one round, at the rate of the first.
    assert sorted(store.params) == [0, 1, 2]
    first = start(create("promptfolio"), task, 5).private
    moved = {k: (store.params[2][k] - first[k]).abs().max() for k in first}
    assert min(moved.values()) > 1e-3
    resumed = list(
        simulate(
            create("promptfolio"),
            task,
            make_clients([8, 8, 8]),
            Schedule(3, 1.0, LocalSettings(2, 4, 0.5), "cosine", late=1),
            store,
            seed=5,
            resume=(2, results[1].server),
        )
    )
    assert [r.participants for r in resumed] == [(2,)]


def test_sums_of_late_clients_are_added_to_those_of_the_others(task: Task) -> None:
    method = create("fedncm")
    clients = make_clients([8, 8, 8])
    one = Schedule(1, 1.0, LocalSettings(2, 4, 0.5))
    whole = list(simulate(method, task, clients, one, MemoryStore(), seed=5))[-1].server
    two = replace(one, rounds=2, late=1)
    joined = list(simulate(method, task, clients, two, MemoryStore(), seed=5))[-1].server
    torch.testing.assert_close(joined.shared["means"], whole.shared["means"])
