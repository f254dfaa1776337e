"""A kept text side against the whole model it was taken from."""

import sys
from pathlib import Path

import pytest
import torch
from open_clip.factory import _MODEL_CONFIGS
from safetensors.torch import save_file

from focoop.clip import load_backbone, text_only
from focoop.clip.openclip import build
from focoop.clip.text_only import LightBackbone, load_light
from focoop.seeds import torch_generator
from tests.clip.test_openclip_run import shrunk

NAME = "openclip:ViT-B-16:custom"
CLASSES = ["cat", "St. Bernard's dog", "hot_air balloon"]


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny ViT-B-16 in a file."""
    monkeypatch.setitem(_MODEL_CONFIGS, "ViT-B-16", shrunk("ViT-B-16"))
    path = tmp_path / "weights.safetensors"
    state = build(_MODEL_CONFIGS["ViT-B-16"], quick_gelu=False).state_dict()
    generator = torch_generator(0, "light")
    state = {
        k: torch.randn(v.shape, generator=generator) * 0.1 if v.is_floating_point() else v
        for k, v in state.items()
    }
    save_file(state, path)
    return path


def test_texts_give_the_whole_models_bits_without_open_clip(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load_backbone(NAME, weights=weights)
    first = load_light(NAME, weights=weights, cache_dir=tmp_path)
    assert not isinstance(first, LightBackbone)
    with monkeypatch.context() as patch:
        for name in ("open_clip", "focoop.clip.openclip"):
            patch.setitem(sys.modules, name, None)  # whoever imports it fails
        found = load_light(NAME, weights=weights, cache_dir=tmp_path)
        assert isinstance(found, LightBackbone)
        for key in (*text_only.PLAIN, "pixel_type", "dim", "width"):
            assert getattr(found, key) == getattr(whole, key), key
        assert torch.equal(found.encode_texts(CLASSES), whole.encode_texts(CLASSES))
        contexts = torch.randn(3, 4, whole.width, generator=torch_generator(0, "contexts"))
        ours = found.encode_prompts(contexts, found.names(CLASSES))
        assert torch.equal(ours, whole.encode_prompts(contexts, whole.names(CLASSES)))
        assert found.patch_projection is not None and whole.patch_projection is not None
        assert torch.equal(found.patch_projection, whole.patch_projection)
    # What it does not have it fetches: images, and texts that open_clip may repair.
    batch = torch.randn(2, 3, 32, 32, generator=torch_generator(0, "images"))
    assert torch.equal(found.encode_images(batch).pooled, whole.encode_images(batch).pooled)
    assert torch.equal(found.tokenize(["caf\u00e9"]), whole.tokenize(["caf\u00e9"]))


def test_other_weights_and_damage_are_noticed(weights: Path, tmp_path: Path) -> None:
    load_light(NAME, weights=weights, cache_dir=tmp_path)
    assert isinstance(load_light(NAME, weights=weights, cache_dir=tmp_path), LightBackbone)
    (kept,) = set(tmp_path.glob("*.safetensors")) - {weights}
    whole = kept.read_bytes()
    for damaged in (whole[:1000], bytes([*whole[:-1], whole[-1] ^ 1])):
        kept.write_bytes(damaged)
        with pytest.warns(UserWarning, match="is damaged .*made again"):
            made = load_light(NAME, weights=weights, cache_dir=tmp_path)
        assert not isinstance(made, LightBackbone)
    assert isinstance(load_light(NAME, weights=weights, cache_dir=tmp_path), LightBackbone)
    weights.touch()
    assert not isinstance(load_light(NAME, weights=weights, cache_dir=tmp_path), LightBackbone)


def test_a_tokenizer_that_differs_keeps_nothing(weights: Path, tmp_path: Path) -> None:
    repaired = ["caf\u00c3\u00a9"]  # mis-decoded: open_clip repairs it
    for _ in range(2):
        found = load_light(NAME, weights=weights, cache_dir=tmp_path, probes=repaired)
        assert not isinstance(found, LightBackbone)


def test_mini_is_loaded_as_ever(tmp_path: Path) -> None:
    assert load_light("mini", cache_dir=tmp_path).name == "mini"
    assert not list(tmp_path.iterdir())
