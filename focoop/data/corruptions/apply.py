"""The 19 corruptions of CIFAR-C at five severities, with the published strengths.

A corruption is one function from a stack of images (N, H, W, 3) in 0..1, one strength and one
random generator per image to a stack; values outside 0..1 are cut afterwards. An image's generator
depends on (seed, type, severity, the image's key) alone, so that a set is corrupted alike in any
order, in any batches and on any machine. Strengths are chosen by the shorter side: below 64 pixels
those of CIFAR-C, below 224 those of TinyImageNet-C, from 224 on those of ImageNet-C.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from focoop.data.corruptions import blur, digital, noise, spatter, weather
from focoop.data.corruptions.filters import Generators, Pixels
from focoop.data.corruptions.table import SIZES, STRENGTHS, Rows, Strength
from focoop.errors import DataError, nearest
from focoop.seeds import numpy_generator

__all__ = ["CORRUPTIONS", "SEVERITIES", "Corruption", "check", "corrupt", "corrupt_batch"]

SEVERITIES = (1, 2, 3, 4, 5)
CHUNK = 2**19  # pixels worked on at once, a few dozen megabytes in float64
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Corruption:
    """A kind of damage: `apply(pixels, strength, generators)` and its strengths by image size."""

    apply: Callable[[Pixels, Strength, Generators], Pixels]
    rows: Rows

    def strength(self, severity: int, height: int, width: int) -> Strength:
        """Return the published numbers for images of a size.

        Args:
            severity: 1 to 5.
            height: Height of the images in pixels.
            width: Width of the images in pixels.

        Returns:
            The numbers.
        """
        side = min(height, width)
        fitting = [row for size, row in zip(SIZES, self.rows, strict=True) if size <= side]
        return (fitting or self.rows)[-1 if fitting else 0][severity - 1]

    def record(self, severity: int) -> Any:
        """Return all numbers that may be used at a severity, for the key of cached features.

        Args:
            severity: 1 to 5.

        Returns:
            Plain values.
        """
        used = [row[severity - 1] for row in self.rows]
        one_for_all = len(set(used)) == 1 and len(used[0]) == 1
        return used[0][0] if one_for_all else used


_FAMILIES = (
    noise,
    blur,
    weather,
    digital,
    spatter,
)


def _function(name: str) -> Callable[[Pixels, Strength, Generators], Pixels]:
    corruption: Callable[[Pixels, Strength, Generators], Pixels]
    (corruption,) = (vars(family)[name] for family in _FAMILIES if name in vars(family))
    return corruption


CORRUPTIONS = {name: Corruption(_function(name), rows) for name, rows in STRENGTHS.items()}


def check(name: str, severity: int) -> None:
    """Refuse an unknown corruption or severity.

    Args:
        name: The corruption's name.
        severity: 1 to 5; 0 for clean images.

    Raises:
        DataError: There is no such corruption or severity.
    """
    if name not in CORRUPTIONS:
        hint = nearest(name, CORRUPTIONS)
        raise DataError(f"unknown corruption {name!r}{hint} (all: {', '.join(CORRUPTIONS)})")
    if severity not in SEVERITIES:
        raise DataError(f"severity {severity} of {name}: it goes from 1 (mild) to 5 (strong)")


def corrupt(image: Bytes, name: str, severity: int, key: str | int = "", seed: int = 0) -> Bytes:
    """Corrupt one image.

    Args:
        image: Pixels (H, W, 3) uint8.
        name: The corruption's name.
        severity: 1 to 5.
        key: Names the image for random corruptions.
        seed: Seed of random corruptions.

    Returns:
        Pixels (H, W, 3) uint8.
    """
    out: Bytes = corrupt_batch(image[None], name, severity, [key], seed)[0]
    return out


def corrupt_batch(
    images: Bytes,
    name: str,
    severity: int,
    keys: Sequence[str | int] | None = None,
    seed: int = 0,
    most: int = CHUNK,
) -> Bytes:
    """Corrupt many images of one size.

    Values are cut, not rounded, to whole numbers, as in the published sets.

    Args:
        images: Pixels (N, H, W, 3) uint8.
        name: The corruption's name.
        severity: 1 to 5.
        keys: Name the images for random corruptions; None: an image's key is its place.
        seed: Seed of random corruptions.
        most: Pixels worked on at a time, but at least one image.

    Returns:
        Pixels (N, H, W, 3) uint8.
    """
    check(name, severity)
    count, height, width, _ = images.shape
    named = range(count) if keys is None else keys
    corruption = CORRUPTIONS[name]
    strength = corruption.strength(severity, height, width)
    step = max(1, most // max(1, height * width))
    out = np.empty_like(images)
    for start in range(0, count, step):
        part = slice(start, start + step)
        generators = [numpy_generator(seed, "corruption", name, severity, k) for k in named[part]]
        pixels = images[part].astype(np.float64) / 255.0
        pixels = corruption.apply(pixels, strength, generators)
        # The small addend keeps 254.99999999999997 from being cut to 254.
        out[part] = (np.clip(pixels, 0.0, 1.0) * 255.0 + 1e-9).astype(np.uint8)
    return out
