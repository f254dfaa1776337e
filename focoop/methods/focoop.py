"""FOCoOp: three prompt sets that classify, generalise and detect, kept consistent across clients.

Paper: Liao et al., FOCoOp: Enhancing Out-of-Distribution Robustness in Federated Prompt Learning
for Vision-Language Models, ICML 2025. Readings of its gaps: A-1..A-17 in `docs/model/focoop.md`.

Client (Bi-level OOD Separations, BOS), with S = exp(s cos):
    t_c = (1 - rho) t^l_c + rho t^g_c                                   rho -> `global_share`
    L   = -log p(y=c|x) - log p(ID|x), both over the C + U prompts (Eq. bi_obj)
    eps^g: N ascent steps on L - tau_1 |eps^g| - gamma |eps^g|_1        N -> `id_steps`
    eps^o: M ascent steps on L - tau_2 |eps^o| - gamma |eps^o|_1        M -> `ood_steps`
    descend tau_2 mu log mean_b exp(L_b(eps^g, eps^o) / (tau_2 mu))     (Eq. sol_dro)
Server (Global-view OOD Consistency, GOC):
    t^g_c <- sum_k |D_kc| t^g_kc / sum_k |D_kc|; pi <- SemiUOT(T^g, all clients' T^o)
    T^g <- alpha T^g + (1 - alpha) barycentre of the top-M OOD prompts by mass (seemly OOD)
    T^o <- the OOD prompts that received least mass

Shared: `global` (C, n, d_t), `ood` (U, n, d_t), `ood_words` (U,), the word of each OOD slot.
Private: `local` (C, n, d_t); with a prior `counts` (C,) of the client's own labels.
Score: ID mass, w log sum_u S - log sum_c S, w -> `ood_weight`; at w = 1 the log-odds of p(ID|x).
Not in the paper: `open_share` below 1 gives a client's answers and score its prior (`_prior.py`).

Differs from the authors' code: perturbs on purpose what the paper perturbs (prompts) or, cheaper,
normalised text features inside a radius, where the code adds noise of norm up to 4; -log p(ID|x)
where the code has a uniformity term without ID logits; constant tau where the code decays it into a
division by zero; per-class counts; transport with hard classes, a normalised barycentre (the code
halves T^g every round) and words that keep their slot (the code collapses 100 words to 1).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from focoop.clip import Names
from focoop.errors import MethodError
from focoop.fields import setting
from focoop.functional import scores
from focoop.methods._bos import Ascent, Move, Separation, separation_loss, soft_maximum
from focoop.methods._goc import Consistency
from focoop.methods._prior import expected, prior_part
from focoop.methods.base import (
    Batch,
    ClientUpdate,
    Logits,
    Method,
    Params,
    Prompt,
    Server,
    State,
    Task,
    Text,
    class_weighted_mean,
    cosines,
    first_context,
    weighted_mean,
)


@dataclass(frozen=True)
class FOCoOpConfig:
    """Settings of FOCoOp, with the paper's symbol in each line."""

    context_tokens: int = setting(16, "n, length of each context", low=1)
    start: str = setting(
        "", "words every context starts from, whose tokens give n; empty: drawn at random"
    )
    global_share: float = setting(0.2, "rho, share of the global prompt", low=0, high=1)
    bos: bool = setting(True, "robust separations; false: CE over C + U")
    goc: bool = setting(True, "transport on the server; false: averages")
    detection_weight: float = setting(1.0, "weight of -log p(ID|x)", low=0)
    space: Literal["feature", "prompt"] = setting(
        "feature", "perturb `feature` or, as in the paper, `prompt` space"
    )
    reuse_slopes: bool = setting(
        False, "prompt space: all steps of the ascent take the first slope, of one tower pass"
    )
    id_steps: int = setting(4, "N, ascent steps on global prompts", low=0)
    ood_steps: int = setting(4, "M, ascent steps on OOD prompts", low=0)
    id_radius: float = setting(0.01, "cap on |eps^g|; 0: none", low=0)
    ood_radius: float = setting(1.0, "cap on |eps^o|; 0: none", low=0, grid=(0.3, 1.0))
    step_size: float = setting(0.4, "lr of the ascent, in radii", low=0)
    normalised_steps: bool = setting(True, "unit row gradients; false: raw gradients as in Alg. 2")
    sigma: float = setting(1e-3, "sigma, scale of the starting noise", low=0)
    tau_id: float = setting(10.0, "tau_1, price of moving ID prompts", low=0)
    tau_ood: float = setting(10.0, "tau_2, price of moving OOD prompts", above=0)
    mu: float = setting(1.0, "mu, KL regularisation of the outer loss", above=0)
    gamma: float = setting(0.0, "gamma, L1 price of a perturbation", low=0)
    transport_tau: float = setting(0.1, "tau of SemiUOT's loose marginal", above=0)
    transport_steps: int = setting(300, "Frank-Wolfe iterations at most", low=1)
    transport_gap: float = setting(5e-3, "stop at this duality gap", low=0)
    transport_rule: Literal["dual", "armijo", "open_loop"] = setting(
        "dual", "Frank-Wolfe by `armijo` or the paper's 1/(i+2), `open_loop`; `dual`: Newton"
    )
    cost_scale: Literal["range", "max"] = setting(
        "range", "costs brought to [0, 1] by their `range`, or divided by their `max`"
    )
    seemly: Literal["top", "kmeans2"] = setting("top", "seemly OOD: `top` M or `kmeans2`")
    seemly_count: int = setting(0, "M of top-M; 0: as many as U", low=0)
    alpha: float = setting(0.5, "alpha, share of T^g kept in calibration", low=0, high=1)
    keep: Literal["slot", "paper"] = setting(
        "slot", "OOD prompts kept: best copy of each word, or `paper`: top-U of all"
    )
    goc_pool: Literal["all", "mean"] = setting(
        "all", "transport sees `all` clients' OOD prompts, or their `mean`: sums suffice"
    )
    ood_cap: float = setting(
        1.0, "share of the kept OOD prompts one client may supply; 1: no cap", above=0, high=1
    )
    score: Literal["id_mass", "msp_all", "mcm"] = setting("id_mass", "which score detects")
    score_scale: float = setting(
        0.0, "scale of the score; 0: the logit scale", low=0, grid=(0.0, 30.0)
    )
    ood_weight: float = setting(
        1.0, "weight of OOD prompts in id_mass; 1: p(ID|x)", low=0, grid=(0.1, 0.3, 1.0)
    )
    open_share: float = setting(
        1.0,
        "lambda, share of images expected of any class; 1: no prior, 0: own classes alone",
        low=0,
        high=1,
    )


class FOCoOp(Method):
    """Global, local and OOD prompts with robust client training and transport on the server."""

    Config = FOCoOpConfig  # type: ignore[assignment]
    config: FOCoOpConfig
    paper = "Liao et al. 2025"
    shares = "global prompts, OOD prompts"
    keeps = "local prompts"
    scores_by = "ID mass over C + U"
    needs_ood = True
    by_class = ("global",)
    identity_settings = {"alpha": 1.0}  # otherwise T^g moves towards T^o

    @property
    def together(self) -> bool:  # type: ignore[override]
        """In prompt space the ascent itself runs the tower, client by client."""
        return self.config.space == "feature" or not self.config.bos

    def init(self, task: Task, generator: torch.Generator) -> State:
        """Global and local prompts from one draw, OOD prompts from another."""
        if task.ood_names is None:
            raise MethodError("focoop needs OOD prompts: set negatives.count above 0")
        tokens, start = self.config.context_tokens, self.config.start
        prompts = first_context(task, generator, tokens, start, len(task.classes))
        ood = first_context(task, generator, tokens, start, len(task.ood_names))
        words = torch.arange(len(task.ood_names), device=task.device)
        return State(
            shared={"global": prompts, "ood": ood, "ood_words": words},
            private={"local": prompts.clone()},
        )

    def personalise(self, private: Params, class_counts: Tensor, task: Task) -> Params:
        """The client's own class counts, where its prior asks for them."""
        return private if self.config.open_share == 1 else {**private, "counts": class_counts}

    def text(self, params: Params, features: Params, task: Task) -> Text:
        """Class and OOD features, and the client's prior where it has one."""
        parts = prior_part(params, self.config.open_share, task)
        return Text(features["id"], features["ood"], parts)

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        """The fused class prompts (C of them) and the OOD prompts (U)."""
        fused = self.fuse(params["local"], params["global"])
        return {
            "id": Prompt(fused, task.id_names),
            "ood": Prompt(params["ood"], words_of(params, task)),
        }

    def fuse(self, local: Tensor, shared: Tensor) -> Tensor:
        """t_c = (1 - rho) t^l_c + rho t^g_c."""
        rho = self.config.global_share
        return (1.0 - rho) * local + rho * shared

    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        """Cosines with classes and OOD prompts, the former shifted by the client's prior."""
        return expected(cosines(text, pooled), text)

    def noise(self, batch_size: int, task: Task, generator: torch.Generator) -> Params:
        """Starting perturbations of class and OOD prompts, Gaussian of scale sigma."""
        if not self.config.bos:
            return {}
        assert task.ood_names is not None
        row = [task.anchors.shape[1]]
        if self.config.space == "prompt":
            row = [self.config.context_tokens, task.width]
        counts = {"id": len(task.classes), "ood": len(task.ood_names)}
        dtype = task.anchors.dtype
        return {
            name: torch.randn(n, *row, generator=generator, dtype=dtype) * self.config.sigma
            for name, n in counts.items()
        }

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        """Eq. sol_dro; without BOS the cross-entropy over C + U."""
        config = self.config
        if not config.bos:
            return separation_loss(text, batch, task.logit_scale, 0.0).mean()
        sharpness = config.tau_ood * config.mu
        if config.space == "feature":
            separation = Separation(batch, task.logit_scale, config.detection_weight)
            return separation.loss(text, noise, self.move("id"), self.move("ood"), sharpness)
        worst = self.worst_case(text, params, batch, task, noise)
        losses = separation_loss(worst, batch, task.logit_scale, config.detection_weight)
        return soft_maximum(losses, sharpness)

    def worst_case(
        self, text: Text, params: Params, batch: Batch, task: Task, noise: Params
    ) -> Text:
        """Text features where the worst perturbations move prompts: eps^g, then eps^o given it."""
        config = self.config
        assert text.ood is not None
        still_ood = text.ood.detach()
        fixed = {name: value.detach() for name, value in params.items()}

        def objective(ids: Tensor, oods: Tensor) -> Tensor:
            scale, weight = task.logit_scale, config.detection_weight
            return separation_loss(Text(ids, oods), batch, scale, weight).mean()

        def both(moved: Params) -> Tensor:
            ids = self.move_id(fixed, moved["id"], task)
            return objective(ids, self.move_ood(fixed, moved["ood"], task))

        slopes = torch.func.grad(both)(noise) if config.reuse_slopes else {}

        def explored(name: str, objective: Callable[[Tensor], Tensor]) -> Tensor:
            ascent, steps, tau = self.move(name)
            slope = (lambda _: slopes[name]) if slopes else torch.func.grad(objective)
            return ascent.climb(slope, noise[name], steps=steps, tau=tau)

        moved = explored("id", lambda eps: objective(self.move_id(fixed, eps, task), still_ood))
        worst = self.move_id(params, moved, task)
        still_id = worst.detach()
        moved = explored("ood", lambda eps: objective(still_id, self.move_ood(fixed, eps, task)))
        return Text(worst, self.move_ood(params, moved, task))

    def move(self, name: str) -> Move:
        """How the rows `id` or `ood` are perturbed: ascent, steps, price."""
        config = self.config
        radius, steps, tau = {
            "id": (config.id_radius, config.id_steps, config.tau_id),
            "ood": (config.ood_radius, config.ood_steps, config.tau_ood),
        }[name]
        ascent = Ascent(radius, config.step_size, config.normalised_steps, config.gamma)
        return ascent, steps, tau

    def move_id(self, params: Params, noise: Tensor, task: Task) -> Tensor:
        """(C, D) class features where eps^g moves the global prompts."""
        return task.encode(self.fuse(params["local"], params["global"] + noise), task.id_names)

    def move_ood(self, params: Params, noise: Tensor, task: Task) -> Tensor:
        """(U, D) OOD features where eps^o moves the OOD prompts."""
        return task.encode(params["ood"] + noise, words_of(params, task))

    def score(self, logits: Logits, task: Task) -> Tensor:
        """ID mass, the largest class probability over C + U, or MCM."""
        scale = self.config.score_scale or task.logit_scale
        assert logits.ood is not None
        if self.config.score == "id_mass":
            return scores.id_mass(logits.id, logits.ood, scale, self.config.ood_weight)
        if self.config.score == "msp_all":
            return scores.max_softmax_all(logits.id, logits.ood, scale=scale)
        return scores.mcm(logits.id, temperature=1.0)

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Per-class mean of T^g, then Global-view OOD Consistency over all clients' T^o."""
        prompts = class_weighted_mean(updates, "global", server.shared["global"])
        words = server.shared["ood_words"]
        alone = len(updates) == 1 and self.config.goc_pool == "all"
        if not self.config.goc or alone:
            shared = {"global": prompts, "ood": weighted_mean(updates, "ood"), "ood_words": words}
            return Server(shared)
        return self.consistency.calibrate(prompts, words, updates, server)

    @property
    def consistency(self) -> Consistency:
        """The server's settings."""
        config = self.config
        return Consistency(
            tau=config.transport_tau,
            steps=config.transport_steps,
            gap=config.transport_gap,
            rule=config.transport_rule,
            cost_scale=config.cost_scale,
            seemly=config.seemly,
            seemly_count=config.seemly_count,
            alpha=config.alpha,
            keep=config.keep,
            cap=config.ood_cap,
            pool=config.goc_pool,
        )


def words_of(params: Params, task: Task) -> Names:
    """The OOD names in the order of the prompts' slots."""
    assert task.ood_names is not None
    return task.ood_names.select(params["ood_words"])
