"""One round: who takes part, what travels, and the order in which updates are summed."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from focoop.errors import ConfigError, MethodError
from focoop.methods import ClientUpdate, Method, Params, Server, Task
from focoop.seeds import numpy_generator

# What happens to updates before the method's server step, with numbers for the round's report.
Screen = Callable[
    [Method, Server, Sequence[ClientUpdate], Task], tuple[list[ClientUpdate], dict[str, float]]
]


def sample_clients(
    num_clients: int, participation: float, seed: int, round_index: int
) -> list[int]:
    """Clients of a round, sorted: max(1, round(K * participation)) without replacement.

    >>> sample_clients(4, 1.0, seed=0, round_index=1)
    [0, 1, 2, 3]
    >>> len(sample_clients(100, 0.1, seed=0, round_index=1))
    10
    """
    if not 0.0 < participation <= 1.0:
        raise ConfigError(f"federation.participation must lie in (0, 1], not {participation}")
    count = num_sampled(num_clients, participation)
    generator = numpy_generator(seed, "participants", round_index)
    return sorted(int(k) for k in generator.choice(num_clients, size=count, replace=False))


def num_sampled(num_clients: int, participation: float) -> int:
    """How many clients take part in a round.

    >>> num_sampled(10, 0.05), num_sampled(10, 0.55)
    (1, 6)
    """
    return max(1, round(num_clients * participation))


def aggregate(
    method: Method,
    server: Server,
    updates: Sequence[ClientUpdate],
    task: Task,
    screen: Screen | None = None,
) -> Server:
    """The method's server step over updates sorted by client; empty clients do not count.

    `screen` may refuse, change or sum the updates first: `robust.py`, `secure_sum.py`. A round in
    which nobody held an image leaves the server as it was.
    """
    present = sorted((u for u in updates if u.num_examples > 0), key=lambda u: u.client)
    clients = [update.client for update in present]
    if len(set(clients)) != len(clients):
        raise MethodError(f"a client sent two updates in one round: {clients}")
    found: dict[str, float] = {}
    if present and screen is not None:
        present, found = screen(method, server, present, task)
    if not present:
        return Server(server.shared, server.memory, found)
    result = method.aggregate(server, present, task)
    changed = set(result.shared) ^ set(server.shared)
    if changed:
        raise MethodError(f"the server step changed the set of shared tensors: {sorted(changed)}")
    return replace(result, report={**result.report, **found}) if found else result


def num_bytes(params: Params) -> int:
    """Bytes of named tensors on the wire.

    >>> import torch
    >>> num_bytes({"a": torch.zeros(2, 3)})
    24
    """
    return sum(v.numel() * v.element_size() for v in params.values())
