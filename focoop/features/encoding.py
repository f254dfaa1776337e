"""Encode images to features through a frozen backbone, once: a disk cache that survives kills.

A set's key is a hash of the backbone's fingerprint (its preprocessing included), the patch kind,
the corruption, the augmented view and the content of every image. Features are written in shards,
each atomically; an interrupted run goes on after its last finished shard. The last step joins the
shards into one feature file. While a batch is encoded, threads read the next ones.
"""

import contextlib
import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from focoop.caching import cache_folder, make_private
from focoop.clip import Backbone
from focoop.data import CORRUPTIONS, RECIPE, ImageSet, altered, check, data_hash, read_ahead
from focoop.errors import ConfigError, DataError
from focoop.features.feature_set import FeatureSet
from focoop.features.storage import ALL, KEY, has_sums, load_split, quantise, read_file, write_file
from focoop.progress import tell

FORMAT = 2  # part of every key: raise it when the same inputs give other features
BATCH, BATCH_ON_GPU = 32, 256
# Images through the tower at once on a CPU: tensors of more are too large for the C library to
# keep, and taking new memory for each costs up to as much as computing.
PIECE = 8
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class View:
    """What is done to an image and what is kept of it: with the data, all that features depend on.

    Attributes:
        patches: the backbone's patch kind, or None for pooled features alone.
        corruption: name of a corruption, or None for clean images.
        severity: 1..5 of the corruption; 0 for clean images.
        augmented: number of the random view of each image; 0 for the image itself.
    """

    patches: str | None = None
    corruption: str | None = None
    severity: int = 0
    augmented: int = 0

    def __post_init__(self) -> None:
        if self.corruption is not None:
            check(self.corruption, self.severity)

    def named(self, images: ImageSet) -> str:
        """Describe the images and what is done to them, in words.

        Args:
            images: The images.

        Returns:
            A short text.
        """
        kind = f"{self.corruption}@{self.severity}" if self.corruption else ""
        view = f"view {self.augmented}" if self.augmented else ""
        return " ".join(filter(None, (images.root.resolve().name, images.split, kind, view)))

    def key(self, backbone: Backbone, data: str) -> str:
        """Return the name of the cached file.

        Args:
            backbone: The backbone that encodes.
            data: The content hash of the images.

        Returns:
            Hexadecimal digits.
        """
        strength = None
        if self.corruption is not None:
            strength = CORRUPTIONS[self.corruption].record(self.severity)
        parts = [FORMAT, backbone.image_fingerprint, self.patches]
        parts += [self.corruption, self.severity, strength, data]
        if self.augmented:
            parts += [RECIPE, self.augmented]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def encode(
    images: ImageSet,
    backbone: Backbone,
    *,
    patches: str | None = None,
    corruption: str | None = None,
    severity: int = 0,
    views: int = 0,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    batch_size: int = 0,
    shard_size: int = 512,
) -> FeatureSet:
    """Encode all images of a set, or read their features from the cache where it has them.

    Progress is reported at the start and after every batch.

    Args:
        images: The images.
        backbone: The frozen backbone.
        patches: Kind of patch features to keep beside the pooled ones; None: none.
        corruption: Name of a corruption, applied at the image's own resolution, before the
            backbone's preprocessing.
        severity: 1 to 5 of the corruption.
        views: How many random views of every image the set has beside the images themselves.
        cache_dir: The folder of the cache; None: the default one.
        progress: Is called with images done and images in all; None: whoever watches
            (`focoop/progress.py`).
        batch_size: Images at once; 0: 32, or 256 on a GPU.
        shard_size: Images in one file of unfinished work.

    Returns:
        The features.

    Raises:
        ConfigError: A corruption without a severity, or a number of views below 0.
    """
    if backbone.text_alone:
        raise backbone.no_image_tower()
    batch_size = batch_size or (BATCH if backbone.device.type == "cpu" else BATCH_ON_GPU)
    if patches is not None and patches not in backbone.patch_kinds:
        raise ConfigError(
            f"backbone {backbone.name} has no patch features {patches!r}: "
            f"it has {', '.join(backbone.patch_kinds) or 'none'}"
        )
    cache = cache_folder(cache_dir) / "features"
    with contextlib.suppress(OSError):  # the file that cannot be written says so
        make_private(cache)  # what is there may be of private images
    data = data_hash(images, cache_dir)
    origin = {"source": str(images.root), "split": images.split}
    feature_sets = []
    for number in range(views + 1):
        view = View(patches, corruption, severity, number)
        final = _stored(cache, view, backbone, data)
        report = progress or partial(tell, f"encoding {view.named(images)}")
        job = _Job(images, backbone, view, final, batch_size, shard_size)
        features = partial(load_split, final, ALL, provenance=origin)
        feature_sets.append(_made(job, report, partial(features, with_patches=patches is not None)))
    return replace(feature_sets[0], views=tuple(feature_sets[1:])) if views else feature_sets[0]


def _made(job: "_Job", progress: Progress, load: Callable[[], FeatureSet]) -> FeatureSet:
    """A set's features from the cache; made now where they are missing or damaged."""
    if job.final.exists():
        progress(len(job.images), len(job.images))
        try:
            features = load()
            _own(job.final)
        except DataError as error:
            warnings.warn(f"{error}. Its images are encoded again", stacklevel=4)
            with contextlib.suppress(OSError):
                job.final.unlink()
        else:
            return features
    job.run(progress)
    return load()


def _own(path: Path) -> None:
    """Refuse a file of another set; give one of an earlier focoop checksums, as it is."""
    with safe_open(path, "pt") as file:
        told = file.metadata() or {}
    if told.get(KEY, path.stem) != path.stem:
        raise DataError(f"{path} holds the features of another set")
    if not has_sums(told):
        with contextlib.suppress(DataError):  # a folder that cannot be written
            write_file(path, *read_file(path), private=True)


def _stored(cache: Path, view: View, backbone: Backbone, data: str) -> Path:
    """The file of a view; where it needs no patches, one that is there and has some will do."""
    kinds = backbone.patch_kinds if view.patches is None else ()
    keys = [replace(view, patches=kind).key(backbone, data) for kind in (view.patches, *kinds)]
    paths = [cache / f"{key}.safetensors" for key in keys]
    return next((path for path in paths if path.exists()), paths[0])


@dataclass(frozen=True)
class _Job:
    """One set on its way into the cache."""

    images: ImageSet
    backbone: Backbone
    view: View
    final: Path
    batch_size: int
    shard_size: int

    @property
    def folder(self) -> Path:
        """Where the shards wait; its name holds their size, which may change between runs."""
        return self.final.with_name(f"{self.final.stem}.{self.shard_size}.parts")

    def run(self, progress: Progress) -> None:
        """Encode what is missing and join the shards, unless another process was quicker."""
        starts = range(0, len(self.images), self.shard_size)
        shards = {start: self.folder / f"{start:08d}.safetensors" for start in starts}
        missing = [start for start in starts if not self.sound(shards[start])]
        todo = sum(len(self.rows(start)) for start in missing)
        done = len(self.images) - todo
        progress(done, len(self.images))
        with closing(self.pixels(missing)) as coming:
            for start in missing:
                if self.final.exists():
                    break
                parts = []
                for rows in self.batches(start):
                    parts.append(self.features(next(coming)))
                    done += len(rows)
                    progress(done, len(self.images))
                if not self.store(shards[start], _joined(parts)):
                    break
        if not self.final.exists():
            self.join(list(shards.values()))
        shutil.rmtree(self.folder, ignore_errors=True)

    def store(self, shard: Path, tensors: dict[str, Tensor]) -> bool:
        """Write one shard; False when another process has finished the set and cleared up."""
        try:
            told = {"part of": self.final.stem, "shard": shard.name}
            write_file(shard, tensors, told, private=True)
        except FileNotFoundError:
            if not self.final.exists():
                raise
            return False
        return True

    def sound(self, shard: Path) -> bool:
        """Whether a shard is there, whole and of this place; another one is made again."""
        try:
            told = read_file(shard)[1]
        except DataError:
            return False
        return (told.get("part of"), told.get("shard")) == (self.final.stem, shard.name)

    def rows(self, start: int) -> range:
        """Row numbers of the shard that begins at `start`."""
        return range(start, min(start + self.shard_size, len(self.images)))

    def batches(self, start: int) -> list[range]:
        """Row numbers of the shard that begins at `start`, batch by batch."""
        rows = self.rows(start)
        return [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]

    def pixels(self, starts: list[int]) -> Generator[Tensor]:
        """The batches of these shards in turn, ready for the backbone, read ahead by threads."""
        batches = [rows for start in starts for rows in self.batches(start)]
        side, kind = self.backbone.image_size, self.backbone.pixel_type
        pinned = self.backbone.device.type == "cuda"
        return read_ahead(batches, self.fill, (3, side, side), kind, pinned=pinned)

    def fill(self, rows: range, into: Tensor) -> None:
        """Put some images, corrupted or cropped where asked for, into the first rows of `into`."""
        view, side = self.view, self.backbone.image_size
        images = altered(self.images, rows, view.corruption, view.severity, view.augmented, side)
        for place, image in zip(into, images, strict=False):
            place.copy_(self.backbone.prepare(image))

    def features(self, pixels: Tensor) -> dict[str, Tensor]:
        """Stored form of a batch's features; they are on the CPU, so that its buffer is free."""
        where, parts = self.backbone.device, []
        size = PIECE if where.type == "cpu" else len(pixels)
        for piece in torch.split(pixels, size):
            count = len(piece)
            if count < size:  # other shapes, other last bits: they must not tell a set's size
                piece = torch.cat([piece, piece[-1:].expand(size - count, -1, -1, -1)])
            with torch.no_grad():
                piece = piece.to(where, non_blocking=True)
                features = self.backbone.encode_images(piece, patches=self.view.patches)
            part = {"pooled": features.pooled[:count].half()}
            if features.patches is not None:
                patches = quantise(features.patches[:count])
                part["patches_q"], part["patches_scale"] = patches
            parts.append(part)
        return _joined(parts)

    def join(self, shards: list[Path]) -> None:
        """One feature file from all shards."""
        try:
            tensors = _joined([read_file(path)[0] for path in shards])
        except DataError:
            if self.final.exists():  # another process has joined and removed them
                return
            raise
        images, view = self.images, self.view
        tensors["labels"] = torch.tensor(images.labels, dtype=torch.int32)
        tensors["split"] = torch.tensor(images.domains or [0] * len(images), dtype=torch.int32)
        if view.patches is not None:
            tensors["patches_index"] = torch.arange(len(images), dtype=torch.int32)
        metadata = {
            "classes": json.dumps(images.classes),
            "domains" if images.domains else "splits": json.dumps(
                images.domain_names or [images.split]
            ),
            "backbone": self.backbone.name,
            "fingerprint": self.backbone.image_fingerprint,
            "patches": view.patches or "none",
            "corruption": f"{view.corruption}@{view.severity}" if view.corruption else "none",
            "source": str(images.root),
            KEY: self.final.stem,
        }
        if view.augmented:
            metadata["view"] = f"{view.augmented}: {RECIPE}"
        write_file(self.final, tensors, metadata, private=True)


def _joined(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
