"""Make the folder `build/clipb32` that the settings `clipb32-*` read: real CLIP ViT-B/32 features.

    python tools/clip_folder.py ../shared/clipb32

SHARED/clipb32 has image features of OpenAI's CLIP and a text tower of our own that was fitted to
CLIP's text features (its README; docs/reference/backbones.md says what it can show). OUT gets
- `open_clip_config.json` and `open_clip_model.safetensors`, so that it is a backbone `local-dir:`;
- `features/*.safetensors`: the same features with the backbone's fingerprint, two ImageNet classes
  of one name apart, and `imagenet200`, the images of 200 classes drawn from ImageNet's 1,000.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from focoop.clip import Backbone, load_backbone
from focoop.features.storage import Metadata, read_file, write_file
from focoop.seeds import numpy_generator

OUT = Path("build/clipb32")
NAME = "CLIP ViT-B/32"
CONFIG = {
    "model_cfg": {
        "embed_dim": 512,
        "quick_gelu": True,
        "text_cfg": {
            "context_length": 77,
            "vocab_size": 49408,
            "width": 256,
            "heads": 4,
            "layers": 6,
        },
    },
    "preprocess_cfg": {},
}
# The two ImageNet classes whose names CoOp's list has twice, by the other word of their synset.
RENAMED = {744: "projectile", 836: "sunglass"}
DRAWN = 200
Tensors = dict[str, torch.Tensor]


def write_backbone(source: Path, out: Path) -> Backbone:
    """Write a text tower's configuration, and link to its weights."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "open_clip_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    link = out / "open_clip_model.safetensors"
    link.unlink(missing_ok=True)
    link.symlink_to((source / "text_tower.safetensors").resolve())
    return load_backbone(f"local-dir:{out}")


def read_features(path: Path, backbone: Backbone) -> tuple[Tensors, Metadata]:
    """Features with what made them, and with names that tell classes apart."""
    tensors, metadata = read_file(path)
    classes = json.loads(metadata["classes"])
    if path.stem == "imagenet":
        classes = [RENAMED.get(label, name) for label, name in enumerate(classes)]
    made = {"backbone": NAME, "fingerprint": backbone.image_fingerprint}
    return tensors, {**metadata, **made, "classes": json.dumps(classes)}


def some_classes(tensors: Tensors, metadata: Metadata, count: int) -> tuple[Tensors, Metadata]:
    """The images of `count` classes, always the same ones."""
    names = json.loads(metadata["classes"])
    drawn = sorted(numpy_generator(0, f"{count} classes").permutation(len(names))[:count].tolist())
    place = torch.full((len(names),), -1, dtype=torch.int32)
    place[drawn] = torch.arange(count, dtype=torch.int32)
    labels = place[tensors["labels"].long()]
    rows = labels >= 0
    kept = {name: value[rows] for name, value in {**tensors, "labels": labels}.items()}
    return kept, {**metadata, "classes": json.dumps([names[label] for label in drawn])}


def write_folder(source: Path, out: Path) -> None:
    """Write the whole folder."""
    backbone = write_backbone(source, out)
    (out / "features").mkdir(exist_ok=True)
    for path in sorted((source / "features").glob("*.safetensors")):
        tensors, metadata = read_features(path, backbone)
        write_file(out / "features" / path.name, tensors, metadata)
        if path.stem == "imagenet":
            target = out / "features" / f"imagenet{DRAWN}.safetensors"
            write_file(target, *some_classes(tensors, metadata, DRAWN))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path, help="the folder clipb32 of the reference data")
    parser.add_argument("out", type=Path, nargs="?", default=OUT)
    given = parser.parse_args()
    write_folder(given.source, given.out)
    print(f"{given.out}: focoop run clipb32-caltech101 reads it from here")


if __name__ == "__main__":
    main()
