"""DICOM files as RGB, compared with pydicom's own windowing and with what was written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.pixels import apply_modality_lut, apply_voi_lut
from pydicom.sequence import Sequence
from pydicom.uid import ExplicitVRLittleEndian, JPEGLosslessSV1, SecondaryCaptureImageStorage

from focoop.data.decoding import UnreadableImageError, decode, read_rgb
from focoop.data.depth import FIRST, Whites
from focoop.data.dicom import NO_WINDOW
from focoop.seeds import numpy_generator

STORED = numpy_generator(1, "dicom").integers(0, 4096, (6, 4), dtype=np.uint16)


def write_dicom(path: Path, values: np.ndarray, **tags: Any) -> FileDataset:
    """A DICOM file of values (H, W), (H, W, 3) or, with NumberOfFrames, (frames, H, W)."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    meta.TransferSyntaxUID = tags.pop("syntax", ExplicitVRLittleEndian)
    data = FileDataset(str(path), {}, file_meta=meta, preamble=bytes(128))
    colour = values.ndim == 3 and "NumberOfFrames" not in tags
    shape = values.shape[:2] if colour else values.shape[-2:]
    data.Rows, data.Columns = shape
    data.SamplesPerPixel = 3 if colour else 1
    data.PhotometricInterpretation = "RGB" if colour else "MONOCHROME2"
    if colour:
        data.PlanarConfiguration = 0
    data.BitsAllocated = data.BitsStored = values.dtype.itemsize * 8
    data.PixelRepresentation = int(values.dtype.kind == "i")
    data.PixelData = values.tobytes()
    for name, value in tags.items():
        setattr(data, name, value)
    data.HighBit = data.BitsStored - 1
    data.save_as(path, enforce_file_format=True)
    return data


def grey(path: Path, whites: Whites | None = None) -> np.ndarray:
    found = np.asarray(read_rgb(path, whites=whites))
    assert (found == found[..., :1]).all()
    return found[..., 0]


def test_stored_bits_are_the_scale_where_there_is_no_window(tmp_path: Path) -> None:
    file = tmp_path / "x.dcm"
    write_dicom(file, STORED // 8, BitsStored=12)  # a dark image stays dark
    assert (grey(file) == STORED // 8 >> 4).all() and decode(file).top is None
    write_dicom(file, STORED)  # 16 bits, says the file
    assert (grey(file) == STORED >> 4).all() and decode(file).top == STORED.max()
    assert (grey(file, Whites(65535, 0.0)) == STORED >> 8).all()
    write_dicom(file, STORED.astype(np.uint8), PhotometricInterpretation="MONOCHROME1")
    assert (grey(file) == 255 - STORED.astype(np.uint8)).all()


@pytest.mark.parametrize("function", [None, "LINEAR", "LINEAR_EXACT", "SIGMOID"])
@pytest.mark.parametrize("kind", ["MONOCHROME1", "MONOCHROME2"])
def test_slope_and_window_are_those_of_pydicom(
    function: str | None, kind: str, tmp_path: Path
) -> None:
    tags = {"RescaleSlope": 2, "RescaleIntercept": -1024, "BitsStored": 12}
    tags |= {"WindowCenter": [900, 40], "WindowWidth": [3000, 400]}
    tags |= {} if function is None else {"VOILUTFunction": function}
    data = write_dicom(tmp_path / "x.dcm", STORED, PhotometricInterpretation=kind, **tags)
    shown = apply_voi_lut(apply_modality_lut(STORED, data), data)
    shares = (shown + 1024) / (2 * 4095)  # pydicom's output spans what the stored bits can be
    want = shares if kind == "MONOCHROME2" else 1 - shares
    found = grey(tmp_path / "x.dcm")
    assert np.abs(found - want * 255).max() <= 0.51
    assert found.min() < 40 and found.max() > 200


def test_a_table_of_the_file_comes_before_its_window(tmp_path: Path) -> None:
    table = Dataset()
    table.LUTDescriptor = [256, 0, 8]
    table.LUTData = np.arange(255, -1, -1, dtype=np.uint16).tobytes()
    values = STORED.astype(np.uint8)
    tags = {"VOILUTSequence": Sequence([table]), "WindowCenter": 5, "WindowWidth": 2}
    write_dicom(tmp_path / "x.dcm", values, **tags)
    assert (grey(tmp_path / "x.dcm") == 255 - values).all()


def test_the_window_of_frames_is_found(tmp_path: Path) -> None:
    window, scale, group = Dataset(), Dataset(), Dataset()
    window.WindowCenter, window.WindowWidth = 100.5, 201
    scale.RescaleSlope, scale.RescaleIntercept = 1, -10
    group.FrameVOILUTSequence = Sequence([window])
    group.PixelValueTransformationSequence = Sequence([scale])
    frames = np.stack([STORED % 256, STORED * 0]).astype(np.uint16)
    shared = Sequence([group])
    write_dicom(tmp_path / "x.dcm", frames, NumberOfFrames=2, SharedFunctionalGroupsSequence=shared)
    want = np.clip((frames[0].astype(float) - 10) / 200, 0, 1) * 255
    assert np.abs(grey(tmp_path / "x.dcm") - want).max() <= 0.51
    assert decode(tmp_path / "x.dcm").remarks == (FIRST,)


def test_signed_values_without_a_window_span_their_own_range(tmp_path: Path) -> None:
    values = STORED.astype(np.int16) - 1024
    write_dicom(tmp_path / "x.dcm", values)
    found = grey(tmp_path / "x.dcm")
    assert found.min() == 0 and found.max() == 255
    assert decode(tmp_path / "x.dcm").remarks == (NO_WINDOW,)


def test_colours_and_palettes(tmp_path: Path) -> None:
    colours = numpy_generator(2, "dicom").integers(0, 256, (6, 4, 3), dtype=np.uint8)
    write_dicom(tmp_path / "rgb.dcm", colours)
    assert (np.asarray(read_rgb(tmp_path / "rgb.dcm")) == colours).all()
    tags: dict[str, Any] = {"PhotometricInterpretation": "PALETTE COLOR"}
    for number, name in enumerate(("Red", "Green", "Blue")):
        tags[f"{name}PaletteColorLookupTableDescriptor"] = [256, 0, 16]
        entries = (np.arange(256, dtype=np.uint16) * (number + 1) % 256) << 8
        tags[f"{name}PaletteColorLookupTableData"] = entries.tobytes()
    values = STORED.astype(np.uint8)
    write_dicom(tmp_path / "p.dcm", values, **tags)
    want = np.stack([values, values * 2, values * 3], axis=-1)
    assert (np.asarray(read_rgb(tmp_path / "p.dcm")) == want).all()


def test_what_cannot_be_shown_says_why(tmp_path: Path) -> None:
    file = tmp_path / "x.dcm"
    data = write_dicom(file, STORED)
    del data.PixelData
    data.save_as(file)
    with pytest.raises(UnreadableImageError, match="one without pixels"):
        read_rgb(file)
    file.write_bytes(b"no DICOM at all")
    with pytest.raises(UnreadableImageError, match="not a DICOM file"):
        read_rgb(file)
    from pydicom.encaps import encapsulate

    write_dicom(file, STORED, syntax=JPEGLosslessSV1, PixelData=encapsulate([b"\xff\xd8 x"]))
    with pytest.raises(UnreadableImageError, match="JPEG Lossless.*store it uncompressed"):
        read_rgb(file)
