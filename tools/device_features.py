"""Features for `device_paper.py`: what travels to the GPU machine, and what is made there."""

import argparse
import json
import multiprocessing
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
import validation_ood
from device_runs import say
from prepare_features import first_of_each_class, rows_per_class

from focoop.clip import load_backbone
from focoop.data import read_folder
from focoop.features.encoding import encode
from focoop.features.storage import quantise, read_file, split_names, write_file
from focoop.paper import Item

# Folder -> file -> test images per class whose patch features travel; training images keep all.
SENT = {
    "paper-1": {"cifar100": 20},
    "paper-2": {
        "tinyimagenet": 5,
        "caltech101": 3,
        "oxford_pets": 6,
        "dtd": 8,
        "office_caltech10": 8,
    },
}


# Dataset -> test images per class that are damaged, by brightness and by each other type.
DAMAGED = {"cifar100": (10, 5), "tinyimagenet": (4, 2)}


def write_features(shared: Path, out: Path) -> None:
    """Folders of feature files and of images that fit beside the tree, one for each call."""
    for group, files in SENT.items():
        folder = out / group
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "features").mkdir(parents=True)
        for name, kept in files.items():
            tensors, metadata = read_file(shared / "features" / f"{name}.safetensors")
            if name == "office_caltech10":
                tensors |= office_patches(shared, tensors, metadata)
            write_file(
                folder / "features" / f"{name}.safetensors",
                fewer_patches(tensors, metadata, kept),
                metadata,
            )
    for name, (count, _) in DAMAGED.items():
        for one in sorted((shared / "images" / name / "test").iterdir()):
            target = out / "paper-1" / "images" / name / "test" / one.name
            target.mkdir(parents=True)
            for path in sorted(one.iterdir())[:count]:
                shutil.copy(path, target / path.name)
    for group in SENT:
        total = sum(path.stat().st_size for path in (out / group).rglob("*") if path.is_file())
        print(f"{out / group}: {total / 2**20:.1f} MiB")


def fewer_patches(
    tensors: dict[str, torch.Tensor], metadata: dict[str, str], kept: int
) -> dict[str, torch.Tensor]:
    """The patch features of all training images and of `kept` test images of every class."""
    index = tensors["patches_index"].long()
    names = split_names(metadata)
    seen: dict[tuple[int, int], int] = {}
    chosen = []
    for place, row in enumerate(index.tolist()):
        split, label = int(tensors["split"][row]), int(tensors["labels"][row])
        seen[split, label] = seen.get((split, label), 0) + 1
        if names[split] == "train" or seen[split, label] <= kept:
            chosen.append(place)
    rows = torch.tensor(chosen)
    return {
        name: value[rows] if name.startswith("patches") else value
        for name, value in tensors.items()
    }


def office_patches(
    shared: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]
) -> dict[str, torch.Tensor]:
    """Patch features of the office images at hand, the first of every class and domain."""
    backbone = load_backbone("mini")
    domains, classes = json.loads(metadata["domains"]), json.loads(metadata["classes"])
    rows, parts = [], []
    for number, domain in enumerate(domains):
        images = read_folder(shared / "images" / "office_caltech10" / domain, "all")
        made = encode(images, backbone, patches=backbone.patch_kinds[0])
        assert made.patches is not None
        for label, name in enumerate(images.classes):
            ours = [at for at, other in enumerate(images.labels) if other == label]
            of_class = (tensors["split"] == number) & (tensors["labels"] == classes.index(name))
            rows += torch.nonzero(of_class).flatten()[: len(ours)].tolist()
            parts.append(made.patches[torch.tensor(ours)])
    quantised, scale = quantise(torch.cat(parts))
    index = torch.tensor(rows, dtype=torch.int32)
    return {"patches_q": quantised, "patches_scale": scale, "patches_index": index}


def encode_damaged(items: Sequence[Item], given: argparse.Namespace, begun: float) -> None:
    """Features of damaged images, a process for each dataset and type; what is there is kept."""
    out = given.folder / "made"
    out.mkdir(parents=True, exist_ok=True)
    jobs = [
        (name, kind, given.folder / "paper-1" / "images", out, given.device)
        for kind in types_of(items)
        for name in DAMAGED
        if (name, kind) in wanted_types(items)
        and not all(path.exists() for path in damaged_files(out, name, kind))
    ]
    if not jobs:
        return
    with multiprocessing.get_context("spawn").Pool(min(given.jobs, len(jobs))) as pool:
        for done, _ in enumerate(pool.imap_unordered(damage, jobs), start=1):
            if done % 10 == 0 or done == len(jobs):
                say(f"damaged: {done} of {len(jobs)} after {time.monotonic() - begun:.0f} s")


def damaged_files(out: Path, name: str, kind: str) -> list[Path]:
    """The files of one type of damage, by severity."""
    return [out / f"{name}.{kind}.{severity}.safetensors" for severity in (1, 2, 3, 4, 5)]


def wanted_types(items: Iterable[Item]) -> set[tuple[str, str]]:
    """(dataset, corruption) of all parts, and brightness, which the settings ask for."""
    listed = [
        spec.partition("#")
        for item in items
        for part in item.parts
        for spec in part.set.get("data.corrupted", ())
    ]
    return {(name, kind) for name, _, kind in listed} | {(name, "brightness") for name in DAMAGED}


def types_of(items: Iterable[Item]) -> list[str]:
    """All corruptions, brightness first: most items need it."""
    return sorted({kind for _, kind in wanted_types(items)}, key=lambda kind: kind != "brightness")


def damage(job: tuple[str, str, Path, Path, str]) -> str:
    """One type of damage at five severities; all images with patch features."""
    name, kind, images, out, device = job
    torch.set_num_threads(1)
    backbone = load_backbone("mini", device=device)
    count = DAMAGED[name][0 if kind == "brightness" else 1]
    found = first_of_each_class(read_folder(images / name, "test"), count)
    for severity, path in enumerate(damaged_files(out, name, kind), start=1):
        if not path.exists():
            made = encode(
                found,
                backbone,
                patches=backbone.patch_kinds[0],
                corruption=kind,
                severity=severity,
            )
            validation_ood.write(path, made, backbone, rows_per_class(found.labels, count))
    return f"{name} {kind}"
