"""Hold test or validation images out of a dataset that does not say which are which."""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch

from focoop.config import RunConfig
from focoop.errors import ConfigError
from focoop.features import FeatureSet
from focoop.scenario import partition
from focoop.scenario.split import Tested
from focoop.seeds import derive


def train_and_test(
    config: RunConfig,
    opened: Callable[..., FeatureSet],
    divided: bool,
    by: str = "domain",
    splits: Sequence[str] = (),
) -> tuple[FeatureSet, FeatureSet, Tested]:
    """Open training and test images.

    Where images are not `divided`, test images are those that `splits` names, or else some are held
    out. With `data.validation`, images held out of the training images take the place of the test
    images.

    Args:
        config: The run's settings.
        opened: Opens the ID images of a split.
        divided: Whether training and test images lie apart.
        by: What groups of images are, `domain` or `client`.
        splits: The split of each image, where some have one.

    Returns:
        Training images, test images, and which rows of the dataset the test images are.
    """
    views = config.data.views
    if divided:
        train, tested = opened("train", views=views), Tested(by=by)
        test = train if config.data.validation else opened("test").with_classes(train.classes)
    else:
        train, test, rows = _held_out(config, opened("all", views=views), splits)
        tested = Tested("all", by, rows)
    if config.data.validation:
        train, test = validation_cut(config, train)
    return train, test, tested


def validation_cut(config: RunConfig, train: FeatureSet) -> tuple[FeatureSet, FeatureSet]:
    """Hold validation images out of the training images.

    Args:
        config: The run's settings.
        train: The training images.

    Returns:
        Training and validation images.

    Raises:
        ConfigError: There are too few images.
    """
    seed, count = derive(config.partition.seed, "validation"), config.data.validation
    try:
        return _cut(train, seed, per_class=count)
    except ConfigError as error:
        raise ConfigError(f"data.validation = {count} is too many here: {error}") from error


def _held_out(
    config: RunConfig, features: FeatureSet, splits: Sequence[str]
) -> tuple[FeatureSet, FeatureSet, np.ndarray]:
    """Training and test images of a dataset without splits, and the rows of the latter.

    An image whose split is among `splits` keeps it.
    """
    seed, share = derive(config.partition.seed, "domains"), config.data.test_share
    remaining, held_out = _cut_rows(features, seed, fraction=share)
    if splits:
        drawn = np.isin(np.arange(len(features)), held_out)
        fixed = np.array(splits)
        remaining = np.flatnonzero(np.where(fixed == "", ~drawn, fixed == "train"))
        held_out = np.flatnonzero(np.where(fixed == "", drawn, fixed == "test"))
    train, test = (features.select(torch.from_numpy(rows)) for rows in (remaining, held_out))
    untested = sorted(set(train.labels.tolist()) - set(test.labels.tolist()))
    if untested:
        names = ", ".join(features.classes[label] for label in untested[:5])
        problem = (
            f"{len(untested)} of {len(features.classes)} classes of {config.data.id} have too few "
            f"images to hold one out as test (data.test_share = {share:g}): {names}"
            f"{', ...' if len(untested) > 5 else ''}"
        )
        if not len(test):
            raise ConfigError(f"{problem}: set a larger share, or give test images yourself")
        warnings.warn(problem, stacklevel=2)
    return train, test, held_out


def _cut(features: FeatureSet, seed: int, per_class: int) -> tuple[FeatureSet, FeatureSet]:
    """Kept and held-out images."""
    remaining, held_out = _cut_rows(features, seed, per_class=per_class)
    return features.select(torch.from_numpy(remaining)), features.select(torch.from_numpy(held_out))


def _cut_rows(
    features: FeatureSet, seed: int, per_class: int | None = None, fraction: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Kept and held-out rows, class by class; where there are domains, alike within each."""
    labels = features.labels
    if features.domains is not None:
        labels = labels + features.domains * len(features.classes)
    return partition.validation_cut(
        labels.numpy(), per_class=per_class, fraction=fraction, seed=seed
    )
