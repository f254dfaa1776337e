"""Noise: every number of every pixel is disturbed on its own."""

import numpy as np

from focoop.data.corruptions.filters import Generators, Pixels, drawn
from focoop.data.corruptions.table import Strength


def gaussian_noise(pixels: Pixels, strength: Strength, generators: Generators) -> Pixels:
    """Add normal noise of deviation c."""
    (deviation,) = strength
    return pixels + deviation * drawn(generators, lambda g: g.standard_normal(pixels.shape[1:]))


def shot_noise(pixels: Pixels, strength: Strength, generators: Generators) -> Pixels:
    """Count photons: Poisson(c x) / c."""
    (photons,) = strength
    counted = [g.poisson(photons * image) for g, image in zip(generators, pixels, strict=True)]
    return np.stack(counted) / photons


def impulse_noise(pixels: Pixels, strength: Strength, generators: Generators) -> Pixels:
    """Set a share c of the numbers to 0 or 1, with equal chance."""
    (share,) = strength
    draws = drawn(generators, lambda g: g.random((2, *pixels.shape[1:])))
    salt = (draws[:, 1] < 0.5).astype(np.float64)
    return np.where(draws[:, 0] < share, salt, pixels)


def speckle_noise(pixels: Pixels, strength: Strength, generators: Generators) -> Pixels:
    """Add normal noise of deviation c x."""
    (deviation,) = strength
    noise = drawn(generators, lambda g: g.standard_normal(pixels.shape[1:]))
    return pixels + pixels * deviation * noise
