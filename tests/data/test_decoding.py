"""Files of every format as RGB, compared with what was written into them."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from focoop.data import decoding
from focoop.data.decoding import UnreadableImageError, decode, read_rgb
from focoop.data.depth import FIRST, TRANSPARENT, Whites
from focoop.data.formats import SUFFIXES
from focoop.data.sources import open_images
from focoop.seeds import numpy_generator
from tests.data.deep_files import png16, tiff

PIXELS = numpy_generator(1, "decoding").integers(0, 256, (6, 4, 3), dtype=np.uint8)
TWELVE = numpy_generator(2, "decoding").integers(0, 4096, (6, 4, 4), dtype=np.uint16)


def pixels(path: Path, whites: Whites | None = None) -> np.ndarray:
    image = read_rgb(path, whites=whites)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("up", [False, True])
def test_twelve_bits_in_a_png_of_sixteen_are_bright(
    channels: int, up: bool, tmp_path: Path
) -> None:
    values = TWELVE[..., :channels]
    png16(tmp_path / "x.png", values, up)
    assert (pixels(tmp_path / "x.png") == values >> 4).all()
    assert decode(tmp_path / "x.png").top == values.max()
    # In a set whose other images need 14 bits, it stays as dark as it is.
    assert (pixels(tmp_path / "x.png", Whites(16383, 0.0)) == values >> 6).all()


@pytest.mark.parametrize("channels", [2, 4])
def test_deep_colours_that_let_through_are_laid_on_white(channels: int, tmp_path: Path) -> None:
    values = TWELVE[..., :channels].copy()
    values[..., -1] = 65535
    values[0, 0, -1] = 0
    png16(tmp_path / "x.png", values)
    want = np.broadcast_to(values[..., :-1] >> 4, (6, 4, 3)).copy()
    want[0, 0] = 255
    assert (pixels(tmp_path / "x.png") == want).all()
    assert decode(tmp_path / "x.png").remarks == (TRANSPARENT,)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("deflated", [False, True])
def test_twelve_bits_in_a_tiff_of_sixteen_are_bright(
    order: str, deflated: bool, tmp_path: Path
) -> None:
    kinds = [(1, 1), (3, 2)]
    kinds += [(1, 0)] if order == "<" else []  # small values bright, which Pillow reads of Intel's
    for channels, photometric in kinds:
        values = TWELVE[..., :channels]
        raw = values.astype(f"{order}u2").tobytes()
        file = tmp_path / f"{channels}{photometric}.tif"
        tiff(file, raw, values.shape, order=order, photometric=photometric, deflated=deflated)
        want = values >> 4
        assert (pixels(file) == (want if photometric else 255 - want)).all()


def test_a_tiff_that_says_twelve_bits_is_not_asked_for_its_values(tmp_path: Path) -> None:
    values = TWELVE[:, :, 0] // 8  # a dark image
    pairs = values.reshape(-1, 2).astype(np.uint32)
    triples = pairs[:, 0] << 12 | pairs[:, 1]
    raw = b"".join(int(triple).to_bytes(3, "big") for triple in triples)
    tiff(tmp_path / "x.tif", raw, (6, 4, 1), bits=12)
    assert (pixels(tmp_path / "x.tif") == (values >> 4)[..., None]).all()
    assert decode(tmp_path / "x.tif").top is None


def test_floats_of_zero_to_one_and_other_integers(tmp_path: Path) -> None:
    def saved(values: np.ndarray) -> list[int]:
        Image.fromarray(values).save(tmp_path / "x.tif")
        return list(pixels(tmp_path / "x.tif")[0, :, 0].tolist())

    assert saved(np.array([[0, 0.5, 1, np.nan, -1]], dtype=np.float32)) == [0, 127, 255, 0, 0]
    assert saved(np.array([[0, 511.5, 1023]], dtype=np.float32)) == [0, 127, 255]
    assert saved(np.array([[-5, 0, 70000, 2**24 - 1]], dtype=np.int32)) == [0, 0, 1, 255]
    assert saved(np.array([[0, 1, 255]], dtype=np.uint16)) == [0, 1, 255]


def test_transparent_pixels_are_laid_on_white(tmp_path: Path) -> None:
    clear = np.dstack([PIXELS, np.full((6, 4), 255, dtype=np.uint8)])
    clear[0, 0, 3], clear[0, 1] = 0, (100, 200, 0, 51)
    want = PIXELS.copy()
    want[0, 0], want[0, 1] = 255, [224, 244, 204]  # a fifth of the colour, four fifths of white
    for suffix in ("png", "webp"):
        Image.fromarray(clear).save(tmp_path / f"x.{suffix}", lossless=True)
        assert (pixels(tmp_path / f"x.{suffix}") == want).all()
    grey = Image.fromarray(clear).convert("LA")
    grey.save(tmp_path / "la.png")
    assert pixels(tmp_path / "la.png")[0, 0].tolist() == [255] * 3
    assert pixels(tmp_path / "la.png")[1, 0].tolist() == [grey.getpixel((0, 1))[0]] * 3
    palette = Image.fromarray(np.array([[0, 1, 2]], dtype=np.uint8), "P")
    palette.putpalette([0, 0, 0, 9, 9, 9, 80, 90, 100])
    for suffix in ("png", "gif"):
        palette.save(tmp_path / f"p.{suffix}", transparency=1)
        told = pixels(tmp_path / f"p.{suffix}")[0].tolist()
        assert told == [[0, 0, 0], [255, 255, 255], [80, 90, 100]]
    key = Image.fromarray(PIXELS)
    key.save(tmp_path / "key.png", transparency=tuple(PIXELS[2, 2].tolist()))
    assert pixels(tmp_path / "key.png")[2, 2].tolist() == [255] * 3
    assert decode(tmp_path / "key.png", small=True).remarks == (TRANSPARENT,)


def test_one_bit_and_cmyk_keep_their_colours(tmp_path: Path) -> None:
    bits = Image.fromarray(np.array([[0, 255], [255, 0]], dtype=np.uint8)).convert("1")
    for name in ("x.png", "x.tif", "x.pbm", "x.bmp"):
        bits.save(tmp_path / name)
        assert pixels(tmp_path / name)[..., 0].tolist() == [[0, 255], [255, 0]]
    for suffix in ("tif", "jpg"):
        ink = Image.new("CMYK", (8, 8), (0, 255, 255, 0))  # magenta and yellow: red
        ink.save(tmp_path / f"ink.{suffix}")
        red, green, blue = pixels(tmp_path / f"ink.{suffix}")[4, 4].tolist()
        assert red > 250 and green < 5 and blue < 5


def test_frames_behind_the_first_are_remarked_and_not_read(tmp_path: Path) -> None:
    frames = [Image.new("L", (4, 4), grey).convert("P") for grey in (10, 200)]
    for name in ("x.gif", "x.tif", "x.png", "x.webp"):
        modes = [frame.convert("RGB") if name == "x.webp" else frame for frame in frames]
        modes[0].save(tmp_path / name, save_all=True, append_images=modes[1:], lossless=True)
        found = decode(tmp_path / name, small=True)
        assert found.remarks == (FIRST,)
        assert np.asarray(found.rgb()).max() == 10 == pixels(tmp_path / name).min()
    frames[0].save(tmp_path / "one.gif")
    assert decode(tmp_path / "one.gif", small=True).remarks == ()


def test_upright_in_every_format_that_keeps_the_tag(tmp_path: Path) -> None:
    from pillow_heif import from_pillow

    def on_its_side() -> Image.Exif:
        exif = Image.Exif()
        exif[0x0112] = 6  # turn by 90 degrees clockwise
        return exif

    blocks = np.kron(PIXELS[:2, :3], np.ones((32, 32, 1), dtype=np.uint8))
    turned = np.rot90(blocks, -1)
    for name in ("x.jpg", "x.png", "x.webp", "x.tif", "x.avif"):
        Image.fromarray(blocks).save(tmp_path / name, exif=on_its_side(), quality=95)
    heic = from_pillow(Image.fromarray(blocks))
    heic.info["exif"] = on_its_side().tobytes()
    heic.save(tmp_path / "x.heic", quality=95)
    grey = Image.fromarray(TWELVE[..., 0])
    grey.save(tmp_path / "deep.png", exif=on_its_side())
    assert (pixels(tmp_path / "deep.png")[..., 0] == np.rot90(TWELVE[..., 0] >> 4, -1)).all()
    for path in sorted(tmp_path.glob("x.*")):
        found = pixels(path).astype(int)
        assert found.shape == turned.shape, path
        assert np.abs(found - turned).mean() < 8, path


def write_any(path: Path) -> None:
    """An image in the format of the path's suffix, of 8 x 8 pixels of value 90."""
    import pillow_heif

    from tests.data.test_dicom import write_dicom

    image = Image.new("RGB", (8, 8), (90, 90, 90))
    suffix = path.suffix
    if suffix in (".dcm", ".dicom", ".ima"):
        write_dicom(path, np.full((8, 8), 90, dtype=np.uint8))
    elif suffix in (".heic", ".heif", ".hif"):
        pillow_heif.from_pillow(image).save(path)
    elif suffix == ".j2k":
        image.save(path, "JPEG2000")
    else:
        kind = {".jpe": "JPEG", ".pbm": "PPM"}.get(suffix)
        image.convert("1" if suffix == ".pbm" else "RGB").save(path, kind)


@pytest.mark.skipif(not features.check("avif"), reason="a Pillow without AVIF")
def test_folder_and_table_read_the_same_files(tmp_path: Path) -> None:
    folder = tmp_path / "i" / "cat"
    folder.mkdir(parents=True)
    for suffix in sorted(SUFFIXES):
        write_any(folder / f"x{suffix}")
    write_any(folder / "y.jpg")
    (folder / "y.jpg").rename(folder / "bare")
    names = sorted(f"cat/{path.name}" for path in folder.iterdir())
    lines = "".join(f"{name},cat\n" for name in names)
    (tmp_path / "i" / "t.csv").write_text(f"path,label\n{lines}", encoding="utf-8")
    cache = tmp_path / "cache"
    own = open_images("folder", str(tmp_path / "i"), "test", strict=True, cache_dir=cache)
    table = open_images("csv", str(tmp_path / "i/t.csv"), "test", strict=True, cache_dir=cache)
    assert list(own.files) == names == sorted(table.files)
    for row, name in enumerate(own.files):
        found = np.asarray(own.image(row)).astype(int)
        assert found.shape == (8, 8, 3), name
        assert name.endswith(".pbm") or np.abs(found - 90).max() <= 3, name


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.jpg")
    for path in (tmp_path / "x.jpg", Path("/dev/null")):
        with pytest.raises(UnreadableImageError) as caught:
            read_rgb(path)
        assert caught.value.reason == "not a regular file"


@pytest.mark.parametrize("package, name", [("pillow_heif", "x.heic"), ("pydicom", "x.dcm")])
def test_a_missing_extra_is_named(
    package: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_any(tmp_path / name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnreadableImageError, match=r"pip install 'focoop\[formats\]'") as caught:
        read_rgb(tmp_path / name)
    assert caught.value.mendable


def test_a_pillow_without_avif_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_any(tmp_path / "x.avif")
    monkeypatch.setattr(decoding, "pillow_formats", lambda: ("JPEG", "PNG"))
    with pytest.raises(UnreadableImageError, match=r"Pillow 11\.3"):
        read_rgb(tmp_path / "x.avif")


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's, of damaged tags
def test_damage_gives_few_reasons_and_no_other_error(tmp_path: Path) -> None:
    generator = numpy_generator(3, "damage")
    reasons = set()
    for suffix in (".jpg", ".png", ".gif", ".tif", ".webp", ".avif", ".heic", ".dcm", ".jp2"):
        file = tmp_path / f"x{suffix}"
        write_any(file)
        raw = file.read_bytes()
        damaged = [raw[: len(raw) * part // 8] for part in range(8)]
        for _ in range(8):
            changed = bytearray(raw)
            for at in generator.integers(0, len(raw), 4):
                changed[at] ^= int(generator.integers(1, 256))
            damaged.append(bytes(changed))
        for content in damaged:
            file.write_bytes(content)
            try:
                read_rgb(file)
            except UnreadableImageError as error:
                reasons.add(error.reason)
    assert len(reasons) <= 12 and decoding.CUT in reasons and "empty" in reasons
    assert not any(str(tmp_path) in reason for reason in reasons)
