"""Bytes that travel to the device give the features of CLIP's own preprocessing, bit for bit."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from focoop.clip.openclip import OpenClipBackbone, wrap
from focoop.clip.pixels import levels, normalised
from focoop.seeds import numpy_generator
from tests.clip.test_openclip import VIT, tiny, tokenizer

PREPARATIONS: dict[str, dict[str, Any]] = {
    "CLIP": {},
    "squashed": {"resize_mode": "squash", "interpolation": "bilinear"},
    "padded": {"resize_mode": "longest", "fill_color": 127},
    "ImageNet's numbers": {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
}


@pytest.mark.parametrize("name", PREPARATIONS)
def test_features_of_bytes_are_those_of_floats(name: str) -> None:
    model = tiny(vision_cfg=VIT)
    ours: OpenClipBackbone = wrap(
        model, tokenizer(model), {"size": 32, **PREPARATIONS[name]}, "tiny"
    )
    pixels = numpy_generator(3, "pixels").integers(0, 256, (3, 40, 57, 3), dtype=np.uint8)
    images = [Image.fromarray(one) for one in pixels] + [Image.new("L", (1, 9), 200)]
    travelled = torch.stack([ours.prepare(image) for image in images])
    floats = torch.stack([ours.preprocess(image) for image in images])
    assert travelled.dtype == ours.pixel_type == torch.uint8 and floats.dtype == torch.float32
    assert travelled.shape == floats.shape == (4, 3, 32, 32)
    assert torch.equal(ours.encode_images(travelled).pooled, ours.encode_images(floats).pooled)


def test_every_level_is_scaled_as_the_formula_says() -> None:
    image = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).convert("RGB")
    got = normalised(levels(image)[None], (0.5, 0.25, 0.1), (0.5, 1.0, 0.2))
    want = [(np.arange(256) / 255 - m) / s for m, s in ((0.5, 0.5), (0.25, 1), (0.1, 0.2))]
    np.testing.assert_allclose(got.reshape(3, 256).numpy(), want, rtol=1e-6, atol=1e-6)
    assert normalised(got, (9, 9, 9), (9, 9, 9)) is got  # floats are normalised already
