"""open_clip's text transformers in our own text tower: which ones fit."""

from typing import Any

from open_clip.transformer import QuickGELU, ResidualAttentionBlock
from torch import nn

from focoop.clip.text.tower import TextTower
from focoop.clip.text_weights import FAMILIES, make_tower
from focoop.errors import BackboneError


def text_tower(model: nn.Module) -> TextTower:
    """Make our frozen tower around the weights (not copies) of open_clip's text transformer.

    Args:
        model: The open_clip model.

    Returns:
        The tower.
    """
    source: Any = getattr(model, "text", model)  # CustomTextCLIP keeps its text modules apart
    check_text(model, source)
    first = source.transformer.resblocks[0]
    heads, activation = first.attn.num_heads, activation_of(first.mlp.gelu)
    return make_tower(source.state_dict(), heads, activation, first.ln_1.eps)


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
