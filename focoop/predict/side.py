"""One client's model ready to answer: text features folded in, no text tower needed any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch

from focoop.errors import ConfigError, MethodError
from focoop.methods import PRIOR, Logits, Method, Task, Text, log_prior, split_prior

if TYPE_CHECKING:
    from torch import Tensor

    from focoop.clip import Names


@dataclass(frozen=True)
class Side:
    """A client's model, or the global one.

    Attributes:
        client: The client's number; None: the global model.
        text: The text side of the model.
        counts: (C,) the client's own training images of each class; all zero for the global model.
    """

    client: int | None
    text: Text
    counts: Tensor

    @cached_property
    def wide(self) -> Side:
        """Return the same model in float64, in which images are judged.

        Whitening and the scale of similarities make rounding some twenty times larger. In float64
        what is left of it is the image tower's alone, whichever library runs the model.
        """
        return self._mapped(lambda part: part.double() if part.is_floating_point() else part)

    def to(self, device: torch.device | str) -> Side:
        """Return the same model on a device.

        Args:
            device: The device.

        Returns:
            The model there.
        """
        return self._mapped(lambda part: part.to(device))

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> Side:
        text = Text(
            change(self.text.id),
            None if self.text.ood is None else change(self.text.ood),
            {name: change(part) for name, part in self.text.parts.items()},
        )
        return Side(self.client, text, change(self.counts))


@dataclass(frozen=True)
class Evidence:
    """What a model finds in some images, in float64.

    Attributes:
        plain: (N, C) similarity with each class before any prior.
        shifted: (N, C) similarity under the prior, whose largest is the answer.
        ood: (N, U) similarity with the OOD prompts, or None.
        score: (N,) OOD scores.
    """

    plain: Tensor
    shifted: Tensor
    ood: Tensor | None
    score: Tensor


def evidence(
    method: Method,
    task: Task,
    side: Side,
    pooled: Tensor,
    patches: Tensor | None,
    open_share: float | None = None,
) -> Evidence:
    """Compare images with a client's model, in float64.

    The score is the method's own and does not depend on `open_share`, so that a threshold holds at
    every position of that dial.

    Args:
        method: The method.
        task: The task, `folded_task` will do.
        side: The client's model.
        pooled: Image features (N, D).
        patches: Patch features (N, P, D), or None.
        open_share: Share of images that are expected of any class of the federation; None: as the
            method was set up.

    Returns:
        Similarities and scores.

    Raises:
        ConfigError: `open_share` is not between 0 and 1.
        MethodError: The method reads patches, and there are none.
    """
    if open_share is not None and not 0.0 <= open_share <= 1.0:
        raise ConfigError(f"open_share must lie between 0 and 1, got {open_share}")
    if method.patch_kind and patches is None:
        raise MethodError(
            "this method reads patch features, and these features have none: encode the images "
            "with the model itself (model.encode), or give patches too"
        )
    side, pooled = side.wide, pooled.double()
    patches = None if patches is None else patches.double()
    with torch.no_grad():
        found = method.logits(side.text, pooled, patches)
        score = method.score(found, task).double()
        plain = plain_similarities(method, side, found, pooled, patches)
        shifted = found.id
        if open_share is not None:
            shifted = plain + expectation(method, task, side, open_share)
    return Evidence(plain, shifted, found.ood, score)


def plain_similarities(
    method: Method, side: Side, found: Logits, pooled: Tensor, patches: Tensor | None
) -> Tensor:
    """Return similarities before the client's prior, where the model has one.

    Args:
        method: The method.
        side: The client's model.
        found: Its logits of the images.
        pooled: Image features (N, D).
        patches: Patch features (N, P, D), or None.

    Returns:
        Similarities (N, C).
    """
    text, prior = split_prior(side.text)
    return method.logits(text, pooled, patches).id if prior else found.id


def expectation(method: Method, task: Task, side: Side, open_share: float | Tensor) -> Tensor:
    """Return what is added to similarities at a position of the dial.

    A method with a prior weighs its client's classes by their training images. Others get the same
    bias on all own classes, as the frontier between own and other classes does.

    Args:
        method: The method.
        task: The task.
        side: The client's model.
        open_share: Share of images that are expected of any class; 1: no shift.

    Returns:
        Shifts (C,), the largest 0.
    """
    counts = side.counts if PRIOR in side.text.parts else (side.counts > 0).long()
    prior = log_prior(counts.to(side.text.id.device), open_share, side.text.id.dtype)
    return prior / method.answer_scale(task)


def folded_task(classes: Sequence[str], anchors: Tensor, logit_scale: float) -> Task:
    """Make a task without a text tower, for `logits` and `score` of a folded model.

    Args:
        classes: Class names in label order.
        anchors: (C, D) features of the hand-written template.
        logit_scale: Multiplies cosines.

    Returns:
        The task. Encoding a text with it is an error.
    """
    none = cast("Names", None)
    return Task(
        classes=tuple(classes),
        encode=_no_tower,
        id_names=none,
        ood_names=None,
        anchors=anchors,
        logit_scale=logit_scale,
        width=0,
        bare_names=none,
        texts=_no_tower,
        embed=_no_tower,
    )


def _no_tower(*_: Any) -> NoReturn:
    raise MethodError("a saved model has no text tower: open the run it was made of")
