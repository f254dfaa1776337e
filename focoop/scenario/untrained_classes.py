"""Classes that nobody trains on: unknown to everybody, or known by their name alone."""

from dataclasses import replace

import numpy as np

from focoop.config import RunConfig
from focoop.errors import ConfigError
from focoop.features import FeatureSet
from focoop.scenario.partition import Partition
from focoop.seeds import numpy_generator

UNKNOWN = "unknown_classes"  # name of the OOD set of images of unknown classes


def unknown_of(config: RunConfig, classes: tuple[str, ...]) -> tuple[str, ...]:
    """Draw, by the partition's seed, the classes that are unknown to every client.

    Args:
        config: The run's settings; `data.unknown_classes` says how many.
        classes: All classes of the dataset.

    Returns:
        Their names, in the order of `classes`.

    Raises:
        ConfigError: No class would be left to train on.
    """
    unknown, new = config.data.unknown_classes, config.data.new_classes
    if unknown + new >= len(classes):
        raise ConfigError(
            f"data.unknown_classes = {unknown} and data.new_classes = {new} leave none of the "
            f"{len(classes)} classes of {config.data.id} to train on: lower them"
        )
    return _drawn(config, "unknown classes", classes, unknown)


def new_of(config: RunConfig, classes: tuple[str, ...]) -> tuple[str, ...]:
    """Draw, by the partition's seed, the classes of which clients know the name but have no image.

    Args:
        config: The run's settings; `data.new_classes` says how many.
        classes: The classes of the task.

    Returns:
        Their names, in the order of `classes`.
    """
    return _drawn(config, "new classes", classes, config.data.new_classes)


def _drawn(
    config: RunConfig, purpose: str, classes: tuple[str, ...], count: int
) -> tuple[str, ...]:
    order = numpy_generator(config.partition.seed, purpose).permutation(len(classes))
    chosen = set(order[:count].tolist())
    return tuple(name for label, name in enumerate(classes) if label in chosen)


def of_unknown(test: FeatureSet, names: tuple[str, ...]) -> FeatureSet | None:
    """Gather the test images of unknown classes.

    Args:
        test: All test images.
        names: The unknown classes.

    Returns:
        An OOD set; None where no class is unknown.
    """
    if not names:
        return None
    rest = [name for name in test.classes if name not in names]
    return replace(test.drop_classes(rest), views=())


def with_new(base: Partition, classes: tuple[str, ...], new: tuple[str, ...]) -> Partition:
    """Widen a partition of the classes that are trained on by classes that nobody holds.

    Args:
        base: Shares (K, C - new) of the classes that are trained on.
        classes: All C classes of the task.
        new: Those without training images.

    Returns:
        Shares (K, C), zero for new classes.
    """
    matrix = np.zeros((len(base.matrix), len(classes)))
    matrix[:, [name not in new for name in classes]] = base.matrix
    return Partition(matrix)
