"""FOCoOp's two mechanisms as the authors' released code has them: docs/model/authors_code.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from focoop.functional import transport
from focoop.methods._averages import weighted_mean
from focoop.methods._bos import row_norms
from focoop.methods._focoop_config import FOCoOpConfig
from focoop.methods._goc import prompt_report
from focoop.methods.base import Batch, ClientUpdate, Params, Server, Text

if TYPE_CHECKING:
    from torch import Tensor


def released_loss(
    text: Text, batch: Batch, noise: Params, scale: float, config: FOCoOpConfig
) -> Tensor:
    """Loss where each step moves a feature by 1, without a cap and without a unit length after it.

    Class features climb the cross-entropy less their price, OOD features the cross-entropy plus the
    unevenness of the OOD logits, for nothing. The unevenness, which has no class logit, also takes
    the place of -log p(ID|x) in the loss that is descended.
    """
    assert text.ood is not None

    def parts(ids: Tensor, oods: Tensor) -> tuple[Tensor, Tensor]:
        logits = scale * batch.pooled @ torch.cat([ids, oods]).T
        ood = logits[:, len(ids) :]
        entropy = F.cross_entropy(logits, batch.labels, reduction="none")
        return entropy, ood.logsumexp(dim=1) - ood.mean(dim=1)

    def climb(objective: Callable[[Tensor], Tensor], moved: Tensor) -> Tensor:
        for _ in range(config.id_steps):
            slope = torch.func.grad(objective)(moved)
            moved = moved + config.step_size * slope / row_norms(slope).clamp(min=1e-8)
        return moved

    ids, oods, tau = text.id.detach(), text.ood.detach(), config.tau_id
    id_noise = climb(
        lambda eps: parts(ids + eps, oods)[0].mean() - tau * eps.norm(dim=1).mean(), noise["id"]
    )
    ood_noise = climb(  # the mean of both parts has the direction of their sum
        lambda eps: torch.cat(parts(ids + id_noise, oods + eps)).mean(), noise["ood"]
    )
    entropy, uneven = parts(text.id + id_noise, text.ood + ood_noise)
    return config.outer_loss(entropy + config.detection_weight * uneven)


def released_consistency(
    updates: Sequence[ClientUpdate], server: Server, config: FOCoOpConfig
) -> Server:
    """Add to alpha T^g what the plan sends, not divided by its mass; deal the U least contexts out.

    The words stay in their slots, whichever contexts come there. The report says which share of its
    length T^g kept (`kept_length`) and from how many first contexts T^o stems.
    """
    prompts, words = weighted_mean(updates, "global"), server.shared["ood_words"]
    ood = torch.cat([update.shared["ood"] for update in updates])
    flat, flat_ood = prompts.flatten(1), ood.flatten(1)
    cost = transport.squared_cost(flat_ood, flat)
    plan = unbalanced_plan(cost / cost.max(), config.transport_tau)
    mass = plan.sum(dim=1)
    most, least = mass.topk(len(words)).indices, mass.topk(len(words), largest=False).indices
    moved = config.alpha * flat + (1.0 - config.alpha) * plan[most].to(flat).T @ flat_ood[most]
    stems = server.memory.get("stems", torch.arange(len(words), device=words.device))
    stems = stems[least.to(words.device) % len(words)]
    report = {
        "kept_length": float(moved.norm() / flat.norm()),
        "distinct_contexts": float(len(set(stems.tolist()))),
    }
    return Server(
        {"global": moved.view_as(prompts), "ood": ood[least], "ood_words": words},
        memory={"stems": stems},
        report=report | prompt_report(moved, words),
    )


def unbalanced_plan(cost: Tensor, tau: float, steps: int = 1000) -> Tensor:
    """Plan (J, C) that minimises <cost, plan> + tau KL of both marginals from uniform ones."""
    rows, columns = cost.shape
    plan = torch.full_like(cost.double(), 1.0 / (rows * columns))
    kernel = torch.exp(-cost.double() / (2.0 * tau)) / (rows * columns) ** 0.5
    for _ in range(steps):  # majorise, minimise: what POT's mm_unbalanced repeats
        marginals = plan.sum(dim=1, keepdim=True) * plan.sum(dim=0, keepdim=True)
        plan = kernel * plan / marginals.clamp(min=1e-32).sqrt()
    return plan
