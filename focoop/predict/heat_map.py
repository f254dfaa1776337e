"""Where in an image a class is seen: similarities of its patches with the class."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from focoop.errors import BackboneError
from focoop.methods import Method
from focoop.predict.side import Side

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

    from focoop.clip import ImageFeatures

STRENGTH = 0.55  # of the colours over the image


def patch_similarities(
    method: Method, side: Side, features: ImageFeatures, label: int, device: torch.device
) -> NDArray[np.float32]:
    """Say how much more similar each patch of one image is to a class than to all classes.

    The mean over classes is taken off: patches of plain background resemble all of them. A method
    that reads patches is asked for its own similarities. Others see each patch as if it were an
    image.

    Args:
        method: The method.
        side: A client's model.
        features: Pooled (1, D) and patches (1, P, D), P a square number.
        label: The class.
        device: Where to compute.

    Returns:
        (h, w) differences, rows from the top.

    Raises:
        BackboneError: The patches are no square.
    """
    assert features.patches is not None
    local = features.patches.to(device)
    height = math.isqrt(local.shape[1])
    if height * height != local.shape[1]:
        raise BackboneError(f"{local.shape[1]} patches are no square: there is no heat map")
    with torch.no_grad():
        if not method.patch_kind:
            found = method.logits(side.text, local[0], None).id
        else:
            logits = method.logits(side.text, features.pooled.to(device), local)
            given = logits.patches
            found = given[0] if given is not None else local[0] @ side.text.id.T
    found = found - found.mean(dim=1, keepdim=True)  # (P, C)
    return found[:, label].float().cpu().numpy().reshape(height, height)


def overlay(image: Image, heat: NDArray[np.float32]) -> Image:
    """Lay a heat map over the square of an image that the backbone sees.

    Args:
        image: The image in RGB.
        heat: (h, w) similarities.

    Returns:
        The centre square of the image; dark blue where the class is seen least, yellow where most.
    """
    from PIL import Image as Pillow

    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.convert("RGB").crop((left, top, left + side, top + side))
    shown = max(224, min(side, 512))
    square = square.resize((shown, shown), Pillow.Resampling.BICUBIC)
    span = float(heat.max() - heat.min())
    unit = (heat - heat.min()) / span if span > 0 else np.zeros_like(heat)
    smooth = Pillow.fromarray(np.round(255 * unit).astype(np.uint8)).resize(
        (shown, shown), Pillow.Resampling.BICUBIC
    )
    colours = _palette()[np.asarray(smooth)]
    mixed = (1 - STRENGTH) * np.asarray(square, dtype=np.float64) + STRENGTH * colours
    return Pillow.fromarray(np.round(mixed).astype(np.uint8))


def _palette() -> NDArray[np.float64]:
    """(256, 3) colours from dark blue over green to yellow, brighter all the way."""
    stops = np.array([0.0, 0.25, 0.5, 0.75, 1.0])
    colours = np.array([[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]])
    at = np.linspace(0.0, 1.0, 256)
    return np.stack([np.interp(at, stops, colours[:, channel]) for channel in range(3)], axis=1)
