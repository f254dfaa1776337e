"""Other versions of images by name: reduced, shuffled, and encoded as such."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from focoop.data.dataset_spec import Source, expand
from focoop.data.image_set import ImageSet
from focoop.data.image_versions import reduced, rendered, shuffle
from focoop.errors import DataError
from focoop.features.lookup import open_features
from focoop.seeds import numpy_generator
from tests.data import trees
from tests.helpers import toy_backbone

BACKBONE = toy_backbone()


def picture(width: int, height: int, name: str = "picture") -> Image.Image:
    pixels = numpy_generator(0, name).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_names_say_which_version_is_meant() -> None:
    whole = Source.parse("folder:my@home/x@train@32px@shuffled#fog@2")
    assert whole == Source("folder", "my@home/x", "fog", 2, "train", 32, True)
    assert Source.parse("hf:name@train") == Source("hf", "name@train")  # a configuration of a hub
    assert Source.parse("file:x@32px") == Source("file", "x@32px")
    assert not Source.parse("dtd@train").altered and Source.parse("dtd@8px").altered
    for spec, words in (("dtd@2000px", "8 to 1024 px"), ("dtd@tiny", "'dtd@tiny'")):
        with pytest.raises(DataError, match=words):
            Source.parse(spec)
    assert expand(["a#fog", "b#fog@2", "c"]) == [
        *(f"a#fog@{s}" for s in range(1, 6)),
        "b#fog@2",
        "c",
    ]


@given(st.integers(8, 40), st.integers(8, 40))
def test_shuffling_moves_pixels_and_loses_only_the_rim(width: int, height: int) -> None:
    image = picture(width, height)
    mixed = shuffle(image, numpy_generator(1, "order"))
    assert mixed.size == (width // 4 * 4, height // 4 * 4)
    kept = np.asarray(image)[: mixed.height, : mixed.width].reshape(-1, 3)
    found = np.asarray(mixed).reshape(-1, 3)
    assert sorted(map(tuple, kept)) == sorted(map(tuple, found))


def test_reduced_is_pillows_centre_square() -> None:
    image = picture(50, 30)
    want = image.crop((10, 0, 40, 30)).resize((8, 8), Image.Resampling.BICUBIC)
    assert reduced(image, 8).tobytes() == want.tobytes()


def test_a_version_is_encoded_from_its_own_pixels(tmp_path: Path) -> None:
    folder = tmp_path / "sea" / "test" / "wave"
    folder.mkdir(parents=True)
    for row in range(3):
        picture(40, 24, str(row)).save(folder / f"{row}.png")
    spec, cache = f"folder:{tmp_path / 'sea'}", tmp_path / "cache"

    def features(version: str) -> torch.Tensor:
        return open_features(spec + version, "test", BACKBONE, cache_dir=cache).pooled

    small = [reduced(picture(40, 24, str(row)), 16) for row in range(3)]
    want = BACKBONE.encode_images(torch.stack([BACKBONE.preprocess(one) for one in small])).pooled
    torch.testing.assert_close(features("@16px"), want, atol=1e-3, rtol=0)  # stored in 16 bits
    versions = [features(version) for version in ("", "@16px", "@12px", "@shuffled", "@16px#fog@3")]
    for first in range(5):
        for second in range(first):
            assert not torch.allclose(versions[first], versions[second], atol=1e-3)
    assert torch.equal(features("@shuffled"), versions[3])  # the order is drawn from the name


def test_other_content_is_another_version(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    picture(16, 16, "one").save(tmp_path / "a" / "x.png")
    images = ImageSet(tmp_path, ("a/x.png",), (0,), ("a",), "test")

    def digest(side: int, mixed: bool = False) -> str:
        store = rendered(images, side, mixed, tmp_path / "cache").store
        assert store is not None and len(store) == 1
        return store.digest()

    assert rendered(images) is images
    before = {digest(8), digest(9), digest(8, True), digest(0, True)}
    assert len(before) == 4
    picture(16, 16, "another").save(tmp_path / "a" / "x.png")
    assert digest(8) not in before


def test_the_sets_for_validation_hold_their_classes_alone(tmp_path: Path) -> None:
    named = {"n1": "abacus", "n2": "lion, king of beasts", "n3": "teapot"}
    trees.tinyimagenet(tmp_path, named)
    found = open_features(
        "tinyimagenet_objects", "test", BACKBONE, root=tmp_path, cache_dir=tmp_path
    )
    assert len(found) == 2 and len(found.classes) == 1
    base = tmp_path / "caltech-101" / "101_ObjectCategories"
    trees.plant(base, "yin_yang/1.jpg", "BACKGROUND_Google/1.jpg", "ant/1.jpg", "lotus/1.jpg")
    spec = "caltech101_objects@8px"
    assert len(open_features(spec, "test", BACKBONE, root=tmp_path, cache_dir=tmp_path)) == 2
    trees.plant(tmp_path / "intel_scenes", "seg_test/seg_test/sea/1.jpg", "seg_train/sea/2.jpg")
    spec = "intel_scenes"
    assert len(open_features(spec, "test", BACKBONE, root=tmp_path, cache_dir=tmp_path)) == 1


@pytest.mark.parametrize("name", ["é" * 300, "é" * 300 + ".csv", "~nobody-at-all/x", "a\x00b"])
def test_a_name_that_no_path_can_have_is_told(name: str) -> None:
    with pytest.raises(DataError, match="no dataset is called"):
        Source.parse(name)
