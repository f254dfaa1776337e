"""What holds for all corruptions: growth with severity, any size, any batch, any order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from focoop.data.corruptions.apply import CHUNK, CORRUPTIONS, SEVERITIES, corrupt, corrupt_batch
from focoop.errors import DataError
from focoop.seeds import numpy_generator
from tests.data.test_corruptions import LARGE, MIDDLE, SMALL, flat, pictures, random_image

EXACT = ["brightness", "contrast", "defocus_blur", "gaussian_blur"]
EXACT += ["jpeg_compression", "pixelate", "saturate", "zoom_blur"]
RANDOM = ["elastic_transform", "fog", "frost", "gaussian_noise", "glass_blur", "impulse_noise"]
RANDOM += ["motion_blur", "shot_noise", "snow", "spatter", "speckle_noise"]
NAMES = sorted(EXACT + RANDOM)  # the files of CIFAR-10-C


def test_the_nineteen_types_are_there() -> None:
    assert sorted(CORRUPTIONS) == NAMES and len(NAMES) == 19


def distances(name: str, images: np.ndarray) -> list[float]:
    """How far each severity is from the clean images; all severities have the same draws."""
    out, corruption = [], CORRUPTIONS[name]
    for severity in SEVERITIES:
        generators = [numpy_generator(0, "draws", i) for i in range(len(images))]
        strength = corruption.strength(severity, *images.shape[1:3])
        got = corruption.apply(images / 255.0, strength, generators).clip(0, 1)
        if name == "frost":  # its weight grows as the image's falls: compare patterns, not levels
            out.append(1 - float(np.corrcoef(got.ravel(), images.ravel())[0, 1]))
        else:
            out.append(float(np.abs(got - images / 255.0).mean()))
    return out


# Published strengths that do not rise from one severity to the next in every respect.
UNEVEN = {"glass_blur", "elastic_transform", "saturate", "spatter", "snow", "fog"}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNEVEN])
@pytest.mark.parametrize(("side", "count"), [(SMALL, 24), (MIDDLE, 8), (LARGE, 1)])
def test_severity_grows(name: str, side: int, count: int) -> None:
    found = distances(name, pictures(side, count))
    if name == "motion_blur" and side == SMALL:  # 6 or 8 pixels at a sigma of 2: the same bytes
        assert found[2] == pytest.approx(found[3], abs=1e-6)
        del found[3]
    assert found[0] > 0 and all(a < b for a, b in zip(found, found[1:], strict=False)), found


@pytest.mark.parametrize("side", [SMALL, MIDDLE])
def test_uneven_severities_grow_where_their_strengths_do(side: int) -> None:
    images = pictures(side, 16)
    for name in ("snow", "fog"):  # uneven at 224 pixels only
        found = distances(name, images)
        assert found == sorted(found)
    found = distances("saturate", images)
    assert found[0] < found[1] and found[2] < found[3] < found[4]  # pale first, then garish
    found = distances("spatter", images)
    assert found[0] < found[1] < found[2] and found[3] < found[4]  # water first, then mud
    found = distances("glass_blur", images)
    assert min(found[:2]) > 0 and max(found[:2]) < found[4]


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    severity=st.sampled_from(SEVERITIES),
    height=st.integers(1, 40),
    width=st.integers(1, 40),
    seed=st.integers(0, 2**32),
)
def test_any_size_works_and_batches_change_nothing(
    name: str, severity: int, height: int, width: int, seed: int
) -> None:
    generator = numpy_generator(seed, "images")
    images = generator.integers(0, 256, (3, height, width, 3), dtype=np.uint8)
    images[2] = 0
    before = images.copy()
    got = corrupt_batch(images, name, severity, ["a", "b", "c"], seed)
    assert got.shape == images.shape and got.dtype == np.uint8
    assert np.array_equal(images, before)
    turned = corrupt_batch(images[::-1], name, severity, ["c", "b", "a"], seed)
    assert np.array_equal(turned[::-1], got)
    for i, key in enumerate("abc"):
        assert np.array_equal(corrupt(images[i], name, severity, key, seed), got[i])


@pytest.mark.parametrize("name", NAMES)
def test_batches_change_nothing_at_the_published_sizes(name: str) -> None:
    several = 2 * MIDDLE**2  # pixels: the small ones in several parts
    large = np.tile(pictures(56, 2), (1, 4, 4, 1))
    for images, most in (
        (large, CHUNK),
        (pictures(SMALL, 9), several),
        (pictures(MIDDLE, 5), several),
    ):
        whole = corrupt_batch(images, name, 5, most=most)
        last = len(images) - 1
        assert np.array_equal(whole[last], corrupt(images[last], name, 5, last))


@pytest.mark.parametrize("name", NAMES)
def test_keys_and_seeds_make_other_noise(name: str) -> None:
    image = pictures(SMALL, 1)[0]
    first = corrupt(image, name, 3, "a.png")
    assert np.array_equal(first, corrupt(image, name, 3, "a.png"))
    assert np.array_equal(first, corrupt(image, name, 3, "b.png")) == (name not in RANDOM)
    assert np.array_equal(first, corrupt(image, name, 3, "a.png", seed=1)) == (name not in RANDOM)


def test_sizes_between_use_the_strengths_of_the_smaller_one() -> None:
    for side, share in ((20, 0.07), (63, 0.07), (64, 0.14), (223, 0.14), (224, 0.27), (300, 0.27)):
        images = flat(100, side, 2**16 // side**2 + 1)
        changed = (corrupt_batch(images, "impulse_noise", 5) != 100).mean()
        assert changed == pytest.approx(share, rel=0.1)
        wide = np.concatenate([images, images], axis=2)  # the shorter side counts
        assert (corrupt_batch(wide, "impulse_noise", 5) != 100).mean() == pytest.approx(
            share, rel=0.1
        )


def test_unknown_corruptions_and_severities_are_refused() -> None:
    with pytest.raises(DataError, match="brightness"):
        corrupt(random_image(), "brightnes", 1)
    for severity in (0, 6):
        with pytest.raises(DataError, match="1 .*5"):
            corrupt(random_image(), "brightness", severity)
