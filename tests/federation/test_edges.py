"""Edge servers: means do not notice them, whatever the groups; what is not a mean does."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from focoop import methods
from focoop.config import loading
from focoop.federation.rounds import aggregate, start
from focoop.federation.traffic import num_bytes
from focoop.federation.updates.edges import Edges, combine
from focoop.federation.updates.screening import Defence
from focoop.federation.updates.secure_sum import summed
from focoop.functional import transport
from focoop.methods.base import ClientUpdate, Method, Server, Task
from focoop.scenario.schedule import server_screen
from focoop.seeds import numpy_generator
from tests.methods.contract_toy import make_task

AVERAGES: list[tuple[str, dict[str, object]]] = [
    ("promptfl", {}),
    ("promptfl", {"class_specific": True}),
    ("fedlapt", {"contexts": "class_specific"}),
    ("fedpgp", {}),
    ("focoop", {"goc": False}),
    ("focoop_plus", {}),
    ("focoop", {"goc_pool": "mean"}),
]


def setting(name: str, own: dict[str, object]) -> tuple[Method, Task, Server]:
    """A method at its start, in float64."""
    method = methods.create(name, methods.lookup(name).Config(**own))
    task = make_task(method)
    initial = start(method, task, 0)
    shared = {n: v.double() if v.is_floating_point() else v for n, v in initial.shared.items()}
    return method, task, Server(shared)


def drawn(server: Server, classes: int, clients: int, seed: int) -> list[ClientUpdate]:
    """Random updates; classes may be nobody's, counts differ by a factor of hundreds."""
    rng = numpy_generator(seed, "edges")
    found = []
    for client in range(clients):
        counts = torch.from_numpy(rng.integers(0, 200, classes) * (rng.random(classes) < 0.5))
        counts[int(rng.integers(classes))] += 1
        shared = {
            n: v + torch.from_numpy(rng.standard_normal(v.shape)) if v.is_floating_point() else v
            for n, v in server.shared.items()
        }
        found.append(ClientUpdate(client, shared, int(counts.sum()), counts, 1.0))
    return found


@pytest.mark.parametrize(("name", "own"), AVERAGES)
def test_means_are_those_of_all_clients(name: str, own: dict[str, object]) -> None:
    method, task, server = setting(name, own)
    updates = drawn(server, len(task.classes), 7, 0)
    flat = aggregate(method, server, updates, task)
    for count in (1, 2, 3, 7, 20):
        found = aggregate(method, server, updates, task, Edges(count).screen)
        for key, value in flat.shared.items():
            assert torch.allclose(found.shared[key], value, rtol=1e-12, atol=1e-12), (key, count)
        assert found.report["edges"] == min(count, 7)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 9))
def test_an_edge_is_a_loop_over_its_clients(seed: int, classes: int, clients: int) -> None:
    received = {"rows": torch.zeros(classes, 3).double(), "one": torch.zeros(2).double()}
    updates = drawn(Server(received), classes, clients, seed)
    found = combine(5, updates, received, ("rows",))
    assert (found.client, found.num_examples) == (5, sum(u.num_examples for u in updates))
    for c in range(classes):
        total = sum(int(u.class_counts[c]) for u in updates)
        assert int(found.class_counts[c]) == total
        expected = np.zeros(3)  # a class nobody holds keeps what was received
        for u in updates:
            if total:
                expected += int(u.class_counts[c]) / total * u.shared["rows"][c].numpy()
        assert np.allclose(found.shared["rows"][c].numpy(), expected, atol=1e-12)
    mean = sum(u.num_examples * u.shared["one"] for u in updates) / found.num_examples
    assert torch.allclose(found.shared["one"], mean, atol=1e-12)
    assert found.loss == pytest.approx(1.0)


def test_edges_of_edges_are_edges() -> None:
    method, task, server = setting("promptfl", {"class_specific": True})
    updates = drawn(server, len(task.classes), 8, 1)
    first, _ = Edges(4).screen(method, server, updates, task)
    twice, _ = Edges(2).screen(method, server, first, task)
    flat = aggregate(method, server, updates, task)
    deep = aggregate(method, server, twice, task)
    assert torch.allclose(deep.shared["context"], flat.shared["context"], atol=1e-12)


def test_the_pool_of_ood_prompts_shrinks_to_one_set_per_edge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, task, server = setting("focoop", {})
    updates = drawn(server, len(task.classes), 6, 2)
    columns: list[int] = []
    solver = transport.semi_unbalanced_dual

    def watched(cost: Tensor, **settings: Any) -> Any:
        columns.append(cost.shape[1])
        return solver(cost, **settings)

    monkeypatch.setattr(transport, "semi_unbalanced_dual", watched)
    flat = aggregate(method, server, updates, task)
    found = aggregate(method, server, updates, task, Edges(3).screen)
    slots = len(server.shared["ood"])
    assert columns == [6 * slots, 3 * slots]
    assert not torch.allclose(found.shared["ood"], flat.shared["ood"], atol=1e-3)
    assert found.shared["ood"].shape == flat.shared["ood"].shape


def test_what_each_edge_does_first() -> None:
    method, task, server = setting("promptfl", {})
    updates = drawn(server, len(task.classes), 6, 3)
    flat = aggregate(method, server, updates, task)
    secure = aggregate(method, server, updates, task, Edges(2, summed).screen)
    assert secure.report["summed"] == 6
    assert torch.allclose(secure.shared["context"], flat.shared["context"], atol=1e-6)
    screen = Edges(2, Defence("clip", clip=1e9).screen).screen
    broken = replace(updates[4], shared={"context": updates[4].shared["context"] * torch.nan})
    kept = [u for u in updates if u.client != 4]
    found = aggregate(method, server, [*kept, broken], task, screen)
    assert found.report["refused"] == 1
    expected = aggregate(method, server, kept, task, screen)
    assert torch.equal(found.shared["context"], expected.shared["context"])


def test_a_setting_puts_them_there() -> None:
    given = ["federation.edges=3", "method.name=promptfl", "robust.rule=median"]
    screen = server_screen(loading.load(None, given))
    edges = getattr(screen, "__self__", None)
    assert isinstance(edges, Edges) and edges.count == 3 and edges.inner is not None
    assert server_screen(loading.load(None, ["method.name=promptfl"])) is None


def test_bytes_at_the_root() -> None:
    method, task, server = setting("focoop", {"goc": False})
    updates = drawn(server, len(task.classes), 9, 4)
    _, report = Edges(4).screen(method, server, updates, task)
    assert report["root_bytes_up"] == 4 * (num_bytes(server.shared) + 8 * len(task.classes))
