"""The contract of a federated prompt-learning method: one class, both sides of the wire.

A method is pure: it sees tensors and names, never files, configuration, logging or a transport.
Everything it must remember is in `State` (client) or in a server's `memory`; nothing is on `self`
but its settings. Copy `promptfl.py` to start a new one: its file name is its name everywhere.

A step is `prompts` -> frozen text tower -> `text` -> `loss`. The tower runs between a method's own
functions, so that the prompts of many clients can pass through it as one batch. The records that
these functions take and give are defined in `_records.py` and offered here too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from focoop.methods._records import (
    Batch,
    ClientUpdate,
    Logits,
    Params,
    Prompt,
    Server,
    State,
    Task,
    Text,
    cosines,
    unread_text,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = [
    "Batch",
    "ClientUpdate",
    "Logits",
    "Method",
    "Params",
    "Prompt",
    "Server",
    "State",
    "Task",
    "Text",
    "cosines",
    "unread_text",
]


class Method(ABC):
    """One federated method: what a client trains, and what the server makes of it.

    Derive from it and write `init`, `prompts`, `logits`, `loss`, `score` and `aggregate`; the other
    functions have a default that fits most methods.

    Class attributes:
        name: what a method in a user's own file is called in tables; empty: as the file.
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
        untrained: floating tensors that training leaves alone, as `measure` or `remember` fills
            them.
        server_made: shared tensors that only the server computes: clients receive them, and neither
            train them nor send them back.
        revision: which version of the method's mathematics this is. Raise it when the tensors of an
            earlier run would be answered or scored otherwise: such runs and models are refused.
        identity_settings: settings under which the server step returns equal updates as they are;
            empty where it always does (an average), given where a server moves them on purpose.
    """

    @dataclass(frozen=True)
    class Config:
        """A method's own settings; each subclass defines its own."""

    name: ClassVar[str] = ""
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
    server_made: tuple[str, ...] = ()
    lr_grid: ClassVar[tuple[float, ...]] = ()
    revision: ClassVar[int] = 1
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

    def sent(self, shared: Params) -> Params:
        """Return the shared tensors that a client sends: all but those that the server makes.

        Args:
            shared: All shared tensors.

        Returns:
            Tensors by name.
        """
        return {name: value for name, value in shared.items() if name not in self.server_made}

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
