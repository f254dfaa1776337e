"""Read an image file of any known format as RGB of eight bits, or say why it cannot be read."""

import struct
import threading
import warnings
import zlib
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from focoop.data import formats
from focoop.data.deep_colour import order_of_bytes, sixteen_bits
from focoop.data.depth import FIRST, TRANSPARENT, Decoded, Whites, on_white
from focoop.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

EXTRA = "pip install 'focoop[formats]'"
NO_IMAGE = "not an image, or of an unknown format"
EMPTY = "empty"
NO_FILE = "not a regular file"
ABSENT = "there is no such file"
CUT = "cut off: the end of the file is missing"
DAMAGED = "damaged"
TOO_LARGE = "more than 179 million pixels"
DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")
# Tags of TIFF: bits per value, and which values are bright (0: the small ones).
BITS_PER_SAMPLE, PHOTOMETRIC, SMALL_IS_BRIGHT = 258, 262, 0
_filters = threading.Lock()  # warning filters belong to the whole process
# What decoders raise on bad files.
READER_ERRORS: tuple[type[Exception], ...] = (
    *(OSError, ValueError, SyntaxError, EOFError, RuntimeError, ArithmeticError, LookupError),
    *(TypeError, AttributeError, struct.error, zlib.error),
)


class UnreadableImageError(DataError):
    """An image file that cannot be read.

    Args:
        path: The file.
        reason: Why, without the file's name: equal for files that fail alike.
        mendable: Whether the file may be sound and a package is missing to read it.
    """

    def __init__(self, path: Path, reason: str, *, mendable: bool = False) -> None:
        self.reason = reason
        self.mendable = mendable
        advice = "then run again" if mendable else "replace it or remove it, then run again"
        super().__init__(f"image {path} cannot be read ({reason}): {advice}")


class MissingPackageError(Exception):
    """A format whose reader is not installed; its text says what to install."""


class PlainError(ValueError):
    """A file that is no image of its format; its text is the reason a user reads."""


def read_rgb(
    path: Path, *, small: bool = False, whites: Whites | None = None, turned: bool = True
) -> "Image":
    """An image file as RGB, upright, eight bits per value, transparent parts laid on white.

    Args:
        path: the file.
        small: look only whether it can be read: a JPEG is decoded at an eighth of its side, which
            is quicker, from all of its bytes.
        whites: the values that become white, where the file does not say: those of its set. None
            takes those that the file's own values suggest.
        turned: turn the image upright by its EXIF tag; False: as it is stored.

    Returns:
        The image.

    Raises:
        UnreadableImageError: the file is no image, is damaged, or needs a package.
    """
    return decode(path, small=small, turned=turned).rgb(whites)


def decode(path: Path, *, small: bool = False, turned: bool = True) -> Decoded:
    """The content of an image file; the first image where it holds several.

    Args:
        path: the file. A pipe or a device is refused without being opened.
        small: look only whether it can be read, and find what there is to remark.
        turned: turn the image upright by its EXIF tag; False: as it is stored.

    Returns:
        What the file holds.

    Raises:
        UnreadableImageError: the file is no image, is damaged, or needs a package.
    """
    from PIL import Image

    try:
        start = formats.head(path)
        if not start:
            raise UnreadableImageError(path, EMPTY)
        if formats.is_dicom(start) or formats.suffix(path.name) in formats.DICOM_SUFFIXES:
            from focoop.data.dicom import decode_dicom

            return quietly(lambda: decode_dicom(path))
        if formats.is_heif(start):
            return from_heif(path)
        if formats.is_avif(start) and "AVIF" not in pillow_formats():
            raise MissingPackageError("AVIF needs Pillow 11.3 or newer: pip install -U pillow")
        return from_pillow(path, small, turned)
    except MissingPackageError as error:
        raise UnreadableImageError(path, str(error), mendable=True) from error
    except Image.DecompressionBombError as error:
        raise UnreadableImageError(path, TOO_LARGE) from error
    except READER_ERRORS as error:
        raise UnreadableImageError(path, plain_reason(error)) from error


def plain_reason(error: Exception) -> str:
    """Say what a decoder's error means, in words that are equal for files that fail alike.

    Args:
        error: The error.

    Returns:
        The reason.
    """
    if isinstance(error, formats.NotAFile):
        return NO_FILE
    if isinstance(error, FileNotFoundError):
        return ABSENT
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    message = str(error)
    if type(error).__name__ == "UnidentifiedImageError":
        return NO_IMAGE
    if "truncated" in message.lower() or isinstance(error, EOFError):
        return CUT
    return message if isinstance(error, PlainError) or message.startswith("conversion") else DAMAGED


def quietly(work: Callable[[], Decoded]) -> Decoded:
    """Do some work on a file without the warnings of its library, one file at a time.

    Args:
        work: The work.

    Returns:
        What the work returns.
    """
    with _filters, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return work()


def as_rgb(image: "Image") -> "Image":
    """Convert an image that Pillow has opened to RGB, by the rules for files.

    Args:
        image: The image.

    Returns:
        The image in RGB, upright, on white.
    """
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(image)
    if upright.mode in DEEP_MODES:
        return Decoded("", values=np.asarray(upright)).rgb()
    return _flat("", upright).rgb()


def from_pillow(source: Path | bytes, small: bool = False, turned: bool = True) -> Decoded:
    """The content of a file that Pillow reads.

    Args:
        source: The file, or its bytes.
        small: Look only whether it can be read.
        turned: Turn the image upright by its EXIF tag.

    Returns:
        What the file holds.
    """
    from PIL import ImageOps

    with opened_by_pillow(source) as opened:
        kind = opened.format or ""
        remarks = (FIRST,) if small and _has_several(opened) else ()
        if order_of_bytes(opened):
            with opened_by_pillow(source) as again:
                values, alpha = sixteen_bits(opened, again)
            return _deep(kind, values, alpha, remarks)
        white, inverted = _stated_white(opened), _tag(opened, PHOTOMETRIC) == SMALL_IS_BRIGHT
        if small:
            opened.draft("RGB", (1, 1))
        upright = ImageOps.exif_transpose(opened) if turned else opened
        if upright.mode not in DEEP_MODES:
            return _flat(kind, upright, remarks)
        values = np.array(upright)
        return Decoded(kind, values=values, white=white, inverted=inverted, remarks=remarks)


def opened_by_pillow(
    source: Path | bytes, formats_read: tuple[str, ...] | None = None
) -> "ImageFile":
    """Open an image; its size is known then, and no pixel has been decoded.

    Args:
        source: The file, or its bytes.
        formats_read: Names of Pillow's readers that may look into it; None: all that are known.

    Returns:
        The opened image.
    """
    from PIL import Image

    file = BytesIO(source) if isinstance(source, bytes) else source
    with _filters, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        wanted = pillow_formats() if formats_read is None else formats_read
        return Image.open(file, formats=wanted)


def _flat(kind: str, image: "Image", remarks: tuple[str, ...] = ()) -> Decoded:
    """An image of eight bits per value, in any colours, as RGB."""
    if not image.has_transparency_data:
        return Decoded(kind, image.convert("RGB"), remarks=remarks)
    clear = image.convert("RGBA")
    opacity, colours = clear.getchannel("A"), clear.convert("RGB")
    if np.asarray(opacity).min(initial=255) == 255:  # nothing shines through
        return Decoded(kind, colours, remarks=remarks)
    return Decoded(kind, on_white(colours, opacity), remarks=(*remarks, TRANSPARENT))


def _deep(kind: str, values: Any, alpha: Any, remarks: tuple[str, ...]) -> Decoded:
    """An image of 16 bits per value whose white only the values tell."""
    if alpha is None or alpha.min(initial=255) == 255:
        return Decoded(kind, values=values, remarks=remarks)
    return Decoded(kind, values=values, alpha=alpha, remarks=(*remarks, TRANSPARENT))


def _has_several(opened: "Image") -> bool:
    """Whether a file holds several frames or pages; a JPEG's previews (MPO) are none."""
    return opened.format != "MPO" and bool(getattr(opened, "is_animated", False))


def _stated_white(opened: "Image") -> float:
    """The value that is white where the format or the file says so; else 0."""
    if opened.format in ("JPEG2000", "PPM") and opened.mode != "F":
        return 65535  # Pillow has scaled the values
    bits = _tag(opened, BITS_PER_SAMPLE)
    return 2 ** bits[0] - 1 if isinstance(bits, tuple) and bits[0] == 12 else 0


def _tag(opened: "Image", tag: int) -> Any:
    """The value of a tag of a TIFF file; None without it."""
    return opened.tag_v2.get(tag) if hasattr(opened, "tag_v2") else None


def from_heif(source: Path | bytes, pixels: int | None = None) -> Decoded:
    """A photograph in HEIC or HEIF; the library turns it upright.

    Args:
        source: The file, or its bytes.
        pixels: The largest number of pixels that is decoded; None: any.

    Returns:
        What the file holds.

    Raises:
        MissingPackageError: The reader is not installed.
        PlainError: It has more pixels.
    """
    try:
        import pillow_heif
    except ImportError as error:
        raise MissingPackageError(f"HEIC needs the package pillow-heif: {EXTRA}") from error
    container = pillow_heif.open_heif(BytesIO(source) if isinstance(source, bytes) else source)
    if pixels is not None and container.size[0] * container.size[1] > pixels:
        raise PlainError(f"more than {pixels} pixels")
    return _flat("HEIC", container.to_pillow(), (FIRST,) if len(container) > 1 else ())


@cache
def pillow_formats() -> tuple[str, ...]:
    """Return the formats that the installed Pillow reads, of those that are images here."""
    from PIL import Image, features

    Image.init()
    names = [name for name in formats.PILLOW_FORMATS if name in Image.OPEN]
    if not features.check("avif") and "AVIF" in names:
        names.remove("AVIF")
    return tuple(names)
