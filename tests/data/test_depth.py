"""Deep images of one set share one scale, which is part of the key of their features."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from focoop.data import ImageSet, read_folder
from focoop.data.content_hash import data_hash
from focoop.data.depth import LEVELS, Whites, eight_bits, whites_of
from focoop.data.sources import open_images
from focoop.errors import DataError
from focoop.features.encoding import encode
from tests.data.deep_files import png16
from tests.helpers import toy_backbone


def deep(path: Path, top: int) -> None:
    """A grey ramp from 0 to `top` in a PNG of 16 bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    png16(path, np.linspace(0, top, 16).astype(np.uint16).reshape(4, 4, 1))


def brightest(images: ImageSet) -> list[int]:
    return [int(np.asarray(images.image(row)).max()) for row in range(len(images))]


def test_a_dark_image_stays_dark_beside_a_bright_one_of_another_split(tmp_path: Path) -> None:
    root, cache = tmp_path / "i", tmp_path / "cache"
    deep(root / "train/lamp/on.png", 4000)
    deep(root / "train/lamp/off.png", 200)
    deep(root / "test/lamp/dim.png", 1000)
    train, test = (
        open_images("folder", str(root), split, cache_dir=cache) for split in ("train", "test")
    )
    assert train.whites == test.whites == (Whites(4095, 0.0),)
    assert train.files == ("train/lamp/off.png", "train/lamp/on.png")
    assert brightest(train) == [200 >> 4, 4000 >> 4] and brightest(test) == [1000 >> 4]
    # Without a set to compare with, a file is scaled by its own values.
    assert brightest(read_folder(root, "test")) == [1000 >> 2]


def test_a_client_has_the_scale_it_would_have_alone(tmp_path: Path) -> None:
    root, cache = tmp_path / "i", tmp_path / "cache"
    deep(root / "north/scan/1.png", 60000)
    deep(root / "south/scan/1.png", 3000)
    deep(root / "south/scan/2.png", 500)
    both = open_images("clients", str(root), "all", cache_dir=cache)
    alone = open_images("folder", str(root / "south"), "all", cache_dir=cache)
    assert brightest(both) == [60000 >> 8, 3000 >> 4, 500 >> 4]
    assert brightest(alone) == brightest(both)[1:]


def test_features_are_encoded_again_when_the_scale_changes(tmp_path: Path) -> None:
    root, cache = tmp_path / "i", tmp_path / "cache"
    deep(root / "train/scan/1.png", 900)
    deep(root / "test/scan/1.png", 900)

    def opened() -> ImageSet:
        return open_images("folder", str(root), "train", cache_dir=cache)

    first = opened()
    bright = encode(first, toy_backbone(), cache_dir=cache).pooled
    deep(root / "test/scan/2.png", 4000)  # train/ is as it was, and darker now
    second = opened()
    assert second.files == first.files and brightest(second) == [900 >> 4]
    assert data_hash(first, cache) != data_hash(second, cache)
    assert (encode(second, toy_backbone(), cache_dir=cache).pooled != bright).any()


def test_a_stray_file_of_more_bits_that_blackens_the_rest_is_told(tmp_path: Path) -> None:
    for name in ("1", "2", "3"):
        deep(tmp_path / "i" / "scan" / f"{name}.png", 4000)
    deep(tmp_path / "i" / "scan" / "4.png", 65535)
    with pytest.warns(UserWarning, match="3 of 4 deep images of .* come out nearly black"):
        open_images("folder", str(tmp_path / "i"), "test", cache_dir=tmp_path / "cache")


def test_a_pipe_is_neither_hashed_nor_encoded(tmp_path: Path) -> None:
    deep(tmp_path / "i" / "scan" / "1.png", 255)
    os.mkfifo(tmp_path / "i" / "scan" / "x.jpg")
    images = read_folder(tmp_path / "i", "test")
    with pytest.raises(DataError, match=r"x\.jpg cannot be read \(not a regular file\)"):
        encode(images, toy_backbone(), cache_dir=tmp_path / "cache")
    with pytest.warns(UserWarning, match=r"x\.jpg \(not a regular file\): left out"):
        kept = open_images("folder", str(tmp_path / "i"), "test", cache_dir=tmp_path / "cache")
    assert kept.files == ("scan/1.png",)


@given(st.lists(st.integers(0, 2**16 - 1), min_size=1))
def test_white_is_the_smallest_usual_level_that_holds_all(tops: list[int]) -> None:
    white = whites_of(tops).integers
    assert white in LEVELS and white >= max(tops)
    assert not any(max(tops) <= level < white for level in LEVELS)


@given(st.lists(st.integers(-100, 70000), min_size=2), st.sampled_from(LEVELS[:5]))
def test_eight_bits_keep_the_order_and_the_ends(values: list[int], white: int) -> None:
    found = eight_bits(np.array([*values, 0, white]), white)
    assert found[-2] == 0 and found[-1] == 255
    order = np.argsort(values, kind="stable")
    assert (np.diff(found[:-2][order].astype(int)) >= 0).all()
    inside = np.clip(values, 0, white)
    assert np.abs(found[:-2] - inside * 255 / white).max() <= 1
