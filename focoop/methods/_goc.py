"""Global-view OOD Consistency: the server's transport between class prompts and OOD prompts."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from focoop.functional import transport
from focoop.methods.base import ClientUpdate, Server, weighted_mean
from focoop.threads import one_core

# Frank-Wolfe leaves a remnant of its start in every cell: below this share of a row it is no mass.
RESIDUE = 0.01
# Cells of the cost up to which transport runs on the CPU, and there on one core, because to
# wake others takes longer than a small problem.
SMALL, TINY = 2**22, 2**20


@dataclass(frozen=True)
class Consistency:
    """How class prompts T^g are calibrated and OOD prompts T^o are chosen (Sec. GOC).

    Attributes:
        tau, steps, gap, rule: of SemiUOT and its Frank-Wolfe solver.
        cost_scale: costs brought to [0, 1] by their `range`, or divided by their `max`.
        seemly, seemly_count: which OOD prompts look like classes: `top` M or `kmeans2`.
        alpha: share of T^g kept in calibration.
        keep: best copy of each word (`slot`), or the U least of all (`paper`).
        cap: share of the U kept OOD prompts that one client may supply; 1: no cap.
        pool: `all` clients' OOD prompts side by side, or their `mean`, for which sums suffice.
    """

    tau: float
    steps: int = 300
    gap: float = 5e-3
    rule: Literal["dual", "armijo", "open_loop"] = "dual"
    cost_scale: Literal["range", "max"] = "range"
    seemly: Literal["top", "kmeans2"] = "top"
    seemly_count: int = 0
    alpha: float = 0.5
    keep: Literal["slot", "paper"] = "slot"
    cap: float = 1.0
    pool: Literal["all", "mean"] = "all"

    def calibrate(
        self, prompts: Tensor, words: Tensor, updates: Sequence[ClientUpdate], server: Server
    ) -> Server:
        """SemiUOT alignment, EMA of T^g (Eq. ema_global_prompt), choice of T^o.

        `prompts` (C, n, d_t) are the aggregated class prompts, `words` (U,) the words of the slots.
        """
        copies = [update.shared["ood"] for update in updates]
        if self.pool == "mean":
            copies = [weighted_mean(updates, "ood")]
        ood = torch.cat(copies)  # (KU, n, d_t)
        flat_id, flat_ood = prompts.flatten(1), ood.flatten(1)
        # A GPU would wait for the host at every step: problems of this size are the CPU's.
        where = torch.device("cpu") if len(prompts) * len(ood) <= SMALL else ood.device
        cost = self.cost(flat_id, flat_ood).to(where)
        with one_core() if cost.numel() <= TINY else nullcontext():
            plan = self.solve(cost, server)
            # Columns that drew alike differ by rounding alone: ties must not depend on it.
            mass = (plan.mass.double() * len(ood)).round(decimals=6).to(ood.device)
            if self.seemly == "top":
                count = min(self.seemly_count or len(words), len(ood))
                seemly = transport.select_by_mass(mass, count, largest=True)
            else:
                seemly = transport.two_means(mass).nonzero().squeeze(1)
            if isinstance(plan, transport.DualPlan):
                part = plan.columns(seemly.to(where))
                memory = {"potential": plan.potential}
            else:
                part = plan.plan[:, seemly.to(where)]
                memory = {"plan": plan.plan} if self.rule == "armijo" else {}
        target = transport.barycentre(
            part.to(ood.device),
            flat_ood[seemly],
            flat_id,
            min_mass=RESIDUE / len(prompts),
        )
        calibrated = self.alpha * flat_id + (1.0 - self.alpha) * target
        rows = self.kept(mass, cost.to(ood.device), len(copies), len(words))
        return Server(
            shared={
                "global": calibrated.view_as(prompts),
                "ood": ood[rows],
                "ood_words": words[rows % len(words)],
            },
            memory=memory,
            report={"transport_gap": plan.gap, "transport_steps": float(plan.steps)},
        )

    def solve(self, cost: Tensor, server: Server) -> transport.Plan | transport.DualPlan:
        """SemiUOT from where the last round ended."""
        previous = server.memory.get("potential" if self.rule == "dual" else "plan")
        previous = None if previous is None else previous.to(cost.device)
        if self.rule == "dual":
            return transport.semi_unbalanced_dual(
                cost, tau=self.tau, max_steps=self.steps, tolerance=self.gap, start=previous
            )
        fits = previous is not None and previous.shape == cost.shape
        return transport.semi_unbalanced(
            cost,
            tau=self.tau,
            step=self.rule,
            max_steps=self.steps,
            tolerance=self.gap,
            start=previous if fits else None,
        )

    def kept(self, mass: Tensor, cost: Tensor, clients: int, slots: int) -> Tensor:
        """(U,) rows of the KU OOD prompts that go on: those that received least mass."""
        if self.cap < 1.0:
            return self.capped(mass, cost, clients, slots)
        if self.keep == "paper":
            return transport.select_by_mass(mass, slots, largest=False)
        # Of copies with equal mass the one farthest from every class prompt is kept.
        copies = mass.view(clients, slots)
        order = torch.sort(-cost.amin(dim=0).view_as(copies), dim=0, stable=True).indices
        best = order.gather(0, copies.gather(0, order).argmin(dim=0, keepdim=True)).squeeze(0)
        return best * slots + torch.arange(slots, device=mass.device)

    def capped(self, mass: Tensor, cost: Tensor, clients: int, slots: int) -> Tensor:
        """As `kept`, but no client supplies more than its cap: the next best copy goes on.

        Copies are taken in the order of their mass while their client has room. The cap is never
        so low that slots would stay empty.
        """
        room = [max(math.ceil(self.cap * slots - 1e-9), math.ceil(slots / clients))] * clients
        far = cost.amin(dim=0).tolist() if self.keep == "slot" else [0.0] * len(mass)
        weight = mass.tolist()
        chosen: dict[int, int] = {}
        for row in sorted(range(len(weight)), key=lambda j: (weight[j], -far[j], j)):
            client, word = divmod(row, slots)
            slot = word if self.keep == "slot" else row
            if room[client] and slot not in chosen and len(chosen) < slots:
                chosen[slot] = row
                room[client] -= 1
        rows = [row for _, row in sorted(chosen.items())]
        return torch.tensor(rows, device=mass.device)

    def cost(self, flat_id: Tensor, flat_ood: Tensor) -> Tensor:
        """(C, KU) squared distances of contexts, brought to a scale that tau can be set for.

        Class marginals are hard, so that a constant changes nothing: with `range` the nearest pair
        costs 0 and the farthest 1, whatever length the contexts have grown to.
        """
        return transport.rescale(transport.squared_cost(flat_id, flat_ood), self.cost_scale)
