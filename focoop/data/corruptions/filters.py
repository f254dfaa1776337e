"""Blurs, zooms, interpolation and plasma on stacks of images, of which corruptions are made.

Stacks are (N, H, W) or (N, H, W, C) float64. Every image's result is the same bits in any stack:
sums run over taps, never over images, and random numbers come from one generator per image.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Generators = Sequence[np.random.Generator]


def column(values: Sequence[float] | Pixels) -> Pixels:
    """Shape numbers so that they broadcast over a stack.

    Args:
        values: Numbers (N,).

    Returns:
        Numbers (N, 1, 1, 1).
    """
    return np.asarray(values, dtype=np.float64).reshape(-1, 1, 1, 1)


def drawn(
    generators: Generators, draw: Callable[[np.random.Generator], npt.NDArray[np.generic]]
) -> Pixels:
    """Make one draw per image.

    Args:
        generators: One generator per image.
        draw: Draws an array from a generator.

    Returns:
        The draws, stacked.
    """
    return np.stack([draw(generator) for generator in generators]).astype(np.float64)


def gaussian_weights(sigma: float, truncate: float) -> Pixels:
    """Return the taps of a Gaussian, which sum to one.

    Args:
        sigma: Deviation in pixels.
        truncate: Where the Gaussian is cut, in sigmas.

    Returns:
        Weights (2 r + 1,).
    """
    radius = int(truncate * sigma + 0.5)
    taps = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (taps / sigma) ** 2)
    out: Pixels = weights / weights.sum()
    return out


def gaussian(stack: Pixels, sigma: float, truncate: float = 4.0) -> Pixels:
    """Blur height and width by a Gaussian; beyond the border the edge goes on.

    Args:
        stack: Images (N, H, W) or (N, H, W, C).
        sigma: Deviation in pixels.
        truncate: Where the Gaussian is cut, in sigmas.

    Returns:
        The blurred stack.
    """
    if sigma == 0:
        return stack
    weights = gaussian_weights(sigma, truncate)
    for axis in (1, 2):
        around = [(0, 0)] * stack.ndim
        around[axis] = (len(weights) // 2,) * 2
        stack = weighted(np.pad(stack, around, mode="edge"), weights, axis)
    return stack


def weighted(padded: Pixels, weights: Pixels, axis: int) -> Pixels:
    """Return weighted sums of neighbours along an axis, which loses len(weights) - 1 places.

    Args:
        padded: A stack with a border.
        weights: Weights of the neighbours.
        axis: The axis.

    Returns:
        The sums.
    """
    lines = np.moveaxis(padded, axis, 0)
    size = len(lines) - len(weights) + 1
    out = weights[0] * lines[:size]
    for i in range(1, len(weights)):
        out += weights[i] * lines[i : i + size]
    return np.moveaxis(out, 0, axis)


def smooth_field(field: Pixels, sigma: float, truncate: float) -> Pixels:
    """Blur a field that mirrors at its border: d c b a | a b c d | d c b a.

    Mirrored fields are periodic, so the blur is a product of spectra, however wide it is.

    Args:
        field: Values (H, W).
        sigma: Deviation in pixels.
        truncate: Where the Gaussian is cut, in sigmas.

    Returns:
        Values (H, W).
    """
    if sigma == 0:
        return field
    weights = gaussian_weights(sigma, truncate)
    radius = len(weights) // 2
    for axis in (0, 1):
        size = field.shape[axis]
        ring = np.zeros(2 * size)
        np.add.at(ring, np.arange(-radius, radius + 1) % (2 * size), weights)
        mirrored = np.concatenate([field, np.flip(field, axis)], axis)
        shape = (-1, 1) if axis == 0 else (1, -1)
        spectrum = np.fft.rfft(mirrored, axis=axis) * np.fft.rfft(ring).reshape(shape)
        field = np.fft.irfft(spectrum, n=2 * size, axis=axis).take(range(size), axis)
    return field


def convolve(stack: Pixels, kernel: Pixels) -> Pixels:
    """Convolve images with a symmetric kernel; they mirror at the border: c b | a b c.

    Args:
        stack: Images (N, H, W, C).
        kernel: Weights (2 r + 1, 2 r + 1).

    Returns:
        Images (N, H, W, C).
    """
    radius = len(kernel) // 2
    height, width = stack.shape[1:3]
    around = ((0, 0), (radius, radius), (radius, radius), (0, 0))
    padded = np.pad(stack, around, mode="reflect")
    shape = padded.shape[1:3]
    spectrum = np.fft.rfft2(padded, axes=(1, 2)) * np.fft.rfft2(kernel, shape)[None, :, :, None]
    whole = np.fft.irfft2(spectrum, shape, axes=(1, 2))
    # A product of spectra is circular: the first 2 r rows and columns hold what wrapped round.
    return whole[:, 2 * radius : 2 * radius + height, 2 * radius : 2 * radius + width]


def disk(radius: float, alias_blur: float) -> Pixels:
    """Return a disk of equal weights, its rim softened by a Gaussian of 3 taps (5 above radius 8).

    Args:
        radius: Radius in pixels.
        alias_blur: Deviation of the Gaussian.

    Returns:
        Weights (2 r + 1, 2 r + 1).
    """
    reach = 8 if radius <= 8 else int(radius)
    line = np.arange(-reach, reach + 1)
    inside = (line[:, None] ** 2 + line[None, :] ** 2 <= radius**2).astype(np.float64)
    inside /= inside.sum()
    half = 1 if radius <= 8 else 2
    weights = np.exp(-0.5 * (np.arange(-half, half + 1) / alias_blur) ** 2)
    weights /= weights.sum()
    padded = np.pad(inside, half, mode="reflect")
    return weighted(weighted(padded, weights, 0), weights, 1)


def motion(stack: Pixels, radius: float, sigma: float, angles: Sequence[float]) -> Pixels:
    """Blur images along one direction each, as ImageMagick does.

    2 radius + 1 taps of half a Gaussian lie on whole pixels along the direction; the edge goes on.
    Values are rounded to 8 bits.

    Args:
        stack: Images (N, H, W, C).
        radius: Radius in pixels.
        sigma: Deviation in pixels.
        angles: Direction of each image in degrees.

    Returns:
        Images (N, H, W, C).
    """
    width = 2 * math.ceil(radius) + 1
    weights = np.exp(-0.5 * (np.arange(width) / sigma) ** 2)
    weights /= weights.sum()
    out = np.zeros_like(stack)
    rows, columns = np.arange(stack.shape[1]), np.arange(stack.shape[2])
    for image, blurred, angle in zip(stack, out, angles, strict=True):
        down, right = math.sin(math.radians(angle)), math.cos(math.radians(angle))
        for i, weight in enumerate(weights):
            row = (rows + math.ceil(i * down - 0.5)).clip(0, len(rows) - 1)
            column = (columns + math.ceil(i * right - 0.5)).clip(0, len(columns) - 1)
            blurred += weight * image[row[:, None], column]
    return np.floor(out * 255.0 + 0.5) / 255.0


def zoomed(stack: Pixels, factor: float) -> Pixels:
    """Enlarge the middle of images to their full size, linearly.

    Args:
        stack: Images (N, H, W, C).
        factor: Enlargement, at least 1.

    Returns:
        Images (N, H, W, C).
    """
    for axis in (1, 2):
        size = stack.shape[axis]
        crop = math.ceil(size / factor)
        full = round(crop * factor)
        first, trim = (size - crop) // 2, (full - size) // 2
        # Corners meet corners: position o of the enlarged line is o (crop - 1) / (full - 1).
        place = (np.arange(size) + trim) * ((crop - 1) / max(1, full - 1))
        low = np.floor(place).astype(np.int64).clip(0, max(0, crop - 2))
        high = np.minimum(low + 1, crop - 1)
        shape = [1] * stack.ndim
        shape[axis] = size
        share = (place - low).reshape(shape)
        stack = stack.take(first + low, axis) * (1 - share) + stack.take(first + high, axis) * share
    return stack


def mirror(index: Index, size: int, *, repeat_edge: bool) -> Index:
    """Map any index to one inside 0..size-1 by mirroring.

    Args:
        index: Indices.
        size: Size of the axis.
        repeat_edge: Mirror as b a | a b c instead of c b | a b c.

    Returns:
        Indices of the same shape.
    """
    if size == 1:
        return np.zeros_like(index)
    period = 2 * size if repeat_edge else 2 * size - 2
    index = index % period
    last = period - 1 if repeat_edge else period
    return np.where(index < size, index, last - index)


def sample(image: Pixels, rows: Pixels, columns: Pixels, *, repeat_edge: bool) -> Pixels:
    """Interpolate an image linearly at given places; beyond the border it mirrors.

    Args:
        image: An image (H, W, C).
        rows: Row of each place (H, W).
        columns: Column of each place (H, W).
        repeat_edge: Mirror with the edge repeated.

    Returns:
        An image (H, W, C).
    """
    top, left = np.floor(rows).astype(np.int64), np.floor(columns).astype(np.int64)
    down, right = (rows - top)[..., None], (columns - left)[..., None]
    at_top, at_bottom = (mirror(top + i, image.shape[0], repeat_edge=repeat_edge) for i in (0, 1))
    at_left, at_right = (mirror(left + i, image.shape[1], repeat_edge=repeat_edge) for i in (0, 1))
    upper = image[at_top, at_left] * (1 - right) + image[at_top, at_right] * right
    lower = image[at_bottom, at_left] * (1 - right) + image[at_bottom, at_right] * right
    out: Pixels = upper * (1 - down) + lower * down
    return out


def plasma(generators: Generators, size: tuple[int, int], decay: float) -> Pixels:
    """Return fractal heights by the diamond-square rule on a torus.

    A new point is the mean of its four neighbours plus noise in +-swing^2; swing is 100 and falls
    by `decay` from level to level. The torus is the smallest power of two that holds the image.

    Args:
        generators: One generator per image.
        size: Height and width.
        decay: How fast the noise falls.

    Returns:
        Heights (N, *size) in 0..1.
    """
    side = 1 << (max(size) - 1).bit_length()
    heights = np.zeros((len(generators), side, side))
    step, swing = side, 100.0
    while step >= 2:
        half = step // 2
        count = side // step

        def noise(count: int = count, swing: float = swing) -> Pixels:
            return swing**2 * drawn(generators, lambda g: g.uniform(-1, 1, (count, count)))

        corners = heights[:, ::step, ::step]
        pairs = corners + np.roll(corners, -1, 1)
        centres = (pairs + np.roll(pairs, -1, 2)) / 4 + noise()
        across = centres + np.roll(centres, 1, 1) + corners + np.roll(corners, -1, 2)
        along = centres + np.roll(centres, 1, 2) + corners + np.roll(corners, -1, 1)
        heights[:, half::step, half::step] = centres
        heights[:, ::step, half::step] = across / 4 + noise()
        heights[:, half::step, ::step] = along / 4 + noise()
        step, swing = half, swing / decay
    heights -= heights.min(axis=(1, 2), keepdims=True)
    peak = heights.max(axis=(1, 2), keepdims=True)
    return (heights / np.where(peak > 0, peak, 1.0))[:, : size[0], : size[1]]
