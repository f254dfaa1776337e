"""Read an image that came over a network: from its bytes, within limits, by the rules for files.

What is refused is refused before its pixels take memory: the format by its first bytes, the size by
its header. Nothing is written to the disk.
"""

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from focoop.data import formats
from focoop.data.decoding import (
    EMPTY,
    NO_IMAGE,
    READER_ERRORS,
    MissingPackageError,
    PlainError,
    from_heif,
    from_pillow,
    opened_by_pillow,
    pillow_formats,
    plain_reason,
)
from focoop.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

SCANS = 100  # of a JPEG; a progressive one has about ten, one made to keep a processor busy many
HEIF = "HEIF"
READER_ERRORS_AND_WARNINGS: tuple[type[Exception], ...] = (*READER_ERRORS, Warning)
# Formats of photographs and figures. JPEG 2000 and DICOM decode too slowly or too freely to be
# taken from strangers.
OPEN_FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", HEIF)


class RefusedImage(DataError):
    """An image that is not decoded.

    Args:
        reason: Why, in words for the one who sent it.
        kind: `format` (not an image that is read here), `size` (too many pixels) or `damaged`.
    """

    def __init__(self, reason: str, kind: str) -> None:
        super().__init__(reason)
        self.reason, self.kind = reason, kind


def rgb_from_bytes(content: bytes, *, pixels: int, names: Sequence[str] = OPEN_FORMATS) -> "Image":
    """Decode an image as RGB, upright, eight bits per value, transparent parts laid on white.

    Args:
        content: All bytes of the file.
        pixels: The largest number of pixels that is decoded.
        names: Formats that are read, of `OPEN_FORMATS`.

    Returns:
        The image.

    Raises:
        RefusedImage: It is no image of these formats, is too large, or is damaged.
    """
    from PIL import Image

    try:
        return _decoded(content, pixels, names)
    except MissingPackageError as error:
        raise RefusedImage(str(error), "format") from error
    except Image.DecompressionBombError as error:
        raise RefusedImage(_too_large(pixels), "size") from error
    except MemoryError as error:
        raise RefusedImage("too large for the memory that is left", "size") from error
    except READER_ERRORS_AND_WARNINGS as error:
        reason = plain_reason(error)
        raise RefusedImage(reason, "format" if reason == NO_IMAGE else "damaged") from error


def _decoded(content: bytes, pixels: int, names: Sequence[str]) -> "Image":
    """The image, with no thought for what readers raise."""
    if not content:
        raise RefusedImage(EMPTY, "damaged")
    start = content[: formats.HEAD]
    if formats.is_dicom(start):
        raise RefusedImage("DICOM is not read here: send it as PNG", "format")
    if formats.is_heif(start):
        if HEIF not in names:
            raise RefusedImage(f"not an image of the formats {', '.join(names)}", "format")
        try:
            return from_heif(content, pixels).rgb()
        except PlainError as error:
            raise RefusedImage(_too_large(pixels), "size") from error
    if _webp_pixels(start) > pixels:  # opening it would reserve memory for all of them
        raise RefusedImage(_too_large(pixels), "size")
    if content.startswith(b"\xff\xd8") and content.count(b"\xff\xda") > SCANS:
        raise RefusedImage(f"a JPEG of more than {SCANS} scans", "damaged")
    readers = tuple(name for name in pillow_formats() if name in names)
    with opened_by_pillow(content, readers) as opened:
        width, height = opened.size
    if width * height > pixels:
        raise RefusedImage(_too_large(pixels), "size")
    if width == 0 or height == 0:
        raise RefusedImage("an image without pixels", "damaged")
    return from_pillow(content).rgb()


def _too_large(pixels: int) -> str:
    return f"more than {pixels / 1e6:.3g} million pixels: send it smaller"


def _webp_pixels(start: bytes) -> int:
    """The pixels that the header of a WebP file announces; 0 for all other files."""
    if start[:4] != b"RIFF" or start[8:12] != b"WEBP" or len(start) < 30:
        return 0
    kind = start[12:16]
    if kind == b"VP8X":
        width = int.from_bytes(start[24:27], "little") + 1
        height = int.from_bytes(start[27:30], "little") + 1
    elif kind == b"VP8L":
        packed = struct.unpack("<I", start[21:25])[0]
        width, height = (packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1
    else:
        width, height = (side & 0x3FFF for side in struct.unpack("<HH", start[26:30]))
    return int(width * height)
