"""Spatter: drops of water or mud on the lens.

Water is shaped by steps that the published sets take from OpenCV; they are written here for a
stack (N, H, W) of small whole numbers, with OpenCV's rules for borders and rounding.
"""

import numpy as np
import numpy.typing as npt

from focoop.data.corruptions.filters import Generators, Pixels, drawn, gaussian, weighted
from focoop.data.corruptions.table import Strength

Mask = npt.NDArray[np.bool_]
WATER = (175 / 255, 238 / 255, 238 / 255)
MUD = (63 / 255, 42 / 255, 20 / 255)
WEAK, STRONG = 50, 150  # gradients that go on with, and that begin, an edge
FARTHEST = 20.0
# Steps to the neighbours and their lengths in the 5 x 5 distance mask; the others by symmetry.
STEPS = {(0, 1): 1.0, (1, 0): 1.0, (1, 1): 1.4, (1, 2): 2.1969, (2, 1): 2.1969}


def spatter(pixels: Pixels, strength: Strength, generators: Generators) -> Pixels:
    """Drops where a smooth normal field is high.

    The numbers: mean, deviation and sigma of the field, the least height of a drop, then for water
    its opacity and 0, for mud the sigma of its rim and 1.
    """
    mean, deviation, sigma, least, amount, mud = strength
    field = mean + deviation * drawn(generators, lambda g: g.standard_normal(pixels.shape[1:3]))
    field = gaussian(field, sigma)
    if mud:
        cover = gaussian((field > least).astype(np.float64), amount)
        cover = np.where(cover < 0.8, 0.0, cover)[..., None]
        return pixels * (1 - cover) + np.array(MUD) * cover
    drops = np.floor(np.clip(np.where(field < least, 0.0, field), 0, 1) * 255.0)
    light = drops * _relief(_distance(_edges(drops)))
    peak = light.max(axis=(1, 2), keepdims=True)
    light = amount * light / np.where(peak > 0, peak, 1.0)
    out: Pixels = pixels + light[..., None] * np.array(WATER)
    return out


def _edges(levels: Pixels) -> Mask:
    """Canny's edges: thin ridges of the Sobel gradient that touch a strong one."""
    around = ((0, 0), (1, 1), (1, 1))
    padded = np.pad(levels, around, mode="edge")
    smooth, slope = np.array([1.0, 2.0, 1.0]), np.array([-1.0, 0.0, 1.0])
    right = weighted(weighted(padded, smooth, 1), slope, 2)
    down = weighted(weighted(padded, slope, 1), smooth, 2)
    size = np.abs(right) + np.abs(down)
    ring = np.pad(size, around)

    def beside(row: int, column: int) -> Pixels:
        height, width = size.shape[1:]
        return ring[:, 1 + row : 1 + row + height, 1 + column : 1 + column + width]

    flat = np.abs(down) < np.tan(np.pi / 8) * np.abs(right)  # the gradient lies within 22.5 degrees
    steep = np.abs(down) > np.tan(3 * np.pi / 8) * np.abs(right)
    falling = (right < 0) == (down < 0)
    ridge = np.where(falling, _above(size, beside(-1, -1), beside(1, 1)), False)
    ridge |= np.where(falling, False, _above(size, beside(-1, 1), beside(1, -1)))
    ridge = np.where(steep, (size > beside(-1, 0)) & (size >= beside(1, 0)), ridge)
    ridge = np.where(flat, (size > beside(0, -1)) & (size >= beside(0, 1)), ridge)
    ridge &= size > WEAK
    edges: Mask = ridge & (size > STRONG)
    while True:
        grown = np.pad(edges, around)
        rows = grown[:, :-2] | grown[:, 1:-1] | grown[:, 2:]
        grown = ridge & (rows[..., :-2] | rows[..., 1:-1] | rows[..., 2:])
        if np.array_equal(grown, edges):
            return edges
        edges = grown


def _above(size: Pixels, neighbour: Pixels, other: Pixels) -> Mask:
    return (size > neighbour) & (size > other)


def _distance(edges: Mask) -> Pixels:
    """Length of the shortest path to an edge, at most `FARTHEST`, by steps of the 5 x 5 mask."""
    height, width = edges.shape[1:]
    far = np.pad(np.where(edges, 0.0, FARTHEST), ((0, 0), (2, 2), (2, 2)), constant_values=FARTHEST)
    inside = far[:, 2:-2, 2:-2]
    while True:
        before = inside.copy()
        for (down, right), length in STEPS.items():
            for row, column in {(s * down, t * right) for s in (-1, 1) for t in (-1, 1)}:
                there = far[:, 2 + row : 2 + row + height, 2 + column : 2 + column + width]
                np.minimum(inside, there + length, out=inside)
        if np.array_equal(before, inside):
            return before


def _relief(distance: Pixels) -> Pixels:
    """Distances as light from the upper left on rounded drops: whole numbers in 0..255."""
    levels = _equalised(np.floor(_box(distance) + 1e-9).astype(np.int64))
    padded = np.pad(levels, ((0, 0), (1, 1), (1, 1)), mode="reflect")
    height, width = levels.shape[1:]
    lit = np.zeros_like(levels)
    for row, weights in enumerate(((-2, -1, 0), (-1, 1, 1), (0, 1, 2))):
        for column, weight in enumerate(weights):
            lit += weight * padded[:, row : row + height, column : column + width]
    return np.rint(_box(np.clip(lit, 0, 255)))


def _box(levels: Pixels) -> Pixels:
    """Mean over 3 x 3 pixels."""
    padded = np.pad(levels, ((0, 0), (1, 1), (1, 1)), mode="reflect")
    ones = np.ones(3)
    return weighted(weighted(padded, ones, 1), ones, 2) / 9


def _equalised(levels: npt.NDArray[np.int64]) -> Pixels:
    """Each image's levels 0..255 spread so that their counts are even; one level stays as it is."""
    out = levels.astype(np.float64)
    for i, image in enumerate(levels):
        counts = np.bincount(image.ravel(), minlength=256)
        first = int(np.flatnonzero(counts)[0])
        rest = image.size - counts[first]
        if rest:
            above = np.cumsum(counts) - counts[first]
            out[i] = np.rint(np.clip(above, 0, None) * (255.0 / rest))[image]
    return out
