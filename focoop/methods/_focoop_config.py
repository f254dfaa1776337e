"""Settings of FOCoOp, and what its ascent, its outer loss and its server step make of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from focoop.fields import setting
from focoop.methods._answers import AnswerConfig
from focoop.methods._bos import Ascent, Outer, Rule
from focoop.methods._goc import GAP, Consistency


@dataclass(frozen=True)
class FOCoOpConfig(AnswerConfig):
    """Settings of FOCoOp.

    Values that the paper leaves open were chosen on validation images. Lengths of perturbations in
    feature space, and the prices tau they pay, are in units of the spread of the classes' text
    features (`Task.spread`), so that one value means the same on any backbone.

    Ablation, of the client's Bi-level OOD Separations: `bos` switches all of it off, `ascent` the
    direction of perturbations, `outer` the soft maximum. Of the server's Global-view OOD
    Consistency: `goc` switches all of it off, `plan` the transport, `calibration` the pull of T^g,
    `keep` the choice of T^o.
    """

    # Paper
    global_share: float = setting(
        0.8,
        "rho, share of the global prompt; 1: no private prompts",
        low=0,
        high=1,
        grid=(0.5, 0.8, 1.0),
        group="paper",
    )
    detection_weight: float = setting(1.0, "weight of -log p(ID|x)", low=0, group="paper")
    id_steps: int = setting(4, "N, ascent steps on class prompts", low=0, high=1000, group="paper")
    ood_steps: int = setting(4, "M, ascent steps on OOD prompts", low=0, high=1000, group="paper")
    sigma: float = setting(1e-3, "sigma, scale of the starting noise", low=0, group="paper")
    tau_id: float = setting(0.1, "tau_1, price of moving class prompts", low=0, group="paper")
    tau_ood: float = setting(0.01, "tau_2, price of moving OOD prompts", low=0, group="paper")
    mu: float = setting(
        1.0,
        "mu, width of the soft maximum in mean losses of the batch; under outer=paper in tau_2",
        above=0,
        group="paper",
    )
    space: Literal["feature", "prompt"] = setting(
        "feature", "perturb `feature` or, as in the paper, `prompt` space", group="paper"
    )
    transport_tau: float = setting(0.1, "tau of SemiUOT's loose marginal", above=0, group="paper")
    seemly_count: int = setting(
        0, "M of top-M seemly OOD prompts; 0: as many as U", low=0, high=50_000, group="paper"
    )
    alpha: float = setting(
        0.5, "alpha, share of T^g kept in calibration", low=0, high=1, group="paper"
    )
    score: str = setting("id_mass", "which score detects", group="paper")
    score_scale: float = setting(
        0.0, "scale of id_mass and max_softmax_all; 0: the logit scale", low=0, group="paper"
    )
    ood_weight: float = setting(
        1.0, "weight of OOD prompts in id_mass; 1: p(ID|x)", low=0, group="paper"
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
    id_radius: float = setting(
        0.05, "cap on |eps^g|, in spreads of the classes; 0: none", low=0, group="engineering"
    )
    ood_radius: float = setting(
        0.3,
        "cap on |eps^o|, in spreads of the classes; 0: none",
        low=0,
        grid=(0.15, 0.3, 0.5),
        group="engineering",
    )
    step_size: float = setting(
        1.0, "first length of an ascent step, in radii", low=0, group="engineering"
    )
    normalised_steps: bool = setting(
        True, "unit row gradients; false: raw gradients as in Alg. 2", group="engineering"
    )
    transport_rule: Literal["dual", "open_loop"] = setting(
        "dual",
        "`dual`: Newton, to `transport_gap`; `open_loop`: the paper's Frank-Wolfe, all steps",
        group="engineering",
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
    cost_scale: Literal["quantile", "max"] = setting(
        "quantile", "costs in units of their `quantile` or their `max`", group="engineering"
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
    released: bool = setting(
        False,
        "`bos` and `goc` as the authors' released code has them (preset focoop-authors)",
        group="ablation",
    )
    bos: bool = setting(
        True, "perturbations and soft maximum; false: the mean loss as it is", group="ablation"
    )
    ascent: Rule = setting(
        "monotone",
        "perturbations: steps that each raise the loss less its price, `alg2` as they come, "
        "`random` directions of the same lengths, `none`",
        group="ablation",
    )
    outer: Literal["mean", "soft_maximum", "paper"] = setting(
        "mean",
        "loss of a batch: its `mean`, or the soft maximum of Eq. sol_dro, whose width is mu mean "
        "losses (`soft_maximum`) or tau_2 mu (`paper`)",
        grid=("mean", "soft_maximum"),
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

    def ascent_of(self, name: str, unit: float) -> Ascent:
        """How the rows `id` or `ood` are perturbed, where lengths are in multiples of `unit`."""
        radius, steps, tau = {
            "id": (self.id_radius, self.id_steps, self.tau_id),
            "ood": (self.ood_radius, self.ood_steps, self.tau_ood),
        }[name]
        return Ascent(
            radius * unit, self.step_size, steps, tau / unit, self.normalised_steps, self.ascent
        )

    @property
    def outer_loss(self) -> Outer:
        """How the losses of a batch become one."""
        if self.outer == "mean":
            return Outer(math.inf)
        if self.outer == "paper":
            return Outer(self.tau_ood * self.mu, relative=False)
        return Outer(self.mu)

    @property
    def consistency(self) -> Consistency:
        """The server's step."""
        return Consistency(
            tau=self.transport_tau,
            steps=self.transport_steps,
            gap=self.transport_gap,
            rule=self.transport_rule,
            cost_scale=self.cost_scale,
            cost_quantile=self.cost_quantile,
            seemly_count=self.seemly_count,
            alpha=self.alpha,
            plan=self.plan,
            calibration=self.calibration,
            keep=self.keep,
            cap=self.ood_cap,
            pool=self.goc_pool,
        )
