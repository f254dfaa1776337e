"""What a method's functions take and give: frozen records of named tensors, and cosines of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from focoop.clip import LabelledFeatures

if TYPE_CHECKING:
    from torch import Tensor

    from focoop.clip import Names

Params = dict[str, "Tensor"]
# Images of a training step, or all that a client measures: pooled (B, D), patches (B, P, D) or
# None, labels (B,).
Batch = LabelledFeatures


@dataclass(frozen=True)
class Task:
    """What every party knows before training.

    Attributes:
        classes: the C class names, in label order.
        encode: the frozen text tower, (contexts, names) -> (N, D) unit features.
        id_names: the classes, ready to be prompted.
        ood_names: the U negative words, ready to be prompted; None when U = 0.
        anchors: (C, D) unit features of the classes in the hand-written template.
        logit_scale: multiplies cosines in losses (the paper's 1/tau).
        width: width d_t of a context token.
        bare_names: the classes without the closing period, ready to be prompted.
        texts: plain texts -> (N, D) unit features without gradient.
        embed: a text -> (n, d_t) embeddings of its tokens, to start a context from words.
        patch_projection: (D', D) frozen matrix after a method's own one on patches; None: identity.
        frozen: what the method's `prepare` made of this task, the same for every client.
    """

    classes: tuple[str, ...]
    encode: Callable[[Tensor, Names], Tensor]
    id_names: Names
    ood_names: Names | None
    anchors: Tensor
    logit_scale: float
    width: int
    bare_names: Names
    texts: Callable[[Sequence[str]], Tensor]
    embed: Callable[[str], Tensor]
    patch_projection: Tensor | None = None
    frozen: Params = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Return where the tower and all prompts live."""
        return self.anchors.device

    @cached_property
    def spread(self) -> float:
        """How far apart classes are: the anchors' root mean square distance from their mean.

        It is a unit of length, so that it is 1 where there is no distance, as with one class.
        """
        anchors = self.anchors.double()
        return float((anchors - anchors.mean(dim=0)).square().sum(dim=1).mean().sqrt()) or 1.0


@dataclass(frozen=True)
class State:
    """A client's tensors by name.

    Attributes:
        shared: Travel to the server every round, and come back as the aggregate.
        private: Never leave their client.
    """

    shared: Params
    private: Params = field(default_factory=dict)


@dataclass(frozen=True)
class Server:
    """What the server has after a round.

    Attributes:
        shared: Tensors that are sent to clients, under the names and in the shapes of `init`.
        memory: Tensors of the server's own, which it finds in the next round, such as a momentum.
        report: Numbers about this step, for the run's log and metrics.
    """

    shared: Params
    memory: Params = field(default_factory=dict)
    report: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompt:
    """Prompts for the text tower.

    Attributes:
        contexts: (n, d_t), one context of n tokens for all names, or (N, n, d_t), one for each.
        names: The N names that stand behind them, such as `task.id_names`.
    """

    contexts: Tensor
    names: Names


@dataclass(frozen=True)
class Text:
    """The text side of a client's model.

    Attributes:
        id: (C, D), a row per class.
        ood: (U, D), a row per OOD prompt, or None.
        parts: Further tensors by name that a method's `logits` and `loss` read.
    """

    id: Tensor
    ood: Tensor | None = None
    parts: Params = field(default_factory=dict)


@dataclass(frozen=True)
class Logits:
    """Cosines of N images with prompts, not yet multiplied by the logit scale.

    Attributes:
        id: (N, C) with the classes; the largest of a row is the answer.
        ood: (N, U) with the OOD prompts, or None.
        patches: (N, P, C) of an image's patches with the classes, or None.
        parts: Further tensors by name that a method's `score` reads.
    """

    id: Tensor
    ood: Tensor | None = None
    patches: Tensor | None = None
    parts: Params = field(default_factory=dict)


@dataclass(frozen=True)
class ClientUpdate:
    """What a client sends: its shared tensors and counts, nothing private.

    Attributes:
        client: The client's number.
        shared: Its shared tensors after training, by name, without those that the server makes.
        num_examples: How many training images it has.
        class_counts: (C,) int64, its training images of each class.
        loss: The mean training loss of the round.
    """

    client: int
    shared: Params
    num_examples: int
    class_counts: Tensor
    loss: float


def unread_text() -> Text:
    """Return the empty text side that a method which makes its own is given."""
    return Text(torch.empty(0, 0))


def cosines(text: Text, pooled: Tensor) -> Logits:
    """Compute cosines of images with all prompts.

    Args:
        text: The text side of a model, unit vectors.
        pooled: Image features (N, D), unit vectors.

    Returns:
        `id` (N, C), and `ood` (N, U) where there are OOD prompts.
    """
    ood = None if text.ood is None else pooled @ text.ood.T
    return Logits(pooled @ text.id.T, ood)
