"""Images of more than eight bits per value, and how they become eight.

Cameras and scanners store 10, 12 or 14 bits in files of 16, and few files say so: taken as 16 bits,
12 come out nearly black. White is therefore the largest value of the smallest usual number of bits
that holds every value *of a set*: one scale per set (per client or domain, where it has some), so
that a dark image stays darker than a bright one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL.Image import Image

LEVELS = tuple((1 << bits) - 1 for bits in (8, 10, 12, 14, 16, 24, 32))  # whites
UNIT = 1.0  # white of floats that are fractions
BACKGROUND = (255, 255, 255)  # behind transparent pixels
FIRST = "several frames or pages: the first is read"
TRANSPARENT = "transparent: laid on white"


class Whites(NamedTuple):
    """The values that become white (255) in a set, for files that do not say it themselves.

    Attributes:
        integers: 2**bits - 1; 0 where the set has no such files.
        floats: 1.0, or 2**bits - 1; 0.0 where the set has no such files.
    """

    integers: int
    floats: float


@dataclass(frozen=True, eq=False)
class Decoded:
    """The content of an image file, as far as the file alone tells it.

    Attributes:
        format: name of the file's format, such as JPEG.
        image: the image as RGB; None where `values` hold it.
        values: numbers (H, W) or (H, W, 3), integers or floats; None where `image` holds it.
        alpha: opacity (H, W) of `values`, 0 to 255; None where there is none.
        white: the value of `values` that is white; 0 where the file does not say.
        inverted: whether small values are bright.
        remarks: what was done to the file that its owner may want to know.
    """

    format: str
    image: "Image | None" = None
    values: npt.NDArray[Any] | None = None
    alpha: npt.NDArray[np.uint8] | None = None
    white: float = 0
    inverted: bool = False
    remarks: tuple[str, ...] = ()

    @property
    def top(self) -> float | None:
        """Return the largest value, where white must be found from the values.

        None where it is known.

        It is an integer for integers and a float for floats, so that the two are told apart.
        """
        if self.values is None or self.white:
            return None
        if self.values.dtype.kind == "f":
            return float(np.nan_to_num(self.values, posinf=0, neginf=0).max(initial=0))
        return int(self.values.max(initial=0))

    def rgb(self, whites: Whites | None = None) -> "Image":
        """Return the image as RGB of eight bits.

        Args:
            whites: The values that become white; None: the image's own values choose the scale.

        Returns:
            The image.
        """
        from PIL import Image

        if self.image is not None:
            return self.image
        assert self.values is not None
        white = self.white or _of_kind(self.values, whites or Whites(0, 0.0))
        if not white and self.top is not None:
            white = _of_kind(self.values, whites_of([self.top]))
        grey = eight_bits(self.values, white)
        image = Image.fromarray(255 - grey if self.inverted else grey).convert("RGB")
        return image if self.alpha is None else on_white(image, Image.fromarray(self.alpha))


def whites_of(tops: Iterable[float]) -> Whites:
    """Find white for the files of a set.

    Args:
        tops: The largest value of each file.

    Returns:
        The values that become white.

    >>> whites_of([900, 4000, 0.8])
    Whites(integers=4095, floats=1.0)
    """
    tops = list(tops)
    integers = [top for top in tops if isinstance(top, int)]
    floats = [top for top in tops if not isinstance(top, int)]
    below_one = max(floats, default=0.0) <= UNIT
    return Whites(
        integers=_white(max(integers)) if integers else 0,
        floats=0.0 if not floats else UNIT if below_one else float(_white(max(floats))),
    )


def eight_bits(values: npt.NDArray[Any], white: float) -> npt.NDArray[np.uint8]:
    """Scale values to 0..255; of integers the upper eight bits are kept.

    Values below 0 become black, as do floats that are no numbers; those above white become white.

    Args:
        values: The values.
        white: The value that becomes 255.

    Returns:
        Values of the same shape, uint8.
    """
    if values.dtype.kind == "f":
        scaled = np.nan_to_num(values.astype(np.float64), posinf=white, neginf=0) * (255 / white)
        return np.clip(scaled, 0, 255).astype(np.uint8)
    clipped = np.clip(values.astype(np.int64), 0, int(white))
    if white < 255:
        return (clipped * 255 // int(white)).astype(np.uint8)
    return (clipped * 256 // (int(white) + 1)).astype(np.uint8)


def bits(white: float) -> str:
    """Describe a white value in words.

    Args:
        white: The value.

    Returns:
        Words such as `12 bits`.

    >>> bits(4095), bits(1.0)
    ('12 bits', 'fractions of 1')
    """
    return "fractions of 1" if white == UNIT else f"{int(white).bit_length()} bits"


def on_white(image: "Image", opacity: "Image") -> "Image":
    """Lay an RGB image on a white ground.

    Args:
        image: The image.
        opacity: Its opacity.

    Returns:
        The image without transparent parts.
    """
    from PIL import Image

    ground = Image.new("RGB", image.size, BACKGROUND)
    ground.paste(image, mask=opacity)
    return ground


def _white(top: float) -> int:
    """The largest value of the smallest usual number of bits that holds `top`."""
    return next((white for white in LEVELS if top <= white), LEVELS[-1])


def _of_kind(values: npt.NDArray[Any], whites: Whites) -> float:
    return whites.floats if values.dtype.kind == "f" else whites.integers
