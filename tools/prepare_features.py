"""Make the features that `configs/settings` name and the reference folder lacks.

    python tools/prepare_features.py ../shared runs/features
    python tools/prepare_features.py ../shared runs/features --slim FOLDER --settings FILE ...

The first form encodes images (about ten minutes on a core; what is encoded is kept in the cache):
- `X_c.brightness.1..5`: test images of X at five severities, at most `CORRUPTED[X]` per class,
  and `cifar100_c_patches` with patch features;
- `dtd_64px`, `sun_64px`: OOD images reduced to TinyImageNet's 64 px;
- in `runs/validation`, what tools/validation_ood.py makes, unless it is there.
The images in the reference folder are subsets, those of Caltech101, Pets and DTD at 160 px.

The second form copies what the given settings read into FOLDER/shared, /made and /validation, for
a machine that has no reference folder: without patches where no setting reads them, without images
that have none where all settings do.
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

from focoop import config
from focoop.clip import load_backbone
from focoop.clip.base import Backbone
from focoop.data import ImageSet, read_folder
from focoop.data.corruptions import SEVERITIES
from focoop.encode import encode
from focoop.featurefile import read_file, write_file
from focoop.features import FeatureSet, Source, save_splits
from focoop.schema import RunConfig

# Test images per class. The folders of Caltech101, Pets and DTD have no more than 4, 6 and 6.
CORRUPTED = {"cifar100": 10, "caltech101": 10, "oxford_pets": 10, "dtd": 10, "tinyimagenet": 4}
PATCHES_PER_CLASS = 4
DROPPED = {"caltech101": ("BACKGROUND_Google",)}
ROOT = Path(__file__).resolve().parents[1]
# Where the settings look for features, and the folder of a slim copy that stands for it.
PLACES = {"../shared/features": "shared", "runs/features": "made", "runs/validation": "validation"}


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


def write(path: Path, features: FeatureSet, backbone: Backbone) -> None:
    """One file with `features` as its test split."""
    made = {"made by": Path(__file__).name, "fingerprint": backbone.image_fingerprint}
    save_splits(path, {"test": features}, made)
    patches = "" if features.patches is None else " with patches"
    print(f"{path}: {len(features)} images{patches}", flush=True)


def corrupted(name: str, images: Path, out: Path, backbone: Backbone) -> None:
    """Brightness at five severities."""
    found = read_folder(images / name, "test", DROPPED.get(name, ()))
    found = first_of_each_class(found, CORRUPTED[name])
    kind = backbone.patch_kinds[0] if name == "cifar100" else None
    for severity in SEVERITIES:
        features = encode(found, backbone, patches=kind, corruption="brightness", severity=severity)
        ending = f"brightness.{severity}.safetensors"
        write(out / f"{name}_c.{ending}", replace(features, patches=None), backbone)
        if kind is not None:
            kept = features.select(rows_per_class(found.labels, PATCHES_PER_CLASS))
            write(out / f"{name}_c_patches.{ending}", kept, backbone)


def at_64px(name: str, images: Path, out: Path, backbone: Backbone) -> None:
    """All images of an OOD set reduced to 64 px."""
    found = read_folder(images / name, "all")
    small = [validation_ood.small(found.root / file, 64) for file in found.files]
    pooled = validation_ood.encode(small, backbone).pooled
    labels = torch.tensor(found.labels)
    write(
        out / f"{name}_64px.safetensors", FeatureSet(pooled, None, labels, found.classes), backbone
    )


def with_patches_only(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The rows that have patches, in their order."""
    rows, order = tensors["patches_index"].long().sort()
    kept = {
        name: value[order if name.startswith("patches") else rows]
        for name, value in tensors.items()
    }
    return {**kept, "patches_index": torch.arange(len(rows), dtype=torch.int32)}


def slim(settings: list[RunConfig], out: Path) -> None:
    """Copies of all files that the settings read."""
    wanted: dict[Path, set[bool]] = {}  # with patches, without, or both
    for data in [one.data for one in settings]:
        corrupted_specs = [f"{spec}@{s}" for spec in data.corrupted for s in SEVERITIES]
        for spec in (data.id, *corrupted_specs, *data.ood, *data.validation_ood):
            source = Source.parse(spec)
            if source.kind == "file":
                stem = source.target.removesuffix(".safetensors")
                path = Path(f"{stem}{source.suffix}.safetensors")
                wanted.setdefault(path, set()).add(data.with_patches)
    total = 0
    for path, with_patches in sorted(wanted.items()):
        place = PLACES[path.parent.as_posix()]
        target = out / place / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
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
    parser.add_argument("--validation", type=Path, default=Path("runs/validation"))
    parser.add_argument("--slim", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--settings", type=Path, nargs="+", default=sorted((ROOT / "configs/settings").glob("*"))
    )
    given = parser.parse_args()
    if given.slim is not None:
        return slim([config.load(path) for path in given.settings], given.slim)
    images, backbone = given.shared / "images", load_backbone("mini")
    for folder in (given.out, given.validation):
        folder.mkdir(parents=True, exist_ok=True)
    validation_ood.write_full_size(given.shared / "features", given.validation)
    if not (given.validation / "shuffled_64px.safetensors").exists():  # the last one it writes
        validation_ood.write_encoded(images, given.validation, backbone)
    for name in ("dtd", "sun"):
        at_64px(name, images, given.out, backbone)
    for name in CORRUPTED:
        corrupted(name, images, given.out, backbone)
    return None


if __name__ == "__main__":
    main()
