"""Share the packaged CIFAR-100 features among sites, by class, for `compose.yaml`.

`python share_packaged.py DIR SITE...` writes DIR/SITE.safetensors for each and DIR/classes.txt.
"""

import sys
from pathlib import Path

import torch

from focoop.features import FeatureSet, demo, load_split, save_splits

CLASSES_EACH = 4


def part(split: str, first: int, last: int) -> FeatureSet:
    """Images of the classes `first` to before `last`, labelled from 0."""
    found = load_split(demo.demo_path("cifar100"), split)
    rows = (found.labels >= first) & (found.labels < last)
    labels = found.labels[rows] - first
    return FeatureSet(found.pooled[rows], None, labels, found.classes[first:last])


def main(folder: Path, sites: list[str]) -> None:
    """Write all files, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    names: list[str] = []
    for k, site in enumerate(sites):
        place = k * CLASSES_EACH, (k + 1) * CLASSES_EACH
        own = {split: part(split, *place) for split in ("train", "test")}
        names += own["train"].classes
        save_splits(folder / f"{site}.safetensors", own)
    (folder / "classes.txt").write_text("\n".join(names) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2:])
