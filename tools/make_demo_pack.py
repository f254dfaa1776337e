"""Make the packaged demo features in `focoop/assets/demo` from the reference folder.

    python tools/make_demo_pack.py --shared SHARED [--device cuda] [--out FOLDER]

CIFAR-100: 16 training and 20 test images per class with patches, and the same test images at five
severities of brightness (pooled). OOD: textures and scenes, sharp and reduced to 32 px, the same
images in both. The brightness images are encoded through the cache (30,000 images the first time).
Running it twice gives identical bytes.
"""

import argparse
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from focoop.clip import load_backbone
from focoop.clip.base import Backbone
from focoop.data import read_folder
from focoop.data.corruptions.apply import SEVERITIES
from focoop.features.encoding import encode
from focoop.features.feature_set import FeatureSet
from focoop.features.storage import load_split, quantise, read_file, write_file

TRAIN_PER_CLASS, TEST_PER_CLASS = 16, 20
OOD_ROWS, OOD_PATCH_ROWS = 1000, 250
# One step for all patches: 0.12 standard deviations of an entry of a random unit vector.
PATCH_STEP = 0.12 / 16
MAX_BYTES = 18_500_000
SPLITS = ("train", "test")
OOD = {
    "dtd": "textures at full resolution",
    "dtd_32px": "the same textures reduced to 32 px first, as blurred as CIFAR images",
    "sun": "scenes at full resolution",
    "sun_32px": "the same scenes reduced to 32 px first, as blurred as CIFAR images",
}


@dataclass(frozen=True)
class Rows:
    """Unquantised rows chosen for one file; `patches` belong to the rows at `patches_index`."""

    pooled: Tensor
    labels: Tensor
    split: Tensor
    classes: tuple[str, ...]
    patches: Tensor | None = None
    patches_index: Tensor | None = None


def ranks(labels: Tensor, split: Tensor) -> Tensor:
    """For each row its number among the rows of its class and split."""
    seen: dict[tuple[int, int], int] = {}
    out = []
    for cell in zip(labels.tolist(), split.tolist(), strict=True):
        out.append(seen.get(cell, 0))
        seen[cell] = out[-1] + 1
    return torch.tensor(out)


def choose(path: Path, rows: Tensor, with_patches: Tensor) -> Rows:
    """Read `rows` of a feature file, and the patches of those marked in `with_patches`."""
    tensors, metadata = read_file(path)
    place = torch.full((len(tensors["labels"]),), -1)
    place[tensors["patches_index"].long()] = torch.arange(len(tensors["patches_index"]))
    chosen = place[rows[with_patches]]
    if bool((chosen < 0).any()):
        raise SystemExit(f"{path}: rows without patches were chosen for patches")
    patches = tensors["patches_q"][chosen].float() * tensors["patches_scale"][chosen][..., None]
    return Rows(
        pooled=F.normalize(tensors["pooled"][rows].float(), dim=-1),
        labels=tensors["labels"][rows],
        split=tensors["split"][rows],
        classes=tuple(json.loads(metadata["classes"])),
        patches=F.normalize(patches, dim=-1),
        patches_index=with_patches.nonzero()[:, 0].int(),
    )


def in_order(keep: Tensor, *keys: Tensor) -> Tensor:
    """Row numbers where `keep`, sorted by the keys, the first one foremost."""
    rows = keep.nonzero()[:, 0].tolist()
    return torch.tensor(sorted(rows, key=lambda row: tuple(int(key[row]) for key in keys)))


def cifar_rows(path: Path) -> Rows:
    """The first images of each class and split, all with patches."""
    tensors, _ = read_file(path)
    labels, split = tensors["labels"], tensors["split"]
    rank = ranks(labels, split)
    keep = rank < torch.tensor([TRAIN_PER_CLASS, TEST_PER_CLASS])[split.long()]
    rows = in_order(keep, split, labels, rank)
    return choose(path, rows, torch.ones(len(rows), dtype=torch.bool))


def ood_rows(path: Path) -> Rows:
    """About 1000 test images spread over the classes, about 250 of them with patches.

    Sharp files have patches of a class's first images, 32 px files of its even ones: even ranks
    serve both, so that both hold the same images.
    """
    tensors, metadata = read_file(path)
    labels, split = tensors["labels"], tensors["split"]
    count = len(json.loads(metadata["classes"]))
    rank = ranks(labels, split)
    rows = in_order((split == 1) & (rank < round(OOD_ROWS / count)), labels, rank)
    marked = (rank % 2 == 0) & (rank < 2 * round(OOD_PATCH_ROWS / count))
    return choose(path, rows, marked[rows])


def brightness_rows(
    shared: Path, backbone: Backbone, clean: FeatureSet, cache: Path | None
) -> dict[int, Rows]:
    """Pooled features of the packed test images at each severity, in the order of the pack."""
    images = read_folder(shared / "images" / "cifar100", "test")
    if images.classes != clean.classes:
        raise SystemExit("image folders and features name the classes of CIFAR-100 differently")
    labels = torch.tensor(images.labels)
    rank = ranks(labels, torch.ones_like(labels))
    rows = in_order(rank < TEST_PER_CLASS, labels, rank)
    again = encode(images, backbone, cache_dir=cache).select(rows)
    cosine = float((again.pooled * clean.pooled).sum(-1).min())
    print(f"images against features of the same rows: least cosine {cosine:.6f}")
    if cosine < 0.999 or not torch.equal(again.labels, clean.labels):
        raise SystemExit("the image files are not the rows of the features")
    out = {}
    for severity in SEVERITIES:
        bright = encode(
            images, backbone, corruption="brightness", severity=severity, cache_dir=cache
        ).select(rows)
        split = torch.ones(len(rows), dtype=torch.int8)
        out[severity] = Rows(bright.pooled, bright.labels.int(), split, clean.classes)
    return out


def write(folder: Path, name: str, rows: Rows, source: str, kind: str) -> dict[str, Any]:
    """Write one file; its entry in the manifest holds the error of what was written."""
    path = folder / f"{name}.safetensors.gz"
    tensors = {"labels": rows.labels.to(torch.int16), "split": rows.split}
    tensors["pooled_q"], tensors["pooled_scale"] = quantise(rows.pooled)
    if rows.patches is not None and rows.patches_index is not None:
        tensors["patches_q"], tensors["patches_scale"] = quantise(rows.patches, PATCH_STEP)
        tensors["patches_index"] = rows.patches_index.to(torch.int16)
    metadata = {"classes": json.dumps(rows.classes), "splits": json.dumps(SPLITS), "kind": kind}
    write_file(path, tensors, metadata)
    raw = path.read_bytes()
    entry: dict[str, Any] = {
        "file": path.name,
        "kind": kind,
        "source": source,
        "sha256": hashlib.sha256(raw).hexdigest(),
        "bytes": len(raw),
        "classes": len(rows.classes),
        "rows": {s: int((rows.split == i).sum()) for i, s in enumerate(SPLITS)},
        "rows_with_patches": 0 if rows.patches is None else len(rows.patches),
        "cosine_pooled": cosines(load_split(path, "all").pooled, rows.pooled),
    }
    if rows.patches is not None:
        stored = load_split(path, "all", with_patches=True).patches
        assert stored is not None
        entry["cosine_patches"] = cosines(stored, rows.patches)
    return entry


def cosines(stored: Tensor, exact: Tensor) -> dict[str, float]:
    """Mean and least cosine between what is stored and what it was made from."""
    cosine = (stored * exact).sum(-1)
    return {"mean": round(float(cosine.mean()), 6), "least": round(float(cosine.min()), 6)}


def zero_shot(
    backbone: Backbone, pooled: Tensor, labels: Tensor, classes: tuple[str, ...]
) -> float:
    """Accuracy in percent of "a photo of a {name}."."""
    prompts = [f"a photo of a {name.replace('_', ' ')}." for name in classes]
    logits = pooled @ backbone.encode_texts(prompts).cpu().T
    return round(100 * float((logits.argmax(1) == labels.long()).float().mean()), 3)


def make(shared: Path, out: Path, device: str, cache: Path | None) -> dict[str, Any]:
    """Write all files and the manifest."""
    backbone = load_backbone("mini", device=device)
    source = shared / "features"
    files = {}
    rows = cifar_rows(source / "cifar100.safetensors")
    kind = f"CIFAR-100: {TRAIN_PER_CLASS} training and {TEST_PER_CLASS} test images per class"
    files["cifar100"] = write(out, "cifar100", rows, "features/cifar100.safetensors", kind)
    tested = rows.split == 1
    exact = FeatureSet(rows.pooled[tested], None, rows.labels[tested].long(), rows.classes)
    stored = load_split(out / "cifar100.safetensors.gz", "test")
    accuracy = {
        "packed": zero_shot(backbone, stored.pooled, stored.labels, stored.classes),
        "unquantised": zero_shot(backbone, exact.pooled, exact.labels, exact.classes),
    }
    for severity, bright in brightness_rows(shared, backbone, exact, cache).items():
        name = f"cifar100.brightness.{severity}"
        kind = f"the test images of cifar100 with brightness at severity {severity}"
        files[name] = write(out, name, bright, "images/cifar100/test", kind)
        packed = load_split(out / f"{name}.safetensors.gz", "test")
        accuracy[name] = zero_shot(backbone, packed.pooled, packed.labels, packed.classes)
    for name, kind in OOD.items():
        path = source / f"{name}.safetensors"
        files[name] = write(out, name, ood_rows(path), f"features/{path.name}", kind)
    total = sum(entry["bytes"] for entry in files.values())
    if total > MAX_BYTES:
        raise SystemExit(f"the pack has {total} bytes, more than {MAX_BYTES}")
    return {
        "made_by": "tools/make_demo_pack.py",
        "backbone": {"name": backbone.name, "fingerprint": backbone.image_fingerprint},
        "licence": "features of research datasets, computed by our own backbone; no images",
        "bytes": total,
        "zero_shot_accuracy": accuracy,
        "files": files,
    }


def main() -> None:
    here = Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shared", type=Path, default=here.parent / "shared")
    parser.add_argument("--out", type=Path, default=here / "focoop" / "assets" / "demo")
    parser.add_argument("--cache", type=Path, default=None)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    manifest = make(options.shared, options.out, options.device, options.cache)
    text = json.dumps(manifest, indent=2) + "\n"
    (options.out / "manifest.json").write_text(text, "utf-8")
    for name, entry in manifest["files"].items():
        print(f"{name:24} {entry['bytes']:>10} bytes", entry["rows"], entry["rows_with_patches"])
    print(f"{manifest['bytes']} bytes in all; zero-shot", manifest["zero_shot_accuracy"])


if __name__ == "__main__":
    main()
