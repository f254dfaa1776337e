"""Colour images of 16 bits per value with all of their bits: Pillow keeps the upper eight alone.

Twelve bits stored in sixteen would have four left. Pillow unpacks such rows by a name for the order
of the two bytes of a value; under the name of the other order it keeps the lower byte instead.
"""

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

GREY_AND_OPACITY = "LA;16B"  # four bytes per pixel, as RGBA of eight bits has
COLOURS = ("RGB;16", "RGBA;16", "RGBX;16")  # followed by the order of bytes: B, L or N (native)
OTHER_ORDER = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}


def order_of_bytes(opened: "Image") -> str:
    """Return Pillow's name for how an opened, not yet loaded file packs 16-bit colours.

    Args:
        opened: The file.

    Returns:
        The name; empty where it has no such colours.
    """
    tiles = getattr(opened, "tile", ())
    packed = _packed(tiles[0].args) if tiles else ""
    return packed if packed == GREY_AND_OPACITY or packed[:-1] in COLOURS else ""


def sixteen_bits(
    opened: "ImageFile", again: "ImageFile"
) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8] | None]:
    """Read 16-bit values with all of their bits.

    Args:
        opened: A file for which `order_of_bytes` is not empty, not yet loaded.
        again: The same file opened a second time.

    Returns:
        Values (H, W, 3), or (H, W) of grey, and opacity (H, W) of 0 to 255, or None without it.
    """
    from PIL import ImageOps

    packed = order_of_bytes(opened)
    grey = packed == GREY_AND_OPACITY
    other = "RGBA" if grey else packed[:-1] + OTHER_ORDER[packed[-1]]
    again.tile = [tile._replace(args=_repacked(tile.args, other)) for tile in again.tile]
    lower = np.asarray(ImageOps.exif_transpose(again)).astype(np.uint16)
    if grey:
        return lower[..., 0] << 8 | lower[..., 1], lower[..., 2].astype(np.uint8)
    upper = np.asarray(ImageOps.exif_transpose(opened)).astype(np.uint16)
    alpha = upper[..., 3].astype(np.uint8) if upper.shape[-1] == 4 else None
    return (upper << 8 | lower)[..., :3], alpha


def _packed(args: Any) -> str:
    """The name in the arguments of Pillow's decoder: alone, or the first of several."""
    first = args[0] if isinstance(args, tuple) and args else args
    return first if isinstance(first, str) else ""


def _repacked(args: Any, name: str) -> Any:
    return (name, *args[1:]) if isinstance(args, tuple) else name
