"""Training and test images of a run, and which rows each client owns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from focoop.features import FeatureSet, refuse_same_names
from focoop.scenario import partition


@dataclass(frozen=True)
class Tested:
    """Which rows of the dataset the test images are, so that corrupted copies of them are found.

    `rows` None: all rows of the split.
    """

    split: str = "test"
    by: str = "domain"
    rows: np.ndarray | None = None


@dataclass(frozen=True)
class Split:
    """Training and test images, and which rows each client owns.

    With views, the training rows of a client are its images, then as many rows of each view.
    `unknown` are test images of classes that nobody knows (`data.unknown_classes`).
    `calibration_index` are rows of the training images that a client neither trains nor is tested
    on, or nothing at all.
    """

    train: FeatureSet
    test: FeatureSet
    train_index: Sequence[np.ndarray]
    test_index: Sequence[np.ndarray]
    repeated: int
    shares: partition.Partition | None
    tested: Tested = Tested()
    views: int = 0
    unknown: FeatureSet | None = None
    calibration_index: Sequence[np.ndarray] = ()

    def __post_init__(self) -> None:
        refuse_same_names(self.classes, "the run's images")

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the class names in label order."""
        return self.train.classes

    def counts(self, of_test: bool = False) -> np.ndarray:
        """Count the images of each class at each client, without their views.

        Args:
            of_test: Count test images instead of training images.

        Returns:
            Counts (K, C).
        """
        features = self.test if of_test else self.train
        index = self.test_index
        if not of_test:
            index = [rows[: len(rows) // (1 + self.views)] for rows in self.train_index]
        return partition.summary(index, features.labels.numpy(), len(self.classes))
