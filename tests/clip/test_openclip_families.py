"""Every family that our messages list, shrunk: texts against `transformers`, images too where it
has such a tower and against open_clip's own module otherwise."""

import copy
import re
from pathlib import Path
from typing import Any

import open_clip
import pytest
import timm
import torch
from open_clip.factory import _MODEL_CONFIGS

from focoop.clip import load_backbone
from focoop.clip.text_weights import FAMILIES
from focoop.seeds import torch_generator
from tests.clip.twins import has_vit, save, twin

LISTED = re.findall(r"[\w-]+", FAMILIES.partition("for example ")[2])
TEXTS = ["a photo of a cat.", "", "two great grey owls, in a box"]
# What makes timm's models small; all else is as the model's own definition says.
SMALL: dict[str, dict[str, Any]] = {
    "convnext": {"depths": (1, 1, 1, 1), "dims": (8, 16, 32, 64)},
    "eva02": {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 64},
    "vitamin": {"depth": 1, "img_size": 64},
    "vit_pe": {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 64},
}
PATCHES = {"ViT": ("lf_a", "lf_b", "lf_c"), "RN50": ("lf_a", "lf_b", "lf_c"), "EVA02": ("lf_a",)}


def shrunk(name: str) -> dict[str, Any]:
    """open_clip's configuration of a model with smaller numbers and nothing else changed."""
    config = copy.deepcopy(open_clip.get_model_config(name))
    config["embed_dim"] = 24
    config["text_cfg"] |= {"width": 16, "heads": 2, "layers": 2}
    vision = config["vision_cfg"]
    if "timm_model_name" in vision:
        vision["image_size"] = 64
    elif isinstance(vision["layers"], list):
        vision |= {"layers": [1, 1, 1, 1], "width": 16, "image_size": 64}
    else:
        vision |= {"layers": 2, "width": 128, "image_size": 2 * vision["patch_size"]}
    return config


@pytest.fixture(autouse=True)
def small_trunks(monkeypatch: pytest.MonkeyPatch) -> None:
    create = timm.create_model

    def small(name: str, **settings: Any) -> Any:
        (found,) = (more for start, more in SMALL.items() if name.startswith(start))
        return create(name, **settings, **found)

    monkeypatch.setattr(timm, "create_model", small)


def test_the_list_names_models_of_open_clip() -> None:
    assert len(LISTED) == 8
    assert set(LISTED) <= set(open_clip.list_models())


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "quick_gelu",
    [pytest.param(True, marks=pytest.mark.slow, id="quick_gelu"), pytest.param(False, id="gelu")],
)
@pytest.mark.parametrize("name", LISTED)
def test_towers_of_every_listed_family(
    name: str, quick_gelu: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**shrunk(name), "quick_gelu": quick_gelu}
    monkeypatch.setitem(_MODEL_CONFIGS, name, config)
    made = twin(config, quick_gelu)
    kind = "transformers" if has_vit(config) else "open_clip.safetensors"
    kind = "archive" if name == "RN50" else kind  # as OpenAI released it
    ours = load_backbone(f"openclip:{name}:custom", weights=save(made, kind, tmp_path))

    tokens = open_clip.get_tokenizer(name)(TEXTS)
    torch.testing.assert_close(ours.encode_texts(TEXTS), made.texts(tokens), atol=1e-5, rtol=0)
    side = config["vision_cfg"]["image_size"]
    batch = torch.randn(2, 3, side, side, generator=torch_generator(1, "pictures"))
    with torch.no_grad():
        expected = made.network.encode_image(batch, normalize=True)
    if has_vit(config):
        expected = made.images(batch)
    for patches in (None, *ours.patch_kinds):
        found = ours.encode_images(batch, patches).pooled
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert ours.patch_kinds == PATCHES.get(name.partition("-")[0], ())
