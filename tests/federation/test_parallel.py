"""Clients side by side on a CPU give the bits of one after another."""

import pytest
import torch

from focoop.errors import MethodError
from focoop.federation.client import LocalSettings, train
from focoop.federation.parallel import group_size, train_each
from focoop.federation.participation import Schedule
from focoop.federation.simulator import MemoryStore, simulate
from focoop.methods import create
from focoop.seeds import torch_generator
from tests.federation.test_batched_training import start_states
from tests.methods.contract_toy import make_clients, make_task, same, spread

SIZES = (7, 0, 9, 4, 12)
LOCAL = LocalSettings(epochs=2, batch_size=4, lr=0.2)


@pytest.mark.parametrize("name", ["promptfl", "focoop"])
def test_side_by_side_is_one_after_another(name: str, three_threads: None) -> None:
    method = create(name)
    task = make_task(method)
    states, data = start_states(method, task, SIZES)

    def generators() -> list[torch.Generator]:
        return [torch_generator(3, "train", client) for client in range(len(SIZES))]

    found = train_each(method, states, data, task, LOCAL, generators())
    assert torch.get_num_threads() == 3
    torch.set_num_threads(1)  # as each client had: the toy tower's products are tiny
    for client, generator in enumerate(generators()):
        state, loss = train(method, states[client], data[client], task, LOCAL, generator)
        assert same(found[client][0].shared, state.shared)
        assert same(found[client][0].private, state.private)
        assert found[client][1] == loss or len(data[client]) == 0


def test_a_client_that_diverges_stops_the_round(three_threads: None) -> None:
    method = create("promptfl")
    task = make_task(method)
    states, data = start_states(method, task, SIZES)
    wild = LocalSettings(epochs=2, batch_size=4, lr=float("inf"))
    generators = [torch_generator(3, "train", client) for client in range(len(SIZES))]
    with pytest.raises(MethodError, match=r"lower federation\.lr"):
        train_each(method, states, data, task, wild, generators)
    assert torch.get_num_threads() == 3


def test_a_federation_does_not_depend_on_the_number_of_threads() -> None:
    method = create("focoop")
    task, before, found = make_task(method), torch.get_num_threads(), []
    clients = make_clients(method, task, spread(SIZES))
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert group_size(task) == (1 if threads == 1 else 4 * threads)
            schedule = Schedule(rounds=2, participation=1.0, local=LOCAL)
            rounds = simulate(method, task, clients, schedule, MemoryStore(), seed=1)
            found.append([*rounds][-1].server.shared)
    finally:
        torch.set_num_threads(before)
    assert same(*found)
