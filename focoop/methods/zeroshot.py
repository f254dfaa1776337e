"""Zero-shot CLIP: the frozen model with a hand-written template, no training and no federation.

Paper: Radford et al., ICML 2021; detection by maximum concept matching (Ming et al., NeurIPS 2022).
Prediction argmax_c cos(h, e_c) with e_c the text feature of the template (`data.template`);
score MCM, minus the largest softmax_c(cos / T) with T = 1 -> `temperature`.

Shared: nothing. Private: nothing.
Differs from the authors' code: it has no zero-shot row; without one the tables have no floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from focoop.errors import MethodError
from focoop.fields import setting
from focoop.functional import scores
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
    cosines,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class ZeroShot(Method):
    """The floor every trained method must pass."""

    @dataclass(frozen=True)
    class Config:
        """Settings of the score."""

        temperature: float = setting(1.0, "T of MCM, on raw cosines", above=0, group="paper")

    config: Config
    paper = "Radford et al. 2021; Ming et al. 2022"
    scores_by = "MCM"
    trains = False

    def init(self, task: Task, generator: torch.Generator) -> State:
        """Nothing to learn."""
        return State(shared={})

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        """Nothing is prompted with a context."""
        return {}

    def text(self, params: Params, features: Params, task: Task) -> Text:
        """The template's features (C, D)."""
        return Text(task.anchors)

    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        """Cosines with the template's features."""
        return cosines(text, pooled)

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        """Zero-shot does not train."""
        raise MethodError("zeroshot has no training loss: run it with federation.rounds = 0")

    def score(self, logits: Logits, task: Task) -> Tensor:
        """MCM."""
        return scores.mcm(logits.id, temperature=self.config.temperature)

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Nothing to average."""
        return server
