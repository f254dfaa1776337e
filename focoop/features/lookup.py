"""Open the features of a dataset by its name, from wherever they are.

Features are named `demo:NAME` (packaged) or `file:PATH.safetensors`. Images, encoded through the
disk cache, are named NAME (a public dataset), `folder:PATH`, `clients:PATH`, `csv:FILE` or
`hf:NAME`. A folder of ready features may stand in for the images of a public dataset
(`focoop/data/ready_features.py`). What may stand behind a name: `focoop/data/dataset_spec.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from focoop.clip import Backbone
from focoop.data import (
    NAMED,
    ImageSet,
    Source,
    lookup,
    open_images,
    read_corrupted,
    ready_features,
    rendered,
)
from focoop.errors import BackboneError, DataError, nearest
from focoop.features import demo
from focoop.features.encoding import Progress, encode
from focoop.features.feature_set import FeatureSet
from focoop.features.storage import ALL, load_split, save_splits

__all__ = [
    "NAMED",
    "FeatureSet",
    "Source",
    "load_split",
    "open_features",
    "open_labels",
    "patch_kind_of",
    "save_splits",
    "sibling",
    "write_ready",
]

GRID = "grid"  # regions of an image tower without tokens: they serve every method


def open_features(
    spec: str,
    split: str,
    backbone: Backbone | None = None,
    with_patches: bool = False,
    cache_dir: Path | None = None,
    *,
    patch_kind: str | None = None,
    drop_classes: Sequence[str] = (),
    root: str | Path | None = None,
    by: str = "domain",
    strict: bool = False,
    views: int = 0,
    rows: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> FeatureSet:
    """Open one split of a dataset as features, encoding its images where need be.

    Args:
        spec: The dataset's name, as settings write it.
        split: `train`, `test` or `val`; `all` gives every row, with domains where there are some.
        backbone: Encodes images; features that are there already are checked against it.
        with_patches: Keep patch features, and only rows that have them.
        cache_dir: The folder of the cache; None: the default one.
        patch_kind: Kind of patch features; None: the backbone's first; empty: nobody reads them, so
            none are made.
        drop_classes: Classes to remove with their rows; the others are renumbered.
        root: The folder of public datasets; None: the default one.
        by: `client` asks for the clients that images come divided into, as domains.
        strict: Refuse unreadable images of one's own instead of leaving them out.
        views: How many random views of every image the set has beside it.
        rows: Encode and give these images alone; features that are there already are given whole.
        progress: Is called with images done and images in all.

    Returns:
        The features.

    Raises:
        DataError: There is no such dataset or split, or its features do not fit the backbone.
    """
    source = Source.parse(spec)
    split = source.split_of(split)
    ready = ready_features.find(source)
    if ready is None and source.kind not in ("demo", "file"):
        if backbone is None:
            raise DataError(f"{spec} holds images: a backbone is needed to encode them")
        images, corrupted = _images(source, split, root, by, strict, cache_dir)
        images = images.without_classes(drop_classes)
        encoded = encode(
            images if rows is None else images.take(rows),
            backbone,
            patches=patch_kind_of(backbone, patch_kind) if with_patches else None,
            corruption=None if corrupted else source.corruption,
            severity=0 if corrupted else source.severity,
            views=views,
            cache_dir=cache_dir,
            progress=progress,
        )
        return _served(encoded, "images")
    if views:
        where = f" ({ready.path})" if ready else ""
        raise DataError(
            f"data.views = {views} needs images, and {spec} holds features{where}: name a dataset "
            "of images, such as folder:PATH, or set data.views = 0"
        )
    if ready is not None:
        features = _ready(source, ready, split, with_patches)
    elif source.kind == "demo":
        origin = {"source": spec, "fingerprint": demo.fingerprint()}
        features = load_split(_demo(source), split, with_patches=with_patches, provenance=origin)
        features = _served(features, "packaged features")
    else:
        path = sibling(Path(source.target).expanduser(), source)
        features = load_split(path, split, with_patches=with_patches)
        features = _served(features, "a feature file")
    if backbone is not None:
        _fits(spec, features, backbone, of_mini=ready is not None)
        if with_patches and patch_kind:
            _same_patches(spec, features, patch_kind_of(backbone, patch_kind))
    return features.drop_classes(drop_classes) if drop_classes else features


def open_labels(
    spec: str,
    split: str,
    cache_dir: Path | None = None,
    *,
    drop_classes: Sequence[str] = (),
    root: str | Path | None = None,
    by: str = "domain",
    strict: bool = False,
    **others: Any,
) -> FeatureSet:
    """Open the rows that `open_features` would give without encoding images: `pooled` is (N, 0).

    Args:
        spec: The dataset's name, as settings write it.
        split: `train`, `test`, `val` or `all`.
        cache_dir: The folder of the cache; None: the default one.
        drop_classes: Classes to remove with their rows.
        root: The folder of public datasets; None: the default one.
        by: `client` asks for the clients that images come divided into, as domains.
        strict: Refuse unreadable images of one's own.
        **others: Arguments of `open_features` that say nothing about labels.

    Returns:
        Rows with labels and empty features.
    """
    source = Source.parse(spec)
    if source.kind in ("demo", "file") or ready_features.find(source) is not None:
        return open_features(
            spec, split, cache_dir=cache_dir, drop_classes=drop_classes, root=root, **others
        )
    images = open_images(
        source.kind,
        source.target,
        source.split_of(split),
        root=root,
        by=by,
        strict=strict,
        cache_dir=cache_dir,
    ).without_classes(drop_classes)
    return FeatureSet(
        pooled=torch.empty(len(images), 0),
        patches=None,
        labels=torch.tensor(images.labels),
        classes=images.classes,
        domains=torch.tensor(images.domains) if images.domains else None,
        domain_names=images.domain_names,
        provenance={"source": str(images.root), "split": images.split},
    )


def write_ready(
    spec: str, folder: Path, opened: Callable[[str], FeatureSet], root: str | Path | None = None
) -> Path:
    """Write what runs read of a public dataset into a folder of ready features.

    A dataset with splits gives its training and test images, an OOD set, a corrupted or another
    version of one its test images, a dataset with domains all images.

    Args:
        spec: the dataset's name.
        folder: the folder of ready features.
        opened: gives one split of the dataset as features.
        root: the folder of public datasets; None: the default.

    Returns:
        The file that was written.

    Raises:
        DataError: `spec` names no public dataset.
    """
    source = Source.parse(spec)
    if source.kind != NAMED:
        raise DataError(
            f"{spec} is no public dataset: ready features stand in for those alone; write a file "
            "with --save and name it as file:PATH.safetensors"
        )
    path = folder / f"{source.stem}.safetensors"
    clean = spec.partition("#")[0]
    if not source.split and open_labels(clean, "all", root=root).domains is not None:
        whole = opened(ALL)
        assert whole.domains is not None
        parts = {
            name: replace(whole.select(whole.domains == place), domains=None, domain_names=())
            for place, name in enumerate(whole.domain_names)
        }
        save_splits(path, parts, are_domains=True)
        return path
    whole_set = lookup(source.name).role == "id" and source.stem == source.target.replace("/", "_")
    names = ("train", "test") if whole_set else ("test",)
    save_splits(path, {name: opened(name) for name in names})
    return path


def patch_kind_of(backbone: Backbone, wanted: str | None = None) -> str | None:
    """Return the kind of patch features that a backbone gives.

    Args:
        backbone: The backbone.
        wanted: The kind asked for; None: the backbone's first; empty: none.

    Returns:
        The kind; None where none is wanted.

    Raises:
        BackboneError: The backbone has no patches of that kind.
    """
    kinds = backbone.patch_kinds
    if wanted == "":
        return None
    if wanted in kinds:
        return wanted
    if kinds and (wanted is None or GRID in kinds):
        return GRID if GRID in kinds else kinds[0]
    raise BackboneError(
        f"{backbone.name} has no patch features{f' {wanted!r}' if wanted else ''} (it offers: "
        f"{', '.join(kinds) or 'none'}): use a method without patches, or a backbone that has "
        "them, such as openclip:ViT-B-16:openai or openclip:RN50:openai"
    )


def sibling(path: Path, source: Source) -> Path:
    """Find the file of a corrupted set beside its clean one.

    `x.safetensors`, `x.fog.3.safetensors`.

    Args:
        path: The clean file.
        source: The dataset's name with the corruption it asks for.

    Returns:
        The file.

    Raises:
        DataError: There is no such file.
    """
    if source.corruption is None:
        return path
    stem, extension, ending = path.name.partition(".safetensors")
    corrupted = path.with_name(f"{stem}{source.suffix}{extension}{ending}")
    if not corrupted.is_file():
        raise DataError(
            f"no corrupted features {corrupted}: make them from the images (focoop encode "
            f"folder:PATH --corruption {source.corruption}), or name that folder instead"
        )
    return corrupted


def _images(
    source: Source,
    split: str,
    root: str | Path | None,
    by: str,
    strict: bool,
    cache_dir: Path | None,
) -> tuple[ImageSet, bool]:
    """The images of a source, and whether they are corrupted on disk already."""
    if source.kind == NAMED and source.corruption and split == "test" and not source.altered:
        official = read_corrupted(source.target, source.corruption, source.severity, root)
        if official is not None:
            return official, True
    images = open_images(
        source.kind, source.target, split, root=root, by=by, strict=strict, cache_dir=cache_dir
    )
    return rendered(images, source.side, source.shuffled, cache_dir), False


def _ready(
    source: Source, ready: ready_features.Ready, split: str, with_patches: bool
) -> FeatureSet:
    """Ready features of a public dataset, with classes and domains as its images have them."""
    wanted = ready.split if source.split else split
    features = load_split(ready.path, wanted, with_patches=with_patches)
    ready_features.check_classes(source.name, ready, features.classes)
    renamed = tuple(ready.dataset.domains.get(name, name) for name in features.domain_names)
    features = replace(_served(features, "ready features"), domain_names=renamed)
    strangers = [name for name in ready.dataset.no_classes if name in features.classes]
    return features.drop_classes(strangers) if strangers else features


def _served(features: FeatureSet, by: str) -> FeatureSet:
    """The same features with a note of what they were served by, for a run's manifest."""
    return replace(features, provenance={**features.provenance, "served": by})


def _demo(source: Source) -> Path:
    """The packaged file of a source."""
    clean = demo.demo_path(source.target)
    if source.corruption is None:
        return clean
    name = source.target + source.suffix
    if name not in demo.files():
        there = [known for known in demo.files() if "." in known]
        raise DataError(f"the demo pack has no {name!r}{nearest(name, there)}")
    return demo.demo_path(name)


def _fits(spec: str, features: FeatureSet, backbone: Backbone, of_mini: bool) -> None:
    """Refuse features of another backbone, as far as the file tells.

    Ready features that do not say what made them are of `mini` (`of_mini`).
    """
    made_by = features.provenance.get("fingerprint", backbone.image_fingerprint)
    unknown = "fingerprint" not in features.provenance
    other = of_mini and unknown and backbone.name != ready_features.OWN
    if other or features.dim != backbone.dim or made_by != backbone.image_fingerprint:
        raise DataError(
            f"{spec} holds features of {features.dim} dimensions made by "
            f"{features.provenance.get('backbone', 'another backbone')}; {backbone.name} is "
            f"another joint space ({backbone.dim}): give features of that, or encode the images "
            "with it (focoop encode)"
        )


def _same_patches(spec: str, features: FeatureSet, kind: str | None) -> None:
    """Refuse patch features of another kind, as far as the file tells."""
    stored = features.provenance.get("patches", kind)
    if stored != kind:
        raise DataError(
            f"{spec} holds patch features {stored!r} and the method reads {kind!r}: encode the "
            f"images again with that kind, or name the image folder instead"
        )
