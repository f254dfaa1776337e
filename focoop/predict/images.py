"""Images as people have them (paths, arrays, Pillow images, tensors) to features of a backbone."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from focoop.clip import Backbone, ImageFeatures
from focoop.data import RefusedImage, as_rgb, image_files, read_rgb, rgb_from_bytes
from focoop.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

BATCH = 32  # images that are read before they are encoded
PIECE = 8  # images through the tower at once on a CPU, where larger tensors take longer
OnBroken = Callable[[str, DataError], None]


@dataclass(frozen=True)
class Picture:
    """An image with the name it has in answers; it is read when `rgb` is called."""

    source: str
    content: Any

    def rgb(self) -> Image:
        """Return the image as RGB.

        Returns:
            The image.

        Raises:
            DataError: It cannot be read.
        """
        content = self.content
        if isinstance(content, str | Path):
            return read_rgb(Path(content).expanduser())
        if isinstance(content, bytes):
            return _of_bytes(content, self.source)
        if isinstance(content, torch.Tensor):
            content = _channels_last(content, self.source)
        if isinstance(content, np.ndarray):
            return _of_array(content, self.source)
        return _of_pillow(content, self.source)


def pictures(images: Any) -> list[Picture]:
    """Name images one by one.

    Args:
        images: A path of a file or of a folder, a Pillow image, an array (H, W), (H, W, 3) or
            (N, H, W, 3), a tensor (3, H, W) or (N, 3, H, W), the bytes of a file, or any number of
            such images one after the other.

    Returns:
        The images, not read yet.

    Raises:
        DataError: A folder holds no image.
    """
    named: list[Picture] = []
    for place, entry in enumerate(_entries(images)):
        if isinstance(entry, Picture):
            named.append(entry)
        elif isinstance(entry, str | Path) and Path(entry).expanduser().is_dir():
            below = image_files(Path(entry).expanduser())
            if not below:
                raise DataError(f"no image was found in {entry}")
            named += [Picture(str(file), file) for file in below]
        else:
            source = str(entry) if isinstance(entry, str | Path) else f"image {place}"
            named.append(Picture(source, entry))
    return named


def _entries(images: Any) -> list[Any]:
    """Images one by one: many are a batch, a list, a generator, a column of a table."""
    if isinstance(images, np.ndarray | torch.Tensor):
        names = isinstance(images, np.ndarray) and images.dtype.kind in "UO"  # an array of paths
        return list(images) if images.ndim == 4 or (names and images.ndim == 1) else [images]
    one = isinstance(images, str | bytes | Path | io.IOBase) or not isinstance(images, Iterable)
    return [images] if one else list(images)


def dataset_of(images: str | Path) -> str:
    """Return labelled images as settings name them: a folder's path alone means `folder:PATH`.

    Args:
        images: A dataset's name, or the path of a folder with a slash in it.

    Returns:
        The name.
    """
    text = str(images)
    path = isinstance(images, Path) or os.sep in text
    return f"folder:{text}" if path and Path(text).expanduser().is_dir() else text


def encoded(
    images: Sequence[Picture],
    backbone: Backbone,
    patches: str | None,
    on_broken: OnBroken | None = None,
) -> Iterator[tuple[list[str], ImageFeatures]]:
    """Read and encode images, some at a time.

    Args:
        images: The images.
        backbone: The frozen backbone.
        patches: Kind of patch features, or None.
        on_broken: Told of each image that cannot be read, which is then left out; None: the error
            is raised.

    Yields:
        Names and features of the images that could be read, in order.
    """
    for first in range(0, len(images), BATCH):
        names, pixels = [], []
        for picture in images[first : first + BATCH]:
            try:
                prepared = backbone.prepare(picture.rgb())
            except DataError as error:
                if on_broken is None:
                    raise
                on_broken(picture.source, error)
                continue
            names.append(picture.source)
            pixels.append(prepared)
        if names:
            yield names, features_of(torch.stack(pixels), backbone, patches)


def features_of(pixels: Tensor, backbone: Backbone, patches: str | None) -> ImageFeatures:
    """Encode prepared images.

    Args:
        pixels: What the backbone's `prepare` gave, (N, 3, H, W).
        backbone: The backbone.
        patches: Kind of patch features, or None.

    Returns:
        Features on the CPU.
    """
    where = backbone.device
    size = PIECE if where.type == "cpu" else len(pixels)
    with torch.no_grad():
        return joined(
            [
                backbone.encode_images(piece.to(where), patches=patches)
                for piece in torch.split(pixels, size)
            ]
        )


def joined(parts: Sequence[ImageFeatures]) -> ImageFeatures:
    """Join features of several batches.

    Args:
        parts: The features, one batch or more.

    Returns:
        All of them in order.
    """
    local = [part.patches for part in parts if part.patches is not None]
    return ImageFeatures(
        torch.cat([part.pooled for part in parts]), torch.cat(local) if local else None
    )


def _channels_last(image: Tensor, source: str) -> np.ndarray:
    values = image.detach().cpu()
    if values.dtype == torch.bfloat16:  # which numpy does not have
        values = values.float()
    if values.ndim == 3 and values.shape[0] in (1, 3, 4):
        values = values.permute(1, 2, 0)
    elif values.ndim != 2:
        raise DataError(f"{source}: a tensor must be (3, H, W), not {tuple(image.shape)}")
    return values.numpy()


def _of_array(values: np.ndarray, source: str) -> Image:
    """An array of bytes 0 to 255, or of fractions 0 to 1, as an image."""
    from PIL import Image

    if values.ndim == 3 and values.shape[2] == 1:
        values = values[:, :, 0]
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] not in (3, 4)):
        raise DataError(f"{source}: an array must be (H, W) or (H, W, 3), not {values.shape}")
    if 0 in values.shape:
        raise DataError(f"{source}: the array holds no pixel")
    if values.dtype != np.uint8:
        low, high = float(values.min()), float(values.max())
        if not np.issubdtype(values.dtype, np.floating) or not (low >= 0.0 and high <= 1.0):
            raise DataError(
                f"{source}: give bytes (uint8, 0 to 255) or fractions (float, 0 to 1); these are "
                f"{values.dtype} from {low:g} to {high:g}"
            )
        values = np.round(values * 255).astype(np.uint8)
    return as_rgb(Image.fromarray(np.ascontiguousarray(values)))


def _of_bytes(content: bytes, source: str) -> Image:
    from PIL import Image

    try:
        # Twice the number from which Pillow warns: what it refuses of files, too.
        return rgb_from_bytes(content, pixels=2 * (Image.MAX_IMAGE_PIXELS or 2**30))
    except RefusedImage as error:
        raise DataError(f"{source} cannot be read ({error.reason})") from error


def _of_pillow(image: Any, source: str) -> Image:
    from PIL import Image

    if not isinstance(image, Image.Image):
        raise DataError(
            f"{source}: an image is a path, a Pillow image, a numpy array, a torch tensor or the "
            f"bytes of a file, not {type(image).__name__}"
        )
    return as_rgb(image)
