"""Patch features against plain loops over tokens and heads."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focoop.clip import patches
from focoop.clip.openclip import build
from focoop.errors import BackboneError
from focoop.seeds import torch_generator

TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
VIT = {"image_size": 24, "layers": 2, "width": 64, "patch_size": 8, "head_width": 32}
RESNET = {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16}


def tower(**vision: Any) -> Any:
    """A random vision tower with no weight left at zero or one."""
    config = {"embed_dim": 32, "vision_cfg": vision, "text_cfg": TEXT}
    visual = build(config, quick_gelu=False).visual.eval().requires_grad_(False)
    generator = torch_generator(0, "patch tests")
    for name, tensor in visual.state_dict().items():
        if tensor.is_floating_point():
            noise = 0.1 * torch.randn(tensor.shape, generator=generator)
            tensor += noise.abs() if name.endswith("running_var") else noise
    return visual


def images(side: int) -> Tensor:
    return torch.randn(3, 3, side, side, generator=torch_generator(1, "images"))


def seen_by(module: nn.Module, run: Callable[[], object]) -> tuple[Tensor, Tensor]:
    """Input and output of a module while `run` runs."""
    kept: list[Tensor] = []
    handle = module.register_forward_hook(lambda _, given, out: kept.extend([given[0], out]))
    run()
    handle.remove()
    return kept[0].clone(), kept[1].clone()


def layer_norm(norm: Any, x: Tensor) -> Tensor:
    spread = ((x - x.mean()) ** 2).mean()
    return (x - x.mean()) / (spread + norm.eps) ** 0.5 * norm.weight + norm.bias


def linear(layer: Any, x: Tensor) -> Tensor:
    return layer.weight @ x + layer.bias


def test_vit_lf_a_is_the_projected_output_of_the_last_block() -> None:
    visual, batch = tower(**VIT), images(24)
    _, after = seen_by(visual.transformer.resblocks[-1], lambda: visual(batch))
    pooled, local = patches.encode(visual, batch, "lf_a")
    torch.testing.assert_close(pooled, visual(batch))
    assert local is not None
    assert local.shape == (3, 9, 32)
    for image in range(3):
        for token in range(9):
            expected = layer_norm(visual.ln_post, after[image, 1 + token]) @ visual.proj
            torch.testing.assert_close(local[image, token], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("extra", [{}, {"ls_init_value": 0.5}], ids=["plain", "layer scale"])
def test_vit_lf_b_and_lf_c_use_each_tokens_own_value(extra: dict[str, Any]) -> None:
    visual, batch = tower(**VIT, **extra), images(24)
    block = visual.transformer.resblocks[-1]
    before, _ = seen_by(block, lambda: visual(batch))
    pooled, local = patches.encode(visual, batch, "lf_b")
    _, unprojected = patches.encode(visual, batch, "lf_c")
    torch.testing.assert_close(pooled, visual(batch))
    assert local is not None
    assert unprojected is not None
    assert unprojected.shape == (3, 9, 64)
    scale_1, scale_2 = (s.gamma if extra else torch.ones(64) for s in (block.ls_1, block.ls_2))
    for image in range(3):
        for token in range(9):
            x = before[image, 1 + token]
            both = block.attn.in_proj_weight @ layer_norm(block.ln_1, x) + block.attn.in_proj_bias
            z = x + scale_1 * linear(block.attn.out_proj, both[128:])
            hidden = F.gelu(linear(block.mlp.c_fc, layer_norm(block.ln_2, z)))
            z = z + scale_2 * linear(block.mlp.c_proj, hidden)
            expected = layer_norm(visual.ln_post, z)
            torch.testing.assert_close(unprojected[image, token], expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(
                local[image, token], expected @ visual.proj, rtol=1e-4, atol=1e-5
            )
    torch.testing.assert_close(unprojected @ patches.projection(visual), local)


def test_only_lf_a_mixes_tokens_in_the_last_block() -> None:
    visual, batch = tower(**VIT), images(24)
    plain = {kind: patches.encode(visual, batch, kind)[1] for kind in ("lf_a", "lf_b", "lf_c")}
    order = torch.tensor([0, 1, 2, 3, 4, 9, 8, 7, 6, 5])  # class token and patches 0..3 stay
    noise = torch.randn(5, 64, generator=torch_generator(2, "noise"))

    def disturb(_: nn.Module, given: object, out: Tensor) -> Tensor:
        out = out[:, order].clone()
        out[:, 5:] += noise
        return out

    visual.transformer.resblocks[-2].register_forward_hook(disturb)
    for kind, expected in plain.items():
        local = patches.encode(visual, batch, kind)[1]
        assert local is not None
        assert expected is not None
        kept = torch.allclose(local[:, :4], expected[:, :4], atol=1e-6)
        assert kept == (kind != "lf_a")
        assert not torch.allclose(local[:, 4:], expected[:, 4:], atol=1e-3)


def test_resnet_lf_a_queries_the_pool_with_every_token() -> None:
    visual, batch = tower(**RESNET), images(64)
    _, features = seen_by(visual.layer4, lambda: visual(batch))  # (3, 512, 2, 2)
    pool = visual.attnpool
    pooled, local = patches.encode(visual, batch, "lf_a")
    torch.testing.assert_close(pooled, visual(batch), rtol=1e-4, atol=1e-5)
    assert local is not None
    width = 512 // pool.num_heads
    for image in range(3):
        places = [features[image, :, i // 2, i % 2] for i in range(4)]
        tokens = [torch.stack(places).mean(0), *places]
        tokens = [x + pool.positional_embedding[i] for i, x in enumerate(tokens)]
        q, k, v = (
            [linear(layer, x) for x in tokens] for layer in (pool.q_proj, pool.k_proj, pool.v_proj)
        )
        for token in range(4):
            heads = []
            for start in range(0, 512, width):
                part = slice(start, start + width)
                scores = torch.stack([q[1 + token][part] @ key[part] for key in k]) / width**0.5
                share = scores.exp() / scores.exp().sum()
                heads.append(sum(s * value[part] for s, value in zip(share, v, strict=True)))
            expected = linear(pool.c_proj, torch.cat(heads))
            torch.testing.assert_close(local[image, token], expected, rtol=1e-4, atol=1e-5)


def test_resnet_lf_b_is_the_value_alone_without_position() -> None:
    visual, batch = tower(**RESNET), images(64)
    _, features = seen_by(visual.layer4, lambda: visual(batch))
    pooled, local = patches.encode(visual, batch, "lf_b")
    torch.testing.assert_close(pooled, visual(batch))
    assert local is not None
    for image in range(3):
        for i in range(4):
            value = linear(visual.attnpool.v_proj, features[image, :, i // 2, i % 2])
            expected = linear(visual.attnpool.c_proj, value)
            torch.testing.assert_close(local[image, i], expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(patches.encode(visual, batch, "lf_c")[1], local)
    torch.testing.assert_close(patches.projection(visual), torch.eye(32))


def test_timm_vit_tokens_go_through_norm_and_head() -> None:
    visual = tower(timm_model_name="test_vit", timm_pool="token", timm_proj=None, image_size=160)
    batch = images(160)
    _, normed = seen_by(visual.trunk.norm, lambda: visual(batch))  # (3, 101, 64)
    pooled, local = patches.encode(visual, batch, "lf_a")
    torch.testing.assert_close(pooled, visual(batch))
    assert local is not None
    assert local.shape == (3, 100, 32)
    torch.testing.assert_close(local[1, 7], linear(visual.trunk.head, normed[1, 8]))
    assert patches.offered(visual) == ("lf_a",)


@pytest.mark.parametrize(
    "vision",
    [
        {"timm_model_name": "test_convnext", "timm_proj": "linear", "image_size": 160},
        {"timm_model_name": "test_vit", "timm_pool": "avg", "image_size": 160},
        {**VIT, "pool_type": "avg"},
    ],
)
def test_towers_without_tokens_in_the_joint_space_refuse(vision: dict[str, Any]) -> None:
    visual = tower(**vision)
    assert patches.offered(visual) == ()
    with pytest.raises(BackboneError, match="no patch features 'lf_a'"):
        patches.encode(visual, images(vision["image_size"]), "lf_a")
    with pytest.raises(BackboneError, match="lf_c"):
        patches.projection(visual)


def test_blocks_with_extra_norms_offer_only_lf_a() -> None:
    visual = tower(**VIT, scale_attn=True)
    assert patches.offered(visual) == ("lf_a",)
    with pytest.raises(BackboneError, match="it offers: lf_a"):
        patches.encode(visual, images(24), "lf_b")
