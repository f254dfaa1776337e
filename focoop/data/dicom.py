"""DICOM images as a viewer first shows them: rescaled, and through their window.

Without a window or a table of its own, an image is scaled by its number of stored bits. Files that
say 16 bits, which says little, share the scale of their set (`focoop/data/depth.py`).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from focoop.data.decoding import EXTRA, MissingPackageError, PlainError
from focoop.data.depth import FIRST, Decoded, eight_bits

if TYPE_CHECKING:
    from pydicom import Dataset

KIND = "DICOM"
FULL = 16  # stored bits that may hold fewer
NO_WINDOW = "DICOM of signed values without a window: the smallest is black, the largest white"
Array = npt.NDArray[Any]


def decode_dicom(path: Path) -> Decoded:
    """Read the first frame of a DICOM file.

    Args:
        path: The file.

    Returns:
        What the file holds.

    Raises:
        MissingPackageError: pydicom, or what its compression needs, is not installed.
        PlainError: There are no pixels in it.
    """
    try:
        from pydicom import dcmread
        from pydicom.pixels.utils import pixel_array
    except ImportError as error:
        raise MissingPackageError(f"DICOM needs the package pydicom: {EXTRA}") from error
    data = dcmread(path, force=True)  # old files lack the letters DICM
    if "PixelData" not in data:
        raise PlainError("not a DICOM file, or one without pixels")
    try:
        values = pixel_array(data, index=0)
    except (RuntimeError, NotImplementedError) as error:
        if "missing dependencies" not in str(error) and "decompress" not in str(error):
            raise
        raise MissingPackageError(
            f"DICOM compressed as {data.file_meta.TransferSyntaxUID.name}: store it uncompressed, "
            "or pip install pylibjpeg pylibjpeg-libjpeg pylibjpeg-openjpeg"
        ) from error
    remarks = (FIRST,) if int(data.get("NumberOfFrames") or 1) > 1 else ()
    colours = str(data.PhotometricInterpretation)
    if colours == "PALETTE COLOR":
        from pydicom.pixels.processing import apply_color_lut

        values = apply_color_lut(values, data)
        return _image(eight_bits(values, np.iinfo(values.dtype).max), remarks)
    if values.ndim == 3:
        return _stored(data, values, False, remarks)
    return _grey(data, values, colours == "MONOCHROME1", remarks)


def _grey(data: "Dataset", values: Array, inverted: bool, remarks: tuple[str, ...]) -> Decoded:
    """Grey values through the file's table or window, else by their stored bits."""
    shares = _through_table(data, values)
    if shares is None:
        shares = _through_window(data, values)
    if shares is None and values.dtype.kind != "i":
        return _stored(data, values, inverted, remarks)
    if shares is None:
        low, high = float(values.min()), float(values.max())
        shares = (values - low) / (high - low or 1)
        remarks = (*remarks, NO_WINDOW)
    grey = np.clip(np.rint(shares * 255), 0, 255).astype(np.uint8)
    return _image(255 - grey if inverted else grey, remarks)


def _stored(data: "Dataset", values: Array, inverted: bool, remarks: tuple[str, ...]) -> Decoded:
    """Values as they are stored; white is what the stored bits hold, if they are less than 16."""
    stored = int(data.BitsStored)
    white = 0 if stored == FULL else 2**stored - 1
    return Decoded(KIND, values=values, white=white, inverted=inverted, remarks=remarks)


def _image(pixels: npt.NDArray[np.uint8], remarks: tuple[str, ...]) -> Decoded:
    from PIL import Image

    return Decoded(KIND, Image.fromarray(pixels).convert("RGB"), remarks=remarks)


def _through_table(data: "Dataset", values: Array) -> Array | None:
    """Brightness 0 to 1 by the file's own table of values (VOI LUT); None without one."""
    if not data.get("VOILUTSequence"):
        return None
    from pydicom.pixels.processing import apply_voi

    bits = int(data.VOILUTSequence[0].LUTDescriptor[2])
    shown = np.asarray(apply_voi(_rescaled(data, values), data), dtype=np.float64)
    return np.asarray(shown / (2**bits - 1))


def _through_window(data: "Dataset", values: Array) -> Array | None:
    """Brightness by the first window (DICOM PS3.3, C.11.2); None without one."""
    centre, width = (_first(_find(data, name)) for name in ("WindowCenter", "WindowWidth"))
    if centre is None or width is None or width <= 0:
        return None
    rescaled = np.asarray(_rescaled(data, values), dtype=np.float64)
    function = str(_find(data, "VOILUTFunction") or "LINEAR").upper()
    if function == "SIGMOID":
        return np.asarray(1 / (1 + np.exp(-4 * (rescaled - centre) / width)))
    if function == "LINEAR_EXACT":
        return np.clip((rescaled - centre) / width + 0.5, 0, 1)
    return np.clip((rescaled - (centre - 0.5)) / max(width - 1, 1e-6) + 0.5, 0, 1)


def _rescaled(data: "Dataset", values: Array) -> Array:
    """Values in their unit, such as Hounsfield's: by a table, or by slope and intercept."""
    if data.get("ModalityLUTSequence"):
        from pydicom.pixels.processing import apply_modality_lut

        return np.asarray(apply_modality_lut(values, data))
    slope, intercept = (_first(_find(data, f"Rescale{name}")) for name in ("Slope", "Intercept"))
    if slope is None or intercept is None:
        return values
    return values * slope + intercept


def _find(data: "Dataset", name: str) -> Any:
    """A value of the file, or of its first frame, or of all its frames; None without one."""
    if name in data:
        return data[name].value
    for place in ("PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence"):
        groups = data.get(place) or []
        for element in groups[0] if groups else []:
            if element.VR == "SQ" and element.value and name in element.value[0]:
                return element.value[0][name].value
    return None


def _first(value: Any) -> float | None:
    """The first of one or several numbers."""
    if value is None or value == "":
        return None
    several = not isinstance(value, str) and hasattr(value, "__len__")
    return None if several and not len(value) else float(value[0] if several else value)
