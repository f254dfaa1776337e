"""Send images to a device as bytes and turn them into CLIP's numbers there."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from focoop.errors import BackboneError


def levels(image: Any) -> Tensor:
    """Return an image's grey levels.

    Args:
        image: A PIL image in RGB.

    Returns:
        Bytes (3, H, W) uint8.
    """
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def normalised(batch: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Normalise a batch of bytes: (x / 255 - mean) / std; other batches are so already.

    Args:
        batch: Images (N, 3, H, W).
        mean: Mean of each channel.
        std: Deviation of each channel.

    Returns:
        Images (N, 3, H, W) float32.
    """
    if batch.dtype != torch.uint8:
        return batch.float()
    centre, spread = (batch.new_tensor(v, dtype=torch.float32)[:, None, None] for v in (mean, std))
    return (batch.float() / 255).sub_(centre).div_(spread)


def side_of(size: int | Sequence[int]) -> int:
    """Return the side of a square input.

    Args:
        size: The side, or both sides.

    Returns:
        The side in pixels.

    Raises:
        BackboneError: The sides differ.
    """
    sides = [size] if isinstance(size, int) else list(size)
    if len(set(sides)) != 1:
        raise BackboneError(f"images of {sides} pixels are not supported: they must be square")
    return sides[0]
