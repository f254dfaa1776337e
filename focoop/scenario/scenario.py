"""Make a configuration concrete: the task, every client's images and the sets to evaluate on."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from focoop import caching
from focoop.clip import Backbone, LabelledFeatures, load_backbone
from focoop.config import RunConfig
from focoop.data import (
    NAMED,
    SEVERITIES,
    Source,
    expand,
    read_corrupted,
    ready_features,
    refuse_incomplete,
)
from focoop.errors import ConfigError, DataError, MethodError
from focoop.features import FeatureSet, open_features, open_labels, patch_kind_of
from focoop.federation import EvaluationSets, Owned
from focoop.methods import Method, Task, create
from focoop.processor import training_in_bfloat16
from focoop.scenario.assignment import Split, Tested, make_split
from focoop.scenario.cost import least_cost, refuse_large
from focoop.scenario.negatives import Negatives, mine
from focoop.scenario.negatives_cache import remembered
from focoop.scenario.untrained_classes import UNKNOWN
from focoop.scenario.wordnet import read_words
from focoop.seeds import derive

__all__ = [
    "Scenario",
    "Split",
    "build_scenario",
    "expand_severities",
    "make_split",
    "make_task",
    "mine_negatives",
    "task_words",
]


Load = Callable[..., Backbone]
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
        """Gather a client's training images; without the call a client costs nothing.

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
    _refuse_missing_sets(config, rows, opened)  # and this
    split = divide(config, backbone, cache_dir)
    _refuse_large(config, split, backbone)
    if words is None and method.needs_ood:
        words = task_words(config, backbone, split.classes, cache_dir)
    task = make_task(config, backbone, split.classes, method.needs_ood, cache_dir, words)
    task = replace(task, frozen=method.prepare(task))
    hashes = {"train": split.train.sha256(), "test": split.test.sha256()}
    sources = {config.data.id: served_by(split.train, len(split.train) + len(split.test))}
    corrupted, ood = {}, {}
    if config.data.validation == 0:  # corrupted test images would leak into tuning
        for name, spec in expand_severities(config.data.corrupted):
            tested = split.tested
            some = _test_rows(config, split, spec)
            features = opened(spec, split=tested.split, by=tested.by, rows=some)
            features = _same_classes(config, split, features, spec)
            corrupted[name] = _same_clients(config, split, features, spec)
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
    sets = EvaluationSets(owned, corrupted, ood, calibration_images(split))
    words = tuple(words or ())
    return Scenario(method, task, backbone, split, sets, hashes, words, sources)


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


def datasets_of(config: RunConfig) -> list[str]:
    """List the names of all datasets that a run opens, each once.

    Args:
        config: The run's settings.

    Returns:
        Names as settings write them.
    """
    corrupted = () if config.data.validation else config.data.corrupted
    return list(dict.fromkeys((config.data.id, *corrupted, *ood_of(config))))


def ood_of(config: RunConfig) -> tuple[str, ...]:
    """Return the OOD sets of a run: those of validation while it validates.

    Args:
        config: The run's settings.

    Returns:
        Names of the sets.
    """
    data = config.data
    return data.validation_ood if data.validation and data.validation_ood else data.ood


def require_data(*configs: RunConfig) -> None:
    """Refuse runs whose public datasets are not here, before anything is computed.

    Args:
        *configs: The runs' settings; what all of them lack is said at once.

    Raises:
        DataError: What to fetch and how large it is, or which ready features do not fit.
    """
    for config in configs:
        for spec in expand(() if config.data.validation else config.data.corrupted):
            _named("data.corrupted", spec, Source.parse)
        for spec in ood_of(config):
            _named("data.ood", spec, Source.parse)
    roots = dict.fromkeys((config.data.root, config.backbone.name) for config in configs)
    for root, backbone in roots:
        same = [c for c in configs if (c.data.root, c.backbone.name) == (root, backbone)]
        ready_features.require(
            [spec for config in same for spec in datasets_of(config)], root or None, backbone
        )
    whole = dict.fromkeys(
        (name, config.data.root)
        for config in configs
        if not config.data.incomplete
        for name in ready_features.from_images(datasets_of(config))
    )
    for name, root in whole:
        refuse_incomplete(name, root or None)


def served_by(features: FeatureSet, images: int | None = None) -> dict[str, Any]:
    """Describe where features came from, for a run's manifest.

    Args:
        features: The features.
        images: Number of images, where it is not that of the rows.

    Returns:
        Facts by name.
    """
    provenance = features.provenance
    served = provenance.get("served", "")
    path = provenance.get("source" if served == "images" else "file", "")
    facts: dict[str, Any] = {"served by": served}
    facts["path"] = str(Path(path).absolute()) if path else ""
    facts |= {"images": images or len(features)}
    return {**facts, "classes": len(features.classes)}


def _refuse_missing_sets(
    config: RunConfig, rows: Split | None, opened: partial[FeatureSet]
) -> None:
    """Refuse a run whose OOD or corrupted sets are not there, before any image is encoded.

    Args:
        config: the run's settings.
        rows: who holds which ID images, without their features; None where `data.id` is features,
            so that other features are opened without delay too.
        opened: opens a set of features by its name.

    Raises:
        DataError: a set cannot be opened; the message names the setting.
        ConfigError: a corrupted set holds other images than the ID test set.
    """
    look = partial(_look, opened=partial(opened, with_patches=False))
    tested = Tested() if rows is None else rows.tested
    seen: set[str] = set()
    corrupted = () if config.data.validation else expand_severities(config.data.corrupted)
    for _, spec in corrupted:
        source = _named("data.corrupted", spec, Source.parse)
        base, stored = spec.partition("#")[0], source.kind in ("demo", "file")
        if (rows is None and stored) or (base in seen and not stored):
            continue  # features are opened at once, or the set is made of the same images
        seen.add(base)
        features = _named("data.corrupted", spec, look, split=tested.split, by=tested.by)
        if features is not None and rows is not None:
            _same_clients(config, rows, _same_classes(config, rows, features, spec), spec)
    for spec in ood_of(config):
        source = _named("data.ood", spec, Source.parse)
        if rows is not None or source.kind not in ("demo", "file"):
            _named("data.ood", spec, look)


def _named(setting: str, spec: str, look: Callable[..., Any], **more: str) -> Any:
    """What `look` makes of a set's name; its refusal names the setting."""
    try:
        return look(spec, **more)
    except DataError as error:
        raise DataError(f"{setting}: {error}") from error


def _look(spec: str, *, opened: partial[FeatureSet], **more: str) -> FeatureSet | None:
    """The rows of a set without encoding images; None where official corrupted images are there."""
    source = Source.parse(spec)
    if source.kind in ("demo", "file"):
        return opened(spec, **more)
    settings = opened.keywords
    if source.kind == NAMED and source.corruption is not None:
        official = read_corrupted(
            source.target, source.corruption, source.severity, settings["root"]
        )
        if official is not None:
            return None
    options = {key: settings[key] for key in ("split", "cache_dir", "root", "strict")}
    return open_labels(spec, **{**options, **more})


def open_backbone(
    config: RunConfig, device: str | None = None, load: Load | None = None
) -> Backbone:
    """Load a configuration's backbone on its device, in the precision it trains in.

    Args:
        config: The run's settings.
        device: Where to compute, over what the configuration says.
        load: Loads a backbone by its name; None: `load_backbone`.

    Returns:
        The backbone.
    """
    weights = Path(config.backbone.weights) if config.backbone.weights else None
    name, where = config.backbone.name, device or config.backbone.device
    chosen = load or load_backbone
    backbone: Backbone = caching.BACKBONES.get(
        (name, weights, where), lambda: chosen(name, weights=weights, device=where), size=1
    )
    half = training_in_bfloat16(config.backbone.precision, backbone.device.type)
    backbone.text.train_in(torch.bfloat16 if half else None)
    return backbone


def make_task(
    config: RunConfig,
    backbone: Backbone,
    classes: tuple[str, ...],
    needs_ood: bool,
    cache_dir: Path | None = None,
    words: Sequence[str] | None = None,
) -> Task:
    """Make the text side of a run: class names and, for methods that use them, negative words.

    Args:
        config: The run's settings.
        backbone: The backbone.
        classes: Class names in label order.
        needs_ood: The method uses negative words.
        cache_dir: The folder of the cache; None: the default one.
        words: Negative words that are known already; None: they are mined.

    Returns:
        The task.
    """
    if words is None and needs_ood:
        words = task_words(config, backbone, classes, cache_dir)
    texts = [config.data.template.format(name.replace("_", " ")) for name in classes]
    return Task(
        classes=classes,
        encode=backbone.encode_prompts,
        id_names=backbone.names(classes),
        ood_names=backbone.names(words) if words else None,
        anchors=backbone.encode_texts(texts),
        logit_scale=config.backbone.logit_scale or backbone.logit_scale,
        width=backbone.width,
        bare_names=backbone.names(classes, period=False),
        texts=backbone.encode_texts,
        embed=backbone.embed,
        patch_projection=backbone.patch_projection,
    )


def task_words(
    config: RunConfig, backbone: Backbone, classes: tuple[str, ...], cache_dir: Path | None = None
) -> tuple[str, ...]:
    """Return the negative words of a run's task, mined once and kept on disk.

    Args:
        config: The run's settings.
        backbone: The backbone.
        classes: Class names in label order.
        cache_dir: The folder of the cache; None: the default one.

    Returns:
        The words.
    """
    if not config.negatives.count:
        return ()
    return remembered(
        config.negatives,
        backbone.fingerprint,
        classes,
        lambda: mine_negatives(config, backbone, classes, cache_dir).words,
        cache_dir,
    )


def mine_negatives(
    config: RunConfig, backbone: Backbone, classes: tuple[str, ...], cache_dir: Path | None = None
) -> Negatives:
    """Choose the negative words of a configuration, with their distances from the ID classes.

    Args:
        config: The run's settings.
        backbone: The backbone.
        classes: Class names in label order.
        cache_dir: The folder of the cache; None: the default one.

    Returns:
        The words.
    """
    wanted = config.negatives
    return mine(
        backbone,
        classes,
        wanted.count,
        quantile=wanted.quantile,
        band=wanted.band,
        adjective_share=None if wanted.adjective_share < 0 else wanted.adjective_share,
        candidates=read_words(Path(wanted.words).expanduser()) if wanted.words else None,
        cache_dir=cache_dir,
    )


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


def _same_classes(config: RunConfig, split: Split, features: FeatureSet, spec: str) -> FeatureSet:
    """Corrupted images with the ID images' classes, in their order."""
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


def _test_rows(config: RunConfig, split: Split, spec: str) -> list[int] | None:
    """The rows of corrupted images that are tested on, where these are part of the ID images."""
    same = spec.partition("#")[0] == config.data.id
    if split.tested.rows is None or not same or config.data.drop_classes:
        return None
    return [int(row) for row in split.tested.rows]


def _same_clients(config: RunConfig, split: Split, features: FeatureSet, spec: str) -> Owned:
    """Corrupted images divided as the test images are: by classes, or image by image."""
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


def _short(spec: str) -> str:
    """The name of an OOD set in metrics."""
    source = Source.parse(spec)
    if source.kind == NAMED:
        return source.stem
    return spec.split(":", 1)[-1].rsplit("/", 1)[-1].removesuffix(".safetensors")
