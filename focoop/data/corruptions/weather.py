"""Weather: fog, frost and snow laid over the image."""

import numpy as np

from focoop.data.corruptions.filters import (
    Generators,
    Pixels,
    column,
    drawn,
    motion,
    plasma,
    zoomed,
)
from focoop.data.corruptions.table import Strength

LUMA = (0.299, 0.587, 0.114)  # Rec. 601
ICE = (0.86, 0.94, 1.0)  # colour of the thickest frost


def fog(pixels: Pixels, strength: Strength, generators: Generators) -> Pixels:
    """Add c times plasma and scale back to the image's own maximum: (c, decay of the plasma)."""
    amount, decay = strength
    peak = column(pixels.max(axis=(1, 2, 3)))
    haze = plasma(generators, (pixels.shape[1], pixels.shape[2]), decay)[..., None]
    return (pixels + amount * haze) * peak / (peak + amount)


def frost(pixels: Pixels, strength: Strength, generators: Generators) -> Pixels:
    """A weighted sum of the image and of frost: (weight of the image, weight of the frost).

    The published sets lay crops of six photographs over the image. There are no photographs here:
    the frost is drawn, as veins along the middle height of one plasma over the veil of another.
    """
    image_weight, added = strength
    size = (pixels.shape[1], pixels.shape[2])
    veil = plasma(generators, size, 2.0)
    veins = 1 - np.abs(2 * plasma(generators, size, 1.6) - 1)
    thickness = (0.4 * veil + 0.6 * veins * veins)[..., None]
    out: Pixels = image_weight * pixels + added * thickness * np.array(ICE)
    return out


def snow(pixels: Pixels, strength: Strength, generators: Generators) -> Pixels:
    """Whiten the image and add two layers of falling flakes, one turned by half a circle.

    The numbers: mean and deviation of the flakes' normal field, its zoom, the least height that is
    a flake, radius and sigma of the flakes' motion blur, and how much of the image is not whitened.
    """
    mean, deviation, zoom, least, radius, sigma, image_weight = strength
    flakes = mean + deviation * drawn(generators, lambda g: g.standard_normal(pixels.shape[1:3]))
    flakes = zoomed(flakes[..., None], zoom)
    flakes = np.clip(np.where(flakes < least, 0.0, flakes), 0, 1)
    angles = [generator.uniform(-135, -45) for generator in generators]
    flakes = motion(np.floor(flakes * 255.0) / 255.0, radius, sigma, angles)
    red, green, blue = (weight * pixels[..., i] for i, weight in enumerate(LUMA))
    grey = (red + green + blue)[..., None]
    white = image_weight * pixels + (1 - image_weight) * np.maximum(pixels, grey * 1.5 + 0.5)
    return white + flakes + flakes[:, ::-1, ::-1]
