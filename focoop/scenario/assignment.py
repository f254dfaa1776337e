"""Divide a configuration's data among clients: who trains and who is tested on which images."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from focoop.clip import Backbone
from focoop.config import RunConfig
from focoop.data import Source, code_warnings, sources
from focoop.errors import ConfigError, nearest
from focoop.features import FeatureSet, open_features, open_labels, refuse_same_names
from focoop.methods import lookup
from focoop.scenario import partition, untrained_classes
from focoop.scenario.calibration import set_aside
from focoop.scenario.cost import least_cost, refuse_clients, refuse_large
from focoop.seeds import derive


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
    opened = _opener(config, backbone, cache_dir, drop_classes=config.data.drop_classes)
    by = "client" if config.partition.kind == "given" else "domain"
    divided = _divided(config, by)
    if config.partition.kind == "domain":
        return _domain_split(config, opened, divided)
    if config.partition.kind == "given":
        data = config.data
        splits = sources.row_splits(data.id, data.strict, data.drop_classes, cache_dir)
        return _given_split(config, partial(opened, by="client"), divided, splits)
    if not divided and config.data.id.startswith("folder:"):
        sources.refuse_domains(Source.parse(config.data.id).target)
    train, test, tested = _train_and_test(config, opened, divided)
    names = untrained_classes.unknown_of(config, train.classes)
    unknown = untrained_classes.of_unknown(test, names)
    train, test, tested = _without(names, train, test, tested)
    refuse_clients(config, len(train), len(train.classes))
    shares = _shares(config, train.classes)
    train_index = shares.assign(train.labels.numpy(), derive(config.partition.seed, "train"))
    test_index = shares.assign(test.labels.numpy(), derive(config.partition.seed, "test"))
    split = _with_shots(config, train, test, train_index, test_index, shares, tested)
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


def _train_and_test(
    config: RunConfig,
    opened: Callable[..., FeatureSet],
    divided: bool,
    by: str = "domain",
    splits: Sequence[str] = (),
) -> tuple[FeatureSet, FeatureSet, Tested]:
    """Training images, test images, and where the latter are found again.

    Images that are not `divided` lose some to testing, unless `splits` says what they are; with
    `data.validation` images held out of the training images stand in for those of the test.
    """
    views = config.data.views
    if divided:
        train, tested = opened("train", views=views), Tested(by=by)
        test = train if config.data.validation else opened("test").with_classes(train.classes)
    else:
        train, test, rows = _held_out(config, opened("all", views=views), splits)
        tested = Tested("all", by, rows)
    if config.data.validation:
        train, test = _validation_cut(config, train)
    return train, test, tested


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
    opened = _opener(config, backbone, cache_dir)

    def placed(*asked: Any, **more: Any) -> FeatureSet:
        features = opened(*asked, **more)
        dropped = [name for name in config.data.drop_classes if name in features.classes]
        features = features.drop_classes(dropped).with_classes(classes or features.classes)
        owner = torch.full((len(features),), client)
        return replace(features, domains=owner, domain_names=(str(client),) * clients)

    train, test, tested = _train_and_test(config, placed, _divided(config, "domain"))
    index = [
        [np.arange(len(part)) if k == client else np.zeros(0, np.int64) for k in range(clients)]
        for part in (train, test)
    ]
    train, test = (replace(subset, domains=None, domain_names=()) for subset in (train, test))
    return _with_shots(config, train, test, index[0], index[1], None, tested)


def _opener(
    config: RunConfig, backbone: Backbone | None, cache_dir: Path | None, **more: Any
) -> Callable[..., FeatureSet]:
    """`open_features` of the configuration's ID images; without a backbone, who is who alone."""
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


def _shares(config: RunConfig, classes: tuple[str, ...]) -> partition.Partition:
    """Who holds which share of which class; nobody holds classes known by name alone."""
    new = untrained_classes.new_of(config, classes)
    held = _shares_of_held(config, len(classes) - len(new))
    return untrained_classes.with_new(held, classes, new) if new else held


def _shares_of_held(config: RunConfig, num_classes: int) -> partition.Partition:
    settings = config.partition
    if settings.kind == "dirichlet":
        return partition.dirichlet(num_classes, settings.clients, settings.alpha, settings.seed)
    if settings.kind == "overlap":
        each = settings.classes_per_client
        return partition.overlap(num_classes, settings.clients, each, settings.seed)
    if settings.kind == "iid":
        return partition.iid(num_classes, settings.clients)
    return partition.pathological(num_classes, settings.clients, settings.seed)


def _domain_split(config: RunConfig, opened: Callable[..., FeatureSet], divided: bool) -> Split:
    """One client per domain; a user's own splits are kept, other datasets are divided anew."""
    divided = divided and Source.parse(config.data.id).kind in sources.OWN
    refusal = (
        f"needs a dataset with domains; {config.data.id} has none: sort images of your own into "
        "DOMAIN/CLASS, or choose another kind, such as iid"
    )
    opened = _grouped(opened, refusal)
    if config.partition.leave_out:
        return _left_out_split(config, opened, divided)
    train, test, tested = _train_and_test(config, opened, divided)
    assert train.domains is not None and test.domains is not None
    untested = sorted(set(train.domains.tolist()) ^ set(test.domains.tolist()))
    if untested:  # clients are numbered by the domains that are there
        name = train.domain_names[untested[0]]
        raise ConfigError(f"domain {name!r} of {config.data.id} lacks training or test images")
    clients = config.partition.clients or None
    train_index = partition.by_domain(train.domains.numpy(), clients, config.partition.seed)
    test_index = partition.by_domain(test.domains.numpy(), clients, config.partition.seed)
    return _with_shots(config, train, test, train_index, test_index, None, tested)


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


def _given_split(
    config: RunConfig,
    opened: Callable[..., FeatureSet],
    divided: bool,
    splits: Sequence[str],
) -> Split:
    """One client per folder or value of the column `client`; each is tested on its own images."""
    refusal = (
        f"needs clients, and {config.data.id} is not divided into clients; name clients:PATH, "
        "folder:PATH with PATH/CLIENT/CLASS, or a csv: with a column client"
    )
    opened = _grouped(opened, refusal, "given")
    train, test, tested = _train_and_test(config, opened, divided, "client", splits)
    names = train.domain_names
    if config.partition.clients not in (0, len(names)):
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
    return _with_shots(config, train, test, index[0], index[1], None, tested)


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
        train, test = _validation_cut(config, train)
    clients = len(set(domains[~left].tolist()))
    if not len(test) or config.partition.clients not in (0, clients):
        raise ConfigError(
            f"without {name!r} ({len(test)} images) {config.data.id} has {clients} domains, "
            f"one per client: set partition.clients to {clients}, or 0"
        )
    assert train.domains is not None
    train_index = partition.by_domain(train.domains.numpy())
    test_index = [np.arange(len(test))] * clients
    tested = Tested("test" if divided else "all", rows=np.flatnonzero(tested_on.numpy()))
    return _with_shots(config, train, test, train_index, test_index, None, tested)


def _validation_cut(config: RunConfig, train: FeatureSet) -> tuple[FeatureSet, FeatureSet]:
    """Training and validation images."""
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


def _with_shots(
    config: RunConfig,
    train: FeatureSet,
    test: FeatureSet,
    train_index: Sequence[np.ndarray],
    test_index: Sequence[np.ndarray],
    shares: partition.Partition | None,
    tested: Tested = Tested(),  # noqa: B008 - frozen
) -> Split:
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
    shots, labels = config.partition.shots, train.labels.numpy()
    own = [shots * len(np.unique(labels[rows])) if shots else len(rows) for rows in index]
    return [count * (1 + len(train.views)) for count in own]
