"""open_clip models at tiny sizes against open_clip itself and CoOp's way of prompting."""

import copy
from typing import Any

import open_clip
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focoop.clip.openclip import OpenClipBackbone, build, wrap
from focoop.clip.text_weights import refusal_of
from focoop.errors import BackboneError, ConfigError
from focoop.seeds import torch_generator

TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
VIT = {"image_size": 32, "layers": 2, "width": 64, "patch_size": 8, "head_width": 32}
RESNET = {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16}
CONVNEXT = {"timm_model_name": "test_convnext", "timm_proj": "linear", "image_size": 160}
TIMM_VIT = {
    "timm_model_name": "test_vit",
    "timm_pool": "token",
    "timm_proj": None,
    "image_size": 160,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "ViT": {"vision_cfg": VIT},
    "ViT quickgelu": {"vision_cfg": VIT, "quick_gelu": True},
    "ResNet": {"vision_cfg": RESNET},
    "timm ConvNeXt": {"vision_cfg": CONVNEXT},
    "timm ViT, custom text": {"vision_cfg": TIMM_VIT, "custom_text": True},
    "layer scale, tanh, eps": {
        "vision_cfg": VIT,
        "text_cfg": {
            **TEXT,
            "ls_init_value": 0.5,
            "act_kwargs": {"approximate": "tanh"},
            "norm_kwargs": {"eps": 1e-3},
        },
    },
    "short, no projection": {
        "vision_cfg": VIT,
        "custom_text": True,
        "text_cfg": {**TEXT, "context_length": 32, "proj_type": "none"},
    },
}
NAMES = ("cat", "aquarium_fish", "Great Wall of China", "pickup truck")


def randomise(model: nn.Module, seed: int = 0) -> Any:
    """Leave no bias at zero, no gain at one and no running statistic at its start."""
    generator = torch_generator(seed, "tiny open_clip")
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            noise = 0.1 * torch.randn(tensor.shape, generator=generator)
            tensor += 10 * noise.abs() if name.endswith("running_var") else noise
    return model.eval()


def tiny(seed: int = 0, **config: Any) -> Any:
    config = {"embed_dim": 32, "text_cfg": TEXT, **config}
    return randomise(build(config, quick_gelu=False), seed)


def tokenizer(model: Any) -> Any:
    return open_clip.SimpleTokenizer(context_length=model.context_length)


def backbone(model: Any, name: str = "tiny") -> OpenClipBackbone:
    """A backbone around a copy, so that `model` stays an independent reference."""
    side = model.visual.image_size
    return wrap(copy.deepcopy(model), tokenizer(model), {"size": side}, name)


@pytest.fixture(scope="module", params=FAMILIES, ids=str)
def model(request: pytest.FixtureRequest) -> Any:
    return tiny(**FAMILIES[request.param])


@pytest.fixture(scope="module")
def ours(model: Any) -> OpenClipBackbone:
    return backbone(model)


def coop(model: Any, contexts: Tensor, names: tuple[str, ...]) -> Tensor:
    """Prompts as CoOp makes them: the embeddings of `X X X X` replaced, all positions computed."""
    text = getattr(model, "text", model)
    count = contexts.shape[-2]
    texts = [f"{'X ' * count}{name.replace('_', ' ')}." for name in names]
    tokens = tokenizer(model)(texts)
    x = text.token_embedding(tokens)
    contexts = contexts.expand(len(names), -1, -1)
    x = torch.cat([x[:, :1], contexts, x[:, 1 + count :]], dim=1) + text.positional_embedding
    x = text.ln_final(text.transformer(x, attn_mask=text.attn_mask))
    x = x[torch.arange(len(names)), tokens.argmax(1)]
    if text.text_projection is not None:
        x = x @ text.text_projection
    return F.normalize(x, dim=1)


def test_literal_texts_equal_encode_text(model: Any, ours: OpenClipBackbone) -> None:
    texts = ["a photo of a cat.", "", "X X X X dog", "a very long text " * 5]
    expected = model.encode_text(tokenizer(model)(texts), normalize=True)
    torch.testing.assert_close(ours.encode_texts(texts), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("unified", [True, False])
def test_prompts_and_their_gradients_equal_coop(
    model: Any, ours: OpenClipBackbone, unified: bool
) -> None:
    shape = (4, 32) if unified else (len(NAMES), 4, 32)
    contexts = torch.randn(shape, generator=torch_generator(1, "contexts")).requires_grad_()
    weights = torch.randn(len(NAMES), 32, generator=torch_generator(2, "weights"))

    expected = coop(model, contexts, NAMES)
    (expected_grad,) = torch.autograd.grad((expected * weights).sum(), contexts)
    found = ours.encode_prompts(contexts, ours.names(NAMES))
    (found_grad,) = torch.autograd.grad((found * weights).sum(), contexts)

    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(found_grad, expected_grad, atol=1e-5, rtol=1e-4)


def test_pooled_features_equal_encode_image(model: Any, ours: OpenClipBackbone) -> None:
    side = ours.image_size
    batch = torch.randn(2, 3, side, side, generator=torch_generator(3, "images"))
    expected = model.encode_image(batch, normalize=True)
    for kind in (None, *ours.patch_kinds):
        found = ours.encode_images(batch, kind)
        torch.testing.assert_close(found.pooled, expected, atol=1e-5, rtol=0)
        assert not found.pooled.requires_grad
        if kind is None:
            assert found.patches is None
        else:
            assert found.patches is not None
            norms = found.patches.norm(dim=2)
            assert torch.allclose(norms, torch.ones_like(norms)) == (kind != "lf_c")


def test_weights_stay_frozen_and_get_no_gradient(ours: OpenClipBackbone) -> None:
    contexts = torch.zeros(4, 32, requires_grad=True)
    ours.encode_prompts(contexts, ours.names(NAMES)).sum().backward()
    parameters = [*ours.text.parameters(), *ours.visual.parameters()]
    assert contexts.grad is not None
    assert all(p.grad is None and not p.requires_grad for p in parameters)


def test_batch_norm_ignores_train_mode() -> None:
    ours = backbone(tiny(vision_cfg=RESNET))
    batch = torch.randn(4, 3, 64, 64, generator=torch_generator(4, "images"))
    before = ours.encode_images(batch, "lf_b")
    statistics = {k: v.clone() for k, v in ours.visual.state_dict().items() if "running" in k}
    ours.visual.train()
    after = ours.encode_images(batch, "lf_b")
    assert torch.equal(before.pooled, after.pooled)
    assert before.patches is not None
    assert after.patches is not None
    assert torch.equal(before.patches, after.patches)
    assert all(torch.equal(ours.visual.state_dict()[k], v) for k, v in statistics.items())


def test_lf_c_with_an_identity_matrix_is_lf_b() -> None:
    for vision in (VIT, RESNET):
        ours = backbone(tiny(vision_cfg=vision))
        batch = torch.randn(
            2, 3, ours.image_size, ours.image_size, generator=torch_generator(6, "images")
        )
        raw = ours.encode_images(batch, "lf_c").patches
        assert raw is not None
        local = F.normalize(raw @ ours.patch_projection, dim=2)
        torch.testing.assert_close(local, ours.encode_images(batch, "lf_b").patches)


def test_unknown_patch_kinds_are_refused() -> None:
    with pytest.raises(ConfigError, match="lf_a, lf_b, lf_c"):
        backbone(tiny(vision_cfg=VIT)).encode_images(torch.zeros(1, 3, 32, 32), "lf_d")
    with pytest.raises(BackboneError, match="offers: none"):
        backbone(tiny(vision_cfg=CONVNEXT)).encode_images(torch.zeros(1, 3, 160, 160), "lf_a")


def test_attributes_come_from_the_model() -> None:
    model = tiny(vision_cfg=VIT)
    ours = backbone(model, "openclip:tiny:none")
    assert ours.name == "openclip:tiny:none"
    assert ours.logit_scale == pytest.approx(model.logit_scale.exp().item())
    assert (ours.dim, ours.width, ours.image_size) == (32, 32, 32)
    assert ours.patch_kinds == ("lf_a", "lf_b", "lf_c")


def test_fingerprint_tells_weights_activation_and_preprocessing_apart() -> None:
    def of(seed: int = 0, mean: float = 0.5, **config: Any) -> str:
        model = tiny(seed, **{"vision_cfg": VIT, **config})
        cfg = {"size": 32, "mean": (mean,) * 3}
        return wrap(model, tokenizer(model), cfg, "tiny").fingerprint

    assert of() == of()
    assert len({of(), of(seed=1), of(mean=0.4), of(quick_gelu=True), of(vision_cfg=RESNET)}) == 5


def test_half_precision_models_become_float32() -> None:
    model = tiny(vision_cfg=VIT)
    ours = wrap(copy.deepcopy(model).half(), tokenizer(model), {"size": 32}, "tiny")
    assert {p.dtype for p in (*ours.text.parameters(), *ours.visual.parameters())} == {
        torch.float32
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ({"no_causal_mask": True}, "both directions"),
        ({"embed_cls": True}, "largest token"),
        ({"pool_type": "last"}, "largest token"),
        ({"mlp_ratio": 2.0}, "four times"),
        ({"proj_bias": True}, "bias"),
        ({"qk_norm": True}, "extra norms"),
    ],
)
def test_other_text_towers_are_refused(text: dict[str, Any], reason: str) -> None:
    model = tiny(vision_cfg=VIT, custom_text=True, text_cfg={**TEXT, **text})
    with pytest.raises(BackboneError, match=f"{reason}.*ViT-B-16"):
        backbone(model)


def test_which_of_open_clips_models_can_be_prompted() -> None:
    refused = {
        name
        for name in open_clip.list_models()
        if refusal_of(open_clip.get_model_config(name)) is not None
    }
    kinds = ("SigLIP", "CLIPA", "siglip", "coca", "roberta", "mt5", "nllb", "worldwide")
    two_way = {name for name in open_clip.list_models() if name.startswith("MobileCLIP")}
    two_way -= {"MobileCLIP-B", "MobileCLIP2-B"}
    expected = {name for name in open_clip.list_models() if any(kind in name for kind in kinds)}
    assert refused == expected | two_way


@pytest.mark.parametrize("name", ["ViT-B-32", "RN50"])
@pytest.mark.slow
def test_real_sizes(name: str) -> None:
    model = build(open_clip.get_model_config(name), quick_gelu=True).eval()
    ours = backbone(model)
    tokens = tokenizer(model)(["a photo of a cat."])
    expected = model.encode_text(tokens, normalize=True)
    torch.testing.assert_close(ours.text.encode_tokens(tokens), expected, atol=1e-5, rtol=0)
    batch = torch.randn(1, 3, 224, 224, generator=torch_generator(5, "image"))
    found = ours.encode_images(batch, "lf_b")
    torch.testing.assert_close(
        found.pooled, model.encode_image(batch, normalize=True), atol=1e-5, rtol=0
    )
    assert found.patches is not None
    assert found.patches.shape == (1, 49, ours.dim)
