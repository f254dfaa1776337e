"""What a model is, without its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Client = int | str | None  # a client's number or name, `global`, or None for the usual one


@dataclass(frozen=True)
class Facts:
    """What a model is, without its tensors; all of it is kept in an exported model.

    Attributes:
        method: The method's name.
        settings: The method's own settings as plain values.
        classes: Class names in label order.
        clients: Names of the federation's clients in the order of their numbers.
        holders: For each class the numbers of the clients that hold it; empty where the federation
            does not say.
        ood_names: The word of each OOD prompt; empty for methods without.
        backbone: The backbone's name.
        weights: Path of its weights; empty: those it is known by.
        fingerprint: The backbone's fingerprint.
        image_fingerprint: Fingerprint of its image side, which must be the same for new images.
        logit_scale: Multiplies cosines.
        revision: The revision of the method that made it.
        origin: Where the model comes from: round, data hashes, metrics, for its card.
    """

    method: str
    settings: Mapping[str, Any]
    classes: tuple[str, ...]
    clients: tuple[str, ...]
    holders: tuple[tuple[int, ...], ...]
    ood_names: tuple[str, ...]
    backbone: str
    weights: str
    fingerprint: str
    image_fingerprint: str
    logit_scale: float
    revision: int
    origin: Mapping[str, Any] = field(default_factory=dict)
