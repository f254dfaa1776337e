"""A configuration made concrete: the task, every client's images and the sets to evaluate on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from focoop import partition
from focoop.clip import load_backbone
from focoop.clip.base import Backbone
from focoop.data.corruptions import SEVERITIES
from focoop.errors import ConfigError
from focoop.evaluation import EvaluationSets, Images, Owned
from focoop.features import FeatureSet, open_features
from focoop.federation.client import ClientData
from focoop.methods import create
from focoop.methods._base import Method, Task
from focoop.negatives import mine
from focoop.schema import RunConfig
from focoop.seeds import derive

# Share of a domain's images that is held out where a dataset has domains instead of splits.
DOMAIN_TEST_SHARE = 0.2


@dataclass(frozen=True)
class Split:
    """Training and test images and which rows each client owns."""

    train: FeatureSet
    test: FeatureSet
    train_index: Sequence[np.ndarray]
    test_index: Sequence[np.ndarray]
    repeated: int
    shares: partition.Partition | None

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in label order."""
        return self.train.classes

    def counts(self, of_test: bool = False) -> np.ndarray:
        """(K, C) images of each class at each client."""
        features = self.test if of_test else self.train
        index = self.test_index if of_test else self.train_index
        return partition.summary(index, features.labels.numpy(), len(self.classes))


@dataclass(frozen=True)
class Scenario:
    """All a run needs, and the hashes that say what it was run on."""

    method: Method
    task: Task
    backbone: Backbone
    split: Split
    sets: EvaluationSets
    hashes: dict[str, str]

    def client(self, index: int) -> ClientData:
        """Client `index`'s training images; gathered when asked for, so that K costs nothing."""
        return self._images_at(torch.from_numpy(self.split.train_index[index]))

    def training_clients(self) -> list[Callable[[], ClientData]]:
        """Those who train: every client, or one that holds all images where a method pools them."""
        if self.method.pools_data:
            rows = torch.from_numpy(np.concatenate(self.split.train_index))
            return [partial(self._images_at, rows)]
        return [partial(self.client, k) for k in range(self.num_clients)]

    def _images_at(self, rows: torch.Tensor) -> ClientData:
        found = self.split.train.select(rows)
        return ClientData(found.pooled, found.patches, found.labels)

    @property
    def num_clients(self) -> int:
        """K."""
        return len(self.split.train_index)


def build(config: RunConfig, cache_dir: Path | None = None, device: str | None = None) -> Scenario:
    """Load the backbone, the features and the words that `config` names."""
    weights = Path(config.backbone.weights) if config.backbone.weights else None
    backbone = load_backbone(
        config.backbone.name, weights=weights, device=device or config.backbone.device
    )
    method = create(config.method.name, config.method.settings)
    split = make_split(config, backbone, cache_dir)
    task = make_task(config, backbone, split.classes, method.needs_ood, cache_dir)
    task = replace(task, frozen=method.prepare(task))
    with_patches = config.data.with_patches
    hashes = {"train": split.train.sha256(), "test": split.test.sha256()}
    corrupted, ood = {}, {}
    if config.data.validation == 0:  # corrupted test images would leak into tuning
        for name, spec in expand_severities(config.data.corrupted):
            features = open_features(spec, "test", backbone, with_patches, cache_dir)
            features = features.with_classes(split.classes)
            corrupted[name] = Owned(_images(features), _same_clients(config, split, features))
            hashes[spec] = features.sha256()
    for spec in config.data.ood:
        features = open_features(spec, "test", backbone, with_patches, cache_dir)
        ood[_short(spec)] = _images(features)
        hashes[spec] = features.sha256()
    if len(ood) != len(config.data.ood):
        raise ConfigError(f"data.ood names two sets that would share a name: {config.data.ood}")
    sets = EvaluationSets(Owned(_images(split.test), split.test_index), corrupted, ood)
    return Scenario(method, task, backbone, split, sets, hashes)


def make_task(
    config: RunConfig,
    backbone: Backbone,
    classes: tuple[str, ...],
    needs_ood: bool,
    cache_dir: Path | None = None,
) -> Task:
    """The text side of a run; negative words are mined only for methods that use them."""
    words: tuple[str, ...] = ()
    if needs_ood and config.negatives.count:
        found = mine(
            backbone,
            classes,
            config.negatives.count,
            quantile=config.negatives.quantile,
            band=config.negatives.band,
            cache_dir=cache_dir,
        )
        words = found.words
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


def make_split(
    config: RunConfig, backbone: Backbone | None = None, cache_dir: Path | None = None
) -> Split:
    """Divide training and test images among clients by one class-by-client matrix.

    With `data.validation` the test split is not opened: validation images, cut from the training
    images before shots are drawn, stand in for it.
    """
    spec, patches = config.data.id, config.data.with_patches
    if config.partition.kind == "domain":
        return _domain_split(config, open_features(spec, "all", backbone, patches, cache_dir))
    train = open_features(spec, "train", backbone, patches, cache_dir)
    if config.data.validation:
        seed = derive(config.partition.seed, "validation")
        kept, held_out = partition.validation_cut(
            train.labels.numpy(), per_class=config.data.validation, seed=seed
        )
        train, test = train.select(torch.from_numpy(kept)), train.select(torch.from_numpy(held_out))
    else:
        test = open_features(spec, "test", backbone, patches, cache_dir)
        test = test.with_classes(train.classes)
    shares = _shares(config, len(train.classes))
    train_index = shares.assign(train.labels.numpy(), derive(config.partition.seed, "train"))
    test_index = shares.assign(test.labels.numpy(), derive(config.partition.seed, "test"))
    return _with_shots(config, train, test, train_index, test_index, shares)


def expand_severities(specs: Sequence[str]) -> list[tuple[str, str]]:
    """(`type@severity`, spec) pairs; a corruption without a severity stands for all five.

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


def _shares(config: RunConfig, num_classes: int) -> partition.Partition:
    settings = config.partition
    if settings.kind == "dirichlet":
        return partition.dirichlet(num_classes, settings.clients, settings.alpha, settings.seed)
    if settings.kind == "overlap":
        each = settings.classes_per_client
        return partition.overlap(num_classes, settings.clients, each, settings.seed)
    if settings.kind == "iid":
        return partition.iid(num_classes, settings.clients)
    return partition.pathological(num_classes, settings.clients, settings.seed)


def _domain_split(config: RunConfig, features: FeatureSet) -> Split:
    if features.domains is None:
        raise ConfigError(
            f"partition.kind = domain needs a dataset with domains; {config.data.id} has none"
        )
    if config.data.corrupted:
        raise ConfigError("data.corrupted must be [] with partition.kind = domain")
    seed = derive(config.partition.seed, "domains")
    # Classes within a domain are cut alike: the pair (domain, class) is the label of the cut.
    labels = features.labels + features.domains * len(features.classes)
    kept, held_out = partition.validation_cut(labels.numpy(), fraction=DOMAIN_TEST_SHARE, seed=seed)
    train = features.select(torch.from_numpy(kept))
    test = features.select(torch.from_numpy(held_out))
    assert train.domains is not None and test.domains is not None
    clients = config.partition.clients
    train_index = partition.by_domain(train.domains.numpy(), clients, config.partition.seed)
    test_index = partition.by_domain(test.domains.numpy(), clients, config.partition.seed)
    return _with_shots(config, train, test, train_index, test_index, None)


def _with_shots(
    config: RunConfig,
    train: FeatureSet,
    test: FeatureSet,
    train_index: Sequence[np.ndarray],
    test_index: Sequence[np.ndarray],
    shares: partition.Partition | None,
) -> Split:
    shots = partition.take_shots(
        train_index,
        train.labels.numpy(),
        config.partition.shots or None,
        derive(config.seed, "shots"),
    )
    return Split(train, test, shots.indices, test_index, shots.repeated, shares)


def _same_clients(config: RunConfig, split: Split, features: FeatureSet) -> list[np.ndarray]:
    if split.shares is None:
        raise ConfigError("corrupted sets need a partition by classes")
    return split.shares.assign(features.labels.numpy(), derive(config.partition.seed, "test"))


def _images(features: FeatureSet) -> Images:
    return Images(features.pooled, features.patches, features.labels.numpy())


def _short(spec: str) -> str:
    return spec.split(":", 1)[-1].rsplit("/", 1)[-1].removesuffix(".safetensors")
