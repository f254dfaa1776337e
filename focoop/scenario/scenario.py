"""Make a configuration concrete: the task, every client's images and the sets to evaluate on."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

from focoop.clip import Backbone, LabelledFeatures
from focoop.config import RunConfig
from focoop.data import NAMED, Source
from focoop.errors import ConfigError, MethodError
from focoop.features import FeatureSet, open_features, patch_kind_of
from focoop.federation import EvaluationSets, Owned
from focoop.methods import Method, Task, create
from focoop.scenario.assignment import make_split
from focoop.scenario.corrupted_sets import (
    expand_severities,
    tested_rows,
    with_id_classes,
    with_id_clients,
)
from focoop.scenario.cost import least_cost, refuse_large
from focoop.scenario.data_needed import ood_of, refuse_missing_sets, require_data, served_by
from focoop.scenario.split import Split
from focoop.scenario.task import Load, make_task, open_backbone, task_words
from focoop.scenario.untrained_classes import UNKNOWN

SPLIT_FOLDERS = ("train", "test", "val", "training", "testing", "valid", "validation")
Divide = Callable[[RunConfig, Backbone | None, Path | None], Split]


@dataclass(frozen=True)
class Scenario:
    """All that a run needs, and the hashes and sources that say what it was run on."""

    method: Method
    task: Task
    backbone: Backbone
    split: Split
    sets: EvaluationSets
    hashes: dict[str, str]
    words: tuple[str, ...] = ()  # mined negative words
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)

    def client(self, index: int) -> LabelledFeatures:
        """Gather a client's training images; before this call they take no memory of their own.

        Args:
            index: The client's number.

        Returns:
            Its images.
        """
        rows = torch.from_numpy(self.split.train_index[index])
        return replace(self.split.train.rows(rows), num_views=self.split.views)

    def training_clients(self) -> list[Callable[[], LabelledFeatures]]:
        """Return functions that gather the images of those who train.

        These are all clients, or one that holds all images where a method pools them.
        """
        if self.method.pools_data:
            rows = torch.from_numpy(np.concatenate(self.split.train_index))
            return [partial(self.split.train.rows, rows)]
        return [partial(self.client, k) for k in range(self.num_clients)]

    def a_few_images(self, most: int = 5) -> LabelledFeatures:
        """Gather some training images of one client, to try a method on.

        Args:
            most: How many at most.

        Returns:
            Images of the first client that has some; not as many as there are classes, so that
            no shape is right by chance.
        """
        images = next((data for one in self.training_clients() if len(data := one())), None)
        if images is None:
            return self.split.train.rows(torch.arange(0))
        count = min(most, len(images))
        return images.rows(torch.arange(count - (count == len(self.task.classes) and count > 1)))

    @property
    def num_clients(self) -> int:
        """Return the number K of clients."""
        return len(self.split.train_index)


def build_scenario(
    config: RunConfig,
    cache_dir: Path | None = None,
    device: str | None = None,
    divide: Divide = make_split,
    load: Load | None = None,
    words: Sequence[str] | None = None,
) -> Scenario:
    """Load the backbone, the features and the words that a configuration names.

    Args:
        config: The configuration.
        cache_dir: The folder of the cache; None: the default one.
        device: Where to compute, over what the configuration says.
        divide: Divides the images among clients.
        load: Loads a backbone by its name.
        words: Negative words that are known already; None: they are mined where they are needed.

    Returns:
        The scenario.

    Raises:
        ConfigError: Settings do not fit each other or the data.
        MethodError: The method cannot run on this data.
    """
    method = create(config.method.name, config.method.settings)
    if method.patch_kind and not config.data.with_patches:
        raise MethodError(
            f"{config.method.name} reads patch features: set data.with_patches to true "
            "(--set data.with_patches=true)"
        )
    require_data(config)
    backbone = open_backbone(config, device, load)
    patch_kind_of(backbone, method.patch_kind)  # refuses before images are encoded
    opened = partial(
        open_features,
        split="test",
        backbone=backbone,
        with_patches=config.data.with_patches,
        cache_dir=cache_dir,
        patch_kind=method.patch_kind,
        root=config.data.root or None,
        strict=config.data.strict,
    )
    images = Source.parse(config.data.id).kind not in ("demo", "file")
    rows = divide(config, None, cache_dir) if images else None  # so does this
    refuse_missing_sets(config, rows, opened)  # and this
    split = divide(config, backbone, cache_dir)
    _refuse_large(config, split, backbone)
    if words is None and method.needs_ood:
        words = task_words(config, backbone, split.classes, cache_dir)
    task = make_task(config, backbone, split.classes, method.needs_ood, cache_dir, words)
    task = replace(task, frozen=method.prepare(task))
    sets, hashes, sources = _evaluation_sets(config, split, opened)
    return Scenario(method, task, backbone, split, sets, hashes, tuple(words or ()), sources)


def _evaluation_sets(
    config: RunConfig, split: Split, opened: Callable[..., FeatureSet]
) -> tuple[EvaluationSets, dict[str, str], dict[str, dict[str, Any]]]:
    """Open what a run is measured on.

    Args:
        config: The run's settings.
        split: The divided ID images.
        opened: Opens a set of features by its name.

    Returns:
        The sets, the hashes of all features by name, and where each came from.

    Raises:
        ConfigError: Two OOD sets have one name.
    """
    hashes = {"train": split.train.sha256(), "test": split.test.sha256()}
    sources = {config.data.id: served_by(split.train, len(split.train) + len(split.test))}
    corrupted, ood = {}, {}
    if config.data.validation == 0:  # corrupted test images would leak into tuning
        for name, spec in expand_severities(config.data.corrupted):
            tested = split.tested
            some = tested_rows(config, split, spec)
            features = opened(spec, split=tested.split, by=tested.by, rows=some)
            features = with_id_classes(config, split, features, spec)
            corrupted[name] = with_id_clients(config, split, features, spec)
            hashes[spec] = features.sha256()
            sources[spec] = served_by(features)
    ood_specs = ood_of(config)
    for spec in ood_specs:
        features = opened(spec)
        ood[_short(spec)] = features
        hashes[spec] = features.sha256()
        sources[spec] = served_by(features)
    if len(ood) != len(ood_specs):
        raise ConfigError(f"two OOD sets would share a name: {', '.join(ood_specs)}")
    if split.unknown is not None:
        ood[UNKNOWN] = split.unknown
        hashes[UNKNOWN] = split.unknown.sha256()
    owned = Owned(split.test, split.test_index)
    return EvaluationSets(owned, corrupted, ood, calibration_images(split)), hashes, sources


def calibration_images(split: Split) -> Owned | None:
    """Gather the images that were set aside to calibrate thresholds.

    Args:
        split: The divided images.

    Returns:
        All of them, and which are whose; None where there are none.
    """
    sizes = [len(rows) for rows in split.calibration_index]
    if not sum(sizes):
        return None
    images = split.train.select(torch.from_numpy(np.concatenate(split.calibration_index)))
    ends = np.cumsum([0, *sizes])
    return Owned(images, [np.arange(a, b) for a, b in zip(ends[:-1], ends[1:], strict=True)])


def _refuse_large(config: RunConfig, split: Split, backbone: Backbone) -> None:
    """Refuse a run whose prompts or images need more memory or time than there is."""
    features = (split.train.pooled, split.train.patches)
    row = sum(math.prod(part.shape[1:]) * 4 for part in features if part is not None)
    rows = [len(index) for index in split.train_index]
    on_cpu = backbone.device.type == "cpu"
    cost = least_cost(config, rows, len(split.classes), row, backbone.text, on_cpu)
    refuse_large(config, cost)


def _short(spec: str) -> str:
    """The name of an OOD set in metrics."""
    source = Source.parse(spec)
    if source.kind == NAMED:
        return source.stem
    path = PurePath(spec.split(":", 1)[-1].removesuffix(".safetensors"))
    name, at, version = path.name.partition("@")
    if name in SPLIT_FOLDERS and path.parent.name:  # of `dtd/test` the last part says nothing
        name = path.parent.name if name == "test" else f"{path.parent.name}_{name}"
    return f"{name}{at}{version}"
