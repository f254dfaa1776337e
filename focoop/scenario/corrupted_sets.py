"""Corrupted copies of the test images, with the classes and the clients of the originals."""

from collections.abc import Sequence

import torch

from focoop.config import RunConfig
from focoop.data import SEVERITIES
from focoop.errors import ConfigError, DataError
from focoop.features import FeatureSet
from focoop.federation import Owned
from focoop.scenario.split import Split
from focoop.seeds import derive


def expand_severities(specs: Sequence[str]) -> list[tuple[str, str]]:
    """Write out corruptions without a severity, which stand for all five.

    Args:
        specs: Names of corrupted sets.

    Returns:
        Pairs of `type@severity` and the set's name.

    Raises:
        ConfigError: A name asks for no corruption.

    >>> expand_severities(["demo:cifar100#brightness"])[4]
    ('brightness@5', 'demo:cifar100#brightness@5')
    """
    pairs = []
    for spec in specs:
        base, mark, corruption = spec.partition("#")
        if not mark:
            raise ConfigError(
                f"data.corrupted: {spec!r} names no corruption, as in {base}#brightness"
            )
        if "@" in corruption:
            pairs.append((corruption, spec))
        else:
            pairs += [(f"{corruption}@{s}", f"{spec}@{s}") for s in SEVERITIES]
    return pairs


def with_id_classes(config: RunConfig, split: Split, features: FeatureSet, spec: str) -> FeatureSet:
    """Number the classes of corrupted images as those of the ID images.

    Args:
        config: The run's settings.
        split: The ID images.
        features: The corrupted images.
        spec: Their name.

    Returns:
        The corrupted images with the ID images' classes.

    Raises:
        ConfigError: They hold other classes.
    """
    left_out = (*config.data.drop_classes, *(split.unknown.classes if split.unknown else ()))
    dropped = [name for name in left_out if name in features.classes]
    try:
        return features.drop_classes(dropped).with_classes(split.classes)
    except DataError as error:
        reason = str(error).partition(":")[0]
        raise ConfigError(
            f"data.corrupted: {spec} does not hold the classes of {config.data.id}: write "
            f"{config.data.id}#brightness there, or set data.corrupted=[] for none ({reason})"
        ) from error


def tested_rows(config: RunConfig, split: Split, spec: str) -> list[int] | None:
    """Find which corrupted images are tested on, where test images were held out of a dataset.

    Args:
        config: The run's settings.
        split: The ID images.
        spec: The name of the corrupted images.

    Returns:
        Their rows; None: all.
    """
    same = spec.partition("#")[0] == config.data.id
    if split.tested.rows is None or not same or config.data.drop_classes:
        return None
    return [int(row) for row in split.tested.rows]


def with_id_clients(config: RunConfig, split: Split, features: FeatureSet, spec: str) -> Owned:
    """Divide corrupted images as the test images are: by classes, or image by image.

    Args:
        config: The run's settings.
        split: The ID images.
        features: The corrupted images.
        spec: Their name.

    Returns:
        The images, and which of them each client owns.

    Raises:
        ConfigError: They are copies of other images.
    """
    rows, same = split.tested.rows, spec.partition("#")[0] == config.data.id
    if same and rows is not None and len(features) > rows.max():
        features = features.select(torch.from_numpy(rows))
    if split.shares is not None and rows is None:
        owned = split.shares.assign(features.labels.numpy(), derive(config.partition.seed, "test"))
        return Owned(features, owned)
    if not same or not torch.equal(features.labels, split.test.labels):
        raise ConfigError(
            f"data.corrupted: {spec} does not hold the test images of {config.data.id}: write "
            f"{config.data.id}#brightness, which corrupts those"
        )
    return Owned(features, split.test_index)
