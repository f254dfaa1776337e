"""Backbones of a folder in open_clip's convention against open_clip itself, which loads it too."""

import json
import sys
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from focoop.clip import load_backbone
from focoop.errors import BackboneError
from tests.clip.test_openclip import FAMILIES, TEXT, randomise, tiny

TEXTS = ["a photo of a cat.", "The nice St. Bernard's dog.", "great wall of China"]
TALL = {**TEXT, "width": 64, "layers": 3}


def write_folder(
    folder: Path, config: dict[str, Any], state: dict[str, Tensor], name: str = "safetensors"
) -> Path:
    """The folder as `open_clip.push_to_hf_hub` leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"model_cfg": config, "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.25] * 3}}
    (folder / "open_clip_config.json").write_text(json.dumps(record))
    state = {key: value.clone().contiguous() for key, value in state.items()}
    if name == "safetensors":
        save_file(state, folder / "open_clip_model.safetensors")
    else:
        torch.save(state, folder / "open_clip_pytorch_model.bin")
    return folder


def text_side(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if not key.startswith("visual.")}


@pytest.fixture(params=[name for name in FAMILIES if "timm" not in name], ids=str)
def made(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Any]:
    config = {"embed_dim": 32, "text_cfg": TEXT, **FAMILIES[request.param]}
    return config, tiny(**FAMILIES[request.param])


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_both_towers_agree_with_open_clips_own_reading_of_the_folder(
    made: tuple[dict[str, Any], Any], kind: str, tmp_path: Path
) -> None:
    config, model = made
    folder = write_folder(tmp_path / "model", config, model.state_dict(), kind)
    theirs, _, transform = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    theirs.eval()
    ours = load_backbone(f"local-dir:{folder}")
    tokens = open_clip.get_tokenizer(f"local-dir:{folder}")(TEXTS)
    with torch.no_grad():
        texts = F.normalize(theirs.encode_text(tokens), dim=-1)
        photo = Image.effect_noise((70, 50), 90).convert("RGB")
        image = F.normalize(theirs.encode_image(transform(photo)[None]), dim=-1)
    assert torch.allclose(ours.encode_texts(TEXTS), texts, atol=1e-5)
    found = ours.encode_images(ours.preprocess(photo)[None]).pooled
    assert torch.allclose(found, image, atol=1e-5)
    assert ours.logit_scale == pytest.approx(float(theirs.logit_scale.detach().exp()))
    moved = write_folder(tmp_path / "moved", config, model.state_dict(), kind)
    assert load_backbone(f"local-dir:{moved}").fingerprint == ours.fingerprint


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_a_text_tower_alone_gives_the_same_texts_without_open_clip(
    made: tuple[dict[str, Any], Any], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, model = made
    tokens = open_clip.SimpleTokenizer(context_length=model.context_length)(TEXTS)
    with torch.no_grad():
        texts = F.normalize(model.encode_text(tokens), dim=-1)
    folder = write_folder(tmp_path / "text", config, text_side(model.state_dict()), kind)
    for name in ("open_clip", "focoop.clip.openclip"):
        monkeypatch.setitem(sys.modules, name, None)  # whoever imports it fails
    ours = load_backbone(f"local-dir:{folder}")
    assert torch.allclose(ours.encode_texts(TEXTS), texts, atol=1e-5)
    assert ours.logit_scale == pytest.approx(float(model.logit_scale.detach().exp()))
    assert (ours.dim, ours.patch_kinds) == (32, ())
    with pytest.raises(BackboneError, match=r"no image tower.*file:PATH\.safetensors"):
        ours.prepare(None)
    with pytest.raises(BackboneError, match="no image tower"):
        ours.encode_images(torch.zeros(1, 3, 8, 8))


def test_text_towers_of_any_size(tmp_path: Path) -> None:
    config = {"embed_dim": 48, "quick_gelu": True, "text_cfg": TALL}
    model = randomise(open_clip.CLIP(vision_cfg=FAMILIES["ViT"]["vision_cfg"], **config))
    folder = write_folder(tmp_path, config, text_side(model.state_dict()))  # no vision_cfg at all
    ours = load_backbone(f"local-dir:{folder}")
    with torch.no_grad():
        texts = F.normalize(model.encode_text(open_clip.tokenize(TEXTS)), dim=-1)
    assert (ours.width, ours.dim, ours.text.shape.layers) == (64, 48, 3)
    assert torch.allclose(ours.encode_texts(TEXTS), texts, atol=1e-5)


def small(folder: Path, **changed: Any) -> Path:
    config = {"embed_dim": 32, "text_cfg": {**TEXT, **changed}}
    return write_folder(folder, config, text_side(tiny(**FAMILIES["ViT"]).state_dict()))


def break_config(folder: Path) -> None:
    (folder / "open_clip_config.json").write_text("{}")


def lose_config(folder: Path) -> None:
    (folder / "open_clip_config.json").unlink()


def lose_weights(folder: Path) -> None:
    (folder / "open_clip_model.safetensors").unlink()


def add_nan(folder: Path) -> None:
    state = text_side(tiny(**FAMILIES["ViT"]).state_dict())
    state["ln_final.bias"][3] = float("nan")
    save_file(state, folder / "open_clip_model.safetensors")


def lose_block(folder: Path) -> None:
    state = text_side(tiny(**FAMILIES["ViT"]).state_dict())
    del state["transformer.resblocks.1.mlp.c_fc.bias"]
    save_file(state, folder / "open_clip_model.safetensors")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (break_config, "is no configuration of open_clip"),
        (lose_config, r"has no open_clip_config\.json"),
        (lose_weights, "holds none of"),
        (add_nan, "NaN or infinity"),
        (lose_block, "does not hold the text tower"),
    ],
)
def test_a_damaged_folder_is_refused_with_a_reason(damage: Any, said: str, tmp_path: Path) -> None:
    damage(small(tmp_path))
    with pytest.raises(BackboneError, match=said):
        load_backbone(f"local-dir:{tmp_path}")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"width": 48}, "has width = 32, and .* says 48"),
        ({"layers": 5}, "has layers = 2"),
        ({"vocab_size": 1000}, "has vocab_size = 49408"),
        ({"hf_model_name": "roberta"}, "Hugging Face encoder"),
        ({"pool_type": "last"}, "not the largest token"),
    ],
)
def test_a_configuration_of_another_model_is_refused(
    changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BackboneError, match=said):
        load_backbone(f"local-dir:{small(tmp_path, **changed)}")


def test_names_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match="there is no folder"):
        load_backbone(f"local-dir:{tmp_path / 'gone'}")
    found = load_backbone("local-dir:gone", weights=small(tmp_path))  # where it is now
    assert found.fingerprint == load_backbone(f"local-dir:{tmp_path}").fingerprint
    with pytest.raises(BackboneError, match="local-dir:<folder>"):
        load_backbone("local-dir:")


def test_a_part_of_the_vocabulary_gives_the_same_bits_and_refuses_other_texts(
    tmp_path: Path,
) -> None:
    whole = load_backbone(f"local-dir:{small(tmp_path / 'whole')}")
    folder = small(tmp_path / "part")
    state = text_side(tiny(**FAMILIES["ViT"]).state_dict())
    rows = torch.tensor(sorted({*range(512), *whole.tokenize(TEXTS).flatten().tolist()}))
    state["token_embedding.weight"] = state["token_embedding.weight"][rows].clone()
    save_file({**state, "token_rows": rows.int()}, folder / "open_clip_model.safetensors")
    part = load_backbone(f"local-dir:{folder}")
    assert part.fingerprint == whole.fingerprint  # what is cached of one serves the other
    assert torch.equal(part.encode_texts(TEXTS), whole.encode_texts(TEXTS))
    contexts = torch.ones(2, 32)
    ours, theirs = (one.encode_prompts(contexts, one.names(["cat"])) for one in (part, whole))
    assert torch.equal(ours, theirs)
    with pytest.raises(BackboneError, match=r"part of the vocabulary, .*'zeppelins\.'"):
        part.names(["cat", "zeppelins"])


def test_a_text_tower_of_transformers_gives_its_own_features(tmp_path: Path) -> None:
    shape = CLIPTextConfig(
        hidden_size=32,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        projection_dim=24,
        hidden_act="quick_gelu",
        eos_token_id=49407,
    )
    model = randomise(CLIPTextModelWithProjection(shape))
    model.save_pretrained(tmp_path)
    config = {"embed_dim": 24, "quick_gelu": True, "text_cfg": {"width": 32, "heads": 2}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    ours = load_backbone(f"local-dir:{tmp_path}")
    with torch.no_grad():
        texts = F.normalize(model(open_clip.tokenize(TEXTS)).text_embeds, dim=-1)
    assert torch.allclose(ours.encode_texts(TEXTS), texts, atol=1e-5)
    assert ours.logit_scale == pytest.approx(100)  # it has none of its own
