"""Three sites' own images, small enough to train on in a test: one colour per class."""

from pathlib import Path

import numpy as np
from PIL import Image

from focoop.seeds import numpy_generator

COLOURS = {"boat": (30, 60, 200), "cup": (200, 40, 40), "tree": (40, 180, 60)}
SITES = ("east", "north", "west")
SETTINGS = (
    "data.id=clients:images",
    "data.corrupted=[]",
    "data.ood=['folder:foreign']",
    "partition.kind=given",
    "partition.clients=0",
    "partition.shots=0",
    "federation.rounds=1",
    "federation.epochs=1",
    "negatives.count=5",
    "negatives.words=words.txt",
    "method.name=focoop",
    "method.bos=false",
)


def write_sites(root: Path, each: int = 2) -> None:
    """In `root`: `images/SITE/SPLIT/CLASS/N.png`, an OOD set `foreign` and `words.txt`."""
    words = ("apple", "bridge", "candle", "desert", "engine", "fabric", "guitar", "hammer")
    root.mkdir(parents=True, exist_ok=True)
    (root / "words.txt").write_text("\n".join(words))
    for site in SITES:
        for split in ("train", "test"):
            for name, colour in COLOURS.items():
                for number in range(each):
                    place = root / "images" / site / split / name / f"{number}.png"
                    _draw(place, colour, f"{site} {split} {number}")
    for number in range(3):
        _draw(root / "foreign" / "test" / "noise" / f"{number}.png", (128,) * 3, f"far {number}")


def _draw(path: Path, colour: tuple[int, ...], key: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = numpy_generator(0, key, str(colour)).integers(-25, 25, (24, 24, 3))
    pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path)
