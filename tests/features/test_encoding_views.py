"""What is done to images before they are encoded: corruptions of every type, random views."""

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from focoop.data import ImageSet, read_folder
from focoop.data.corruptions.apply import CORRUPTIONS, corrupt
from focoop.data.image_set import Pixels
from focoop.data.views import random_box, random_view
from focoop.errors import DataError
from focoop.features.encoding import View, data_hash, encode
from focoop.features.lookup import open_features
from focoop.seeds import numpy_generator
from tests.features.test_encoding import counting, one_by_one, plant_images
from tests.helpers import toy_backbone


@pytest.fixture
def images(tmp_path: Path) -> ImageSet:
    """Twelve images, every other one wider."""
    images = read_folder(plant_images(tmp_path / "images", side=14), "test")
    for file in images.files[::2]:
        with Image.open(images.root / file) as opened:
            wide = opened.resize((20, 14))
        wide.save(images.root / file)
    return images


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_every_corruption_has_a_name_for_folders(
    name: str, images: ImageSet, tmp_path: Path
) -> None:
    backbone = toy_backbone()
    got = open_features(f"folder:{images.root}#{name}@4", "test", backbone, cache_dir=tmp_path)
    assert got.provenance["corruption"] == f"{name}@4"
    files = iter(images.files)  # one at a time, in no batch, by the file's name
    want = one_by_one(images, backbone, lambda pixels: corrupt(pixels, name, 4, next(files)))
    torch.testing.assert_close(got.pooled, want.pooled, atol=1e-3, rtol=0)
    with pytest.raises(DataError, match="1 .*5"):
        open_features(f"folder:{images.root}#{name}@6", "test", backbone)


def test_an_image_is_corrupted_alike_in_any_set(images: ImageSet, tmp_path: Path) -> None:
    whole = encode(images, toy_backbone(), corruption="snow", severity=2, cache_dir=tmp_path)
    some = images.take([7, 0, 3])
    part = encode(
        some, toy_backbone(), corruption="snow", severity=2, cache_dir=tmp_path, batch_size=2
    )
    assert torch.equal(part.pooled, whole.pooled[[7, 0, 3]])


def test_keys_of_this_format_stay_as_they_are() -> None:
    backbone = toy_backbone()

    def second_format(*parts: object) -> str:
        text = json.dumps([2, backbone.image_fingerprint, *parts])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    assert View().key(backbone, "d") == second_format(None, None, 0, None, "d")
    bright = View("grid", "brightness", 5)
    assert bright.key(backbone, "d") == second_format("grid", "brightness", 5, 0.3, "d")


def test_keys_tell_everything_apart() -> None:
    views = [View("grid"), View(), View(augmented=1), View(augmented=2)]
    views += [View(None, name, severity) for name in CORRUPTIONS for severity in (1, 2)]
    views += [View(None, "fog", 1, 1)]
    keys = [view.key(toy_backbone(), data) for view in views for data in ("d", "e")]
    assert len(set(keys)) == len(keys)


def test_views_are_further_sets_of_the_same_images(images: ImageSet, tmp_path: Path) -> None:
    backbone = counting()
    plain = encode(images, backbone, patches="grid", cache_dir=tmp_path)
    assert plain.views == () and backbone.seen == 12
    found = encode(images, backbone, patches="grid", views=2, cache_dir=tmp_path)
    assert backbone.seen == 36 and torch.equal(found.pooled, plain.pooled)
    assert found.provenance == plain.provenance and "view" not in found.provenance
    more = encode(images, backbone, patches="grid", views=3, cache_dir=tmp_path)
    assert backbone.seen == 48  # the first two are there
    every = [found, *more.views]
    for number, view in enumerate(more.views, 1):
        assert view.labels.tolist() == list(images.labels) and view.patches is not None
        assert view.provenance["view"].startswith(f"{number}: crop")
    for a in range(4):
        for b in range(a):
            assert (every[a].pooled - every[b].pooled).abs().amax(1).min() > 1e-3
    assert torch.equal(more.views[1].pooled, found.views[1].pooled)


def test_a_view_is_the_crop_drawn_for_its_image(images: ImageSet, tmp_path: Path) -> None:
    backbone = toy_backbone()
    (view,) = encode(images, backbone, views=1, cache_dir=tmp_path, batch_size=5).views
    for row, file in enumerate(images.files):
        crop = random_view(images.image(row), 8, numpy_generator(0, "view", 1, file))
        want = backbone.encode_images(backbone.preprocess(crop)[None]).pooled[0]
        torch.testing.assert_close(view.pooled[row], want, atol=1e-3, rtol=0)


def test_view_rows_follow_the_images(images: ImageSet, tmp_path: Path) -> None:
    found = encode(images, toy_backbone(), patches="grid", views=2, cache_dir=tmp_path)
    some = found.select([5, 1, 9]).with_classes(found.classes[::-1])
    rows = some.with_view_rows()
    assert len(rows) == 9 and rows.views == ()
    assert rows.labels.tolist() == some.labels.tolist() * 3
    for number, one in enumerate((found, *found.views)):
        for place, row in enumerate((5, 1, 9)):
            assert torch.equal(rows.pooled[3 * number + place], one.pooled[row])
            assert rows.patches is not None and one.patches is not None
            assert torch.equal(rows.patches[3 * number + place], one.patches[row])
    assert (
        found.sha256()
        != encode(images, toy_backbone(), patches="grid", views=1, cache_dir=tmp_path).sha256()
    )


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**32))
def test_boxes_lie_inside(width: int, height: int, seed: int) -> None:
    left, top, across, down = random_box(width, height, numpy_generator(seed, "box"))
    assert 0 <= left < left + across <= width and 0 <= top < top + down <= height
    assert (across - 1) * 3 <= 4 * (down + 1) and (down - 1) * 3 <= 4 * (across + 1)


def test_boxes_are_uniform_in_area_and_in_the_logarithm_of_the_ratio() -> None:
    generator = numpy_generator(1, "boxes")
    boxes = np.array([random_box(400, 400, generator) for _ in range(4000)])
    share = boxes[:, 2] * boxes[:, 3] / 400**2
    ratio = np.log(boxes[:, 2] / boxes[:, 3]) / math.log(4 / 3)
    # Large crops of uneven ratio stick out and are drawn again, so compare the smaller half.
    small = share < 0.54
    assert np.quantile(share[small], [0.25, 0.5, 0.75]) == pytest.approx(
        [0.195, 0.31, 0.425], abs=0.02
    )
    assert np.quantile(ratio[small], [0.25, 0.5, 0.75]) == pytest.approx([-0.5, 0, 0.5], abs=0.07)
    assert share.min() < 0.09 and share.max() > 0.95
    middle = boxes[small][:, 0] / (400 - boxes[small][:, 2])
    assert middle.mean() == pytest.approx(0.5, abs=0.02)


def test_half_of_the_views_are_mirrored() -> None:
    ramp = np.tile(np.arange(64, dtype=np.uint8)[None, :, None] * 4, (64, 1, 3))
    image = Image.fromarray(ramp)
    views = [np.asarray(random_view(image, 16, numpy_generator(i, "v"))) for i in range(400)]
    rising = sum(int(view[8, -1, 0]) > int(view[8, 0, 0]) for view in views)
    assert 160 < rising < 240


def test_images_in_an_array_are_hashed_and_encoded(tmp_path: Path) -> None:
    pixels = numpy_generator(2, "array").integers(0, 256, (6, 10, 10, 3), dtype=np.uint8)
    names = tuple(f"{i:05d}" for i in range(6))
    labels = (0, 1, 0, 1, 0, 1)
    images = ImageSet(tmp_path, names, labels, ("ant", "bee"), "test", store=Pixels(pixels))
    got = encode(images, toy_backbone(), cache_dir=tmp_path)
    want = one_by_one(images, toy_backbone(), lambda array: array)
    torch.testing.assert_close(got.pooled, want.pooled, atol=1e-3, rtol=0)
    hashes = {data_hash(images), data_hash(replace(images, labels=labels[::-1]))}
    hashes.add(data_hash(replace(images, files=names[::-1])))
    hashes.add(data_hash(replace(images, store=Pixels(pixels[::-1]))))
    assert len(hashes) == 4
