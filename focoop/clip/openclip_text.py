"""open_clip's text transformers in our own text tower: which ones fit, and their weights."""

from collections.abc import Mapping
from typing import Any

import torch
from open_clip.transformer import LayerScale, QuickGELU, ResidualAttentionBlock
from torch import Tensor, nn

from focoop.clip.text.tower import TextShape, TextTower
from focoop.errors import BackboneError

FAMILIES = (
    "models with CLIP's own text tower work, for example ViT-B-32, ViT-B-16, ViT-L-14, RN50, "
    "convnext_base_w, EVA02-B-16, ViTamin-B, PE-Core-B-16"
)


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


def text_tower(model: nn.Module) -> TextTower:
    """Make our frozen tower around the weights (not copies) of open_clip's text transformer.

    Args:
        model: The open_clip model.

    Returns:
        The tower.
    """
    source: Any = getattr(model, "text", model)  # CustomTextCLIP keeps its text modules apart
    check_text(model, source)
    blocks = source.transformer.resblocks
    first = blocks[0]
    matrix = source.text_projection  # (d_t, D)
    if matrix is None:
        matrix = torch.eye(first.ln_1.normalized_shape[0])
    elif isinstance(matrix, nn.Linear):
        matrix = matrix.weight.T
    state = {
        "tok.weight": source.token_embedding.weight,
        "pos": source.positional_embedding,
        "proj.weight": matrix.T,
        **prefixed("lnf", source.ln_final),
    }
    for i, block in enumerate(blocks):
        state |= {f"blocks.{i}.{key}": value for key, value in block_state(block).items()}
    width, dim = matrix.shape
    shape = TextShape(
        width=width,
        layers=len(blocks),
        heads=first.attn.num_heads,
        dim=dim,
        context_length=source.positional_embedding.shape[0],
        activation=activation_of(first.mlp.gelu),
        norm_eps=first.ln_1.eps,
    )
    with torch.device("meta"):  # no memory and no random draws: the weights come from open_clip
        tower = TextTower(shape, nn.Embedding(source.token_embedding.num_embeddings, width))
    tower.load_state_dict(
        {key: value.detach().float().contiguous() for key, value in state.items()}, assign=True
    )
    return tower.freeze()


def block_state(block: ResidualAttentionBlock) -> dict[str, Tensor]:
    """Return one block's weights under our names; a layer scale goes into the linear map before it.

    Args:
        block: open_clip's block.

    Returns:
        Tensors by name.
    """
    attention, mlp = block.attn, block.mlp
    return {
        **prefixed("ln_1", block.ln_1),
        "qkv.weight": attention.in_proj_weight,
        "qkv.bias": attention.in_proj_bias,
        **prefixed("o", attention.out_proj, block.ls_1),
        **prefixed("ln_2", block.ln_2),
        **prefixed("f1", mlp.c_fc),
        **prefixed("f2", mlp.c_proj, block.ls_2),
    }


def prefixed(name: str, module: Any, scale: nn.Module | None = None) -> dict[str, Tensor]:
    """Return weight and bias of a module under a name.

    Args:
        name: The name before `.weight` and `.bias`.
        module: The module.
        scale: A layer scale that multiplies rows, if any.

    Returns:
        Tensors by name.
    """
    weight, bias = module.weight, module.bias
    if isinstance(scale, LayerScale):
        weight, bias = scale.gamma[:, None] * weight, scale.gamma * bias
    return {f"{name}.weight": weight, f"{name}.bias": bias}


def check_text(model: nn.Module, text: Any) -> None:
    """Refuse a built text tower that ours cannot stand for exactly.

    Args:
        model: The open_clip model.
        text: Its text tower.

    Raises:
        BackboneError: It has a part that ours has not.
    """
    reason = None
    pooling = getattr(text, "pool_type", getattr(model, "text_pool_type", None))
    if not hasattr(text, "token_embedding"):
        reason = "it is not CLIP's transformer"
    elif text.attn_mask is None:
        reason = "it looks in both directions"
    elif getattr(text, "cls_emb", None) is not None or pooling != "argmax":
        reason = "it is not read at the largest token of the text"
    elif not all(isinstance(block, ResidualAttentionBlock) for block in text.transformer.resblocks):
        reason = "its blocks have extra norms or scales"
    elif text.transformer.resblocks[0].mlp.c_fc.out_features != 4 * text.transformer.width:
        reason = "its MLPs are not four times as wide as its tokens"
    elif getattr(text.text_projection, "bias", None) is not None:
        reason = "its projection has a bias"
    if reason:
        raise BackboneError(f"this text tower cannot be prompted: {reason}; {FAMILIES}")


def activation_of(module: nn.Module) -> str:
    """Return our name of an MLP's activation.

    Args:
        module: The activation.

    Returns:
        `gelu` or `quick_gelu`.

    Raises:
        BackboneError: It is another one.
    """
    if isinstance(module, QuickGELU):
        return "quick_gelu"
    if isinstance(module, nn.GELU):
        return "gelu" if module.approximate == "none" else "gelu_tanh"
    raise BackboneError(f"this text tower's activation {type(module).__name__} is not supported")
