"""The sets that a run is measured on, and which of their rows each client owns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from focoop.clip import LabelledFeatures
from focoop.federation.evaluation.resident import Resident


@dataclass(frozen=True)
class Owned:
    """A labelled set and which of its rows each client owns."""

    images: LabelledFeatures
    index: Sequence[np.ndarray]


@dataclass(frozen=True)
class EvaluationSets:
    """All sets that a run is measured on.

    Attributes:
        test: Test images, and which of them each client owns.
        corrupted: Corrupted test images by `type@severity`.
        ood: OOD images by name.
        calibration: ID images that no client trains or is tested on; None: there are none.
        nobodys: Rows of the test images that no client owns, for a site, whose `test` names the
            rows of its own client alone; None: all rows that `test` gives to nobody.
    """

    test: Owned
    corrupted: Mapping[str, Owned] = field(default_factory=dict)
    ood: Mapping[str, LabelledFeatures] = field(default_factory=dict)
    calibration: Owned | None = None
    nobodys: np.ndarray | None = None
    # What stays on a device between evaluations, by device and number of classes.
    kept: dict[tuple[torch.device, int], Resident] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def unowned(self) -> np.ndarray:
        """Return the rows of test images that no client owns: nobody trains on their classes."""
        if self.nobodys is not None:
            return self.nobodys
        owned = np.concatenate([*self.test.index, np.zeros(0, np.int64)])
        return np.setdiff1d(np.arange(len(self.test.images)), owned)

    def on(self, device: torch.device, classes: int) -> Resident:
        """Bring the sets to a device; they stay there.

        Args:
            device: The device.
            classes: Number of classes.

        Returns:
            What is there.
        """
        if (device, classes) not in self.kept:
            self.kept[device, classes] = Resident.of(
                self, classes_of(self, classes), classes, device
            )
        return self.kept[device, classes]


def classes_of(sets: EvaluationSets, num_classes: int) -> dict[int, np.ndarray]:
    """Find the own classes of every client that has some and not all: those of its own test images.

    Args:
        sets: The sets to evaluate on.
        num_classes: Number of classes.

    Returns:
        Classes by client.
    """
    labels = sets.test.images.labels.numpy()
    classes = {client: np.unique(labels[own]) for client, own in enumerate(sets.test.index)}
    present = np.unique(labels)
    return {
        client: own
        for client, own in classes.items()
        if len(own) and len(np.setdiff1d(present, own)) and len(own) < num_classes
    }
