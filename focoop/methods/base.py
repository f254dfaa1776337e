"""The contract of a federated prompt-learning method: one class, both sides of the wire.

A method is pure: it sees tensors and names, never files, configuration, logging or a transport.
Everything it must remember is in `State` (client) or in a server's `memory`; nothing is on `self`
but its settings. Copy `promptfl.py` to start a new one: its file name is its name everywhere.

A step is `prompts` -> frozen text tower -> `text` -> `loss`. The tower runs between a method's own
functions, so that the prompts of many clients can pass through it as one batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

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
    """What a client sends back: its shared tensors and counts, nothing private.

    Attributes:
        client: The client's number.
        shared: Its shared tensors after training, by name.
        num_examples: How many training images it has.
        class_counts: (C,) int64, its training images of each class.
        loss: The mean training loss of the round.
    """

    client: int
    shared: Params
    num_examples: int
    class_counts: Tensor
    loss: float


class Method(ABC):
    """One federated method: what a client trains, and what the server makes of it.

    Derive from it and write `init`, `prompts`, `logits`, `loss`, `score` and `aggregate`; the other
    functions have a default that fits most methods.

    Class attributes:
        paper: short citation, shown by `focoop methods`.
        shares: what travels to the server, in a phrase for the table of methods.
        keeps: what stays at the client, likewise.
        scores_by: how images are scored, likewise.
        patch_kind: patch features it reads, `lf_a`, `lf_b` or `lf_c`; empty: none.
        needs_ood: whether the task must have negative words.
        trains: False for methods without rounds (zero-shot).
        pools_data: True where one party holds all clients' images (no federation).
        closed_form: True where nothing is trained: clients measure, the server solves. One round in
            which all clients take part is enough, and no learning rate is tried.
        together: whether `text` and `loss` may run under `torch.func.vmap`, many clients at once:
            no branch on a tensor's value, no shape that depends on one.
        reads_text: whether `loss` reads the text side it is given; False where it makes one itself,
            because prompts move with the batch: then no step encodes one for it.
        lr_grid: learning rates `focoop tune` tries; empty: those it tries for every method.
        by_class: shared tensors with a row per class, averaged class by class; robust rules and
            secure sums, which know no method, do the same with them.
        untrained: floating tensors that training leaves alone: the server's own, and those that
            `measure` or `remember` fills.
        identity_settings: settings under which the server step returns equal updates as they are;
            empty where it always does (an average), given where a server moves them on purpose.
    """

    @dataclass(frozen=True)
    class Config:
        """A method's own settings; each subclass defines its own."""

    paper: ClassVar[str] = ""
    shares: ClassVar[str] = "nothing"
    keeps: ClassVar[str] = "nothing"
    scores_by: ClassVar[str] = ""
    patch_kind: ClassVar[str] = ""
    needs_ood: ClassVar[bool] = False
    trains: ClassVar[bool] = True
    pools_data: ClassVar[bool] = False
    closed_form: ClassVar[bool] = False
    together: bool = True
    reads_text: bool = True
    by_class: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ()
    lr_grid: ClassVar[tuple[float, ...]] = ()
    identity_settings: ClassVar[Mapping[str, object]] = {}

    def __init__(self, config: Any = None) -> None:
        self.config = self.Config() if config is None else config

    @abstractmethod
    def init(self, task: Task, generator: torch.Generator) -> State:
        """Draw the starting prompts; every client starts from the same draw.

        Args:
            task: Class names, negative words and the text tower.
            generator: Draws the numbers, on the CPU.

        Returns:
            Shared and private tensors.
        """

    @abstractmethod
    def prompts(self, params: Params, task: Task) -> dict[str, Prompt]:
        """Return what goes through the text tower; `text` gets the features.

        Args:
            params: Shared and private tensors.
            task: The task.

        Returns:
            Prompts by name: `id` those of the classes and `ood` those of negative words, or other
            names where the method writes `text` itself. Empty: nothing goes through the tower.
        """

    @abstractmethod
    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        """Compare images with all prompts; each image for itself.

        Args:
            text: The text side of the model.
            pooled: Image features (N, D), unit vectors.
            patches: Patch features (N, P, D), or None.

        Returns:
            Cosines with class prompts (N, C) and, where there are some, OOD prompts (N, U).
        """

    @abstractmethod
    def loss(self, params: Params, text: Text, batch: Batch, task: Task, noise: Params) -> Tensor:
        """Compute the training loss, differentiable in all floating `params` but the untrained.

        Args:
            params: Shared and private tensors.
            text: The text side of the model; `unread_text()` where the method does not read it.
            batch: Images with labels.
            task: The task.
            noise: What `noise` drew for this step.

        Returns:
            One number (), such as the mean over the batch.
        """

    @abstractmethod
    def score(self, logits: Logits, task: Task) -> Tensor:
        """Score images; a higher score always means more OOD.

        Args:
            logits: What `logits` gave.
            task: The task.

        Returns:
            Scores (N,) in float32 or float64.
        """

    @abstractmethod
    def aggregate(self, server: Server, updates: Sequence[ClientUpdate], task: Task) -> Server:
        """Take the server's step over updates sorted by client.

        Clients without images are not among them.

        Args:
            server: Shared tensors and the server's memory.
            updates: The updates.
            task: The task.

        Returns:
            The server after the step: the same shared tensors by name, shape and type.
        """

    def prepare(self, task: Task) -> Params:
        """Make tensors once from the task, such as text banks.

        They are then found in `task.frozen`.

        Args:
            task: The task.

        Returns:
            Tensors by name.
        """
        return {}

    def personalise(self, private: Params, class_counts: Tensor, task: Task) -> Params:
        """Make a client's first private tensors, once it knows its own class counts.

        Args:
            private: The private tensors of `init`.
            class_counts: Images of each class (C,).
            task: The task.

        Returns:
            Private tensors by name.
        """
        return private

    def measure(self, params: Params, images: Batch, task: Task) -> Params:
        """Measure shared tensors on all of a client's images, instead of training them.

        Args:
            params: Shared and private tensors.
            images: All of the client's images.
            task: The task.

        Returns:
            Shared tensors by name; none where a method measures nothing.
        """
        return {}

    def remember(self, private: Params, images: Batch, task: Task) -> Params:
        """Measure private tensors on all of a client's images, after each round it takes part in.

        Args:
            private: The client's private tensors.
            images: All of the client's images.
            task: The task.

        Returns:
            Its private tensors by name; those given where a method measures none.
        """
        return private

    def noise(self, batch_size: int, task: Task, generator: torch.Generator) -> Params:
        """Draw all random numbers of one step on the CPU: `loss` itself draws none.

        Args:
            batch_size: Images of the step.
            task: The task.
            generator: Draws the numbers.

        Returns:
            Numbers by name.
        """
        return {}

    def answer_scale(self, task: Task) -> float:
        """Return what makes log-odds of the similarities that `logits` gives.

        Args:
            task: The task.

        Returns:
            The factor s of softmax(s z); a client's prior enters `logits` as log pi / s.
        """
        return task.logit_scale

    def of_nobody(self, shared: Params, private: Params) -> Params:
        """Make the private tensors of a party that has no images: the global model.

        Args:
            shared: The server's shared tensors.
            private: The private tensors that everybody starts from.

        Returns:
            Private tensors; `local` prompts are the `global` ones where these have their shape.
        """
        both = "local" in private and "global" in shared
        if both and private["local"].shape == shared["global"].shape:
            return {**private, "local": shared["global"]}
        return private

    def text(self, params: Params, features: Params, task: Task) -> Text:
        """Make the text side of the model from the tower's features.

        Args:
            params: Shared and private tensors.
            features: Features (N, D) of `prompts`, by name.
            task: The task.

        Returns:
            The text side.
        """
        return Text(features["id"], features.get("ood"))

    def encode(self, params: Params, task: Task) -> Text:
        """Run `prompts` through the tower and then `text`: a client's model, ready for `logits`.

        Args:
            params: Shared and private tensors.
            task: The task.

        Returns:
            The text side.
        """
        prompts = self.prompts(params, task)
        features = {name: task.encode(p.contexts, p.names) for name, p in prompts.items()}
        return self.text(params, features, task)


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
