"""Hold test or validation images out of a dataset that does not say which are which."""

import math
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


class TooManyValidationImages(ConfigError):
    """More validation images are asked for than the smallest class can give.

    Attributes:
        most: The largest `data.validation` that leaves every class a training image.
    """

    def __init__(self, asked: int, fewest: int, smallest: str) -> None:
        """Say what fits.

        Args:
            asked: The setting `data.validation`.
            fewest: Training images of the smallest class, of one domain where there are domains.
            smallest: Its name.
        """
        self.most = max(0, fewest - 1)
        images = f"{fewest} training image{'s'[: fewest != 1]}"
        super().__init__(
            f"data.validation = {asked} is too many here: class {smallest!r} has {images}; "
            + (f"the most that fits is {self.most}" if self.most else "give it a second one")
        )


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
        TooManyValidationImages: There are too few images.
    """
    seed, count = derive(config.partition.seed, "validation"), config.data.validation
    groups, counts = np.unique(_groups(train), return_counts=True)
    if len(counts) and count >= counts.min():
        smallest = train.classes[groups[counts.argmin()] % len(train.classes)]
        raise TooManyValidationImages(count, int(counts.min()), smallest)
    return _cut(train, seed, per_class=count)


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
        counts = np.unique(_groups(features), return_counts=True)[1]
        least = math.ceil(100 / max(2, counts.min())) / 100
        problem = (
            f"{len(untested)} of {len(features.classes)} classes of {config.data.id} have too few "
            f"images to hold one out as test (data.test_share = {share:g}): {names}"
            f"{', ...' if len(untested) > 5 else ''}. Set a larger share "
            f"(data.test_share={least:g}), or give test images yourself"
        )
        if not len(test):
            raise ConfigError(problem)
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
    return partition.validation_cut(
        _groups(features), per_class=per_class, fraction=fraction, seed=seed
    )


def _groups(features: FeatureSet) -> np.ndarray:
    """A number for the class of every image and, where there are domains, for its domain."""
    labels = features.labels
    if features.domains is not None:
        labels = labels + features.domains * len(features.classes)
    return labels.numpy()
