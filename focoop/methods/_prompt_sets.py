"""Settings of FOCoOp's two mechanisms, and the prompts and noise that they start from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from focoop.errors import MethodError
from focoop.fields import setting
from focoop.methods._bos import Ascent, Rule
from focoop.methods._contexts import first_context
from focoop.methods._goc import GAP, Consistency
from focoop.methods.base import Params, Task


@dataclass(frozen=True)
class PromptSetsConfig:
    """What global, local and OOD prompts are trained and combined with.

    Values that the paper leaves open were chosen on validation images. Ablation, of the client's
    Bi-level OOD Separations: `bos` switches all of it off, `ascent` the direction of perturbations,
    `price` what they pay, `outer` the soft maximum. Of the server's Global-view OOD Consistency:
    `goc` switches all of it off, `plan` the transport, `calibration` the pull of T^g, `keep` the
    choice of T^o.
    """

    # Paper
    global_share: float = setting(
        0.2, "rho, share of the global prompt; 1: no private prompts", low=0, high=1, group="paper"
    )
    detection_weight: float = setting(1.0, "weight of -log p(ID|x)", low=0, group="paper")
    id_steps: int = setting(4, "N, ascent steps on class prompts", low=0, high=1000, group="paper")
    ood_steps: int = setting(4, "M, ascent steps on OOD prompts", low=0, high=1000, group="paper")
    sigma: float = setting(1e-3, "sigma, scale of the starting noise", low=0, group="paper")
    tau_id: float = setting(0.1, "tau_1, price of moving class prompts", low=0, group="paper")
    tau_ood: float = setting(0.01, "tau_2, price of moving OOD prompts", above=0, group="paper")
    mu: float = setting(
        200.0, "mu; tau_2 mu is the width of the soft maximum", above=0, group="paper"
    )
    transport_tau: float = setting(0.1, "tau of SemiUOT's loose marginal", above=0, group="paper")
    seemly_count: int = setting(
        0, "M of top-M seemly OOD prompts; 0: as many as U", low=0, high=50_000, group="paper"
    )
    alpha: float = setting(
        0.5, "alpha, share of T^g kept in calibration", low=0, high=1, group="paper"
    )
    # Engineering
    context_tokens: int = setting(
        16, "n, length of each context", low=1, high=64, group="engineering"
    )
    start: str = setting(
        "",
        "words every context starts from, whose tokens give n; empty: drawn at random",
        group="engineering",
    )
    id_radius: float = setting(0.1, "cap on |eps^g|; 0: none", low=0, group="engineering")
    ood_radius: float = setting(0.3, "cap on |eps^o|; 0: none", low=0, group="engineering")
    step_size: float = setting(
        1.0, "first length of an ascent step, in radii", low=0, group="engineering"
    )
    transport_steps: int = setting(
        300, "steps of the transport's solver at most", low=1, high=100_000, group="engineering"
    )
    transport_gap: float = setting(
        GAP,
        "stop at this gap, as a share of what is gained over the product plan",
        low=0,
        group="engineering",
    )
    cost_quantile: float = setting(
        0.5,
        "quantile of the costs that becomes 1 where cost_scale is quantile",
        above=0,
        high=1,
        group="engineering",
    )
    goc_pool: Literal["all", "mean"] = setting(
        "all",
        "transport sees `all` clients' OOD prompts, or their `mean`: sums suffice",
        group="engineering",
    )
    ood_cap: float = setting(
        1.0,
        "share of the kept OOD prompts one client may supply; 1: no cap",
        above=0,
        high=1,
        group="engineering",
    )
    # Ablation
    bos: bool = setting(
        True, "perturbations and soft maximum; false: the mean loss as it is", group="ablation"
    )
    ascent: Rule = setting(
        "monotone",
        "perturbations: steps that each raise the loss less its price, `alg2` as they come, "
        "`random` directions of the same lengths, `none`",
        group="ablation",
    )
    price: bool = setting(
        True, "perturbations pay tau; false: the radius alone holds them", group="ablation"
    )
    outer: Literal["soft_maximum", "mean"] = setting(
        "soft_maximum",
        "loss of a batch: the `soft_maximum` of Eq. sol_dro or the `mean`",
        group="ablation",
    )
    goc: bool = setting(True, "transport on the server; false: averages", group="ablation")
    plan: Literal["transport", "product"] = setting(
        "transport",
        "`product`: every class sends every OOD prompt the same",
        group="ablation",
    )
    calibration: Literal["seemly", "barycentre", "none"] = setting(
        "seemly",
        "pull of T^g: by how `seemly` the prompts are and how far training moved a class, the "
        "`barycentre` for every class alike, `none`",
        group="ablation",
    )
    keep: Literal["slot", "paper", "mean"] = setting(
        "slot",
        "OOD prompts kept: best copy of each word, `paper`: top-U of all, `mean` of copies",
        group="ablation",
    )

    def ascent_of(self, name: str) -> Ascent:
        """How the rows `id` or `ood` are perturbed."""
        radius, steps, tau = {
            "id": (self.id_radius, self.id_steps, self.tau_id),
            "ood": (self.ood_radius, self.ood_steps, self.tau_ood),
        }[name]
        return Ascent(radius, self.step_size, steps, tau if self.price else 0.0, rule=self.ascent)

    @property
    def sharpness(self) -> float:
        """Width tau_2 mu of the soft maximum; infinite for the mean."""
        return self.tau_ood * self.mu if self.outer == "soft_maximum" else math.inf

    @property
    def consistency(self) -> Consistency:
        """The server's step."""
        return Consistency(
            tau=self.transport_tau,
            steps=self.transport_steps,
            gap=self.transport_gap,
            cost_quantile=self.cost_quantile,
            seemly_count=self.seemly_count,
            alpha=self.alpha,
            plan=self.plan,
            calibration=self.calibration,
            keep=self.keep,
            cap=self.ood_cap,
            pool=self.goc_pool,
        )


def first_prompts(
    config: PromptSetsConfig, task: Task, generator: torch.Generator, method: str
) -> Params:
    """Draw the class and OOD prompts that training starts from.

    Args:
        config: length of the contexts, and the words they start from.
        task: class names and negative words.
        generator: draws class prompts first, then OOD prompts.
        method: the method's name, for messages.

    Returns:
        `global` (C, n, d_t), `ood` (U, n, d_t) and `ood_words` (U,).

    Raises:
        MethodError: there are no negative words.
    """
    if task.ood_names is None:
        raise MethodError(f"{method} needs OOD prompts: set negatives.count above 0")
    tokens, start = config.context_tokens, config.start
    return {
        "global": first_context(task, generator, tokens, start, len(task.classes)),
        "ood": first_context(task, generator, tokens, start, len(task.ood_names)),
        "ood_words": torch.arange(len(task.ood_names), device=task.device),
    }


def first_noise(
    config: PromptSetsConfig,
    counts: Mapping[str, int],
    row: Sequence[int],
    dtype: torch.dtype,
    generator: torch.Generator,
) -> Params:
    """Draw what the ascent starts from.

    Args:
        config: gives the scale of the noise, and whether directions are drawn too.
        counts: how many rows of each name, `id` and `ood`.
        row: shape of one row.
        dtype: kind of the numbers.
        generator: draws them.

    Returns:
        Rows (R, *row) by name; for random directions also `id_direction` and `ood_direction`.
    """

    def draw(count: int) -> torch.Tensor:
        return torch.randn(count, *row, generator=generator, dtype=dtype)

    # In place: on prompts these are millions of numbers.
    noise = {name: draw(count).mul_(config.sigma) for name, count in counts.items()}
    if config.ascent == "random":
        noise |= {f"{name}_direction": draw(count) for name, count in counts.items()}
    return noise
