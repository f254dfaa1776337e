"""Images -> features through a frozen backbone, once: a disk cache that survives kills.

A set's key is a hash of the backbone's fingerprint (its preprocessing included), the patch kind,
the corruption, the augmented view and the content of every image. Features are written in shards,
each atomically; an interrupted run goes on after its last finished shard. The last step joins the
shards into one feature file. While a batch is encoded, the next one is read.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as dump_tensors
from torch import Tensor

from focoop.clip.base import Backbone
from focoop.data import ImageSet
from focoop.data.corruptions import CORRUPTIONS, check
from focoop.data.views import RECIPE, altered
from focoop.errors import ConfigError, DataError
from focoop.featurefile import (
    ALL,
    load_split,
    quantise,
    read_file,
    write_atomic,
    write_file,
)
from focoop.featureset import FeatureSet

FORMAT = 1  # part of every key: raise it when the same inputs give other features
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

    def key(self, backbone: Backbone, data: str) -> str:
        """Name of the cached file."""
        strength = None
        if self.corruption is not None:
            strength = CORRUPTIONS[self.corruption].record(self.severity)
        parts = [FORMAT, backbone.image_fingerprint, self.patches]
        parts += [self.corruption, self.severity, strength, data]
        if self.augmented:
            parts += [RECIPE, self.augmented]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def default_cache() -> Path:
    """`$FOCOOP_CACHE`, or `~/.cache/focoop`."""
    chosen = os.environ.get("FOCOOP_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "focoop"


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
    batch_size: int = 64,
    shard_size: int = 512,
) -> FeatureSet:
    """Features of all images, from the cache where it has them.

    `progress(done, total)` is called at the start and after every batch. A corruption is applied
    at the image's own resolution, before the backbone's preprocessing. With `views`, the set has
    that many random views of every image beside the images themselves.
    """
    if patches is not None and patches not in backbone.patch_kinds:
        raise ConfigError(
            f"backbone {backbone.name} has no patch features {patches!r}: "
            f"it has {', '.join(backbone.patch_kinds) or 'none'}"
        )
    cache = (cache_dir or default_cache()) / "features"
    data = data_hash(images, cache_dir)
    report = progress or (lambda done, total: None)
    origin = {"source": str(images.root), "split": images.split}
    found = []
    for number in range(views + 1):
        view = View(patches, corruption, severity, number)
        final = _stored(cache, view, backbone, data)
        if final.exists():
            report(len(images), len(images))
        else:
            _Job(images, backbone, view, final, batch_size, shard_size).run(report)
        found.append(load_split(final, ALL, with_patches=patches is not None, provenance=origin))
    return replace(found[0], views=tuple(found[1:])) if views else found[0]


def _stored(cache: Path, view: View, backbone: Backbone, data: str) -> Path:
    """The file of a view; where it needs no patches, one that is there and has some will do."""
    kinds = backbone.patch_kinds if view.patches is None else ()
    keys = [replace(view, patches=kind).key(backbone, data) for kind in (view.patches, *kinds)]
    paths = [cache / f"{key}.safetensors" for key in keys]
    return next((path for path in paths if path.exists()), paths[0])


def data_hash(images: ImageSet, cache_dir: Path | None = None) -> str:
    """Hash of names, labels and content of all files.

    Hashes of contents are remembered by (path, size, modification time), so that a second call
    reads no image.
    """
    root = images.root.resolve()
    name = hashlib.sha256(str(root).encode()).hexdigest()[:32]
    memo_path = (cache_dir or default_cache()) / "hashes" / f"{name}.json"
    memo: dict[str, list[Any]] = _read_memo(memo_path)
    fresh = False
    whole = hashlib.sha256(json.dumps([images.classes, images.domain_names]).encode())
    domains = images.domains or (0,) * len(images)
    if images.store is not None:
        rows = [images.files, images.labels, domains, images.store.digest()]
        whole.update(json.dumps(rows).encode())
        return whole.hexdigest()
    for file, label, domain in zip(images.files, images.labels, domains, strict=True):
        try:
            stat = (root / file).stat()
            known = memo.get(file)
            if known is None or known[:2] != [stat.st_size, stat.st_mtime_ns]:
                content = hashlib.sha256((root / file).read_bytes()).hexdigest()
                memo[file] = known = [stat.st_size, stat.st_mtime_ns, content]
                fresh = True
        except OSError as error:
            raise DataError(
                f"image {root / file} cannot be read ({error.strerror}): the dataset lists it; "
                "put it there, or get the dataset again"
            ) from error
        whole.update(json.dumps([file, label, domain, known[2]]).encode())
    if fresh:
        write_atomic(memo_path, json.dumps(memo).encode())
    return whole.hexdigest()


def _read_memo(path: Path) -> dict[str, list[Any]]:
    """The remembered hashes; none when there is no sound file."""
    try:
        memo = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return memo if isinstance(memo, dict) else {}


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
        missing = [start for start in starts if not _sound(shards[start])]
        todo = sum(len(self.rows(start)) for start in missing)
        done = len(self.images) - todo
        progress(done, len(self.images))
        for start in missing:
            if self.final.exists():
                break
            parts = []
            for part, count in self.batches(start):
                parts.append(part)
                done += count
                progress(done, len(self.images))
            if not self.store(shards[start], _joined(parts)):
                break
        if not self.final.exists():
            self.join(list(shards.values()))
        shutil.rmtree(self.folder, ignore_errors=True)

    def store(self, shard: Path, tensors: dict[str, Tensor]) -> bool:
        """Write one shard; False when another process has finished the set and cleared up."""
        try:
            write_atomic(shard, dump_tensors(tensors))
        except FileNotFoundError:
            if not self.final.exists():
                raise
            return False
        return True

    def rows(self, start: int) -> range:
        """Row numbers of the shard that begins at `start`."""
        return range(start, min(start + self.shard_size, len(self.images)))

    def batches(self, start: int) -> Iterator[tuple[dict[str, Tensor], int]]:
        """Stored form of the features of one shard, batch by batch."""
        rows = self.rows(start)
        parts = [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]
        with ThreadPoolExecutor(1) as reader:
            coming = reader.submit(self.load, parts[0])
            for number, chosen in enumerate(parts, 1):
                pixels = coming.result()
                if number < len(parts):
                    coming = reader.submit(self.load, parts[number])
                with torch.no_grad():
                    features = self.backbone.encode_images(pixels, patches=self.view.patches)
                part = {"pooled": features.pooled.half()}
                if features.patches is not None:
                    part["patches_q"], part["patches_scale"] = quantise(features.patches)
                yield part, len(chosen)

    def load(self, rows: range) -> Tensor:
        """Some images, corrupted or cropped where asked for, ready for the backbone."""
        view, side = self.view, self.backbone.image_size
        found = altered(self.images, rows, view.corruption, view.severity, view.augmented, side)
        return torch.stack([self.backbone.preprocess(image) for image in found])

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
        }
        if view.augmented:
            metadata["view"] = f"{view.augmented}: {RECIPE}"
        write_file(self.final, tensors, metadata)


def _sound(path: Path) -> bool:
    """Whether a shard is there and whole; a damaged one is made again."""
    try:
        read_file(path)
    except DataError:
        return False
    return True


def _joined(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
