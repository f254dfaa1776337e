"""Corruptions against slow references."""

import colorsys

import numpy as np
import pytest

from focoop.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from focoop.errors import DataError
from focoop.seeds import numpy_generator

PUBLISHED_BRIGHTNESS = (0.05, 0.1, 0.15, 0.2, 0.3)


def random_image(side: int = 12) -> np.ndarray:
    image = numpy_generator(3, "image").integers(0, 256, (side, side, 3), dtype=np.uint8)
    image[0, :4] = [[0, 0, 0], [255, 255, 255], [255, 0, 0], [7, 7, 7]]  # the corners of HSV
    return image


@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness_is_hsv_value_raised_pixel_by_pixel(severity: int) -> None:
    image = random_image()
    fast = corrupt(image, "brightness", severity)
    assert fast.dtype == np.uint8 and fast.shape == image.shape
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            hue, saturation, value = colorsys.rgb_to_hsv(*(image[row, column] / 255))
            value = min(1.0, value + PUBLISHED_BRIGHTNESS[severity - 1])
            slow = np.array(colorsys.hsv_to_rgb(hue, saturation, value)) * 255
            # Cut to whole numbers: two float paths may fall on either side of one.
            cut = np.floor(slow + 1e-6), np.floor(slow - 1e-6)
            assert ((fast[row, column] == cut[0]) | (fast[row, column] == cut[1])).all()


def test_brightness_grows_with_severity_and_keeps_white() -> None:
    means = [corrupt(random_image(), "brightness", s).astype(float).mean() for s in SEVERITIES]
    assert random_image().astype(float).mean() < means[0]
    assert means == sorted(means) and len(set(means)) == 5
    white = np.full((2, 2, 3), 255, dtype=np.uint8)
    assert (corrupt(white, "brightness", 5) == 255).all()


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_depends_on_the_image_and_its_key_alone(name: str) -> None:
    image = random_image()
    before = image.copy()
    first = corrupt(image, name, 3, key="a.png")
    corrupt(image, name, 3, key="b.png")
    assert np.array_equal(first, corrupt(image, name, 3, key="a.png"))
    assert np.array_equal(image, before)


def test_unknown_corruptions_and_severities_are_refused() -> None:
    with pytest.raises(DataError, match="brightness"):
        corrupt(random_image(), "brightnes", 1)
    for severity in (0, 6):
        with pytest.raises(DataError, match="1 .*5"):
            corrupt(random_image(), "brightness", severity)
