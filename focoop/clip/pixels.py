"""Images on their way to a device: bytes travel, and become CLIP's numbers there."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from focoop.errors import BackboneError


def levels(image: Any) -> Tensor:
    """PIL image in RGB -> (3, H, W) uint8."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def normalised(batch: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(N, 3, H, W) uint8 -> (x / 255 - mean) / std in float32; other batches are so already."""
    if batch.dtype != torch.uint8:
        return batch.float()
    centre, spread = (batch.new_tensor(v, dtype=torch.float32)[:, None, None] for v in (mean, std))
    return (batch.float() / 255).sub_(centre).div_(spread)


def side_of(size: int | Sequence[int]) -> int:
    """Side of a square input."""
    sides = [size] if isinstance(size, int) else list(size)
    if len(set(sides)) != 1:
        raise BackboneError(f"images of {sides} pixels are not supported: they must be square")
    return sides[0]
