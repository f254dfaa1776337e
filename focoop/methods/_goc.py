"""Global-view OOD Consistency: the server's transport between class prompts and OOD prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from focoop.functional import transport
from focoop.methods._averages import weighted_mean
from focoop.methods.base import ClientUpdate, Server
from focoop.threads import one_core

if TYPE_CHECKING:
    from torch import Tensor

# Frank-Wolfe leaves a remnant of its start in every cell: below this share of a row it is no mass.
RESIDUE = 0.01
# Cells of the cost up to which transport is in float64, and up to which it has one core, because to
# wake others takes longer than a small problem.
SMALL, TINY = 2**22, 2**20
# The gap of the dual, as a share of what is gained over the product plan. On 35 rounds of CIFAR-100
# (the preset's 25, the demo's 10; 100 classes, ten copies of 100 words) at least 98 of the 100
# seemly prompts and 99 of the 100 kept copies were those of the optimum; masses were off by 0.016
# priors at most. At 1e-5 and 1e-4 as few as 94 and 90 of the seemly prompts were.
GAP = 1e-6
# Copies of a word whose masses differ by less of the prior are alike: the solver's error.
ALIKE = 5e-3
# A gap that rounding leaves where there is nothing to gain, in units of the cost.
LEAST_GAP = 1e-9

Plan = transport.Plan | transport.DualPlan


@dataclass(frozen=True)
class Seemly:
    """The OOD prompts that look like classes, and how the classes send their mass to them.

    Attributes:
        rows: (M,) which of the J OOD prompts, most mass first.
        part: (C, M) the plan's columns of these prompts.
        excess: (M,) 1 - a_j / q_j: the share of a prompt's mass that is above its prior, 0 to 1.
        entropy: (C,) entropy of each class's row of the plan over log J; 1: the row is uniform.
    """

    rows: Tensor
    part: Tensor
    excess: Tensor
    entropy: Tensor


@dataclass(frozen=True)
class Consistency:
    """How class prompts T^g are calibrated and OOD prompts T^o are chosen (Sec. GOC).

    Attributes:
        tau, steps, gap, rule: of SemiUOT and its solver; the gap is a share of what is gained over
            the product plan, `open_loop` takes all steps.
        cost_scale, cost_quantile: what the cost is divided by, see `transport.rescale`.
        seemly_count: how many OOD prompts look like classes, those of most mass; 0: U.
        alpha: share of T^g kept in calibration.
        plan: the `transport`, or the `product` plan in its place.
        calibration: how T^g is pulled to the seemly prompts: `seemly`, `barycentre` or `none`.
        keep: best copy of each word (`slot`), the U least of all (`paper`), `mean` of the copies.
        cap: share of the U kept OOD prompts that one client may supply; 1: no cap.
        pool: `all` clients' OOD prompts side by side, or their `mean`, for which sums suffice.
    """

    tau: float
    steps: int = 300
    gap: float = GAP
    rule: Literal["dual", "open_loop"] = "dual"
    cost_scale: Literal["quantile", "max"] = "quantile"
    cost_quantile: float = 0.5
    seemly_count: int = 0
    alpha: float = 0.5
    plan: Literal["transport", "product"] = "transport"
    calibration: Literal["seemly", "barycentre", "none"] = "seemly"
    keep: Literal["slot", "paper", "mean"] = "slot"
    cap: float = 1.0
    pool: Literal["all", "mean"] = "all"

    def calibrate(
        self, prompts: Tensor, words: Tensor, updates: Sequence[ClientUpdate], server: Server
    ) -> Server:
        """SemiUOT alignment, EMA of T^g (Eq. ema_global_prompt), choice of T^o.

        Args:
            prompts: (C, n, d_t) the aggregated class prompts.
            words: (U,) the words of the OOD slots.
            updates: what the clients sent.
            server: what the clients started from, and which words were seemly then.

        Returns:
            The next `global`, `ood` and `ood_words`, with the round's numbers as its report.
        """
        copies = [update.shared["ood"] for update in updates]
        if self.pool == "mean":
            copies = [weighted_mean(updates, "ood")]
        ood = torch.cat(copies)  # (KU, n, d_t)
        flat_id, flat_ood = prompts.flatten(1), ood.flatten(1)
        small = len(prompts) * len(ood) <= SMALL
        cost = self.cost(flat_id, flat_ood)
        with one_core() if cost.numel() <= TINY else nullcontext():
            plan = self.solve(cost.double() if small else cost)
            # Columns that drew alike differ by rounding alone: ties must not depend on it.
            mass = (plan.drawn.double() * len(ood)).round(decimals=6)
            seemly = self.seemly_of(plan, mass, len(words))
        before = server.shared["global"].flatten(1)
        calibrated, pull = self.pulled(flat_id, before, flat_ood, seemly)
        rows = self.kept(mass, cost, len(copies), len(words))
        ood_prompts = weighted_mean(updates, "ood") if self.keep == "mean" else ood[rows]
        kept_words = words if self.keep == "mean" else words[rows % len(words)]
        word_of = words.to(seemly.rows.device)  # by slot: where the U least are kept, words move
        drawn = torch.zeros_like(word_of, dtype=torch.bool)
        drawn[word_of[seemly.rows % len(words)]] = True
        report = {
            "transport_gap": plan.gap,
            "transport_gained": product_cost(cost) - plan.objective,
            "transport_steps": float(plan.steps),
            "row_entropy": float(seemly.entropy.mean()),
            "pull": pull,
            "seemly_overlap": overlap(server.memory.get("seemly"), drawn),
        }
        return Server(
            shared={
                "global": calibrated.view_as(prompts),
                "ood": ood_prompts,
                "ood_words": kept_words,
            },
            memory={
                "seemly": drawn.to(torch.uint8),
                **({"plan_by_word": plan_by_word(plan, word_of).float()} if small else {}),
            },
            report=report | prompt_report(calibrated, kept_words),
        )

    def solve(self, cost: Tensor) -> Plan:
        """SemiUOT by the chosen rule; or the product plan."""
        if self.plan == "product":
            return transport.semi_unbalanced_open_loop(cost, tau=self.tau, steps=0)
        if self.rule == "open_loop":
            return transport.semi_unbalanced_open_loop(cost, tau=self.tau, steps=self.steps)
        return transport.semi_unbalanced_dual(
            cost, tau=self.tau, max_steps=self.steps, tolerance=LEAST_GAP, relative=self.gap
        )

    def seemly_of(self, plan: Plan, mass: Tensor, slots: int) -> Seemly:
        """The OOD prompts that draw most mass, given all masses (J,) in units of the prior."""
        count = min(self.seemly_count or slots, len(mass))
        rows = transport.select_by_mass(mass, count, largest=True)
        part = plan.columns(rows)
        excess = (1.0 - 1.0 / mass[rows].clamp(min=1.0)).to(part.dtype)
        return Seemly(rows, part, excess, row_entropy(plan))

    def pulled(
        self, trained: Tensor, before: Tensor, flat_ood: Tensor, seemly: Seemly
    ) -> tuple[Tensor, float]:
        """Move class prompts towards the seemly OOD prompts.

        `barycentre` moves every class by 1 - alpha. `seemly` moves class c by (1 - alpha) w_c m_c:
            w_c = (1 - H_c / log J) sum_j pi_cj e_j / b_c, e_j = 1 - a_j / q_j if seemly, else 0
            m_c = min(1, |t_c - before_c| / |barycentre_c - t_c|)
        A class stays where its row is uniform, where no prompt draws more than its prior, and where
        training has not moved it: a pull is a part of the round's own step, and does not add up
        over rounds in which the learning rate is small. Then the distances of the classes from
        their mean are brought back to the root mean square they had.

        Args:
            trained: (C, n d_t) the clients' mean class prompts.
            before: (C, n d_t) class prompts as clients received them.
            flat_ood: (J, n d_t) all OOD prompts.
            seemly: which of them look like classes.

        Returns:
            The moved prompts (C, n d_t), and the mean share by which they were moved.
        """
        if self.calibration == "none" or self.alpha == 1.0:
            return trained, 0.0
        rows = seemly.rows.to(trained.device)
        least = RESIDUE / len(trained)
        if self.calibration == "barycentre":
            part = seemly.part.to(trained)
            target = transport.barycentre(part, flat_ood[rows], trained, min_mass=least)
            return self.alpha * trained + (1.0 - self.alpha) * target, 1.0 - self.alpha
        part = (seemly.part * seemly.excess).to(trained)
        target = transport.barycentre(part, flat_ood[rows], trained, min_mass=least)
        sent = part.sum(dim=1) * len(trained)  # of a row's mass 1/C
        way = torch.linalg.vector_norm(target - trained, dim=1)
        step = torch.linalg.vector_norm(trained - before, dim=1)
        limit = (step / way.clamp(min=1e-12)).clamp(max=1.0)
        weight = (1.0 - self.alpha) * sent * (1.0 - seemly.entropy.to(trained)) * limit
        moved = trained + weight[:, None] * (target - trained)
        middle = moved.mean(dim=0)
        old, new = spread(trained), spread(moved)
        factor = old / new if new > 0 else 1.0
        return middle + factor * (moved - middle), float(weight.mean())

    def kept(self, mass: Tensor, cost: Tensor, clients: int, slots: int) -> Tensor:
        """(U,) rows of the KU OOD prompts that go on: those that received least mass."""
        if self.keep == "slot":
            copies = mass.view(clients, slots)
            least = copies.amin(dim=0)
            mass = torch.where(copies < least + ALIKE, least, copies).flatten()
        if self.cap < 1.0:
            return self.capped(mass, cost, clients, slots)
        if self.keep == "paper":
            return transport.select_by_mass(mass, slots, largest=False)
        # Of copies with equal mass the one with the largest cost to its nearest class is kept.
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
        """(C, KU) squared distances of contexts, brought to a scale that tau can be set for."""
        distances = transport.squared_cost(flat_id, flat_ood)
        return transport.rescale(distances, self.cost_scale, self.cost_quantile)


def row_entropy(plan: Plan) -> Tensor:
    """(C,) entropy of each row of a plan over log J, in [0, 1]; some columns at a time."""
    classes, columns = plan.cost.shape
    total = torch.zeros(classes, dtype=torch.float64, device=plan.cost.device)
    for part in transport.chunks(plan.cost, 1):
        # Rows sum to 1/C, so that their shares are C times the plan.
        total += torch.special.entr(plan.columns(part) * classes).sum(dim=1)
    return total / math.log(max(columns, 2))


def plan_by_word(plan: Plan, words: Tensor) -> Tensor:
    """(C, U) mass that each class sends to each word, all copies together, by words (U,) of slots.

    A word that no slot has receives nothing.
    """
    by_slot = plan.plan.view(len(plan.plan), -1, len(words)).sum(dim=1)
    return by_slot @ torch.nn.functional.one_hot(words, len(words)).to(by_slot)


def spread(prompts: Tensor) -> float:
    """Root mean square distance of class prompts (C, ...) from their mean."""
    flat = prompts.flatten(1).double()
    return float((flat - flat.mean(dim=0)).square().sum(dim=1).mean().sqrt())


def prompt_report(prompts: Tensor, words: Tensor) -> dict[str, float]:
    """What every round reports of its prompts: spread of the classes and distinct OOD words."""
    return {"spread": spread(prompts), "distinct_words": float(len(set(words.tolist())))}


def overlap(before: Tensor | None, now: Tensor) -> float:
    """Share of the seemly words (U,) that were seemly a round ago; 1 where nothing is known."""
    if before is None or before.shape != now.shape or not bool(now.any()):
        return 1.0
    return float((before.to(now.device).bool() & now).sum() / now.sum())


def product_cost(cost: Tensor) -> float:
    """Objective of the product plan under equal masses: the mean cost, because it moves none."""
    return float(cost.double().mean())
