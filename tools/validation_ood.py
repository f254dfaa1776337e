"""Make OOD sets for tuning, so that the test OOD sets decide nothing.

    python tools/validation_ood.py ../shared/images runs/validation [--features ../shared/features]

writes files of `mini` features, all of training images, none of a dataset that is a test OOD set.

At 32 px, as CIFAR's images are: `pets` (Oxford Pets: CIFAR-100 has no cat and no dog), `objects`
(TinyImageNet classes that CIFAR-100 lacks) and `shuffled` (CIFAR-100 images cut into 16 blocks and
put together at random: texture without an object). `*_patches`: some of them with patch features.
At 64 px, for TinyImageNet: `caltech_64px` (Caltech101 classes that TinyImageNet lacks) and
`shuffled_64px` (TinyImageNet's own, shuffled).
With `--features`, at full size: `pets_full`, and `caltech_full`, classes that Pets,
Office-Caltech10 and PACS lack. They are rows of the given files.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from focoop.clip import load_backbone
from focoop.clip.base import Backbone, ImageFeatures
from focoop.features import FeatureSet, load_split, save_splits
from focoop.seeds import numpy_generator

PATCH_ROWS = 150  # of each 32 px set
PER_CLASS = 8  # of each full-size set
OBJECTS = """
abacus, academic gown, altar, apron, backpack, barbershop, basketball, bathtub, beaker, bikini,
bow tie, brass, broom, bucket, candle, cash machine, chain, cliff, comic book, confectionery,
coral reef, crane, dam, drumstick, dumbbell, espresso, flagpole, fountain, gasmask, gondola,
guacamole, hourglass, ice cream, ipod, jinrikisha, kimono, lifeboat, magnetic compass,
mashed potato, maypole, military uniform, miniskirt, nail, neck brace, obelisk, oboe, organ,
parking meter, pay-phone, pizza, pole, potpie, punching bag, sandal, scoreboard, snorkel, sock,
sombrero, spider web, stopwatch, sunglasses, swimming trunks, syringe, teapot, torch,
triumphal arch, turnstile, umbrella, vestment, viaduct, volleyball, water jug, water tower, wok,
wooden spoon
"""
CALTECH = """
accordion, airplanes, anchor, bonsai, brontosaurus, buddha, ceiling fan, chandelier, dollar bill,
dolphin, euphonium, ewer, gramophone, grand piano, hawksbill, hedgehog, helicopter, inline skate,
joshua tree, kangaroo, lotus, menorah, metronome, nautilus, octopus, panda, platypus, revolver,
rhino, saxophone, scissors, sea horse, soccer ball, stapler, starfish, stegosaurus, stop sign,
strawberry, sunflower, water lilly, wheelchair, wrench, yin yang
"""


def wanted(names: str) -> set[str]:
    """The names of a list above, as `read` writes a class."""
    return {" ".join(name.split()) for name in names.split(",")}


def read(name: str) -> str:
    """A class or folder name as the lists have it."""
    return name.replace("_", " ").lower()


def small(path: Path, side: int = 32) -> Image.Image:
    """The centre square at `side` px."""
    image = Image.open(path).convert("RGB")
    length = min(image.size)
    left, top = (image.width - length) // 2, (image.height - length) // 2
    square = image.crop((left, top, left + length, top + length))
    return square.resize((side, side), Image.Resampling.BICUBIC)


def shuffled(image: Image.Image, generator: np.random.Generator, blocks: int = 4) -> Image.Image:
    """Blocks of a square image in random order."""
    side = image.width
    step = side // blocks
    pixels = np.asarray(image).reshape(blocks, step, blocks, step, 3).swapaxes(1, 2)
    order = generator.permutation(blocks * blocks)
    mixed = pixels.reshape(-1, step, step, 3)[order].reshape(blocks, blocks, step, step, 3)
    return Image.fromarray(mixed.swapaxes(1, 2).reshape(side, side, 3))


def chosen(folder: Path, names: str) -> list[Path]:
    """Images of the class folders whose names are in a list."""
    classes = [f for f in sorted(folder.iterdir()) if read(f.name) in wanted(names)]
    return [path for one in classes for path in sorted(one.iterdir())]


def sources(images: Path) -> Iterator[tuple[str, list[Image.Image]]]:
    """(name, images) of the sets that have to be encoded."""
    yield "pets", [small(p) for p in sorted((images / "oxford_pets" / "train").glob("*/*"))]
    yield "objects", [small(p) for p in chosen(images / "tinyimagenet" / "train", OBJECTS)]
    own = sorted((images / "cifar100" / "train").glob("*/*"))[::2]
    generator = numpy_generator(0, "shuffled")
    yield "shuffled", [shuffled(small(p), generator) for p in own]
    caltech = chosen(images / "caltech101" / "train", CALTECH)
    yield "caltech_64px", [small(p, 64) for p in caltech]
    tiny = sorted((images / "tinyimagenet" / "train").glob("*/*"))[::2]
    yield "shuffled_64px", [shuffled(small(p, 64), generator) for p in tiny]


def encode(images: list[Image.Image], backbone: Backbone) -> ImageFeatures:
    """Pooled (N, D) and patch features (N, P, D)."""
    parts = []
    for start in range(0, len(images), 64):
        batch = torch.stack([backbone.preprocess(image) for image in images[start : start + 64]])
        with torch.no_grad():
            parts.append(backbone.encode_images(batch, patches=backbone.patch_kinds[0]))
    patches = [part.patches for part in parts if part.patches is not None]
    return ImageFeatures(torch.cat([part.pooled for part in parts]), torch.cat(patches))


def write(path: Path, features: FeatureSet) -> None:
    """One file with `features` as its test split."""
    save_splits(path, {"test": features}, {"made by": Path(__file__).name})
    print(f"{path}: {len(features)} images", flush=True)


def write_encoded(images: Path, out: Path, backbone: Backbone) -> None:
    """The sets at 32 and 64 px, and the rows with patches of the former."""
    for name, found in sources(images):
        features = encode(found, backbone)
        labels = torch.zeros(len(found), dtype=torch.int64)
        write(out / f"{name}.safetensors", FeatureSet(features.pooled, None, labels, (name,)))
        if not name.endswith("_64px"):
            whole = FeatureSet(features.pooled, features.patches, labels, (name,))
            rows = torch.linspace(0, len(found) - 1, min(PATCH_ROWS, len(found))).long()
            write(out / f"{name}_patches.safetensors", whole.select(rows))


def write_full_size(features: Path, out: Path) -> None:
    """The full-size sets: the first training rows of each class that qualifies."""
    for name, dataset, names in (
        ("pets_full", "oxford_pets", None),
        ("caltech_full", "caltech101", CALTECH),
    ):
        whole = load_split(features / f"{dataset}.safetensors", "train")
        kept = [names is None or read(one) in wanted(names) for one in whole.classes]
        rows = [
            row
            for label in range(len(whole.classes))
            if kept[label]
            for row in (whole.labels == label).nonzero()[:PER_CLASS, 0].tolist()
        ]
        write(out / f"{name}.safetensors", whole.select(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--features", type=Path)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.features is not None:
        write_full_size(given.features, given.out)
    write_encoded(given.images, given.out, load_backbone("mini"))


if __name__ == "__main__":
    main()
