"""Images of every make as RGB; rows, classes and stores."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from focoop.data.decoding import read_rgb
from focoop.data.image_set import ImageSet, Joined, Pixels
from focoop.errors import DataError
from focoop.seeds import numpy_generator

PIXELS = numpy_generator(1, "imageset").integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)


def array_set() -> ImageSet:
    names = tuple(f"r{i}" for i in range(6))
    store = Pixels(PIXELS)
    return ImageSet(Path("x"), names, (0, 1, 2, 0, 1, 2), ("a", "b", "c"), "test", store=store)


def test_rows_of_a_store_follow_their_choice() -> None:
    chosen = array_set().take([5, 0, 3])
    assert chosen.files == ("r5", "r0", "r3") and chosen.labels == (2, 0, 0)
    assert (np.asarray(chosen.image(0)) == PIXELS[5]).all()
    again = chosen.take([2])
    assert (np.asarray(again.image(0)) == PIXELS[3]).all() and again.store is not None
    assert len(again.store) == 1
    digests = {one.store.digest() for one in (array_set(), chosen, again) if one.store}
    assert len(digests) == 3


def test_dropped_classes_leave_with_their_images() -> None:
    kept = array_set().without_classes(["b"])
    assert kept.classes == ("a", "c") and kept.labels == (0, 1, 0, 1)
    assert (np.asarray(kept.image(3)) == PIXELS[5]).all()
    with pytest.raises(DataError, match="cannot drop class 'd'"):
        array_set().without_classes(["d"])


def test_joined_stores_are_one_after_another() -> None:
    both = Joined((Pixels(PIXELS[:2]), Pixels(PIXELS[2:])))
    assert len(both) == 6
    for row in range(6):
        assert (np.asarray(both.image(row)) == PIXELS[row]).all()
    assert Joined((Pixels(PIXELS),)).digest() == Pixels(PIXELS).digest() != both.digest()
    assert Pixels(PIXELS).digest() != Pixels(PIXELS[::-1]).digest()
    with pytest.raises(IndexError):
        both.image(6)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA", "P", "1", "CMYK"])
def test_every_colour_mode_becomes_rgb(mode: str, tmp_path: Path) -> None:
    image = Image.fromarray(PIXELS[0]).convert(mode)
    path = tmp_path / ("x.tif" if mode == "CMYK" else "x.png")
    image.save(path)
    found = read_rgb(path)
    assert found.mode == "RGB" and found.size == (5, 4)
    if mode in ("RGB", "RGBA"):
        assert (np.asarray(found) == PIXELS[0]).all()


def test_sixteen_bits_keep_their_upper_eight(tmp_path: Path) -> None:
    values = np.array([[0, 255, 256, 65535], [4096, 32768, 1000, 50000]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "x.png")
    found = np.asarray(read_rgb(tmp_path / "x.png"))
    assert (found == (values // 256)[:, :, None]).all()
    Image.fromarray(np.array([[0.0, 99.9, 254.0, -4.0]], dtype=np.float32)).save(tmp_path / "x.tif")
    assert np.asarray(read_rgb(tmp_path / "x.tif"))[0, :, 0].tolist() == [0, 99, 254, 0]


def test_a_rotated_photograph_is_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera lay on its side: turn by 90 degrees clockwise
    Image.fromarray(PIXELS[0]).save(tmp_path / "x.png", exif=exif)
    found = np.asarray(read_rgb(tmp_path / "x.png"))
    assert (found == np.rot90(PIXELS[0], -1)).all()


def test_a_palette_with_transparency_gives_no_warning(tmp_path: Path) -> None:
    image = Image.fromarray(PIXELS[0]).convert("P")
    image.save(tmp_path / "x.png", transparency=bytes(range(256)))
    assert read_rgb(tmp_path / "x.png").size == (5, 4)


def test_large_images_are_read_and_huge_ones_refused_without_decoding(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("1", (9_500, 10_000)).save(buffer, "PNG")
    (tmp_path / "large.png").write_bytes(buffer.getvalue())
    assert read_rgb(tmp_path / "large.png").size == (9_500, 10_000)
    raw = bytearray(buffer.getvalue())
    raw[16:24] = (100_000).to_bytes(4, "big") * 2  # ten thousand megapixels, says the header
    (tmp_path / "huge.png").write_bytes(raw)
    with pytest.raises(DataError, match=r"huge\.png"):
        read_rgb(tmp_path / "huge.png")


def test_what_is_no_image_is_refused_by_name(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.fromarray(numpy_generator(2, "x").integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(
        buffer, "JPEG"
    )
    whole = buffer.getvalue()
    for name, content in (
        ("cut.jpg", whole[: len(whole) // 2]),
        ("empty.jpg", b""),
        ("t.jpg", b"x"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=name):
            read_rgb(tmp_path / name)
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    (tmp_path / "folder.jpg").mkdir()
    for name in ("loop.jpg", "folder.jpg", "absent.jpg"):
        with pytest.raises(DataError, match=name):
            read_rgb(tmp_path / name)


@pytest.mark.parametrize("progressive", [False, True])
def test_a_small_reading_refuses_what_a_whole_one_does(progressive: bool, tmp_path: Path) -> None:
    generator = numpy_generator(1, "jpeg")
    coarse = Image.fromarray(generator.integers(0, 256, (12, 9, 3), dtype=np.uint8))
    file = tmp_path / "i.jpg"
    coarse.resize((70, 99)).save(file, progressive=progressive)
    raw = file.read_bytes()
    cuts = [raw[:end] for end in (*range(0, len(raw), len(raw) // 40), len(raw) - 3)]
    flips = [bytearray(raw) for _ in range(30)]
    for changed in flips:
        changed[int(generator.integers(20, len(raw)))] ^= int(generator.integers(1, 256))
    found = []
    for content in (raw, *cuts, *flips):
        file.write_bytes(content)
        found.append([_readable(file, small) for small in (False, True)])
    assert all(whole == small for whole, small in found)
    assert found[0] == [True, True] and sum(not whole for whole, _ in found) > 20
    file.write_bytes(raw)
    assert read_rgb(file, small=True).width < read_rgb(file).width == 70


def _readable(file: Path, small: bool) -> bool:
    try:
        read_rgb(file, small=small)
    except DataError:
        return False
    return True
