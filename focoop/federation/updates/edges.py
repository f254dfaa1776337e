"""Edge servers between clients and the root: each sends the root one update for all its clients.

Client k belongs to edge k mod m. An edge takes the means every method takes, by class and by
images, and passes on the summed counts, so that the root's means are those of all clients:
sum_e N_ec (sum_{k in e} n_kc t_kc / N_ec) / sum_e N_ec, the same for all m but for rounding. What
a method does beyond means it does with m updates: FOCoOp's pool then holds m averaged sets of OOD
prompts in place of one per client. A rule or a secure sum happens at the edges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from focoop.federation.traffic import num_bytes
from focoop.federation.updates.screening import Screen
from focoop.methods import (
    ClientUpdate,
    Method,
    Params,
    Server,
    Task,
    class_weighted_mean,
    weighted_mean,
)


@dataclass(frozen=True)
class Edges:
    """`count` edge servers; `inner` is what each does first with its own clients' updates."""

    count: int
    inner: Screen | None = None

    def screen(
        self, method: Method, server: Server, updates: Sequence[ClientUpdate], task: Task
    ) -> tuple[list[ClientUpdate], dict[str, float]]:
        """Sum updates at edge servers, of which each sends the root one update.

        Args:
            method: The method.
            server: The root.
            updates: The clients' updates.
            task: The task.

        Returns:
            One update per edge that has any, numbered by edge, and what reaches the root.
        """
        combined: list[ClientUpdate] = []
        report: dict[str, float] = {}
        groups: dict[int, list[ClientUpdate]] = {}
        received = method.sent(server.shared)
        for update in updates:
            groups.setdefault(update.client % self.count, []).append(update)
        for edge, group in sorted(groups.items()):
            if self.inner is not None:
                group, inner_report = self.inner(method, server, group, task)
                report |= {n: report.get(n, 0.0) + v for n, v in inner_report.items()}
            if group:
                combined.append(combine(edge, group, received, method.by_class))
        sent = num_bytes(received) + 8 * len(task.classes)
        return combined, report | {"edges": len(combined), "root_bytes_up": len(combined) * sent}


def combine(
    edge: int, updates: Sequence[ClientUpdate], received: Params, by_class: Sequence[str]
) -> ClientUpdate:
    """Join updates to one: means of their tensors, sums of their counts.

    Args:
        edge: The edge's number.
        updates: The updates.
        received: What the server sent, of the tensors that clients send.
        by_class: Names of tensors with one row per class.

    Returns:
        The joined update.
    """
    shared: Params = {}
    for name, value in received.items():
        if not value.is_floating_point():
            shared[name] = value
        elif name in by_class:
            shared[name] = class_weighted_mean(updates, name, value)
        else:
            shared[name] = weighted_mean(updates, name)
    images = sum(update.num_examples for update in updates)
    loss = math.fsum(update.loss * update.num_examples for update in updates) / images
    counts = torch.stack([update.class_counts for update in updates]).sum(dim=0)
    return ClientUpdate(edge, shared, images, counts, loss)
