"""How a trained model answers: by which score it detects, and what its client expects to see.

Both are chosen after training, on the same prompts, and every trained method has the same choice:

    mcm         -log max_c softmax_c(cos / T)         T -> `temperature`
    energy      -log sum_c exp(cos / T)
    max_cosine  -max_c cos
    any other of `focoop.scores.SCORES`, such as the one that the method was published with

A client's prior (`_prior.py`) shifts its cosines by log pi_c / s, lambda -> `open_share`. Training
knows no prior: a method's `loss` reads cosines as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from focoop.fields import setting
from focoop.functional import scores
from focoop.methods._prior import expected, prior_part, shifted
from focoop.methods.base import Logits, Method, Params, Task, Text, cosines

if TYPE_CHECKING:
    from torch import Tensor

# What is tried after training: settings of each score by its name, and shares of any class.
TEMPERATURES = (1.0, 0.1, 0.03, 0.01)
COMMON_SCORES: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "mcm": {"temperature": TEMPERATURES},
    "energy": {"temperature": TEMPERATURES},
    "max_cosine": {},
}
OPEN_SHARES = (1.0, 0.9, 0.6, 0.3, 0.1, 0.0)
EVIDENCE_SCALES = (10.0, 30.0, 100.0)  # of scores that weigh classes against OOD prompts


@dataclass(frozen=True)
class AnswerConfig:
    """How a trained model answers: settings of all methods that derive from `Answering`."""

    score: str = setting(
        "mcm", "which score detects: mcm, energy, max_cosine, ..., ./mine.py", group="engineering"
    )
    temperature: float = setting(
        1.0, "T of mcm and energy, on raw cosines", above=0, group="engineering"
    )
    open_share: float = setting(
        1.0,
        "lambda, share of images expected of any class; 1: no prior, 0: own classes alone",
        low=0,
        high=1,
        group="engineering",
    )

    def __post_init__(self) -> None:
        scores.find(self.score)  # refuses a name that no score has


class Answering(Method):
    """A method whose score and prior are settings, so that `focoop tune` tries them after training.

    Derive from it to be tuned as focoop's own methods are. Its `Config` derives from
    `AnswerConfig`; `init` adds `unknown_counts(task)` to the private tensors; `loss` compares with
    `cosines(text, batch.pooled)`, because training knows no prior. What is left to write is
    `prompts` and `aggregate`: `text`, `logits` and `score` are here.

    Class attributes:
        tried_scores: what `focoop tune` tries after training, the settings of each score by
            its name.
        open_shares: the values of `open_share` that it tries with each.

    Example:
        ```python
        class Mine(focoop.Answering):
            @dataclass(frozen=True)
            class Config(focoop.AnswerConfig):
                tokens: int = focoop.setting(4, "length of the context", low=1, grid=(4, 16))

            def init(self, task, generator):
                context = focoop.first_context(task, generator, self.config.tokens)
                return focoop.State({"context": context}, self.unknown_counts(task))
        ```
    """

    config: AnswerConfig
    tried_scores: ClassVar[Mapping[str, Mapping[str, tuple[Any, ...]]]] = COMMON_SCORES
    open_shares: ClassVar[tuple[float, ...]] = OPEN_SHARES

    def unknown_counts(self, task: Task) -> Params:
        """Return the private tensors of a client before it knows its labels.

        Args:
            task: The task.

        Returns:
            `counts` (C,), all 0; nothing where the client has no prior.
        """
        if self.config.open_share == 1:
            return {}
        counts = torch.zeros(len(task.classes), dtype=torch.int64, device=task.device)
        return {"counts": counts}

    def personalise(self, private: Params, class_counts: Tensor, task: Task) -> Params:
        """The client's own class counts, where its prior asks for them."""
        return private if self.config.open_share == 1 else {**private, "counts": class_counts}

    def prior(self, params: Params, task: Task) -> Params:
        """Return the part of a `Text` that shifts a client's cosines.

        Args:
            params: The client's tensors.
            task: The task.

        Returns:
            `prior` (C,); nothing where the client has none.
        """
        return prior_part(params, self.config.open_share, task)

    def with_prior(self, logits: Logits, params: Params, task: Task) -> Logits:
        """Return a client's logits with its prior, of those without one.

        Args:
            logits: The logits of a model without a prior.
            params: Holds `counts` (C,), the client's own training images of each class.
            task: The task.

        Returns:
            What `logits` gives for a model with this prior.
        """
        return shifted(logits, self.prior(params, task))

    def text(self, params: Params, features: Params, task: Task) -> Text:
        """The tower's features, and the client's prior where it has one."""
        return Text(features["id"], features.get("ood"), self.prior(params, task))

    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        """Cosines with all prompts; those with classes are shifted by the client's prior."""
        return expected(cosines(text, pooled), text)

    def score(self, logits: Logits, task: Task) -> Tensor:
        """The score that the settings name."""
        return self._compute_score(self.score_inputs(logits, task))

    @cached_property
    def _compute_score(self) -> Callable[[scores.Inputs], Tensor]:
        return scores.find(self.config.score)  # once: of a file, what it holds now

    def score_inputs(self, logits: Logits, task: Task, scale: float = 0.0) -> scores.Inputs:
        """Return what the score that the settings name is computed from.

        Args:
            logits: What `logits` gave.
            task: The task.
            scale: What makes logits of cosines; 0: the logit scale. Energy takes `temperature`.

        Returns:
            Cosines and constants.
        """
        energetic, temperature = self.config.score == "energy", self.config.temperature
        return scores.Inputs(
            logits.id,
            1.0 / temperature if energetic else scale or task.logit_scale,
            ood_cos=logits.ood,
            patch_cos=logits.patches,
            temperature=temperature,
        )
