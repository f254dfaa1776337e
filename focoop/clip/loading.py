"""Load a backbone by its name."""

from pathlib import Path

import torch

from focoop.clip.base import Backbone
from focoop.errors import BackboneError, MissingExtra


def load_backbone(name: str, *, weights: Path | None = None, device: str = "cpu") -> Backbone:
    """Load a frozen backbone by its name.

    Args:
        name: `mini`, `openclip:<model>:<pretrained>`, for example `openclip:ViT-B-16:openai`, or
            `local-dir:<folder>`.
        weights: A local checkpoint for an open_clip model, or a folder in the place of the named
            one; `mini` is packaged and takes none.
        device: Where the towers live, for example `cpu` or `cuda`.

    Returns:
        The backbone.

    Raises:
        BackboneError: The name, the weights or the device cannot be used.
        MissingExtra: open_clip is not installed.
    """
    check_device(device)
    family, _, rest = name.partition(":")
    model, _, pretrained = rest.partition(":")
    if name == "mini":
        if weights is not None:
            raise BackboneError("the backbone 'mini' has its own packaged weights: drop --weights")
        from focoop.clip.mini import load_mini

        return load_mini(device)
    try:
        if family == "local-dir" and rest:
            from focoop.clip.local_folder import load_folder

            return load_folder(weights or Path(rest), name, device)
        if family == "openclip" and model and pretrained:
            from focoop.clip.openclip import load_openclip

            return load_openclip(model, pretrained, weights=weights, device=device)
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"the backbone {name!r} needs open_clip (no module {error.name!r}): "
            "pip install 'focoop[openclip]'"
        ) from error
    raise BackboneError(
        f"unknown backbone {name!r}: use 'mini', 'openclip:<model>:<pretrained>', for example "
        "'openclip:ViT-B-16:openai', or 'local-dir:<folder>'"
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
