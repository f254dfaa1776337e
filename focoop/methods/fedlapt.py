"""FedLAPT: one context for class names and one for negative words, trained on mixed features.

Paper: Zhang et al., LAPT: Label-driven Automated Prompt Tuning for OOD Detection with
Vision-Language Models, ECCV 2024, federated as in Liao et al., FOCoOp, ICML 2025.

Objective, with one lam ~ Beta(alpha, alpha) per batch and a template r drawn per image:
    x = normalise(lam h + (1 - lam) b_yr)                       b -> `bank` (C + U, 7, D), frozen
    L = w CE(s cos(x, e) over the C + U prompts, y)             w -> `loss_weight`
    e_c = Text([v^id] name_c), e_u = Text([v^ood] word_u)       v -> `id`, `ood` (n, d_t)
`mixing = class_centre` has x = normalise(lam h + (1 - lam) m_y), m_y the unit mean of the batch's
own features of class y. It is taken from the batch and not from the bank: a mean of templates is a
text again, so that mixing with it is the default with less variety, while a mean of images takes
out the noise of one image and stays among images; and it needs no memory of earlier batches. An
image alone in its class is its own centre and stays as it is.
Mixing in image space would need pixels in the batch, the image tower in every step and its cost
(features could not be made once and kept); `Batch` and `Task` hold neither images nor that tower.

LAPT makes or retrieves images of the negative words too. A client has none: its images are all ID,
so that OOD prompts are only pushed away from them. `negative_texts` adds that many rows of the bank
under words drawn at random, label C + u, in the place of those images; 0 leaves them out.

Shared: `id` and `ood`, (n, d_t) each, (C, n, d_t) and (U, n, d_t) with `contexts = class_specific`;
with `contexts = unified` one `context` (n, d_t) for all names. Private: nothing; with a prior
`counts` (C,) of the client's own labels.
Server: mean weighted by samples; class-specific class contexts, per class by class counts.
Score: grouped NegLabel, 1 - (1/G) sum_g S_id / (S_id + S_g), S = sum exp(s cos), G -> `groups`
over a fixed permutation of the words. Answers are the best of the C classes.

Differs from the authors' code: SGD without Nesterov, the rate's schedule by rounds. The FOCoOp
authors' version cannot be built; what else differs there: `docs/model/authors_code.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F

from focoop.errors import MethodError
from focoop.fields import setting
from focoop.functional import scores
from focoop.methods._answers import COMMON_SCORES, EVIDENCE_SCALES, AnswerConfig, Answering
from focoop.methods._averages import federated_average
from focoop.methods._contexts import draw_context
from focoop.methods.base import (
    Batch,
    ClientUpdate,
    Logits,
    Params,
    Prompt,
    Server,
    State,
    Task,
    Text,
)

if TYPE_CHECKING:
    from torch import Tensor

    from focoop.clip import Names

TEMPLATES = (
    "a bad photo of the {}.",
    "a {} in a video game.",
    "a origami {}.",
    "a photo of the small {}.",
    "art of the {}.",
    "a photo of the large {}.",
    "itap of a {}.",
)
# LAPT divides 10,000 words into 100 groups; fewer words make fewer groups of this size.
WORDS_PER_GROUP = 100


class FedLAPT(Answering):
    """Distribution-aware contexts, trained by cross-modal mixing."""

    @dataclass(frozen=True)
    class Config(AnswerConfig):
        """Settings of FedLAPT."""

        context_tokens: int = setting(
            2, "n, length of each context", low=1, high=64, grid=(2, 4, 16), group="paper"
        )
        contexts: Literal["separate", "unified", "class_specific"] = setting(
            "separate",
            "one for classes and one for words, `unified`: one for both, or one a name",
            grid=("separate", "class_specific"),
            group="paper",
        )
        mixing: Literal["cross_modal", "class_centre", "none"] = setting(
            "cross_modal",
            "an image's feature with a text of its class, or with the class's mean",
            grid=("cross_modal", "class_centre"),
            group="paper",
        )
        alpha: float = setting(
            1.0, "alpha of lam ~ Beta(alpha, alpha), the image's share", above=0, group="paper"
        )
        fold: bool = setting(False, "lam to min(lam, 1 - lam): mostly text", group="engineering")
        loss_weight: float = setting(1.0, "w, weight of the loss", above=0, group="paper")
        negative_texts: int = setting(
            0,
            "texts of negative words added to each batch",
            low=0,
            high=100_000,
            group="engineering",
        )
        score: str = setting("neglabel", "which score detects", group="engineering")
        groups: int = setting(
            0, "G, groups of words; 0: one for every 100 words", low=0, high=10_000, group="paper"
        )
        score_scale: float = setting(
            0.0, "s of NegLabel; 0: the logit scale", low=0, group="engineering"
        )

    config: Config
    paper = "Zhang et al. 2024"
    shares = "ID context, OOD context"
    scores_by = "grouped NegLabel"
    needs_ood = True
    tried_scores = {**COMMON_SCORES, "neglabel": {"score_scale": EVIDENCE_SCALES}}

    def prepare(self, task: Task) -> Params:
        """`bank` (C + U, 7, D): classes, then words, in every template."""
        names = [*task.classes, *words_of(task).texts]
        texts = [t.format(name.replace("_", " ")) for name in names for t in TEMPLATES]
        return {"bank": task.texts(texts).view(len(names), len(TEMPLATES), -1)}

    @property
    def by_class(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return what is averaged class by class: a class's own context."""
        return ("id",) if self.config.contexts == "class_specific" else ()

    def init(self, task: Task, generator: torch.Generator) -> State:
        """The contexts, each from its own draw."""
        words, config = words_of(task), self.config
        if config.groups > len(words):
            raise MethodError(
                f"{len(words)} words cannot make {config.groups} groups: "
                "lower method.groups or raise negatives.count"
            )
        shape = (config.context_tokens, task.width)
        if config.contexts == "unified":
            shared = {"context": draw_context(shape, task, generator)}
            return State(shared, private=self.unknown_counts(task))
        counts = {"id": len(task.classes), "ood": len(words)}
        each = config.contexts == "class_specific"
        return State(
            {
                name: draw_context((count, *shape) if each else shape, task, generator)
                for name, count in counts.items()
            },
            private=self.unknown_counts(task),
        )

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        """The classes (C prompts) and the negative words (U)."""
        unified = self.config.contexts == "unified"
        return {
            "id": Prompt(params["context" if unified else "id"], task.id_names),
            "ood": Prompt(params["context" if unified else "ood"], words_of(task)),
        }

    def noise(self, batch_size: int, task: Task, generator: torch.Generator) -> Params:
        """`share` lam (), `template` (B,), and the negative texts' `word`, `word_template`."""
        config, drawn = self.config, {}
        if config.mixing != "none":
            share = symmetric_beta(config.alpha, (), generator)
            share = torch.minimum(share, 1.0 - share) if config.fold else share
            drawn["share"] = share.to(task.anchors.dtype)
        if config.mixing == "cross_modal":
            drawn["template"] = torch.randint(len(TEMPLATES), (batch_size,), generator=generator)
        if config.negative_texts:
            count, words = (config.negative_texts,), len(words_of(task))
            drawn["word"] = torch.randint(words, count, generator=generator)
            drawn["word_template"] = torch.randint(len(TEMPLATES), count, generator=generator)
        return drawn

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        """Weighted cross-entropy of the mixed features over C + U."""
        assert text.ood is not None
        mixed, labels = self.mix(batch, task, noise), batch.labels
        if self.config.negative_texts:
            words = len(task.classes) + noise["word"]
            mixed = torch.cat([mixed, task.frozen["bank"][words, noise["word_template"]]])
            labels = torch.cat([labels, words])
        logits = task.logit_scale * mixed @ torch.cat([text.id, text.ood]).T
        return self.config.loss_weight * F.cross_entropy(logits, labels)

    def mix(self, batch: Batch, task: Task, noise: Params) -> Tensor:
        """Mix each image's features within its class.

        Args:
            batch: Images with labels.
            task: The task.
            noise: The random numbers of the step.

        Returns:
            Unit features (B, D).
        """
        if self.config.mixing == "none":
            return batch.pooled
        if self.config.mixing == "cross_modal":
            other = task.frozen["bank"][batch.labels, noise["template"]]
        else:
            other = class_centres(batch)
        share = noise["share"]
        return F.normalize(share * batch.pooled + (1.0 - share) * other, dim=-1)

    def score_inputs(self, logits: Logits, task: Task, scale: float = 0.0) -> scores.Inputs:
        """Cosines and constants, with NegLabel's groups of words."""
        inputs = super().score_inputs(logits, task, scale or self.config.score_scale)
        groups = self.config.groups or max(1, inputs.ood.shape[1] // WORDS_PER_GROUP)
        return replace(inputs, groups=groups)

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Federated averaging; a class's own context is averaged by the images of the class."""
        return federated_average(server, updates, self.by_class)


def symmetric_beta(alpha: float, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Draw Beta(alpha, alpha) in float64, exactly for every alpha > 0, by two uniforms a number.

    Bailey's polar method gives T = sqrt(2a (u^(-1/a) - 1)) cos(2 pi v), Student's t with 2a degrees
    of freedom, and 1/2 + T / (2 sqrt(2a + T^2)) is Beta(a, a). Nothing is rejected, so that the
    generator moves by the same amount whatever is drawn.

    Args:
        alpha: The parameter a.
        shape: Shape of the draws.
        generator: Draws the numbers.

    Returns:
        The draws.
    """
    u, v = torch.rand((2, *shape), generator=generator, dtype=torch.float64)
    # t = T / sqrt(2a); 1 - u is as uniform as u and never 0, and no cosine of a float is 0.
    t = torch.expm1(-torch.log1p(-u) / alpha).sqrt() * torch.cos(2.0 * math.pi * v)
    root = (1.0 + t.square()).sqrt()
    # (root - |t|) / (2 root) without the cancellation that would round small numbers to 0.
    nearer = 0.5 / (root * (root + t.abs()))
    return torch.where(t < 0, nearer, 1.0 - nearer)


def class_centres(batch: Batch) -> Tensor:
    """Return for each image the unit mean of the batch's features of its class.

    Args:
        batch: Images with labels.

    Returns:
        Unit features (B, D).
    """
    same = (batch.labels[:, None] == batch.labels).to(batch.pooled.dtype)  # (B, B)
    return F.normalize(same @ batch.pooled, dim=-1)


def words_of(task: Task) -> Names:
    """Return the negative words.

    Args:
        task: The task.

    Returns:
        The words.

    Raises:
        MethodError: There are none; the message says where they come from.
    """
    if task.ood_names is None:
        raise MethodError("fedlapt needs negative words: set negatives.count above 0")
    return task.ood_names
