"""Make OOD sets for tuning, so that the test OOD sets decide nothing.

    python tools/validation_ood.py IMAGES OUT [--features FEATURES]

writes files of `mini` features into OUT, a folder of ready features for `--features`. All are of
training images, none of a dataset that is a test OOD set. IMAGES holds folders of the datasets,
FEATURES their feature files.

At 32 px, as CIFAR's images are: `oxford_pets_train_32px` (CIFAR-100 has no cat and no dog),
`tinyimagenet_objects_32px` (TinyImageNet classes that CIFAR-100 lacks) and
`cifar100_train_shuffled` (CIFAR-100 images cut into 16 blocks and put together at random: texture
without an object). Some rows of each have patch features.
At 64 px, for TinyImageNet: `caltech101_objects_64px` (Caltech101 classes that TinyImageNet lacks)
and `tinyimagenet_train_shuffled`.
With `--features`, at full size: `oxford_pets_train`, and `caltech101_objects`, classes that Pets,
Office-Caltech10 and PACS lack. They are rows of the given files.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from focoop.clip import load_backbone
from focoop.clip.base import Backbone, ImageFeatures
from focoop.data.datasets import caltech101_objects, tinyimagenet_objects
from focoop.data.image_versions import reduced, shuffle
from focoop.features.lookup import FeatureSet
from focoop.features.storage import load_split, quantise, write_file
from focoop.seeds import numpy_generator

PATCH_ROWS = 150  # of each 32 px set
PER_CLASS = 8  # of each full-size set


def read(name: str) -> str:
    """A class or folder name as the lists of classes have it."""
    return name.replace("_", " ").lower()


def small(path: Path, side: int = 32) -> Image.Image:
    """The centre square at `side` px."""
    image = Image.open(path).convert("RGB")
    return reduced(image, side)


def chosen(folder: Path, names: Set[str]) -> list[Path]:
    """Images of the class folders whose names are in a list."""
    classes = [f for f in sorted(folder.iterdir()) if read(f.name) in names]
    return [path for one in classes for path in sorted(one.iterdir())]


@dataclass(frozen=True)
class Wanted:
    """A set that has to be encoded: image files, and what is made of each before it is."""

    name: str
    files: list[Path]
    made: Callable[[Path], Image.Image]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the images' folders: a reader checks them against the dataset's."""
        return tuple(sorted({path.parent.name for path in self.files}))

    @property
    def labels(self) -> torch.Tensor:
        """Class (N,) of every image."""
        places = {name: place for place, name in enumerate(self.classes)}
        return torch.tensor([places[path.parent.name] for path in self.files])


def sources(images: Path) -> Iterator[Wanted]:
    """The sets that have to be encoded."""

    def small_64(path: Path) -> Image.Image:
        return small(path, 64)

    pets = sorted((images / "oxford_pets" / "train").glob("*/*"))
    yield Wanted("oxford_pets_train_32px", pets, small)
    objects = chosen(images / "tinyimagenet" / "train", tinyimagenet_objects.WANTED)
    yield Wanted("tinyimagenet_objects_32px", objects, small)
    own = sorted((images / "cifar100" / "train").glob("*/*"))[::2]
    generator = numpy_generator(0, "shuffled")
    yield Wanted("cifar100_train_shuffled", own, lambda path: shuffle(small(path), generator))
    caltech = chosen(images / "caltech101" / "train", caltech101_objects.WANTED)
    yield Wanted("caltech101_objects_64px", caltech, small_64)
    tiny = sorted((images / "tinyimagenet" / "train").glob("*/*"))[::2]
    yield Wanted(
        "tinyimagenet_train_shuffled", tiny, lambda path: shuffle(small_64(path), generator)
    )


def encode(images: list[Image.Image], backbone: Backbone) -> ImageFeatures:
    """Pooled (N, D) and patch features (N, P, D)."""
    parts = []
    for start in range(0, len(images), 64):
        batch = torch.stack([backbone.preprocess(image) for image in images[start : start + 64]])
        with torch.no_grad():
            parts.append(backbone.encode_images(batch, patches=backbone.patch_kinds[0]))
    patches = [part.patches for part in parts if part.patches is not None]
    return ImageFeatures(torch.cat([part.pooled for part in parts]), torch.cat(patches))


def write(
    path: Path, features: FeatureSet, backbone: Backbone, patched: Sequence[int] | None = None
) -> None:
    """One file with `features` as its test split, and the patches of the rows `patched`."""
    tensors = {
        "pooled": features.pooled.half(),
        "labels": features.labels.int(),
        "split": torch.zeros(len(features), dtype=torch.int8),
    }
    metadata = {
        "classes": json.dumps(features.classes),
        "splits": json.dumps(["test"]),
        "backbone": backbone.name,
        "fingerprint": backbone.image_fingerprint,
        "made by": Path(__file__).name,
    }
    if patched is not None and features.patches is not None:
        rows = torch.as_tensor(patched)
        tensors["patches_q"], tensors["patches_scale"] = quantise(features.patches[rows])
        tensors["patches_index"] = rows.int()
        metadata["patches"] = backbone.patch_kinds[0]
    write_file(path, tensors, metadata)
    also = "" if patched is None else f", {len(patched)} with patches"
    print(f"{path}: {len(features)} images{also}", flush=True)


def write_encoded(images: Path, out: Path, backbone: Backbone) -> None:
    """The sets at 32 and 64 px; some rows of those for CIFAR-100 with patches."""
    for wanted in sources(images):
        features = encode([wanted.made(path) for path in wanted.files], backbone)
        count, name = len(wanted.files), wanted.name
        whole = FeatureSet(features.pooled, features.patches, wanted.labels, wanted.classes)
        rows = torch.linspace(0, count - 1, min(PATCH_ROWS, count)).long().tolist()
        small_ones = name.endswith("_32px") or name.startswith("cifar100")
        write(out / f"{name}.safetensors", whole, backbone, rows if small_ones else None)


def write_full_size(features: Path, out: Path, backbone: Backbone) -> None:
    """The full-size sets: the first training rows of each class that qualifies."""
    for name, dataset, names in (
        ("oxford_pets_train", "oxford_pets", None),
        ("caltech101_objects", "caltech101", caltech101_objects.WANTED),
    ):
        whole = load_split(features / f"{dataset}.safetensors", "train")
        kept = [names is None or read(one) in names for one in whole.classes]
        rows = [
            row
            for label in range(len(whole.classes))
            if kept[label]
            for row in (whole.labels == label).nonzero()[:PER_CLASS, 0].tolist()
        ]
        write(out / f"{name}.safetensors", whole.select(rows), backbone)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--features", type=Path)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    backbone = load_backbone("mini")
    if given.features is not None:
        write_full_size(given.features, given.out, backbone)
    write_encoded(given.images, given.out, backbone)


if __name__ == "__main__":
    main()
