"""Make OOD sets for tuning, so that the test OOD sets decide nothing.

    python tools/validation_ood.py ../shared/images runs/validation

writes three files of `mini` features, all from training images reduced to 32 px as CIFAR's are:
`pets` (Oxford Pets: CIFAR-100 has no cat and no dog), `objects` (TinyImageNet classes that
CIFAR-100 lacks) and `shuffled` (CIFAR-100 training images cut into 16 blocks and put together at
random: texture without an object).
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
from focoop.clip.base import Backbone
from focoop.features import FeatureSet, save_splits
from focoop.seeds import numpy_generator

SIDE = 32
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


def small(path: Path) -> Image.Image:
    """The centre square at 32 px."""
    image = Image.open(path).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.crop((left, top, left + side, top + side))
    return square.resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def shuffled(image: Image.Image, generator: np.random.Generator, blocks: int = 4) -> Image.Image:
    """Blocks of an image in random order."""
    step = SIDE // blocks
    pixels = np.asarray(image).reshape(blocks, step, blocks, step, 3).swapaxes(1, 2)
    order = generator.permutation(blocks * blocks)
    mixed = pixels.reshape(-1, step, step, 3)[order].reshape(blocks, blocks, step, step, 3)
    return Image.fromarray(mixed.swapaxes(1, 2).reshape(SIDE, SIDE, 3))


def sources(images: Path) -> Iterator[tuple[str, list[Image.Image]]]:
    """(name, images) of the three sets."""
    yield "pets", [small(p) for p in sorted((images / "oxford_pets" / "train").glob("*/*"))]
    wanted = {" ".join(name.split()) for name in OBJECTS.lower().split(",")}
    folders = sorted((images / "tinyimagenet" / "train").iterdir())
    named = [f for f in folders if f.name.replace("_", " ").lower() in wanted]
    yield "objects", [small(p) for f in named for p in sorted(f.iterdir())]
    own = sorted((images / "cifar100" / "train").glob("*/*"))[::2]
    generator = numpy_generator(0, "shuffled")
    yield "shuffled", [shuffled(small(p), generator) for p in own]


def encode(images: list[Image.Image], backbone: Backbone) -> torch.Tensor:
    """(N, D) pooled features."""
    parts = []
    for start in range(0, len(images), 64):
        batch = torch.stack([backbone.preprocess(image) for image in images[start : start + 64]])
        parts.append(backbone.encode_images(batch).pooled)
    return torch.cat(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    backbone = load_backbone("mini")
    given.out.mkdir(parents=True, exist_ok=True)
    for name, images in sources(given.images):
        pooled = encode(images, backbone)
        labels = torch.zeros(len(pooled), dtype=torch.int64)
        found = FeatureSet(pooled, None, labels, (name,))
        save_splits(
            given.out / f"{name}.safetensors", {"test": found}, {"made by": Path(__file__).name}
        )
        print(f"{name}: {len(pooled)} images")


if __name__ == "__main__":
    main()
