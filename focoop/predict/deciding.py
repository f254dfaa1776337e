"""From similarities and scores to answers: own class, other class, or unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from focoop.predict.calibration import SiteCalibration
from focoop.predict.prediction import (
    KNOWN,
    OTHER,
    OWN,
    UNKNOWN,
    ClassProbability,
    Prediction,
)
from focoop.predict.side import Evidence

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Judge:
    """Turns evidence into answers for one client.

    Attributes:
        classes: Class names in label order.
        own: (C,) classes that the client holds; None for the global model.
        holders: Names of the clients that hold each class.
        ood_names: The word of each OOD prompt; empty where the method has none.
        scale: Multiplies similarities before the softmax.
        calibration: Thresholds; None: nothing is ever unknown.
    """

    classes: Sequence[str]
    own: np.ndarray | None
    holders: Sequence[tuple[str, ...]]
    ood_names: Sequence[str]
    scale: float
    calibration: SiteCalibration | None = None

    def answers(
        self, found: Evidence, calibrated: Tensor, sources: Sequence[str], top: int
    ) -> list[Prediction]:
        """Answer some images.

        Args:
            found: Similarities and scores of N images.
            calibrated: (N, C) similarities under the prior that class sets were calibrated with.
            sources: Names of the images.
            top: How many classes to list.

        Returns:
            An answer per image.
        """
        chances = probabilities(found.shifted, self.scale)
        best = chances.topk(min(max(1, top), len(self.classes)), dim=1)
        scores = found.score.cpu().numpy()
        p_values = None if self.calibration is None else self.calibration.scores.p_values(scores)
        sets = self.class_sets(calibrated)
        nearest = found.plain.argmax(dim=1).tolist()
        foreign = self.nearest_words(found)
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [
            self.answer(
                sources[i],
                places,
                values,
                float(scores[i]),
                None if p_values is None else float(p_values[i]),
                None if sets is None else sets[i],
                (self.classes[nearest[i]], foreign[i]),
            )
            for i, (places, values) in enumerate(rows)
        ]

    def answer(
        self,
        source: str,
        places: Sequence[int],
        values: Sequence[float],
        score: float,
        p_value: float | None,
        class_set: tuple[str, ...] | None,
        nearest: tuple[str, str | None],
    ) -> Prediction:
        """Answer one image.

        Args:
            source: Its name.
            places: Its best classes, most probable first.
            values: Their probabilities.
            score: Its OOD score.
            p_value: Its p-value, or None.
            class_set: Its class set, or None.
            nearest: Its nearest class and OOD word.

        Returns:
            The answer.
        """
        threshold = None if self.calibration is None else self.calibration.threshold
        verdict = self.verdict(places[0], threshold is not None and score > threshold)
        return Prediction(
            source=source,
            verdict=verdict,
            label=None if verdict == UNKNOWN else self.classes[places[0]],
            probability=values[0],
            score=score,
            p_value=p_value,
            threshold=threshold,
            top=tuple(
                ClassProbability(self.classes[place], value, self.holds(place), self.holders[place])
                for place, value in zip(places, values, strict=True)
            ),
            class_set=class_set,
            nearest_id=nearest[0],
            nearest_ood=nearest[1],
        )

    def holds(self, place: int) -> bool:
        """Say whether the client holds a class.

        Args:
            place: The class's number.

        Returns:
            Whether it does; never for the global model.
        """
        return self.own is not None and bool(self.own[place])

    def verdict(self, place: int, foreign: bool) -> str:
        """Name the verdict.

        Args:
            place: The best class.
            foreign: Whether the score is above the threshold.

        Returns:
            One of `VERDICTS`.
        """
        if foreign:
            return UNKNOWN
        if self.own is None:
            return KNOWN
        return OWN if self.own[place] else OTHER

    def class_sets(self, calibrated: Tensor) -> list[tuple[str, ...]] | None:
        """Return the classes that are not ruled out, most probable first; never none of them.

        Args:
            calibrated: (N, C) similarities under the calibrated prior.

        Returns:
            A set per image; None without a calibration.
        """
        limit = None if self.calibration is None else self.calibration.class_threshold
        if limit is None:
            return None
        chances, order = probabilities(calibrated, self.scale).sort(dim=1, descending=True)
        sizes = (1.0 - chances <= limit).sum(dim=1).clamp(min=1).tolist()
        places = order.tolist()
        return [
            tuple(self.classes[place] for place in row[:size])
            for row, size in zip(places, sizes, strict=True)
        ]

    def nearest_words(self, found: Evidence) -> Sequence[str | None]:
        """Return the word of the OOD prompt that is nearest to each image.

        Args:
            found: Similarities.

        Returns:
            Words; None for methods without OOD prompts.
        """
        if found.ood is None or not self.ood_names:
            return [None] * len(found.score)
        return [self.ood_names[place] for place in found.ood.argmax(dim=1).tolist()]


def probabilities(similarities: Tensor, scale: float) -> Tensor:
    """Return the softmax over classes in float64.

    Args:
        similarities: (N, C).
        scale: Multiplies them.

    Returns:
        (N, C), rows that sum to 1.
    """
    return torch.softmax(similarities.double() * scale, dim=1)
