"""A toy federation for closed forms: three clients, one round, and the pooled images in numpy."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from focoop.federation.rounds import aggregate
from focoop.federation.updates.screening import Screen
from focoop.methods._closed_form import ClosedForm
from focoop.methods._sums import Totals
from focoop.methods.base import Batch, ClientUpdate, Params, Server, Task
from focoop.methods.fed3r import Fed3R
from focoop.methods.fedlda import FedLDA
from focoop.methods.fedncm import FedNCM
from focoop.methods.focoop_plus import FOCoOpPlus
from focoop.methods.gda_clip import GDACLIP
from focoop.methods.tofa import TOFA
from focoop.seeds import torch_generator
from tests.methods.contract_toy import CLASSES, DIM, make_task

C = len(CLASSES)


ALL: list[type[ClosedForm]] = [FedNCM, FedLDA, Fed3R, GDACLIP, TOFA, FOCoOpPlus]


every = pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)


def images_of(labels: Sequence[int], seed: int) -> Batch:
    """Unit features about class centres, the same class looking different at each seed."""
    generator = torch_generator(seed, "closed form")
    truth = torch.tensor(labels, dtype=torch.int64)
    centres = torch.randn(C, DIM, generator=torch_generator(0, "centres"), dtype=torch.float64)
    moved = 0.4 * torch.randn(C, DIM, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(truth), DIM, generator=generator, dtype=torch.float64)
    features = (centres + moved)[truth] + 0.8 * noise
    return Batch(torch.nn.functional.normalize(features, dim=-1), None, truth)


# Classes are shared between clients, and nobody holds all of them.
CLIENTS = [
    images_of([0] * 9 + [1] * 6, 1),
    images_of([0] * 3 + [2] * 8 + [3] * 5, 2),
    images_of([1] * 7 + [3] * 9, 3),
]


def made(kind: type[ClosedForm], **settings: object) -> ClosedForm:
    return kind(kind.Config(**settings))  # type: ignore[arg-type]


def task_for(method: ClosedForm) -> Task:
    return make_task(method, dtype=torch.float64)


def sent(
    method: ClosedForm, task: Task, received: Params, clients: Sequence[Batch]
) -> list[ClientUpdate]:
    found = []
    for k, batch in enumerate(clients):
        counts = torch.bincount(batch.labels, minlength=C)
        shared = {**method.sent(received), **method.measure(received, batch, task)}
        found.append(ClientUpdate(k, shared, len(batch.labels), counts, 0.0))
    return found


def one_round(
    method: ClosedForm, clients: Sequence[Batch], screen: Screen | None = None
) -> tuple[Server, Task]:
    task = task_for(method)
    server = Server(method.init(task, torch_generator(0)).shared)
    updates = sent(method, task, server.shared, clients)
    return aggregate(method, server, updates, task, screen), task


def alone(method: ClosedForm, task: Task) -> Params:
    """Private tensors of a client that knows none of its images."""
    return method.init(task, torch_generator(0)).private


def pooled(clients: Sequence[Batch]) -> tuple[np.ndarray, np.ndarray]:
    features = torch.cat([one.pooled for one in clients]).numpy()
    return features, torch.cat([one.labels for one in clients]).numpy()


def totals_of(method: ClosedForm, clients: Sequence[Batch]) -> Totals:
    task = task_for(method)
    server = Server(method.init(task, torch_generator(0)).shared)
    return method.sums.add(server, sent(method, task, server.shared, clients))[2]


def within(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Scatter about class means, image by image."""
    total = np.zeros((features.shape[1],) * 2)
    for c in np.unique(labels):
        rows = features[labels == c]
        for row in rows:
            off = row - rows.mean(axis=0)
            total += np.outer(off, off)
    return total


def contrasts(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """N - C rows with the same scatter: orthonormal contrasts of each class's images."""
    rows = []
    for c in np.unique(labels):
        mine = features[labels == c]
        base = np.linalg.qr(np.column_stack([np.ones(len(mine)), np.eye(len(mine))[:, 1:]]))[0]
        rows.append(base[:, 1:].T @ mine)
    return np.concatenate(rows)
