"""Every kind of weight file against `transformers`' CLIP with the same weights."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
import torch.nn.functional as F
from open_clip.factory import _MODEL_CONFIGS
from open_clip.pretrained import _PRETRAINED
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import CLIPImageProcessor

from focoop.clip import load_backbone
from focoop.clip.openclip import OpenClipBackbone
from focoop.errors import BackboneError
from focoop.seeds import numpy_generator, torch_generator
from tests.clip.twins import Twin, save, twin

VISION = {"image_size": 24, "layers": 3, "width": 64, "patch_size": 8, "head_width": 16}
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}
TEXTS = ["a photo of a cat.", "", "two great grey owls, in a box"]
tokenize = open_clip.SimpleTokenizer()
KINDS = ("transformers", "transformers.bin", "open_clip", "open_clip.safetensors", "archive")


@pytest.fixture(scope="module", params=[True, False], ids=["quick_gelu", "gelu"])
def pair(request: pytest.FixtureRequest) -> Twin:
    config = {"embed_dim": 40, "vision_cfg": VISION, "text_cfg": TEXT}
    if request.param:
        config["quick_gelu"] = True
    return twin(config, request.param)


@pytest.fixture(autouse=True)
def tiny_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_PRETRAINED, "tiny", {})


@pytest.fixture
def load(pair: Twin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The pair's weights through a file of a kind and our loader."""
    monkeypatch.setitem(_MODEL_CONFIGS, "tiny", pair.config)

    def loaded(kind: str = "transformers") -> Any:
        return load_backbone("openclip:tiny:custom", weights=save(pair, kind, tmp_path))

    return loaded


def pictures(count: int, side: int) -> Tensor:
    return torch.randn(count, 3, side, side, generator=torch_generator(1, "pictures"))


def close(found: Tensor | None, expected: Tensor) -> None:
    assert found is not None
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_transformers_features(
    kind: str, pair: Twin, load: Callable[..., Any]
) -> None:
    ours, batch = load(kind), pictures(3, 24)
    close(ours.encode_images(batch).pooled, pair.images(batch))
    close(ours.encode_texts(TEXTS), pair.texts(tokenize(TEXTS)))
    assert ours.logit_scale == pytest.approx(pair.reference.logit_scale.exp().item())
    assert ours.text.shape.activation == pair.reference.config.text_config.hidden_act


def test_contexts_of_literal_words_give_transformers_texts(
    pair: Twin, load: Callable[..., Any]
) -> None:
    ours = load()
    names = ["cat", "great grey owl"]
    found = ours.encode_prompts(ours.embed("a photo of a"), ours.names(names))
    tokens = tokenize([f"a photo of a {name}." for name in names])
    close(found, pair.texts(tokens))


def test_patches_of_every_kind_in_the_terms_of_transformers(
    pair: Twin, load: Callable[..., Any]
) -> None:
    ours, batch = load(), pictures(2, 24)
    vision, project = pair.reference.vision_model, pair.reference.visual_projection
    with torch.no_grad():
        states = vision(pixel_values=batch, output_hidden_states=True).hidden_states
        mixed = vision.post_layernorm(states[-1][:, 1:])
        block, x = vision.encoder.layers[-1], states[-2][:, 1:]
        x = x + block.self_attn.out_proj(block.self_attn.v_proj(block.layer_norm1(x)))
        alone = vision.post_layernorm(x + block.mlp(block.layer_norm2(x)))
        close(ours.encode_images(batch, "lf_a").patches, F.normalize(project(mixed), dim=-1))
        close(ours.encode_images(batch, "lf_b").patches, F.normalize(project(alone), dim=-1))
        close(ours.encode_images(batch, "lf_c").patches, alone)
        close(ours.patch_projection, project.weight.T)


def test_the_record_beside_a_file_must_name_the_same_activation(
    pair: Twin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {k: v for k, v in pair.config.items() if k != "quick_gelu"}
    was_quick = "quick_gelu" in pair.config
    if not was_quick:
        other["quick_gelu"] = True
    monkeypatch.setitem(_MODEL_CONFIGS, "tiny", other)
    path = save(pair, "transformers", tmp_path)
    advice = "openclip:tiny-quickgelu:custom" if was_quick else "openclip:tiny:custom"
    with pytest.raises(BackboneError, match=f"config.json.*{advice}"):
        load_backbone("openclip:tiny:custom", weights=path)
    for text in ("", "{}", "[]", json.dumps({"text_config": None, "vision_config": None})):
        (tmp_path / "config.json").write_text(text)  # no such record: taken as it is
        load_backbone("openclip:tiny:custom", weights=path)


@pytest.mark.parametrize("change", ["lacking", "extra", "wider"])
def test_transformers_files_of_another_model_are_refused(
    change: str, pair: Twin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_MODEL_CONFIGS, "tiny", pair.config)
    path = save(pair, "transformers", tmp_path)
    state = load_file(path)
    name = "vision_model.encoder.layers.2.mlp.fc1.weight"
    if change == "lacking":
        del state["text_model.encoder.layers.1.self_attn.k_proj.bias"]
    elif change == "extra":
        state[name.replace("layers.2", "layers.4")] = state[name].clone()
    else:
        state[name] = torch.zeros(300, 64)
    save_file(state, path)
    with pytest.raises(BackboneError, match="does not hold the weights of this model"):
        load_backbone("openclip:tiny:custom", weights=path)


def test_custom_text_models_take_transformers_files(
    pair: Twin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_MODEL_CONFIGS, "tiny", {**pair.config, "custom_text": True})
    ours = load_backbone("openclip:tiny:custom", weights=save(pair, "transformers", tmp_path))
    close(ours.encode_texts(TEXTS), pair.texts(tokenize(TEXTS)))


@pytest.mark.parametrize("size", [(40, 30), (24, 24), (17, 61), (300, 200)])
def test_images_are_prepared_as_transformers_does(
    size: tuple[int, int], pair: Twin, load: Callable[..., Any]
) -> None:
    ours = load()
    pixels = numpy_generator(2, "pixels").integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    theirs = CLIPImageProcessor(size={"shortest_edge": 24}, crop_size={"height": 24, "width": 24})
    expected = theirs(image, return_tensors="pt")["pixel_values"][0]
    found = ours.preprocess(image)
    assert found.shape == expected.shape
    # Rounding to bytes may differ by one level of 255 between the two libraries' resizing.
    assert (found - expected).abs().max() < 1.5 / 255 / 0.26


@pytest.mark.slow
def test_released_sizes(tmp_path: Path) -> None:
    """A file laid out as openai/clip-vit-base-patch16 loads as `openclip:ViT-B-16:openai`."""
    config = copy.deepcopy(open_clip.get_model_config("ViT-B-16"))
    made = twin(config, quick_gelu=True)
    path = save(made, "transformers", tmp_path)
    ours = load_backbone("openclip:ViT-B-16:openai", weights=path)
    assert isinstance(ours, OpenClipBackbone)
    batch = pictures(1, 224)
    torch.testing.assert_close(
        ours.encode_images(batch).pooled, made.images(batch), atol=1e-4, rtol=0
    )
    tokens = tokenize(TEXTS)
    torch.testing.assert_close(ours.encode_texts(TEXTS), made.texts(tokens), atol=1e-4, rtol=0)
