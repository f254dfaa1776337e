"""Divide a configuration's data among clients: who trains and who is tested on which images."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from focoop.clip import Backbone
from focoop.config import AUTO_CLIENTS, PAPER_CLIENTS, RunConfig
from focoop.data import Source, sources
from focoop.features import FeatureSet, open_features, open_labels
from focoop.methods import lookup
from focoop.scenario import partition, untrained_classes
from focoop.scenario.cost import refuse_clients
from focoop.scenario.draws import split_with_shots
from focoop.scenario.grouped_split import domain_split, given_split
from focoop.scenario.held_out import train_and_test
from focoop.scenario.split import Split, Tested
from focoop.seeds import derive


def make_split(
    config: RunConfig, backbone: Backbone | None = None, cache_dir: Path | None = None
) -> Split:
    """Divide training and test images among clients by one class-by-client matrix.

    With `data.validation` the test split is not opened: validation images, cut from the training
    images before shots are drawn, stand in for it. Of a user's own images without splits,
    `data.test_share` of each class are the test images.

    Args:
        config: The run's settings.
        backbone: Encodes images; None: only the assignment is made, and features are empty.
        cache_dir: The folder of the cache; None: the default one.

    Returns:
        The divided images.
    """
    opened = opener_of(config, backbone, cache_dir, drop_classes=config.data.drop_classes)
    by = "client" if config.partition.kind == "given" else "domain"
    divided = _divided(config, by)
    if config.partition.kind == "domain":
        return domain_split(config, opened, divided)
    if config.partition.kind == "given":
        data = config.data
        splits = sources.row_splits(data.id, data.strict, data.drop_classes, cache_dir)
        return given_split(config, partial(opened, by="client"), divided, splits)
    if not divided and config.data.id.startswith("folder:"):
        sources.refuse_domains(Source.parse(config.data.id).target)
    train, test, tested = train_and_test(config, opened, divided)
    names = untrained_classes.unknown_of(config, train.classes)
    unknown = untrained_classes.of_unknown(test, names)
    train, test, tested = _without(names, train, test, tested)
    refuse_clients(config, clients_of(config, len(train.classes)), len(train), len(train.classes))
    shares = class_shares(config, train.classes)
    train_index = shares.assign(train.labels.numpy(), derive(config.partition.seed, "train"))
    test_index = shares.assign(test.labels.numpy(), derive(config.partition.seed, "test"))
    split = split_with_shots(config, train, test, train_index, test_index, shares, tested)
    return replace(split, unknown=unknown)


def _without(
    names: Sequence[str], train: FeatureSet, test: FeatureSet, tested: Tested
) -> tuple[FeatureSet, FeatureSet, Tested]:
    """Training and test images without some classes, and where the latter are found again."""
    if not names:
        return train, test, tested
    if tested.rows is not None:
        stays = [test.classes[label] not in names for label in test.labels.tolist()]
        tested = replace(tested, rows=tested.rows[np.array(stays, dtype=bool)])
    return train.drop_classes(names), test.drop_classes(names), tested


def remarks(config: RunConfig, *, measured: bool = True) -> list[str]:
    """Say what a run does with its data that its settings do not spell out.

    Args:
        config: the run's settings.
        measured: whether to speak of sets to measure on too.

    Returns:
        One sentence each: images held out as test, and sets that are not measured for want of any.
    """
    source = Source.parse(config.data.id)
    by = "client" if config.partition.kind == "given" else "domain"
    notes = [sources.listed_note(source.kind, source.target, by)]
    notes.append(sources.held_out_note(source.kind, source.target, config.data.test_share, by))
    notes.append(sources.validated_note(source.kind, source.target, by))
    if measured and source.kind != "demo":
        lacking = {"OOD sets": "data.ood", "corrupted sets": "data.corrupted"}
        absent = [name for name, key in lacking.items() if not getattr(config.data, key[5:])]
        keys = ", ".join(lacking[name] for name in absent)
        if absent and not config.data.validation:
            notes.append(f"no {' and no '.join(absent)} given: not measured ({keys})")
    return [note for note in notes if note]


def _divided(config: RunConfig, by: str) -> bool:
    """Whether `data.id` has training and test images apart; what is doubtful about it is told.

    Args:
        config: the run's settings.
        by: what groups of images are, `domain` or `client`.

    Raises:
        DataError: the images cannot be learned from as they are.
    """
    source = Source.parse(config.data.id)
    for warning in sources.advice(source.kind, source.target, by):
        warnings.warn(warning, stacklevel=2)
    need_test = not config.data.validation
    return sources.is_divided(source.kind, source.target, by, need_test=need_test)


def client_split(
    config: RunConfig,
    backbone: Backbone | None = None,
    cache_dir: Path | None = None,
    *,
    client: int,
    clients: int,
    classes: Sequence[str] = (),
) -> Split:
    """Divide one client's images as `partition.kind = given` does among all clients' images.

    Only the images of `client` are in `data.id`. Images without splits lose the same ones to
    testing as they would among all clients' images.

    Args:
        config: The client's settings.
        backbone: Encodes images; None: only the assignment is made.
        cache_dir: The folder of the cache; None: the default one.
        client: The client's number.
        clients: Number of clients in the federation.
        classes: The run's class names, by which images are numbered; the client may lack some.

    Returns:
        The divided images.
    """
    opened = opener_of(config, backbone, cache_dir)

    def placed(*asked: Any, **more: Any) -> FeatureSet:
        features = opened(*asked, **more)
        dropped = [name for name in config.data.drop_classes if name in features.classes]
        features = features.drop_classes(dropped).with_classes(classes or features.classes)
        owner = torch.full((len(features),), client)
        return replace(features, domains=owner, domain_names=(str(client),) * clients)

    train, test, tested = train_and_test(config, placed, _divided(config, "domain"))
    index = [
        [np.arange(len(part)) if k == client else np.zeros(0, np.int64) for k in range(clients)]
        for part in (train, test)
    ]
    train, test = (replace(subset, domains=None, domain_names=()) for subset in (train, test))
    return split_with_shots(config, train, test, index[0], index[1], None, tested)


def opener_of(
    config: RunConfig, backbone: Backbone | None, cache_dir: Path | None, **more: Any
) -> Callable[..., FeatureSet]:
    """Return `open_features` for the ID images of a configuration.

    Args:
        config: The run's settings.
        backbone: Encodes images; None: labels alone are opened.
        cache_dir: The folder of the cache; None: the default one.
        **more: Further arguments of `open_features`.

    Returns:
        A function of the split.
    """
    return partial(
        open_labels if backbone is None else open_features,
        config.data.id,
        backbone=backbone,
        with_patches=config.data.with_patches,
        cache_dir=cache_dir,
        patch_kind=lookup(config.method.name).patch_kind,
        root=config.data.root or None,
        strict=config.data.strict,
        **more,
    )


def class_shares(config: RunConfig, classes: tuple[str, ...]) -> partition.Partition:
    """Decide who holds which share of which class; nobody holds classes known by name alone.

    Args:
        config: The run's settings.
        classes: The class names.

    Returns:
        The shares.
    """
    new = untrained_classes.new_of(config, classes)
    held = _shares_of_held(config, len(classes) - len(new))
    return untrained_classes.with_new(held, classes, new) if new else held


def _shares_of_held(config: RunConfig, num_classes: int) -> partition.Partition:
    settings, clients = config.partition, clients_of(config, num_classes)
    if settings.kind == "dirichlet":
        return partition.dirichlet(num_classes, clients, settings.alpha, settings.seed)
    if settings.kind == "overlap":
        each = settings.classes_per_client
        return partition.overlap(num_classes, clients, each, settings.seed)
    if settings.kind == "iid":
        return partition.iid(num_classes, clients)
    return partition.pathological(num_classes, clients, settings.seed)


def clients_of(config: RunConfig, num_classes: int) -> int:
    """Return the number of clients that classes are divided among.

    Args:
        config: The run's settings.
        num_classes: Number of classes.

    Returns:
        The number; where nobody set one, so many that clients without a common class have two each.
    """
    if config.partition.clients != AUTO_CLIENTS:
        return config.partition.clients
    if config.partition.kind != "pathological":
        return PAPER_CLIENTS
    return min(PAPER_CLIENTS, max(num_classes // 2, min(num_classes, 2)))
