"""Clients that the data itself divides: by domain, by folder, or by a column `client`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from focoop.config import AUTO_CLIENTS, RunConfig
from focoop.data import Source, sources
from focoop.errors import ConfigError, nearest
from focoop.features import FeatureSet
from focoop.scenario import partition
from focoop.scenario.draws import split_with_shots
from focoop.scenario.held_out import train_and_test, validation_cut
from focoop.scenario.split import Split, Tested


def domain_split(config: RunConfig, opened: Callable[..., FeatureSet], divided: bool) -> Split:
    """Make a client of each domain; a user's own splits are kept, other datasets divided anew.

    Args:
        config: The run's settings.
        opened: Opens the ID images of a split.
        divided: Whether training and test images lie apart.

    Returns:
        The divided images.

    Raises:
        ConfigError: The images have no domains, or a domain lacks training or test images.
    """
    divided = divided and Source.parse(config.data.id).kind in sources.OWN
    refusal = (
        f"needs a dataset with domains; {config.data.id} has none: sort images of your own into "
        "DOMAIN/CLASS, or choose another kind, such as iid"
    )
    opened = _grouped(opened, refusal)
    if config.partition.leave_out:
        return _left_out_split(config, opened, divided)
    train, test, tested = train_and_test(config, opened, divided)
    assert train.domains is not None and test.domains is not None
    untested = sorted(set(train.domains.tolist()) ^ set(test.domains.tolist()))
    if untested:  # clients are numbered by the domains that are there
        name = train.domain_names[untested[0]]
        raise ConfigError(f"domain {name!r} of {config.data.id} lacks training or test images")
    clients = max(0, config.partition.clients) or None
    train_index = partition.by_domain(train.domains.numpy(), clients, config.partition.seed)
    test_index = partition.by_domain(test.domains.numpy(), clients, config.partition.seed)
    return split_with_shots(config, train, test, train_index, test_index, None, tested)


def _grouped(
    opened: Callable[..., FeatureSet], refusal: str, kind: str = "domain"
) -> Callable[..., FeatureSet]:
    """`opened`, which refuses images that come in no groups."""

    def open_grouped(*asked: Any, **more: Any) -> FeatureSet:
        features = opened(*asked, **more)
        if features.domains is None:
            raise ConfigError(f"partition.kind = {kind} {refusal}")
        return features

    return open_grouped


def given_split(
    config: RunConfig, opened: Callable[..., FeatureSet], divided: bool, splits: Sequence[str]
) -> Split:
    """Make a client of each folder or value of the column `client`, tested on its own images.

    Args:
        config: The run's settings.
        opened: Opens the ID images of a split.
        divided: Whether training and test images lie apart.
        splits: The split of each image where some clients say it and others do not.

    Returns:
        The divided images.

    Raises:
        ConfigError: The images have no clients, or a client lacks training or test images.
    """
    refusal = (
        f"needs clients, and {config.data.id} is not divided into clients; name clients:PATH, "
        "folder:PATH with PATH/CLIENT/CLASS, or a csv: with a column client"
    )
    opened = _grouped(opened, refusal, "given")
    train, test, tested = train_and_test(config, opened, divided, "client", splits)
    names = train.domain_names
    if config.partition.clients not in (AUTO_CLIENTS, 0, len(names)):
        raise ConfigError(
            f"{config.data.id} has {len(names)} clients: set partition.clients to {len(names)}, "
            "or 0"
        )
    assert train.domains is not None and test.domains is not None
    index = [
        [np.flatnonzero((owners == k).numpy()) for k in range(len(names))]
        for owners in (train.domains, test.domains)
    ]
    for what, rows_of in zip(("training", "test"), index, strict=True):
        empty = [name for name, rows in zip(names, rows_of, strict=True) if not len(rows)]
        if empty:
            raise ConfigError(f"client {empty[0]!r} of {config.data.id} has no {what} images")
    return split_with_shots(config, train, test, index[0], index[1], None, tested)


def _left_out_split(config: RunConfig, opened: Callable[..., FeatureSet], divided: bool) -> Split:
    """One client per other domain, each tested on the left-out one: on its test images, or all.

    With `data.validation` that domain is not touched: images held out of all others stand in.
    """
    features = opened("train" if divided else "all", views=config.data.views)
    domains = features.domains
    assert domains is not None
    name, names = config.partition.leave_out, features.domain_names
    if name not in names:
        raise ConfigError(
            f"partition.leave_out = {name!r} is no domain of {config.data.id}{nearest(name, names)}"
        )
    left = domains == names.index(name)
    train, seen, tested_on = features.select(~left), features, left
    if divided and not config.data.validation:
        seen = opened("test").with_classes(features.classes)
        assert seen.domains is not None
        tested_on = seen.domains == names.index(name)
    test = seen.select(tested_on)
    if config.data.validation:
        train, test = validation_cut(config, train)
    clients = len(set(domains[~left].tolist()))
    if not len(test) or config.partition.clients not in (AUTO_CLIENTS, 0, clients):
        raise ConfigError(
            f"without {name!r} ({len(test)} images) {config.data.id} has {clients} domains, "
            f"one per client: set partition.clients to {clients}, or 0"
        )
    assert train.domains is not None
    train_index = partition.by_domain(train.domains.numpy())
    test_index = [np.arange(len(test))] * clients
    tested = Tested("test" if divided else "all", rows=np.flatnonzero(tested_on.numpy()))
    return split_with_shots(config, train, test, train_index, test_index, None, tested)
