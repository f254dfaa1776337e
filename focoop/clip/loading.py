"""Load a backbone by its name."""

from pathlib import Path

import torch

from focoop.clip.base import Backbone
from focoop.errors import BackboneError, MissingExtra


def load_backbone(name: str, *, weights: Path | None = None, device: str = "cpu") -> Backbone:
    """Load a frozen backbone by its name.

    Args:
        name: `mini`, or `openclip:<model>:<pretrained>`, for example `openclip:ViT-B-16:openai`.
        weights: A local checkpoint for an open_clip model; `mini` is packaged and takes none.
        device: Where the towers live, for example `cpu` or `cuda`.

    Returns:
        The backbone.

    Raises:
        BackboneError: The name, the weights or the device cannot be used.
        MissingExtra: open_clip is not installed.
    """
    check_device(device)
    family, _, rest = name.partition(":")
    if name == "mini":
        if weights is not None:
            raise BackboneError("the backbone 'mini' has its own packaged weights: drop --weights")
        from focoop.clip.mini import load_mini

        return load_mini(device)
    model, _, pretrained = rest.partition(":")
    if family == "openclip" and model and pretrained:
        try:
            from focoop.clip.openclip import load_openclip
        except ModuleNotFoundError as error:
            raise MissingExtra(
                f"the backbone {name!r} needs open_clip (no module {error.name!r}): "
                "pip install 'focoop[openclip]'"
            ) from error

        return load_openclip(model, pretrained, weights=weights, device=device)
    raise BackboneError(
        f"unknown backbone {name!r}: use 'mini' or 'openclip:<model>:<pretrained>', "
        "for example 'openclip:ViT-B-16:openai'"
    )


def check_device(device: str) -> None:
    """Refuse a device that torch does not know or cannot reach.

    Args:
        device: The device's name.

    Raises:
        BackboneError: It cannot be used.
    """
    try:
        torch.ones(1, device=device).item()  # the device `meta` makes tensors without numbers
    except Exception as error:  # torch raises many kinds, by device
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BackboneError(
            f"the device {device!r} cannot be used: take 'cpu', or 'cuda' where torch sees a GPU "
            f"(torch says: {reason})"
        ) from error
