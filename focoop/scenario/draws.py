"""Draw each client's shots and calibration images from the rows that it owns."""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from focoop.config import RunConfig
from focoop.data import code_warnings
from focoop.features import FeatureSet
from focoop.scenario import partition
from focoop.scenario.calibration import set_aside
from focoop.scenario.cost import least_cost, refuse_large
from focoop.scenario.split import Split, Tested
from focoop.seeds import derive


def split_with_shots(
    config: RunConfig,
    train: FeatureSet,
    test: FeatureSet,
    train_index: Sequence[np.ndarray],
    test_index: Sequence[np.ndarray],
    shares: partition.Partition | None,
    tested: Tested = Tested(),  # noqa: B008 - frozen
) -> Split:
    """Draw each client's shots and calibration images, and put the divided images together.

    Args:
        config: The run's settings.
        train: The training images.
        test: The test images.
        train_index: Rows of the training images that each client owns.
        test_index: Rows of the test images that each client is tested on.
        shares: Who holds which share of which class; None where the data says who holds what.
        tested: Where the test images are found again.

    Returns:
        The divided images.
    """
    if config.data.id.startswith(("file:", "hf:")):
        for warning in code_warnings(train.classes, config.data.id):
            warnings.warn(warning, stacklevel=2)
    counts = _drawn(config, train, train_index)
    refuse_large(config, least_cost(config, counts, len(train.classes)))
    shots = partition.take_shots(
        train_index,
        train.labels.numpy(),
        config.partition.shots or None,
        derive(config.seed, "shots"),
        repeats=config.partition.repeats,
    )
    chosen, aside = set_aside(
        shots.indices,
        train_index,
        train.labels.numpy(),
        config.data.calibration,
        derive(config.seed, "calibration"),
    )
    views, count = len(train.views), len(train)
    index = [np.concatenate([rows + v * count for v in range(1 + views)]) for rows in chosen]
    train, test = train.with_view_rows(), replace(test, views=())
    return Split(
        train,
        test,
        index,
        test_index,
        shots.repeated,
        shares,
        tested,
        views,
        calibration_index=aside,
    )


def _drawn(config: RunConfig, train: FeatureSet, index: Sequence[np.ndarray]) -> list[int]:
    """How many training rows each client will hold, views included, before any is drawn."""
    settings, labels = config.partition, train.labels.numpy()
    least = settings.shots if settings.repeats else 0
    most = settings.shots or len(labels)
    own = [np.clip(_held(labels[rows]), least, most).sum() for rows in index]
    return [int(count) * (1 + len(train.views)) for count in own]


def _held(labels: np.ndarray) -> np.ndarray:
    """How many images there are of each class that there is."""
    return np.unique(labels, return_counts=True)[1]
