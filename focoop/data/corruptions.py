"""Image corruptions at five severities, with the published CIFAR-C strengths.

A corruption is one pure function from pixels (H, W, 3) in 0..1 to pixels, one strength per
severity, and an entry in `CORRUPTIONS`. Random ones draw from the generator they are given, which
depends on the image's key alone: a set is corrupted alike in any order and on any machine.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from focoop.errors import DataError
from focoop.seeds import numpy_generator

Pixels = npt.NDArray[np.float64]
SEVERITIES = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Corruption:
    """A kind of damage: `apply(pixels, strength, generator)` and its strength per severity."""

    apply: Callable[[Pixels, float, np.random.Generator], Pixels]
    strengths: tuple[float, float, float, float, float]


def brightness(pixels: Pixels, strength: float, _: np.random.Generator) -> Pixels:
    """Add `strength` to the V channel of HSV.

    RGB is proportional to V at fixed hue and saturation, so no conversion is needed; black has
    saturation 0 and becomes grey.
    """
    value = pixels.max(axis=-1, keepdims=True)
    raised = np.clip(value + strength, 0.0, 1.0)
    scaled = pixels * (raised / np.where(value > 0, value, 1.0))
    out: Pixels = np.where(value > 0, scaled, raised)
    return out


CORRUPTIONS: dict[str, Corruption] = {
    "brightness": Corruption(brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
}


def check(name: str, severity: int) -> None:
    """Refuse an unknown corruption or severity."""
    if name not in CORRUPTIONS:
        raise DataError(f"unknown corruption {name!r}: there are {', '.join(CORRUPTIONS)}")
    if severity not in SEVERITIES:
        raise DataError(f"severity {severity} of {name}: it goes from 1 (mild) to 5 (strong)")


def corrupt(
    image: npt.NDArray[np.uint8], name: str, severity: int, key: str = ""
) -> npt.NDArray[np.uint8]:
    """(H, W, 3) image -> the image corrupted; `key` names it for random corruptions.

    Values are cut, not rounded, to whole numbers, as in the published sets.
    """
    check(name, severity)
    corruption = CORRUPTIONS[name]
    generator = numpy_generator(0, "corruption", name, severity, key)
    strength = corruption.strengths[severity - 1]
    pixels = corruption.apply(image.astype(np.float64) / 255.0, strength, generator)
    # The small addend keeps 254.99999999999997 from being cut to 254.
    return (np.clip(pixels, 0.0, 1.0) * 255.0 + 1e-9).astype(np.uint8)
