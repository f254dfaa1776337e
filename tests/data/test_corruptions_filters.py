"""The parts of corruptions against SciPy and against slow loops."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from focoop.data.corruptions import blur, spatter
from focoop.data.corruptions.filters import (
    convolve,
    disk,
    gaussian,
    mirror,
    motion,
    plasma,
    sample,
    smooth_field,
    zoomed,
)
from focoop.seeds import numpy_generator

SHAPES = [(9, 14), (1, 6), (32, 32)]


def stack(shape: tuple[int, int], count: int = 2, channels: int = 3) -> np.ndarray:
    return numpy_generator(5, "stack", *shape).random((count, *shape, channels))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sigma", [0.05, 0.25, 0.7, 1.5, 6.0])
def test_gaussian_is_scipys(sigma: float, shape: tuple[int, int]) -> None:
    images = stack(shape)
    want = ndimage.gaussian_filter(images, (0, sigma, sigma, 0), mode="nearest", truncate=4)
    np.testing.assert_allclose(gaussian(images, sigma), want, atol=1e-13)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sigma", [0.3, 1.0, 6.4, 40.0])
def test_smooth_field_is_scipys_with_mirrored_borders(sigma: float, shape: tuple[int, int]) -> None:
    field = stack(shape)[0, :, :, 0]
    want = ndimage.gaussian_filter(field, sigma, mode="reflect", truncate=3)
    np.testing.assert_allclose(smooth_field(field, sigma, 3), want, atol=1e-12)


@pytest.mark.parametrize(
    ("radius", "soft"), [(0.3, 0.4), (1.5, 0.1), (3, 0.1), (8, 0.5), (10, 0.5)]
)
def test_defocus_is_the_mean_over_a_soft_disk(radius: float, soft: float) -> None:
    kernel = disk(radius, soft)
    reach = len(kernel) // 2
    assert reach == max(8, radius)
    np.testing.assert_allclose(kernel, kernel.T, atol=1e-16)
    # Independent: the sharp disk, blurred by SciPy with the same few taps.
    line = np.arange(-reach, reach + 1)
    sharp = (np.add.outer(line**2, line**2) <= radius**2).astype(float)
    sharp /= sharp.sum()
    half = 1 if radius <= 8 else 2
    taps = np.exp(-(np.arange(-half, half + 1) ** 2) / (2 * soft**2))
    for axis in (0, 1):
        sharp = ndimage.correlate1d(sharp, taps / taps.sum(), axis, mode="mirror")
    np.testing.assert_allclose(kernel, sharp, atol=1e-15)
    images = stack((30, 26))
    want = np.stack(
        [
            np.stack([ndimage.correlate(one[..., c], kernel, mode="mirror") for c in range(3)], -1)
            for one in images
        ]
    )
    np.testing.assert_allclose(convolve(images, kernel), want, atol=1e-13)


@pytest.mark.parametrize("side", [7, 32])
@pytest.mark.parametrize("factor", [1.0, 1.01, 1.25, 1.75, 4.5])
def test_zoom_is_scipys_cut_to_the_middle(side: int, factor: float) -> None:
    images = stack((side, side))
    kept = math.ceil(side / factor)
    first = (side - kept) // 2
    inner = images[:, first : first + kept, first : first + kept]
    large = ndimage.zoom(inner, (1, factor, factor, 1), order=1)
    trim = (large.shape[1] - side) // 2
    want = large[:, trim : trim + side, trim : trim + side]
    np.testing.assert_allclose(zoomed(images, factor), want, atol=1e-12)


@pytest.mark.parametrize(("repeat_edge", "mode"), [(True, "reflect"), (False, "mirror")])
def test_samples_are_scipys(repeat_edge: bool, mode: str) -> None:
    image = stack((11, 6))[0]
    places = numpy_generator(1, "places").uniform(-30, 40, (2, 11, 6))
    got = sample(image, *places, repeat_edge=repeat_edge)
    for channel in range(3):
        want = ndimage.map_coordinates(image[..., channel], places, order=1, mode=mode)
        np.testing.assert_allclose(got[..., channel], want, atol=1e-12)


@settings(deadline=None)
@given(st.integers(-50, 50), st.integers(1, 9), st.booleans())
def test_mirror_walks_to_and_fro(index: int, size: int, repeat_edge: bool) -> None:
    there = list(range(size))
    back = there[::-1] if repeat_edge else there[-2:0:-1]
    cycle = there + back
    assert int(mirror(np.array([index]), size, repeat_edge=repeat_edge)[0]) == (
        cycle[index % len(cycle)] if size > 1 else 0
    )


def test_motion_is_a_weighted_walk_from_each_pixel() -> None:
    images, angles = stack((8, 10)), [-40.0, 75.0]
    got = motion(images, 3, 1.5, angles)
    for image, angle, blurred in zip(images, angles, got, strict=True):
        weights = [math.exp(-i * i / (2 * 1.5**2)) for i in range(7)]
        for row in range(8):
            for column in range(10):
                total = np.zeros(3)
                for i, weight in enumerate(weights):
                    y = row + math.ceil(i * math.sin(math.radians(angle)) - 0.5)
                    x = column + math.ceil(i * math.cos(math.radians(angle)) - 0.5)
                    total += weight / sum(weights) * image[min(max(y, 0), 7), min(max(x, 0), 9)]
                assert np.abs(blurred[row, column] * 255 - total * 255).max() <= 0.5 + 1e-9
    levels = got * 255
    np.testing.assert_allclose(levels, np.rint(levels), atol=1e-9)
    assert np.array_equal(motion(np.ones((1, 3, 3, 1)), 3, 1.5, [10.0]), np.ones((1, 3, 3, 1)))


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 16), st.integers(1, 16), st.integers(0, 10**6))
def test_scattering_follows_the_published_loop(
    reach: int, height: int, width: int, seed: int
) -> None:
    images = np.arange(2.0 * height * width * 3).reshape(2, height, width, 3)
    got = blur._scattered(images, reach, [numpy_generator(seed, "scatter", i) for i in range(2)])
    rows, columns = range(reach + 1, height - reach + 1), range(reach + 1, width - reach + 1)
    for i, image in enumerate(images.copy()):
        generator = numpy_generator(seed, "scatter", i)
        if len(rows) and len(columns):
            shifts = generator.integers(-reach, reach, (2, len(rows), len(columns)))
        for row in reversed(rows):
            for column in reversed(columns):
                down, right = shifts[:, row - rows[0], column - columns[0]]
                image[row, column] = image[row + down, column + right]
        assert np.array_equal(got[i], image)


@pytest.mark.parametrize(("size", "side"), [((8, 8), 8), ((5, 12), 16), ((1, 1), 1)])
def test_plasma_is_diamond_square_on_a_torus(size: tuple[int, int], side: int) -> None:
    got = plasma([numpy_generator(2, "plasma", i) for i in range(2)], size, 1.75)
    for i in range(2):
        generator = numpy_generator(2, "plasma", i)
        heights = np.zeros((side, side))
        step, swing = side, 100.0
        while step >= 2:
            half = step // 2
            # (offset of the new points, offsets of their neighbours), in the order of the draws
            around = [(-half, 0), (half, 0), (0, -half), (0, half)]
            corners = [(-half, -half), (-half, half), (half, -half), (half, half)]
            for start, near in (((half, half), corners), ((0, half), around), ((half, 0), around)):
                noise = generator.uniform(-1, 1, (side // step, side // step)) * swing**2
                for row in range(side // step):
                    for column in range(side // step):
                        y, x = start[0] + row * step, start[1] + column * step
                        values = [heights[(y + a) % side, (x + b) % side] for a, b in near]
                        heights[y, x] = sum(values) / 4 + noise[row, column]
            step, swing = half, swing / 1.75
        heights -= heights.min()
        want = heights / max(heights.max(), 1e-300)
        np.testing.assert_allclose(got[i], want[: size[0], : size[1]], atol=1e-9)


def test_distances_are_shortest_paths() -> None:
    edges = numpy_generator(4, "edges").random((2, 9, 13)) < 0.03
    edges[1] = False
    got = spatter._distance(edges)
    assert (got[1] == 20).all()  # nothing to go to
    lengths = {(0, 1): 1.0, (1, 1): 1.4, (1, 2): 2.1969}
    want = np.where(edges[0], 0.0, 20.0)
    for _ in range(20):
        for y, x in np.ndindex(9, 13):
            for b, a in np.ndindex(9, 13):
                step = lengths.get(tuple(sorted((abs(y - b), abs(x - a)))))  # type: ignore[arg-type]
                if step is not None:
                    want[y, x] = min(want[y, x], want[b, a] + step)
    np.testing.assert_allclose(got[0], want, atol=1e-12)


def test_edges_are_the_outline_of_a_drop() -> None:
    levels = np.zeros((1, 12, 12))
    levels[0, 4:8, 3:9] = 180
    edges = spatter._edges(levels)[0]
    assert edges.any() and not edges[5:7, 5:7].any()  # the inside is flat
    assert not edges[:3].any() and not edges[9:].any() and not edges[:, :2].any()
    assert edges[5].sum() == 2 and edges[:, 6].sum() == 2  # thin: once in, once out
    faint = spatter._edges(levels / 9)  # gradients of at most 6 * 20 begin none
    assert not faint.any()


def test_equalised_levels_are_shares_of_darker_pixels() -> None:
    levels = np.array([[[3, 3, 7, 7], [7, 9, 9, 200]], [[5] * 4] * 2])
    got = spatter._equalised(levels)
    # Of the 6 pixels above level 3, 3 are at 7 or less, 5 at 9 or less.
    assert got[0].tolist() == [[0, 0, 128, 128], [128, 212, 212, 255]]
    assert (got[1] == 5).all()
