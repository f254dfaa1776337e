"""Patch features of open_clip vision towers in three kinds, which are not interchangeable.

`lf_a` (FedOTP) gives every token the treatment of the pooled one: all blocks, then the projection.
`lf_b` (LoCoOp, GL-MCM) lets each token keep its own value in the last attention: no mixing there.
`lf_c` (GalLoP) is `lf_b` before the projection, so that a learnable matrix can come in between:
`normalize(patches @ w_loc @ projection(visual))`.
"""

import torch
import torch.nn.functional as F
from open_clip.modified_resnet import AttentionPool2d, ModifiedResNet
from open_clip.timm_model import TimmModel
from open_clip.transformer import ResidualAttentionBlock, VisionTransformer
from torch import Tensor, nn

from focoop.errors import BackboneError


def offered(visual: nn.Module) -> tuple[str, ...]:
    """List the kinds of patch features that a vision tower can give.

    Args:
        visual: The vision tower.

    Returns:
        The kinds; none where it has no tokens in the joint space.
    """
    if isinstance(visual, ModifiedResNet):
        return "lf_a", "lf_b", "lf_c"
    if isinstance(visual, VisionTransformer):
        if visual.attn_pool is not None or visual.pool_type != "tok":
            return ()
        plain = isinstance(visual.transformer.resblocks[-1], ResidualAttentionBlock)
        return ("lf_a", "lf_b", "lf_c") if plain else ("lf_a",)
    if isinstance(visual, TimmModel):
        trunk = visual.trunk
        pooling, prefix = (
            getattr(trunk, name, None) for name in ("global_pool", "num_prefix_tokens")
        )
        return ("lf_a",) if pooling == "token" and prefix == 1 else ()
    return ()


def encode(visual: nn.Module, images: Tensor, kind: str | None) -> tuple[Tensor, Tensor | None]:
    """Encode images to pooled and patch features, both as they come: not normalised.

    Args:
        visual: The vision tower.
        images: Images (N, 3, H, W).
        kind: Kind of patch features, or None.

    Returns:
        Pooled (N, D) and patches (N, P, D), or None for those. Patches of kind `lf_c` have the
        width that `projection` takes.

    Raises:
        BackboneError: The tower gives no such patches.
    """
    if kind is None:
        return visual(images), None
    if kind not in offered(visual):
        kinds = ", ".join(offered(visual)) or "none"
        raise BackboneError(
            f"a {type(visual).__name__} image tower gives no patch features {kind!r} "
            f"(it offers: {kinds}): use a ViT or ResNet of CLIP, or a method without patches"
        )
    if isinstance(visual, VisionTransformer):
        return encode_vit(visual, images, kind)
    if isinstance(visual, ModifiedResNet):
        return encode_resnet(visual, images, kind)
    assert isinstance(visual, TimmModel)
    return encode_timm(visual, images)


def projection(visual: nn.Module) -> Tensor:
    """Return what follows GalLoP's matrix; the identity for a ResNet.

    Args:
        visual: The vision tower.

    Returns:
        A matrix (width of `lf_c`, D).

    Raises:
        BackboneError: The tower has no patches of kind `lf_c`.
    """
    if "lf_c" not in offered(visual):
        raise BackboneError(f"a {type(visual).__name__} image tower gives no patch features 'lf_c'")
    if isinstance(visual, VisionTransformer):
        matrix: Tensor = visual.proj.detach()
        return matrix
    weight: Tensor = visual.attnpool.c_proj.weight  # type: ignore[union-attr,assignment]
    return torch.eye(weight.shape[0], device=weight.device)


def encode_vit(visual: VisionTransformer, images: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Compute pooled and patch features of a ViT in one pass.

    Args:
        visual: The vision tower.
        images: Images (N, 3, H, W).
        kind: Kind of patch features.

    Returns:
        Pooled (N, D) and patches (N, P, D).
    """
    blocks = visual.transformer.resblocks
    count = len(blocks)
    out = visual.forward_intermediates(images, indices=[count - 2, count - 1], output_fmt="NLC")
    before, after = out["image_intermediates"]  # each (N, P, width), without the class token
    if kind == "lf_a":
        return out["image_features"], visual.ln_post(after) @ visual.proj
    local = visual.ln_post(value_path(blocks[-1], before))
    return out["image_features"], local if kind == "lf_c" else local @ visual.proj


def value_path(block: ResidualAttentionBlock, x: Tensor) -> Tensor:
    """Run a block in which every token attends to itself alone.

    Args:
        block: The block.
        x: Tokens (N, P, d).

    Returns:
        Tokens (N, P, d).
    """
    attention = block.attn
    width = x.shape[-1]
    weight, bias = attention.in_proj_weight[2 * width :], attention.in_proj_bias[2 * width :]
    value = F.linear(block.ln_1(x), weight, bias)
    x = x + block.ls_1(attention.out_proj(value))
    out: Tensor = x + block.ls_2(block.mlp(block.ln_2(x)))
    return out


def encode_resnet(visual: ModifiedResNet, images: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Compute pooled and patch features of CLIP's ResNet in one pass.

    Args:
        visual: The vision tower.
        images: Images (N, 3, H, W).
        kind: Kind of patch features.

    Returns:
        Pooled (N, D) and patches (N, P, D).
    """
    stages = (visual.stem, visual.layer1, visual.layer2, visual.layer3, visual.layer4)
    x = images
    for stage in stages:
        x = stage(x)
    if kind == "lf_a":
        tokens = attend_everywhere(visual.attnpool, x)
        return tokens[:, 0], tokens[:, 1:]
    pool = visual.attnpool
    return pool(x), pool.c_proj(pool.v_proj(x.flatten(2).transpose(1, 2)))


def attend_everywhere(pool: AttentionPool2d, x: Tensor) -> Tensor:
    """Run the attention pool with every token as query.

    Args:
        pool: The attention pool.
        x: Feature map (N, C, h, w).

    Returns:
        Tokens (N, 1 + hw, D).
    """
    x = x.flatten(2).transpose(1, 2)  # (N, hw, C)
    x = torch.cat([x.mean(1, keepdim=True), x], dim=1) + pool.positional_embedding
    q, k, v = (
        layer(x).unflatten(2, (pool.num_heads, -1)).transpose(1, 2)  # (N, heads, 1+hw, C/heads)
        for layer in (pool.q_proj, pool.k_proj, pool.v_proj)
    )
    mixed = F.scaled_dot_product_attention(q, k, v)
    out: Tensor = pool.c_proj(mixed.transpose(1, 2).flatten(2))
    return out


def encode_timm(visual: TimmModel, images: Tensor) -> tuple[Tensor, Tensor]:
    """Compute pooled and `lf_a` features of a timm ViT that pools at its class token.

    Args:
        visual: The vision tower.
        images: Images (N, 3, H, W).

    Returns:
        Pooled (N, D) and patches (N, P, D).
    """
    trunk = visual.trunk
    tokens = trunk.forward_features(images)  # (N, 1+P, width)
    count, length, _ = tokens.shape
    singles = tokens.flatten(0, 1).unsqueeze(1)  # each token the "class token" of its own sequence
    out = visual.head(trunk.forward_head(singles)).unflatten(0, (count, length))
    return out[:, 0], out[:, 1:]
