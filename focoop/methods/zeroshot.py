"""Zero-shot CLIP: the frozen model with a hand-written template, no training and no federation.

Paper: Radford et al., ICML 2021; detection by maximum concept matching (Ming et al., NeurIPS 2022).
Prediction argmax_c cos(h, e_c) with e_c the text feature of the template (`data.template`);
score MCM, minus the largest softmax_c(cos / T) with T = 1 -> `temperature`.

Shared: nothing. Private: nothing; with a prior `counts` (C,) of the client's own labels.
Differs from the authors' code: it has no zero-shot row; without one the tables have no floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from focoop.errors import MethodError
from focoop.methods._answers import AnswerConfig, Answering
from focoop.methods.base import (
    Batch,
    ClientUpdate,
    Params,
    Prompt,
    Server,
    State,
    Task,
    Text,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class ZeroShot(Answering):
    """The floor every trained method must pass."""

    Config = AnswerConfig  # type: ignore[assignment]
    paper = "Radford et al. 2021; Ming et al. 2022"
    scores_by = "MCM"
    trains = False

    def init(self, task: Task, generator: torch.Generator) -> State:
        """Nothing to learn."""
        return State(shared={}, private=self.unknown_counts(task))

    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        """Nothing is prompted with a context."""
        return {}

    def text(self, params: Params, features: Params, task: Task) -> Text:
        """The template's features (C, D)."""
        return Text(task.anchors, parts=self.prior(params, task))

    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        """Zero-shot does not train."""
        raise MethodError("zeroshot has no training loss: run it with federation.rounds = 0")

    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Nothing to average."""
        return server
