"""Corruptions: closed forms, statistics, and what holds for all of them."""

import colorsys
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from focoop.data.corruptions.apply import SEVERITIES, corrupt, corrupt_batch
from focoop.seeds import numpy_generator

PUBLISHED_BRIGHTNESS = (0.05, 0.1, 0.15, 0.2, 0.3)
SMALL, MIDDLE, LARGE = 32, 64, 224


def random_image(side: int = 12) -> np.ndarray:
    image = numpy_generator(3, "image").integers(0, 256, (side, side, 3), dtype=np.uint8)
    image[0, :4] = [[0, 0, 0], [255, 255, 255], [255, 0, 0], [7, 7, 7]]  # the corners of HSV
    return image


def pictures(side: int, count: int) -> np.ndarray:
    """Smooth colours, a few shapes with edges and some grain, as photographs have."""
    generator = numpy_generator(6, "pictures", side)
    rows, columns = np.mgrid[:side, :side] / side
    out = np.empty((count, side, side, 3))
    for image in out:
        for channel in range(3):
            a, b, c = generator.uniform(-1.5, 1.5, 3)
            image[..., channel] = 0.45 + 0.25 * np.sin(6 * (a * rows + b * columns + c))
        for _ in range(6):
            y, x, radius = generator.uniform(0, 1, 3) * (1, 1, 0.3)
            inside = (rows - y) ** 2 + (columns - x) ** 2 < radius**2
            image[inside] = 0.5 * image[inside] + 0.5 * generator.random(3)
        image += generator.normal(0, 0.03, image.shape)
    return (out.clip(0, 1) * 255).astype(np.uint8)


def flat(value: int, side: int, count: int = 1) -> np.ndarray:
    return np.full((count, side, side, 3), value, dtype=np.uint8)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness_is_hsv_value_raised_pixel_by_pixel(severity: int) -> None:
    image = random_image()
    fast = corrupt(image, "brightness", severity)
    assert fast.dtype == np.uint8 and fast.shape == image.shape
    check_against_hsv(
        image, fast, lambda h, s, v: (h, s, min(1.0, v + PUBLISHED_BRIGHTNESS[severity - 1]))
    )


@pytest.mark.parametrize(
    ("side", "numbers"),
    [
        (SMALL, [(0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)]),
        (MIDDLE, [(0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)]),
    ],
)
def test_saturate_is_hsv_saturation_stretched(side: int, numbers: list[tuple]) -> None:
    image = random_image(side)
    for severity, (factor, addend) in zip(SEVERITIES, numbers, strict=True):
        fast = corrupt(image, "saturate", severity)
        check_against_hsv(
            image[:9, :9],
            fast[:9, :9],
            lambda h, s, v, a=factor, b=addend: (h, min(1.0, s * a + b), v),
        )


def check_against_hsv(image: np.ndarray, fast: np.ndarray, change) -> None:  # type: ignore[no-untyped-def]
    for row in range(image.shape[0]):
        for column in range(image.shape[1]):
            changed = change(*colorsys.rgb_to_hsv(*(image[row, column] / 255)))
            slow = np.array(colorsys.hsv_to_rgb(*changed)) * 255
            # Cut to whole numbers: two float paths may fall on either side of one.
            cut = np.floor(slow + 1e-6), np.floor(slow - 1e-6)
            assert ((fast[row, column] == cut[0]) | (fast[row, column] == cut[1])).all()


def test_brightness_has_the_same_strengths_at_every_size() -> None:
    for side in (SMALL, MIDDLE, LARGE):
        means = [int(corrupt(flat(100, side)[0], "brightness", s)[0, 0, 0]) for s in SEVERITIES]
        assert means == [int(100 + 255 * c + 1e-9) for c in PUBLISHED_BRIGHTNESS]
    white = np.full((2, 2, 3), 255, dtype=np.uint8)
    assert (corrupt(white, "brightness", 5) == 255).all()


@pytest.mark.parametrize(
    ("side", "factors"),
    [(SMALL, (0.75, 0.5, 0.4, 0.3, 0.15)), (MIDDLE, (0.4, 0.3, 0.2, 0.1, 0.05))],
)
def test_contrast_pulls_to_the_mean_of_each_channel(side: int, factors: tuple) -> None:
    image = random_image(side)
    mean = np.array([image[..., c].sum() / side**2 for c in range(3)])
    for severity, factor in zip(SEVERITIES, factors, strict=True):
        exact = mean + factor * (image - mean)
        got = corrupt(image, "contrast", severity)
        assert ((got == np.floor(exact + 1e-6)) | (got == np.floor(exact - 1e-6))).all()


@pytest.mark.parametrize(("side", "severity", "block"), [(64, 5, 2), (224, 2, 2), (224, 5, 4)])
def test_pixelate_is_the_mean_of_blocks(side: int, severity: int, block: int) -> None:
    image = random_image(side)
    got = corrupt(image, "pixelate", severity)
    # Pillow takes the mean along rows, rounds half up, then along columns, and rounds again.
    along = image.reshape(side, side // block, block, 3).mean(axis=2)
    along = np.floor(along + 0.5)
    mean = np.floor(along.reshape(side // block, block, -1, 3).mean(axis=1) + 0.5)
    assert np.array_equal(got, mean.repeat(block, axis=0).repeat(block, axis=1))


def test_pixelate_of_whole_blocks_is_exact() -> None:
    coarse = random_image(32).repeat(2, axis=0).repeat(2, axis=1)
    assert np.array_equal(corrupt(coarse, "pixelate", 5), coarse)
    assert not np.array_equal(corrupt(coarse, "pixelate", 4), coarse)


@pytest.mark.parametrize(("side", "quality"), [(SMALL, 40), (MIDDLE, 25), (LARGE, 7)])
def test_jpeg_is_a_file_of_the_published_quality(side: int, quality: int) -> None:
    image = pictures(side, 1)[0]
    file = BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    assert np.array_equal(corrupt(image, "jpeg_compression", 5), np.asarray(Image.open(file)))


NOISE = {  # published strengths at severities 1 and 5 for the three sizes
    "gaussian_noise": [(0.04, 0.10), (0.04, 0.18), (0.08, 0.38)],
    "speckle_noise": [(0.06, 0.2), (0.15, 0.35), (0.15, 0.6)],
    "shot_noise": [(500, 50), (250, 15), (60, 3)],
    "impulse_noise": [(0.01, 0.07), (0.01, 0.14), (0.03, 0.27)],
}


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(("place", "side"), [(0, SMALL), (1, MIDDLE), (2, LARGE)])
@pytest.mark.parametrize("name", NOISE)
def test_noise_has_the_published_spread(name: str, place: int, side: int, which: int) -> None:
    strength = NOISE[name][place][which]
    clean = 0.4
    got = corrupt_batch(flat(102, side, 2**16 // side**2 + 1), name, (1, 5)[which]) / 255.0
    if name == "impulse_noise":
        changed = (got != clean).mean()
        slack = 4 * (strength / got.size) ** 0.5
        assert abs(changed - strength) < slack and abs((got == 1).mean() - strength / 2) < slack
        assert set(np.unique(got)) == {0.0, clean, 1.0}
        return
    deviation = {"gaussian_noise": strength, "speckle_noise": strength * clean}.get(
        name, (clean / strength) ** 0.5
    )
    # Quantiles feel no cut at 0 and 1; values are cut to whole levels, half a level on average.
    if name == "shot_noise":
        counts = numpy_generator(9, "photons").poisson(clean * strength, got.size) / strength
        want = np.floor(counts.clip(0, 1) * 255 + 1e-9) / 255
        assert abs(got.mean() - want.mean()) < 6 * deviation / got.size**0.5
        assert got.std() == pytest.approx(want.std(), rel=0.02)
        return
    low, middle, high = np.quantile(got + 0.5 / 255, [0.3085, 0.5, 0.6915])  # +- half a deviation
    assert middle == pytest.approx(clean, abs=0.02 * deviation + 0.5 / 255)
    assert high - low == pytest.approx(deviation, abs=0.03 * deviation + 1 / 255)


def test_fog_and_frost_and_snow_on_flat_images() -> None:
    grey = flat(128, SMALL, 3)
    fog = corrupt_batch(grey, "fog", 5)
    peak = 128 / 255
    # The plasma spans 0..1, hence the fog spans peak and peak + 1.5, scaled back to the peak.
    scale = peak / (peak + 1.5)
    for image in fog:
        assert image.min() == int(peak * scale * 255) and image.max() == 128
    for severity, least in zip(SEVERITIES, (1, 1, 0.9, 0.85, 0.75), strict=True):
        frost = corrupt_batch(grey, "frost", severity)
        assert frost.min() >= int(128 * least) and frost[..., 2].mean() > frost[..., 0].mean()
    snow = corrupt_batch(flat(0, SMALL, 3), "snow", 1)
    # Black whitens to (1 - 0.95) / 2, and flakes only add to it.
    assert snow.min() == int(0.05 * 0.5 * 255) and snow.max() > snow.min()


def test_water_is_turquoise_and_mud_is_brown() -> None:
    water = corrupt_batch(flat(0, SMALL, 6), "spatter", 3).reshape(-1, 3).astype(int)
    wet = water[water.sum(1) > 60]
    assert len(wet) and (wet[:, 1] == wet[:, 2]).all() and (wet[:, 1] > wet[:, 0]).all()
    assert water.max() == int(238 * 0.5)  # the brightest spot has the full opacity
    mud = corrupt_batch(flat(255, SMALL, 6), "spatter", 5).reshape(-1, 3).astype(int)
    full = np.abs(mud - [63, 42, 20]).max(1) <= 1
    assert full.any() and mud[:, 0].min() >= 63
