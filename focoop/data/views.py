"""Alter images before a backbone sees them: corruptions and random views.

Random views are for training with augmentation, as CLIP prompt learners take them. A view is a
random crop of 8 % to 100 % of the area and of a width to height ratio of 3/4 to 4/3, resized to the
backbone's square by bicubic interpolation, and mirrored half of the time.
"""

import math
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from focoop.data.corruptions.apply import CHUNK, corrupt_batch
from focoop.data.image_set import ImageSet
from focoop.seeds import numpy_generator

if TYPE_CHECKING:
    from PIL.Image import Image

SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
ATTEMPTS = 10
# Part of the key of cached features: change it when the same image gives other views.
RECIPE = "crop of area 0.08-1 and ratio 3/4-4/3, bicubic, mirrored at 1/2"


def altered(
    images: ImageSet,
    rows: range,
    corruption: str | None,
    severity: int,
    augmented: int,
    side: int,
) -> Iterator["Image"]:
    """Read images, corrupted where asked for, and as a random view where asked for.

    Draws depend on an image's name, the corruption and the number of the view, nothing else.

    Args:
        images: The images.
        rows: Which of them.
        corruption: Name of a corruption, or None.
        severity: 1 to 5 of the corruption.
        augmented: Number of the random view; 0: the image itself.
        side: Pixels of a view's side.

    Yields:
        The images in turn.
    """
    opened = (images.image(row) for row in rows)
    if corruption is not None:
        from PIL import Image

        pixels = _corrupted(images, rows, opened, corruption, severity)
        opened = (Image.fromarray(array) for array in pixels)
    for row, image in zip(rows, opened, strict=True):
        if augmented:
            generator = numpy_generator(0, "view", augmented, images.files[row])
            image = random_view(image, side, generator)
        yield image


def _corrupted(
    images: ImageSet, rows: range, opened: Iterator["Image"], corruption: str, severity: int
) -> Iterator[Any]:
    """Pixels of each image, corrupted; neighbours of one size are worked on together."""
    pixels = (np.asarray(image, dtype=np.uint8) for image in opened)
    named = zip((images.files[row] for row in rows), pixels, strict=True)
    for _, alike in groupby(enumerate(named), key=_together):
        keys, stack = zip(*(member for _, member in alike), strict=True)
        yield from corrupt_batch(np.stack(stack), corruption, severity, keys)


def _together(item: tuple[int, tuple[str, Any]]) -> tuple[Any, int]:
    """Equal for neighbours of one size, up to a bound on their pixels."""
    place, (_, pixels) = item
    return pixels.shape, place // max(1, CHUNK // max(1, pixels[..., 0].size))


def random_view(image: "Image", side: int, generator: np.random.Generator) -> "Image":
    """Return a random view of an image.

    Args:
        image: The image.
        side: Pixels of the view's side.
        generator: Draws the crop.

    Returns:
        The view.
    """
    from PIL import Image

    left, top, width, height = random_box(image.width, image.height, generator)
    view = image.crop((left, top, left + width, top + height))
    view = view.resize((side, side), Image.Resampling.BICUBIC)
    if generator.random() < 0.5:
        view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return view


def random_box(
    width: int, height: int, generator: np.random.Generator
) -> tuple[int, int, int, int]:
    """Draw a crop: area uniform, ratio uniform in its logarithm.

    Crops that stick out are drawn again; after ten of them the largest middle crop of an allowed
    ratio is taken.

    Args:
        width: Width of the image.
        height: Height of the image.
        generator: Draws the crop.

    Returns:
        Left, top, width and height.
    """
    for _ in range(ATTEMPTS):
        area = width * height * generator.uniform(*SCALE)
        ratio = math.exp(generator.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left = int(generator.integers(0, width - across + 1))
            top = int(generator.integers(0, height - down + 1))
            return left, top, across, down
    across = min(width, max(1, round(height * RATIO[1])))
    down = min(height, max(1, round(width / RATIO[0])))
    return (width - across) // 2, (height - down) // 2, across, down
