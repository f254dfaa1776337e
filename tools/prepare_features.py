"""Make the ready features that `configs/settings` name and a reference folder lacks.

    python tools/prepare_features.py SHARED OUT
    python tools/prepare_features.py SHARED OUT --slim FOLDER --settings FILE ...

SHARED has the folders `features` and `images`. The first form encodes images (about ten minutes on
a core; what is encoded is kept in the cache) and writes into OUT:
- `X.brightness.1..5`: test images of X at five severities, at most `CORRUPTED[X]` per class, some
  of CIFAR-100's with patch features;
- `dtd_64px`, `sun_64px`: OOD images reduced to TinyImageNet's 64 px;
- the OOD sets for tuning that tools/validation_ood.py makes, unless they are there.
The images in SHARED are subsets, those of Caltech101, Pets and DTD at 160 px. Settings then read
both folders: `FOCOOP_FEATURES=SHARED/features:OUT focoop run ...`.

The second form copies what the given settings read into FOLDER, for a machine that has no SHARED:
without patches where no setting reads them, without images that have none where all settings do.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import validation_ood

from focoop.clip import load_backbone
from focoop.clip.base import Backbone
from focoop.config import loading
from focoop.config.schema import RunConfig
from focoop.data import ImageSet, read_folder, ready_features
from focoop.data.corruptions.apply import SEVERITIES
from focoop.data.dataset_spec import Source, expand
from focoop.features.encoding import encode
from focoop.features.lookup import FeatureSet
from focoop.features.storage import read_file, write_file

# Test images per class. The folders of Caltech101, Pets and DTD have no more than 4, 6 and 6.
CORRUPTED = {"cifar100": 10, "caltech101": 10, "oxford_pets": 10, "dtd": 10, "tinyimagenet": 4}
PATCHES_PER_CLASS = 4
DROPPED = {"caltech101": ("BACKGROUND_Google",)}
ROOT = Path(__file__).resolve().parents[1]


def rows_per_class(labels: Sequence[int], count: int) -> list[int]:
    """Rows of the first `count` images of every class."""
    seen: dict[int, int] = {}
    rows = []
    for row, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        if seen[label] <= count:
            rows.append(row)
    return rows


def first_of_each_class(images: ImageSet, count: int) -> ImageSet:
    """The first `count` files of every class."""
    rows = rows_per_class(images.labels, count)
    files = tuple(images.files[row] for row in rows)
    return replace(images, files=files, labels=tuple(images.labels[row] for row in rows))


def corrupted(name: str, images: Path, out: Path, backbone: Backbone) -> None:
    """Brightness at five severities."""
    found = read_folder(images / name, "test", DROPPED.get(name, ()))
    found = first_of_each_class(found, CORRUPTED[name])
    kind = backbone.patch_kinds[0] if name == "cifar100" else None
    patched = rows_per_class(found.labels, PATCHES_PER_CLASS) if kind else None
    for severity in SEVERITIES:
        features = encode(found, backbone, patches=kind, corruption="brightness", severity=severity)
        path = out / f"{name}.brightness.{severity}.safetensors"
        validation_ood.write(path, features, backbone, patched)


def at_64px(name: str, images: Path, out: Path, backbone: Backbone) -> None:
    """All images of an OOD set reduced to 64 px."""
    found = read_folder(images / name, "all")
    small = [validation_ood.small(found.root / file, 64) for file in found.files]
    pooled = validation_ood.encode(small, backbone).pooled
    features = FeatureSet(pooled, None, torch.tensor(found.labels), found.classes)
    validation_ood.write(out / f"{name}_64px.safetensors", features, backbone)


def with_patches_only(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The rows that have patches, in their order."""
    rows, order = tensors["patches_index"].long().sort()
    kept = {
        name: value[order if name.startswith("patches") else rows]
        for name, value in tensors.items()
    }
    return {**kept, "patches_index": torch.arange(len(rows), dtype=torch.int32)}


def slim(settings: list[RunConfig], out: Path) -> None:
    """Copies of all files of ready features that the settings read."""
    wanted: dict[str, tuple[Path, set[bool]]] = {}  # with patches, without, or both
    for data in [one.data for one in settings]:
        for spec in expand((data.id, *data.corrupted, *data.ood, *data.validation_ood)):
            if found := ready_features.find(Source.parse(spec)):
                wanted.setdefault(found.path.name, (found.path, set()))[1].add(data.with_patches)
    total = 0
    out.mkdir(parents=True, exist_ok=True)
    for name, (path, with_patches) in sorted(wanted.items()):
        target = out / name
        tensors, metadata = read_file(path, with_patches=True in with_patches)
        if False not in with_patches and "patches_index" in tensors:
            tensors = with_patches_only(tensors)
        write_file(target, tensors, metadata)
        total += target.stat().st_size
        print(f"{target}: {len(tensors['labels'])} rows, {target.stat().st_size / 1e6:.2f} MB")
    print(f"{out}: {total / 1e6:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shared", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--slim", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--settings", type=Path, nargs="+", default=sorted((ROOT / "configs/settings").glob("*"))
    )
    given = parser.parse_args()
    if given.slim is not None:
        ready_features.use([given.shared / "features", given.out])
        return slim([loading.load(path) for path in given.settings], given.slim)
    images, backbone = given.shared / "images", load_backbone("mini")
    given.out.mkdir(parents=True, exist_ok=True)
    validation_ood.write_full_size(given.shared / "features", given.out, backbone)
    if not (given.out / "tinyimagenet_train_shuffled.safetensors").exists():  # the last one written
        validation_ood.write_encoded(images, given.out, backbone)
    for name in ("dtd", "sun"):
        at_64px(name, images, given.out, backbone)
    for name in CORRUPTED:
        corrupted(name, images, given.out, backbone)
    return None


if __name__ == "__main__":
    main()
