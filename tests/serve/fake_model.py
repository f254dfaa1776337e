"""A model without weights: what an image's mean colour says, in the shape of a real one."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image

from focoop.clip import ImageFeatures
from focoop.errors import DataError

CLASSES = ("red", "green", "blue")
OWN = (("red",), ("green", "blue"))
KEEP = 0.95


@dataclass(frozen=True)
class Sketch:
    values: Any
    weights: Any

    @property
    def count(self) -> int:
        return int(self.weights.sum())


@dataclass(frozen=True)
class Site:
    threshold: float
    scores: Sketch
    source: str = "own"


@dataclass(frozen=True)
class Calibration:
    keep: float = KEEP

    def at(self, client: int | None) -> Site:
        values = np.linspace(0.0, 0.4, 200)
        return Site(0.38, Sketch(values, np.ones(200, int)))


@dataclass(frozen=True)
class Answer:
    verdict: str
    label: str | None
    probability: float
    score: float
    p_value: float
    top: tuple[tuple[str, float, bool, str], ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": "image 0",
            "verdict": self.verdict,
            "label": self.label,
            "probability": self.probability,
            "score": self.score,
            "p_value": self.p_value,
            "threshold": 0.38,
            "top": [
                {"label": name, "probability": chance, "own": own, "holders": [holder]}
                for name, chance, own, holder in self.top
            ],
            "class_set": [self.top[0][0]],
            "nearest_id": self.top[0][0],
            "nearest_ood": "granite",
        }


class FakeModel:
    """Pure colours are known, grey is not: the score is one minus the colour's purity."""

    classes, explains, usual = CLASSES, True, "global"
    sides = {"global": None, "north": 0, "south": 1}
    open_share = 0.5

    def __init__(self, calibration: Calibration | None = None) -> None:
        self.calibration = calibration or Calibration()
        self.batches: list[int] = []

    def own_classes(self, client: int | None) -> Sequence[str]:
        return () if client is None else OWN[client]

    def prepare(self, image: Any) -> torch.Tensor:
        return torch.tensor(np.asarray(image, dtype=np.float32).mean((0, 1)) / 255)

    def encode(self, prepared: Sequence[torch.Tensor]) -> ImageFeatures:
        self.batches.append(len(prepared))
        return ImageFeatures(torch.stack(list(prepared)), None)

    def decide(
        self, features: ImageFeatures, *, client: int | None, open_share: float | None, top: int
    ) -> list[Answer]:
        return [self._one(row.tolist(), client, open_share, top) for row in features.pooled]

    def _one(
        self, colour: list[float], client: int | None, share: float | None, top: int
    ) -> Answer:
        share = self.open_share if share is None else share
        own = [client is None or name in OWN[client] for name in CLASSES]
        prior = [1.0 if client is None else 1.0 if mine else share for mine in own]
        weights = [p * math.exp(9 * c) for p, c in zip(prior, colour, strict=True)]
        chances = [weight / sum(weights) for weight in weights]
        order = sorted(range(3), key=lambda k: -chances[k])
        score = 1.0 - (max(colour) - min(colour))
        holders = ["north" if name == "red" else "south" for name in CLASSES]
        listed = tuple((CLASSES[k], chances[k], own[k], holders[k]) for k in order[:top])
        best = order[0]
        verdict = "known" if client is None else "own" if own[best] else "other"
        if score > 0.38:
            verdict = "unknown"
        label = None if verdict == "unknown" else CLASSES[best]
        p_value = (1 + 200 * max(0.0, 1 - score / 0.4)) / 201
        return Answer(verdict, label, chances[best], score, p_value, listed)

    def heat_map(self, image: Any, label: str, client: int | None) -> Any:
        if image.size == (7, 7):
            raise DataError("no heat map for this one")
        pixels = np.asarray(image.resize((7, 5)), dtype=np.float32) / 255
        return pixels[..., CLASSES.index(label)]


def picture(
    colour: Any = (230, 10, 20), size: tuple[int, int] = (40, 30), kind: str = "PNG"
) -> bytes:
    """The bytes of an image of one colour."""
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, kind)
    return file.getvalue()
