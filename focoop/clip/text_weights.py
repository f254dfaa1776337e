"""Weights of text transformers under open_clip's names, in our own text tower."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from focoop.clip.text.tower import TextShape, TextTower

FAMILIES = (
    "models with CLIP's own text tower work, for example ViT-B-32, ViT-B-16, ViT-L-14, RN50, "
    "convnext_base_w, EVA02-B-16, ViTamin-B, PE-Core-B-16"
)
# open_clip's names of a block's parts, and ours.
PARTS = {"attn.in_proj_": "qkv.", "attn.out_proj.": "o.", "mlp.c_fc.": "f1.", "mlp.c_proj.": "f2."}
REST = {"token_embedding.": "tok.", "positional_embedding": "pos", "ln_final.": "lnf."}
OTHERS = ("visual.", "logit_", "attn_mask")  # no part of a text tower
SCALED = {"ls_1": "o", "ls_2": "f2"}  # layer scales, and the linear maps before them


def refusal_of(config: Mapping[str, Any]) -> str | None:
    """Say why prompts cannot go through the text tower of a model configuration.

    Args:
        config: open_clip's configuration of the model.

    Returns:
        The reason, or None where they can.
    """
    text = config["text_cfg"]
    if text.get("hf_model_name"):
        return "its text tower is a Hugging Face encoder, not CLIP's"
    if "multimodal_cfg" in config or text.get("embed_cls"):
        return "its text tower reads an extra class token (CoCa), not the end of the text"
    if text.get("no_causal_mask"):
        return "its text tower looks in both directions, so prompts cannot be cut at their end"
    if text.get("hf_tokenizer_name") or text.get("pool_type", "argmax") != "argmax":
        return "its tokenizer is not CLIP's, so the end of a text is not the largest token"
    return None


def make_tower(
    state: Mapping[str, Tensor], heads: int, activation: str, norm_eps: float = 1e-5
) -> TextTower:
    """Make our frozen tower of open_clip's weights; those in float32 are not copied.

    A layer scale goes into the linear map before it.

    Args:
        state: Weights by open_clip's names; those of an image tower are left out.
        heads: Attention heads.
        activation: Our name of the activation.
        norm_eps: Epsilon of the norms.

    Returns:
        The tower.
    """
    ours = {
        _renamed(key): value.detach().float()
        for key, value in state.items()
        if not key.startswith(OTHERS)
    }
    layers = 1 + max(int(key.split(".")[1]) for key in ours if key.startswith("blocks."))
    for name in [f"blocks.{i}.{scale}.gamma" for i in range(layers) for scale in SCALED]:
        if name in ours:
            gamma, (block, scale) = ours.pop(name), name.removesuffix(".gamma").rsplit(".", 1)
            linear = f"{block}.{SCALED[scale]}"
            ours[f"{linear}.weight"] = gamma[:, None] * ours[f"{linear}.weight"]
            ours[f"{linear}.bias"] = gamma * ours[f"{linear}.bias"]
    rows, width = ours["tok.weight"].shape
    if "text_projection" in ours:
        ours["proj.weight"] = ours.pop("text_projection").T
    matrix = ours.setdefault("proj.weight", torch.eye(width))
    shape = TextShape(width, layers, heads, len(matrix), len(ours["pos"]), activation, norm_eps)
    with torch.device("meta"):  # no memory and no random draws: the weights are there
        tower = TextTower(shape, nn.Embedding(rows, width))
    tower.load_state_dict({key: value.contiguous() for key, value in ours.items()}, assign=True)
    return tower.freeze()


def _renamed(key: str) -> str:
    """Our name of a weight."""
    if block := re.match(r"transformer\.resblocks\.(\d+)\.", key):
        rest = key[block.end() :]
        for theirs, ours in PARTS.items():
            rest = rest.replace(theirs, ours)
        return f"blocks.{block[1]}.{rest}"
    if key == "text_projection.weight":  # a linear map, where the parameter is its transpose
        return "proj.weight"
    for theirs, ours in REST.items():
        key = key.replace(theirs, ours)
    return key
