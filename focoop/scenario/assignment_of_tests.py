"""Divide a run's test images among its clients without opening a training image."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from focoop.clip import Backbone
from focoop.config import RunConfig
from focoop.data import plain
from focoop.errors import DataError
from focoop.features import FeatureSet, open_labels
from focoop.scenario import partition, untrained_classes
from focoop.scenario.assignment import class_shares, opener_of
from focoop.scenario.split import Split, Tested
from focoop.seeds import derive


def tested_split(
    config: RunConfig,
    backbone: Backbone | None = None,
    cache_dir: Path | None = None,
    *,
    classes: Sequence[str],
    clients: Sequence[str],
) -> Split:
    """Divide the test images of a run as `make_split` does; the training images stay closed.

    Args:
        config: The run's settings; its dataset has a test split of its own.
        backbone: Encodes images; None: only the assignment is made.
        cache_dir: The folder of the cache.
        classes: Class names of the run, in the order of the labels.
        clients: Names of its clients, in the order of their numbers.

    Returns:
        A split without training images.

    Raises:
        DataError: The test images are gone, or are of a class or client that the run did not have.
    """
    kind = config.partition.kind
    if config.partition.leave_out:
        raise DataError(
            "partition.leave_out tests on a domain of the same images: all of them are needed"
        )
    by = "client" if kind == "given" else "domain"
    opened = opener_of(config, backbone, cache_dir, drop_classes=config.data.drop_classes)
    test = opened("test", by=by)
    there, known = set(test.labels.tolist()), set(map(plain, classes))
    new = [name for label, name in enumerate(test.classes) if label in there]
    new = [name for name in new if plain(name) not in known]
    unknown = None
    if len(new) == config.data.unknown_classes:
        unknown = untrained_classes.of_unknown(test, tuple(new))
        test, new = test.drop_classes(new), []
    if new:
        raise DataError(
            f"{config.data.id} has test images of a class {new[0]!r} that the run did not have "
            f"(it had {', '.join(classes)}): restore them"
        )
    test = test.with_classes(tuple(classes))
    shares = None
    if kind == "given":
        test = _with_clients(config, test, clients)
        assert test.domains is not None
        owners = test.domains.numpy()
        index = [np.flatnonzero(owners == k) for k in range(len(clients))]
    elif kind == "domain" and test.domains is not None:
        wanted = max(0, config.partition.clients) or None
        index = partition.by_domain(test.domains.numpy(), wanted, config.partition.seed)
    else:
        shares = class_shares(config, tuple(classes))
        index = shares.assign(test.labels.numpy(), derive(config.partition.seed, "test"))
    none = [np.zeros(0, np.int64)] * len(index)
    tested = Tested(by=by)
    alone = replace(test, views=())
    return Split(test.select([]), alone, none, index, 0, shares, tested, unknown=unknown)


def training_is_gone(config: RunConfig) -> bool:
    """Say whether a run's training images cannot be opened at all.

    Args:
        config: The run's settings.

    Returns:
        Whether they are gone.
    """
    by = "client" if config.partition.kind == "given" else "domain"
    root, strict = config.data.root or None, config.data.strict
    try:
        open_labels(config.data.id, "train", root=root, by=by, strict=strict)
    except DataError:
        return True
    return False


def _with_clients(config: RunConfig, test: FeatureSet, clients: Sequence[str]) -> FeatureSet:
    """Test images whose groups are numbered as the run's clients are."""
    there = test.domain_names
    if test.domains is None or (new := [name for name in there if name not in clients]):
        difference = "no clients" if test.domains is None else f"a client {new[0]!r}"
        raise DataError(
            f"{config.data.id} has {difference} now, and the run had {', '.join(clients)}: "
            "restore them"
        )
    place = torch.tensor([list(clients).index(name) for name in there])
    return replace(test, domains=place[test.domains], domain_names=tuple(clients))
