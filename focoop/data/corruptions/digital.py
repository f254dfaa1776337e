"""Colour, geometry and compression."""

from io import BytesIO

import numpy as np

from focoop.data.corruptions.filters import Generators, Pixels, sample, smooth_field
from focoop.data.corruptions.table import Strength


def brightness(pixels: Pixels, strength: Strength, _: Generators) -> Pixels:
    """Add c to the V channel of HSV.

    RGB is proportional to V at fixed hue and saturation, so no conversion is needed; black has
    saturation 0 and becomes grey.
    """
    value = pixels.max(axis=-1, keepdims=True)
    raised = np.clip(value + strength[0], 0.0, 1.0)
    scaled = pixels * (raised / np.where(value > 0, value, 1.0))
    out: Pixels = np.where(value > 0, scaled, raised)
    return out


def contrast(pixels: Pixels, strength: Strength, _: Generators) -> Pixels:
    """Pull every channel to its mean over the image: (x - mean) c + mean."""
    # One mean at a time: the order of a sum over a stack may depend on the stack's size.
    means = np.stack([image.mean(axis=(0, 1), keepdims=True) for image in pixels])
    out: Pixels = (pixels - means) * strength[0] + means
    return out


def saturate(pixels: Pixels, strength: Strength, _: Generators) -> Pixels:
    """S of HSV becomes a S + b, cut to 0..1: (a, b).

    At fixed hue and V, the distance of a channel from V is proportional to S. Greys have the hue
    of red, as in the published sets: with b > 0 they turn reddish.
    """
    factor, addend = strength
    value = pixels.max(axis=-1, keepdims=True)
    spread = value - pixels.min(axis=-1, keepdims=True)
    saturation = spread / np.where(value > 0, value, 1.0)
    below = (value - pixels) / np.where(spread > 0, spread, 1.0)  # 0 at V, 1 at the least channel
    below = np.where(spread > 0, below, np.array([0.0, 1.0, 1.0]))
    out: Pixels = value * (1 - np.clip(saturation * factor + addend, 0, 1) * below)
    return out


def jpeg_compression(pixels: Pixels, strength: Strength, _: Generators) -> Pixels:
    """Through a JPEG file of quality c."""
    from PIL import Image

    out = []
    for image in _bytes(pixels):
        file = BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=int(strength[0]))
        with Image.open(file) as opened:
            out.append(np.asarray(opened, dtype=np.float64))
    return np.stack(out) / 255.0


def pixelate(pixels: Pixels, strength: Strength, _: Generators) -> Pixels:
    """Box-resized to c times the size and back."""
    from PIL import Image

    height, width = pixels.shape[1:3]
    small = (max(1, int(width * strength[0])), max(1, int(height * strength[0])))
    out = []
    for image in _bytes(pixels):
        shrunk = Image.fromarray(image).resize(small, Image.Resampling.BOX)
        back = shrunk.resize((width, height), Image.Resampling.BOX)
        out.append(np.asarray(back, dtype=np.float64))
    return np.stack(out) / 255.0


def elastic_transform(pixels: Pixels, strength: Strength, generators: Generators) -> Pixels:
    """A random affine map, then a smooth random shift of each pixel.

    The numbers are shares of the shorter side: (amplitude of the shifts, sigma of their Gaussian,
    reach of the affine map). The map moves three corners of a square in the middle, of 2/3 the
    shorter side, each coordinate by up to the reach.
    """
    height, width = pixels.shape[1:3]
    side = min(height, width)
    amplitude, sigma, reach = (share * side for share in strength)
    rows, columns = np.mgrid[:height, :width].astype(np.float64)
    out = np.empty_like(pixels)
    for i, (image, generator) in enumerate(zip(pixels, generators, strict=True)):
        place = _affine(height, width, generator.uniform(-reach, reach, (3, 2)))
        at = (axis[0] + axis[1] * rows + axis[2] * columns for axis in place)
        image = sample(image, *at, repeat_edge=False)
        noise = generator.uniform(-1, 1, (2, height, width))
        right, down = (amplitude * smooth_field(field, sigma, truncate=3) for field in noise)
        out[i] = sample(image, rows + down, columns + right, repeat_edge=True)
    return out


def _affine(height: int, width: int, moves: Pixels) -> Pixels:
    """Where the affine map takes its pixels from: rows (2, 3) of (offset, per row, per column)."""
    centre = np.array([height // 2, width // 2], dtype=np.float64)
    reach = min(height, width) // 3
    if reach == 0:  # too small an image for three distinct points
        return np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    corners = centre + reach * np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]])
    moved = np.concatenate([np.ones((3, 1)), corners + moves], axis=1)
    if abs(np.linalg.det(moved)) < 1e-6:  # the moved points lie on a line: no map back
        return np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    out: Pixels = np.linalg.solve(moved, corners).T
    return out


def _bytes(pixels: Pixels) -> np.ndarray:
    return (pixels * 255.0 + 0.5).astype(np.uint8)
