"""Read weights of `transformers`' CLIPModel under open_clip's names.

Both hold the same tensors: `transformers` keeps query, key and value of an attention apart where
open_clip stacks them, and its projections are linear layers, (D, width), where open_clip has
matrices, (width, D).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from focoop.caching import parse_json
from focoop.errors import BackboneError

MARK = "text_model.embeddings.token_embedding.weight"  # only files of `transformers` have it
OUTSIDE = {  # what lies around the blocks; the misspelt name is the library's own
    "logit_scale": "logit_scale",
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "vision_model.pre_layrnorm.weight": "visual.ln_pre.weight",
    "vision_model.pre_layrnorm.bias": "visual.ln_pre.bias",
    "vision_model.post_layernorm.weight": "visual.ln_post.weight",
    "vision_model.post_layernorm.bias": "visual.ln_post.bias",
    "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.final_layer_norm.weight": "ln_final.weight",
    "text_model.final_layer_norm.bias": "ln_final.bias",
}
TRANSPOSED = {
    "visual_projection.weight": "visual.proj",
    "text_projection.weight": "text_projection",
}
TOWERS = {"vision_model": "visual.transformer", "text_model": "transformer"}
INSIDE = {  # within a block; queries, keys and values are stacked
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}


def is_transformers(names: Iterable[str]) -> bool:
    """Say whether tensors of these names come from `transformers`' CLIPModel.

    Args:
        names: Names of tensors.

    Returns:
        Whether they do.
    """
    return MARK in names


def from_transformers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a CLIPModel's state dict to the names of open_clip's `CLIP`.

    Args:
        state: Tensors by name.

    Returns:
        Tensors by open_clip's names.
    """
    left = {name: tensor for name, tensor in state.items() if not name.endswith("position_ids")}
    out = {new: left.pop(old) for old, new in OUTSIDE.items() if old in left}
    out |= {new: left.pop(old).T.contiguous() for old, new in TRANSPOSED.items() if old in left}
    for tower, ours in TOWERS.items():
        block = 0
        while f"{tower}.encoder.layers.{block}.layer_norm1.weight" in left:
            old, new = f"{tower}.encoder.layers.{block}", f"{ours}.resblocks.{block}"
            for kind in ("weight", "bias"):
                parts = [left.pop(f"{old}.self_attn.{part}_proj.{kind}") for part in "qkv"]
                out[f"{new}.attn.in_proj_{kind}"] = torch.cat(parts)
                for theirs, name in INSIDE.items():
                    out[f"{new}.{name}.{kind}"] = left.pop(f"{old}.{theirs}.{kind}")
            block += 1
    return out | left  # whatever is left over has no place in open_clip's model, which then says so


def check_activation(path: Path, quick_gelu: bool, name: str) -> None:
    """Refuse weights of `transformers` whose own record names another activation.

    The wrong one gives plausible, wrong features. The record is `config.json` beside the file;
    where there is none, nothing can be told.

    Args:
        path: The weight file.
        quick_gelu: The model uses OpenAI's activation.
        name: The model's name, for messages.

    Raises:
        BackboneError: The record names another activation.
    """
    try:
        record = parse_json(path.with_name("config.json").read_text("utf-8"))
        texts, pictures = (record[key] for key in ("text_config", "vision_config"))
        trained = {part.get("hidden_act", "quick_gelu") for part in (texts, pictures)}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return
    if trained != {"quick_gelu" if quick_gelu else "gelu"}:
        model = name.split(":")[1].removesuffix("-quickgelu")
        other = f"openclip:{model}{'' if quick_gelu else '-quickgelu'}:custom"
        raise BackboneError(
            f"{path} was trained with the activation {', '.join(sorted(trained))} (config.json "
            f"beside it), which is not that of {name}: name the backbone {other}, or by the tag "
            "the weights were released under"
        )
