"""Blurs: every pixel is mixed with, or taken from, its neighbours."""

import numpy as np

from focoop.data.corruptions.filters import (
    Generators,
    Index,
    Pixels,
    convolve,
    disk,
    drawn,
    gaussian,
    motion,
    zoomed,
)
from focoop.data.corruptions.table import Strength


def gaussian_blur(pixels: Pixels, strength: Strength, _: Generators) -> Pixels:
    """Gaussian of sigma pixels."""
    return gaussian(pixels, strength[0])


def defocus_blur(pixels: Pixels, strength: Strength, _: Generators) -> Pixels:
    """Mean over a disk of (radius, softness of its rim)."""
    return convolve(pixels, disk(*strength))


def glass_blur(pixels: Pixels, strength: Strength, generators: Generators) -> Pixels:
    """Blur, move pixels about by up to `reach`, `passes` times, and blur again: (sigma, ...).

    As in the published sets, a pixel takes the colour of a neighbour that keeps its own; pixels
    are visited from the last to the first.
    """
    sigma, reach, passes = strength[0], int(strength[1]), int(strength[2])
    moved = np.floor(gaussian(pixels, sigma) * 255.0 + 1e-9)
    for _ in range(passes):
        moved = _scattered(moved, reach, generators)
    return gaussian(moved / 255.0, sigma)


def _scattered(pixels: Pixels, reach: int, generators: Generators) -> Pixels:
    """One pass: for each visited pixel follow where its colour comes from, all at once."""
    count, height, width, _ = pixels.shape
    rows = np.arange(reach + 1, height - reach + 1)
    columns = np.arange(reach + 1, width - reach + 1)
    if not len(rows) or not len(columns):
        return pixels
    shape = (2, len(rows), len(columns))
    shifts = drawn(generators, lambda g: g.integers(-reach, reach, shape)).astype(np.int64)
    area = height * width
    here = rows[:, None] * width + columns  # (h, w)
    there = here + shifts[:, 0] * width + shifts[:, 1]  # (N, h, w)
    visited = np.zeros(area, dtype=bool)
    visited[here.ravel()] = True
    # Node p is pixel p after the pass and area + p is pixel p before it. A pixel visited earlier
    # (of larger p) has already changed when it is asked for its colour.
    changed = visited[there] & (there > here)
    follow: Index = np.tile(np.arange(2 * area), (count, 1))
    follow[:, :area] += area
    follow[:, here.ravel()] = np.where(changed, there, area + there).reshape(count, -1)
    while True:  # chains only lead to earlier pixels: doubling the steps ends soon
        further = np.take_along_axis(follow, follow, axis=1)
        if np.array_equal(further, follow):
            break
        follow = further
    origin = follow[:, :area] - area
    flat = pixels.reshape(count, area, -1)
    return np.take_along_axis(flat, origin[..., None], axis=1).reshape(pixels.shape)


def motion_blur(pixels: Pixels, strength: Strength, generators: Generators) -> Pixels:
    """Blur of (radius, sigma) along a direction of -45 to 45 degrees."""
    angles = [generator.uniform(-45, 45) for generator in generators]
    return motion(pixels, strength[0], strength[1], angles)


def zoom_blur(pixels: Pixels, strength: Strength, _: Generators) -> Pixels:
    """Mean of the image and of its enlargements by 1, 1 + step, ... below stop: (stop, step)."""
    stop, step = strength
    factors = np.arange(1, stop, step)
    total = pixels.copy()
    for factor in factors.tolist():
        total += zoomed(pixels, factor)
    return total / (len(factors) + 1)
