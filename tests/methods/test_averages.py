"""An average over clients changes what clients sent and nothing else."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from focoop.methods import federated_average
from focoop.methods.base import ClientUpdate, Server

SIZES = st.lists(st.integers(1, 10**6), min_size=1, max_size=8)


@given(SIZES, st.integers(-(2**31), 2**31))
def test_whole_numbers_on_which_all_agree_stay_and_so_does_the_memory(
    sizes: list[int], number: int
) -> None:
    words, by_class = torch.tensor([number, number + 1]), torch.tensor([number, 7])
    shared, memory = {"words": words, "order": by_class}, {"momentum": torch.ones(2)}
    updates = [
        ClientUpdate(client, dict(shared), size, torch.tensor([size, 0]), 0.0)
        for client, size in enumerate(sizes)
    ]
    server = federated_average(Server(shared, memory, {"told": 1.0}), updates, ["order"])
    assert server.memory == memory and not server.report
    assert torch.equal(server.shared["words"], words)
    assert torch.equal(server.shared["order"], by_class)
