"""Train clients side by side on a CPU, each on one core, instead of one client on all cores.

Clients share no mutable state and each has its own generator, so that the order of their steps
changes no bit.
"""

from collections.abc import Sequence

import torch

from focoop.clip import LabelledFeatures
from focoop.federation.client import LocalSettings, train
from focoop.methods import Method, State, Task
from focoop.threads import side_by_side

# Clients at a time and core: few enough to cost little memory, enough to keep all cores busy.
AHEAD = 4


def group_size(task: Task) -> int:
    """Return how many clients `train_each` should be given at a time.

    Args:
        task: The task.

    Returns:
        Their number.
    """
    threads = torch.get_num_threads() if task.device.type == "cpu" else 1
    return AHEAD * threads if threads > 1 else 1


def train_each(
    method: Method,
    states: Sequence[State],
    data: Sequence[LabelledFeatures],
    task: Task,
    settings: LocalSettings,
    generators: Sequence[torch.Generator],
) -> list[tuple[State, float]]:
    """Train clients by `client.train`, as many at once as torch may use threads.

    Args:
        method: The method.
        states: State of each client.
        data: Images of each client.
        task: The task.
        settings: Learning rate, epochs and batch size.
        generators: Generator of each client.

    Returns:
        New state and mean loss of each client.
    """

    def job(client: int) -> tuple[State, float]:
        return train(method, states[client], data[client], task, settings, generators[client])

    if len(states) == 1:
        return [job(0)]  # a client alone has all cores
    return side_by_side(job, len(states), task.device)
