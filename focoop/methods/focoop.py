"""FOCoOp: three prompt sets that classify, generalise and detect, kept consistent across clients.

Paper: Zhou et al., FOCoOp: Enhancing Out-of-Distribution Robustness in Federated Prompt Learning
for Vision-Language Models, ICML 2025. Readings of its gaps: A-1..A-17 in `docs/methods/focoop.md`.

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
Private: `local` (C, n, d_t).
Score: ID mass by default, log sum_u S - log sum_c S.

Differs from the authors' code: perturbs on purpose what the paper perturbs (prompts) or, cheaper,
normalised text features inside a radius, where the code adds noise of norm up to 4; -log p(ID|x)
where the code has a uniformity term without ID logits; constant tau where the code decays it into a
division by zero; per-class counts; transport with hard classes, a normalised barycentre (the code
halves T^g every round) and words that keep their slot (the code collapses 100 words to 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from focoop import scores, transport
from focoop.clip.text import Names
from focoop.errors import ConfigError, MethodError
from focoop.methods._base import (
    Batch,
    ClientUpdate,
    Logits,
    Method,
    Params,
    Server,
    State,
    Task,
    Text,
    class_weighted_mean,
    cosines,
    draw_context,
    weighted_mean,
)
from focoop.methods._robust import Ascent, soft_maximum

SCORES = ("id_mass", "msp_all", "mcm")


@dataclass(frozen=True)
class FOCoOpConfig:
    """Settings of FOCoOp, with the paper's symbol in each line."""

    context_tokens: int = field(default=16, metadata={"doc": "n, length of each context"})
    global_share: float = field(default=0.2, metadata={"doc": "rho, share of the global prompt"})
    bos: bool = field(default=True, metadata={"doc": "robust separations; false: CE over C + U"})
    goc: bool = field(default=True, metadata={"doc": "transport on the server; false: averages"})
    detection_weight: float = field(default=1.0, metadata={"doc": "weight of -log p(ID|x)"})
    space: str = field(default="feature", metadata={"doc": "perturb `feature` or `prompt` space"})
    id_steps: int = field(default=4, metadata={"doc": "N, ascent steps on global prompts"})
    ood_steps: int = field(default=4, metadata={"doc": "M, ascent steps on OOD prompts"})
    step_size: float = field(default=0.02, metadata={"doc": "lr, length of an ascent step"})
    normalised_steps: bool = field(
        default=True, metadata={"doc": "unit row gradients; false: raw gradients as in Alg. 2"}
    )
    radius: float = field(default=0.1, metadata={"doc": "cap on a row's perturbation; 0: none"})
    sigma: float = field(default=1e-3, metadata={"doc": "sigma, scale of the starting noise"})
    tau_id: float = field(default=10.0, metadata={"doc": "tau_1, price of moving ID prompts"})
    tau_ood: float = field(default=10.0, metadata={"doc": "tau_2, price of moving OOD prompts"})
    mu: float = field(default=0.1, metadata={"doc": "mu, KL regularisation of the outer loss"})
    gamma: float = field(default=0.0, metadata={"doc": "gamma, L1 price of a perturbation"})
    transport_tau: float = field(default=0.1, metadata={"doc": "tau of SemiUOT's loose marginal"})
    transport_steps: int = field(default=300, metadata={"doc": "Frank-Wolfe iterations at most"})
    transport_gap: float = field(default=5e-3, metadata={"doc": "stop at this duality gap"})
    transport_rule: str = field(default="open_loop", metadata={"doc": "`open_loop` or `armijo`"})
    seemly: str = field(default="top", metadata={"doc": "seemly OOD: `top` M or `kmeans2`"})
    seemly_count: int = field(default=0, metadata={"doc": "M of top-M; 0: as many as U"})
    alpha: float = field(default=0.5, metadata={"doc": "alpha, share of T^g kept in calibration"})
    keep: str = field(
        default="slot", metadata={"doc": "`slot`: best copy of each word; `paper`: top-U of all"}
    )
    score: str = field(default="id_mass", metadata={"doc": "`id_mass`, `msp_all` or `mcm`"})
    score_scale: float = field(default=0.0, metadata={"doc": "scale of the score; 0: logit scale"})

    def __post_init__(self) -> None:
        """Refuse values outside the method's definition."""
        choices = {
            "space": ("feature", "prompt"),
            "transport_rule": ("open_loop", "armijo"),
            "seemly": ("top", "kmeans2"),
            "keep": ("slot", "paper"),
            "score": SCORES,
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"method.{name} = {getattr(self, name)!r}: choose from {', '.join(allowed)}"
                )
        for name in ("global_share", "alpha"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"method.{name} must lie in [0, 1], not {getattr(self, name)}")
        for name in ("tau_ood", "mu", "transport_tau", "context_tokens", "transport_steps"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"method.{name} must be positive, not {getattr(self, name)}")
        for name in ("id_steps", "ood_steps", "radius", "sigma", "tau_id", "gamma", "step_size"):
            if getattr(self, name) < 0:
                raise ConfigError(f"method.{name} must not be negative, not {getattr(self, name)}")


class FOCoOp(Method):
    """Global, local and OOD prompts with robust client training and transport on the server."""

    Config = FOCoOpConfig
    config: FOCoOpConfig
    paper = "Zhou et al. 2025"
    shares = "global prompts, OOD prompts"
    keeps = "local prompts"
    scores_by = "ID mass over C + U"
    needs_ood = True

    def init(self, task: Task, generator: torch.Generator) -> State:
        """Global and local prompts from one draw, OOD prompts from another."""
        if task.ood_names is None:
            raise MethodError("focoop needs OOD prompts: set negatives.count above 0")
        tokens = self.config.context_tokens
        prompts = draw_context([len(task.classes), tokens, task.width], task, generator)
        ood = draw_context([len(task.ood_names), tokens, task.width], task, generator)
        words = torch.arange(len(task.ood_names), device=task.device)
        return State(
            shared={"global": prompts, "ood": ood, "ood_words": words},
            private={"local": prompts.clone()},
        )

    def text(self, params: Params, task: Task) -> Text:
        """Features of the fused class prompts (C, D) and of the OOD prompts (U, D)."""
        fused = self.fuse(params["local"], params["global"])
        ood = task.encode(params["ood"], words_of(params, task))
        return Text(task.encode(fused, task.id_names), ood)

    def fuse(self, local: Tensor, shared: Tensor) -> Tensor:
        """t_c = (1 - rho) t^l_c + rho t^g_c."""
        rho = self.config.global_share
        return (1.0 - rho) * local + rho * shared

    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        """Cosines with classes and OOD prompts."""
        return cosines(text, pooled)

    def loss(self, params: Params, batch: Batch, task: Task, generator: torch.Generator) -> Tensor:
        """Eq. sol_dro; without BOS the cross-entropy over C + U."""
        config = self.config
        text = self.text(params, task)
        if not config.bos:
            return separation_loss(text, batch, task.logit_scale, 0.0).mean()
        worst = self.worst_case(text, params, batch, task, generator)
        losses = separation_loss(worst, batch, task.logit_scale, config.detection_weight)
        return soft_maximum(losses, config.tau_ood * config.mu)

    def worst_case(
        self, text: Text, params: Params, batch: Batch, task: Task, generator: torch.Generator
    ) -> Text:
        """Text features under the worst perturbations: eps^g first, then eps^o given eps^g."""
        config = self.config
        ascent = Ascent(
            config.step_size, config.normalised_steps, config.radius, config.sigma, config.gamma
        )
        still = Text(text.id.detach(), None if text.ood is None else text.ood.detach())
        fixed = {name: value.detach() for name, value in params.items()}
        like = self.perturbed(still, fixed)
        scale, weight = task.logit_scale, config.detection_weight

        def id_objective(noise: Tensor) -> Tensor:
            moved = Text(self.move_id(still, fixed, noise, task), still.ood)
            return separation_loss(moved, batch, scale, weight).mean()

        noise_id = ascent.explore(
            id_objective, like[0], steps=config.id_steps, tau=config.tau_id, generator=generator
        )
        worst_id = self.move_id(text, params, noise_id, task)

        def ood_objective(noise: Tensor) -> Tensor:
            moved = Text(worst_id.detach(), self.move_ood(still, fixed, noise, task))
            return separation_loss(moved, batch, scale, weight).mean()

        noise_ood = ascent.explore(
            ood_objective, like[1], steps=config.ood_steps, tau=config.tau_ood, generator=generator
        )
        return Text(worst_id, self.move_ood(text, params, noise_ood, task))

    def perturbed(self, text: Text, params: Params) -> tuple[Tensor, Tensor]:
        """What eps^g and eps^o are added to: unit features, or contexts as in the paper."""
        assert text.ood is not None
        if self.config.space == "feature":
            return text.id, text.ood
        return params["global"], params["ood"]

    def move_id(self, text: Text, params: Params, noise: Tensor, task: Task) -> Tensor:
        """(C, D) class features moved by eps^g.

        In feature space the fused feature moves: its global part has no address of its own there.
        """
        if self.config.space == "feature":
            return F.normalize(text.id + noise, dim=-1)
        return task.encode(self.fuse(params["local"], params["global"] + noise), task.id_names)

    def move_ood(self, text: Text, params: Params, noise: Tensor, task: Task) -> Tensor:
        """(U, D) OOD features moved by eps^o."""
        assert text.ood is not None
        if self.config.space == "feature":
            return F.normalize(text.ood + noise, dim=-1)
        return task.encode(params["ood"] + noise, words_of(params, task))

    def score(self, logits: Logits, task: Task) -> Tensor:
        """ID mass, the largest class probability over C + U, or MCM."""
        scale = self.config.score_scale or task.logit_scale
        assert logits.ood is not None
        if self.config.score == "id_mass":
            return scores.id_mass(logits.id, logits.ood, scale=scale)
        if self.config.score == "msp_all":
            return scores.max_softmax_all(logits.id, logits.ood, scale=scale)
        return scores.mcm(logits.id, temperature=1.0)

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Per-class mean of T^g, then Global-view OOD Consistency over all clients' T^o."""
        prompts = class_weighted_mean(updates, "global", server.shared["global"])
        words = server.shared["ood_words"]
        if not self.config.goc or len(updates) == 1:
            shared = {"global": prompts, "ood": weighted_mean(updates, "ood"), "ood_words": words}
            return Server(shared)
        return self.calibrate(prompts, words, updates, server)

    def calibrate(
        self, prompts: Tensor, words: Tensor, updates: Sequence[ClientUpdate], server: Server
    ) -> Server:
        """SemiUOT alignment, EMA of T^g (Eq. ema_global_prompt), choice of T^o."""
        config = self.config
        ood = torch.cat([update.shared["ood"] for update in updates])  # (KU, n, d_t)
        flat_id, flat_ood = prompts.flatten(1), ood.flatten(1)
        cost = transport.squared_cost(flat_id, flat_ood, normalise=True)
        previous = server.memory.get("plan")
        warm = config.transport_rule == "armijo" and previous is not None
        plan = transport.semi_unbalanced(
            cost,
            tau=config.transport_tau,
            step=config.transport_rule,
            max_steps=config.transport_steps,
            tolerance=config.transport_gap,
            start=previous if warm and previous.shape == cost.shape else None,
        )
        if config.seemly == "top":
            count = min(config.seemly_count or len(words), len(ood))
            seemly = transport.select_by_mass(plan.mass, count, largest=True)
        else:
            seemly = transport.two_means(plan.mass).nonzero().squeeze(1)
        target = transport.barycentre(plan.plan[:, seemly], flat_ood[seemly], fallback=flat_id)
        calibrated = config.alpha * flat_id + (1.0 - config.alpha) * target

        mass = plan.mass.view(len(updates), len(words))  # (K, U)
        if config.keep == "slot":
            rows = mass.argmin(dim=0) * len(words) + torch.arange(len(words), device=mass.device)
        else:
            rows = transport.select_by_mass(plan.mass, len(words), largest=False)
        return Server(
            shared={
                "global": calibrated.view_as(prompts),
                "ood": ood[rows],
                "ood_words": words[rows % len(words)],
            },
            memory={"plan": plan.plan} if config.transport_rule == "armijo" else {},
            report={"transport_gap": plan.gap, "transport_steps": float(plan.steps)},
        )


def separation_loss(text: Text, batch: Batch, scale: float, detection_weight: float) -> Tensor:
    """(B,) -log p(y|x) - w log p(ID|x) over C + U prompts (Eq. bi_obj)."""
    assert text.ood is not None
    id_logits = scale * batch.pooled @ text.id.T
    ood_logits = scale * batch.pooled @ text.ood.T
    id_sum = id_logits.logsumexp(dim=1)
    total = torch.logaddexp(id_sum, ood_logits.logsumexp(dim=1))
    own = id_logits.gather(1, batch.labels[:, None]).squeeze(1)
    return (total - own) + detection_weight * (total - id_sum)


def words_of(params: Params, task: Task) -> Names:
    """The OOD names in the order of the prompts' slots."""
    assert task.ood_names is not None
    return task.ood_names.select(params["ood_words"])
