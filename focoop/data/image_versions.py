"""Other versions of images: reduced to a side, or cut into blocks and shuffled."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from focoop.data.content_hash import data_hash
from focoop.data.image_set import ImageSet
from focoop.seeds import numpy_generator

if TYPE_CHECKING:
    from PIL.Image import Image

BLOCKS = 4  # on a side of a shuffled image
# Part of the hash of such images: change it when the same image gives other pixels.
RECIPE = "centre square, bicubic; 4 x 4 blocks in an order drawn from the file's name"


def rendered(
    images: ImageSet, side: int = 0, shuffled: bool = False, cache_dir: Path | None = None
) -> ImageSet:
    """The same images reduced to `side` px (0: not) and `shuffled` where asked for.

    Args:
        images: what is rendered, when it is opened.
        side: px of the square that is made of the centre of every image.
        shuffled: whether 4 x 4 blocks of every image are put together in random order.
        cache_dir: where hashes of files are remembered; None: the default.

    Returns:
        Images with the names, labels and domains of the given ones.
    """
    if not side and not shuffled:
        return images
    return replace(images, store=_Rendered(images, side, shuffled, cache_dir))


@dataclass(frozen=True)
class _Rendered:
    """A store of images that are made of others."""

    images: ImageSet
    side: int
    shuffled: bool
    cache_dir: Path | None

    def image(self, row: int) -> "Image":
        """The image of one row as RGB."""
        image = self.images.image(row)
        if self.side:
            image = reduced(image, self.side)
        if self.shuffled:
            image = shuffle(image, numpy_generator(0, "shuffled", self.images.files[row]))
        return image

    def digest(self) -> str:
        """Hash of the content of the images and of what is made of them."""
        made = [data_hash(self.images, self.cache_dir), self.side, self.shuffled, RECIPE]
        return hashlib.sha256(repr(made).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.images)


def reduced(image: "Image", side: int) -> "Image":
    """Return the centre square of an image at another size.

    Args:
        image: The image.
        side: Pixels of the new side.

    Returns:
        The reduced image.
    """
    from PIL import Image

    length = min(image.size)
    left, top = (image.width - length) // 2, (image.height - length) // 2
    square = image.crop((left, top, left + length, top + length))
    return square.resize((side, side), Image.Resampling.BICUBIC)


def shuffle(image: "Image", generator: np.random.Generator, blocks: int = BLOCKS) -> "Image":
    """Put the blocks of an image together in random order.

    What no block covers at the right and bottom is lost.

    Args:
        image: The image.
        generator: Draws the order.
        blocks: Blocks along each side.

    Returns:
        The shuffled image.
    """
    from PIL import Image

    wide, high = (max(1, side // blocks) for side in image.size)
    across, down = min(blocks, image.width // wide), min(blocks, image.height // high)
    pixels = np.asarray(image)[: down * high, : across * wide]
    cut = pixels.reshape(down, high, across, wide, 3).swapaxes(1, 2).reshape(-1, high, wide, 3)
    mixed = cut[generator.permutation(len(cut))].reshape(down, across, high, wide, 3)
    return Image.fromarray(mixed.swapaxes(1, 2).reshape(down * high, across * wide, 3))
