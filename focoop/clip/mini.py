"""The embedded backbone: EfficientNet-Lite0 with a linear head, and our own small text tower."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from focoop.assets import ASSETS, asset
from focoop.clip.base import Backbone, ImageFeatures
from focoop.clip.efficientnet import EfficientNetLite0
from focoop.clip.text.tower import TextShape, TextTower
from focoop.clip.tokenizer import Tokenizer
from focoop.errors import BackboneError, ConfigError, DataError

SHAPE = TextShape(width=192, layers=4, heads=6, dim=256, context_length=32)
VOCABULARY, TOKEN_RANK = 49408, 96
IMAGE_SIZE = 224
GRID = 4  # patches per side
PREPROCESSING = f"centre square, torch bicubic {IMAGE_SIZE}, clamp, (x-127)/128, grid {GRID}, v1"

# What image features depend on: the head defines the joint space.
IMAGE_FILES = ("mini/image_head.safetensors", "mini/trunk.safetensors")


class FactorisedEmbedding(nn.Module):
    """Token table of low rank: row of `weight` (V, r), then `up` (d_t, r)."""

    def __init__(self, num_embeddings: int, rank: int, width: int) -> None:
        super().__init__()
        self.num_embeddings = num_embeddings
        self.weight = nn.Parameter(torch.zeros(num_embeddings, rank), requires_grad=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """(...) ids -> (..., d_t)."""
        out: Tensor = self.up(F.embedding(tokens, self.weight))
        return out


class Mini(Backbone):
    """The packaged backbone; `patches="grid"` gives 4 x 4 average-pooled regions, row by row."""

    def __init__(self, assets: Path = ASSETS, device: str = "cpu") -> None:
        self.name = "mini"
        self.logit_scale = 30.0
        self.patch_kinds = ("grid",)
        self.image_size = IMAGE_SIZE
        self.fingerprint = fingerprint(assets)
        self.image_fingerprint = fingerprint(assets, IMAGE_FILES)
        self.tokenize = Tokenizer(SHAPE.context_length)
        with torch.device("meta"):  # no memory and no random draws before the weights are there
            tower = TextTower(SHAPE, FactorisedEmbedding(VOCABULARY, TOKEN_RANK, SHAPE.width))
        weights = read(assets, "mini/text_tower.safetensors")
        weights["tok.up.weight"] = weights.pop("up.weight")
        tower.load_state_dict(weights, assign=True)
        self.text = tower.freeze().to(device)
        self._assets = assets
        head = read(assets, "mini/image_head.safetensors")
        self.mean = head["mean"].double().to(device)
        self.projection = head["projection"].double().to(device)

    @cached_property
    def trunk(self) -> EfficientNetLite0:
        """Return the image tower, loaded when images are first encoded.

        Most processes have features.
        """
        with torch.device("meta"):
            trunk = EfficientNetLite0()
        trunk.load_state_dict(read(self._assets, "mini/trunk.safetensors"), assign=True)
        trunk.eval().requires_grad_(False).to(self.mean.device)
        return trunk.to(memory_format=torch.channels_last)  # a quarter faster on a CPU

    def preprocess(self, image: Any) -> Tensor:
        """PIL image -> (3, 224, 224): centre square, bicubic, (x - 127) / 128."""
        image = image.convert("RGB")
        side = min(image.size)
        if side == 0:
            raise DataError("an image has no pixels")
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side))
        pixels = torch.from_numpy(np.array(image, dtype=np.float32)).permute(2, 0, 1)
        # The packaged features were made by this kernel; it differs from Pillow's when enlarging.
        resized = F.interpolate(
            pixels[None], IMAGE_SIZE, mode="bicubic", antialias=side > IMAGE_SIZE
        )[0]
        return (resized.clamp(0, 255) - 127) / 128

    def describe_pixels(self) -> dict[str, Any]:
        """Say how `prepare` makes pixels of an image."""
        return {
            "size": IMAGE_SIZE,
            "channels": "RGB",
            "layout": "NCHW",
            "dtype": "float32",
            "crop": "before: centre square, side min(width, height), left (width - side) // 2, "
            "top (height - side) // 2",
            "resize": f"the square to {IMAGE_SIZE} x {IMAGE_SIZE} in float32, then to 0..255",
            "filter": {
                "name": "bicubic",
                "shrinking": {"a": -0.5, "antialias": True},
                "enlarging": {"a": -0.75, "antialias": False, "edge": "repeated"},
            },
            "scale": 1,
            "mean": [127.0] * 3,
            "std": [128.0] * 3,
            "normalised": "before the graph",
        }

    def encode_images(self, batch: Tensor, patches: str | None = None) -> ImageFeatures:
        """(N, 3, 224, 224) -> unit pooled (N, 256) and, for `grid`, patches (N, 16, 256)."""
        if patches not in (None, *self.patch_kinds):
            raise ConfigError(f"unknown patch features {patches!r}: mini offers 'grid'")
        with torch.no_grad():
            features = self.trunk(batch.to(self.mean.device, torch.float32))  # (N, 1280, 7, 7)
            pooled = self.project(features.double().mean((2, 3)))
            if patches is None:
                return ImageFeatures(pooled, None)
            regions = F.adaptive_avg_pool2d(features, GRID).flatten(2).transpose(1, 2)
            return ImageFeatures(pooled, self.project(regions))

    def project(self, features: Tensor) -> Tensor:
        """Project features of the trunk into the joint space, in float64.

        Args:
            features: Trunk features (..., 1280).

        Returns:
            Unit features (..., 256) in float32, on the CPU.
        """
        joint = (features.double() - self.mean) @ self.projection
        return F.normalize(joint, dim=-1).float().cpu()


def load_mini(device: str = "cpu") -> Backbone:
    """Load the packaged backbone.

    Args:
        device: Where the towers live.

    Returns:
        The backbone.
    """
    return Mini(ASSETS, device)


def fingerprint(assets: Path, among: Sequence[str] = ()) -> str:
    """Hash the packaged files and the preprocessing.

    The files' own hashes are those of the manifest, as 22 MB need not be read again at every start.
    Sizes are compared here, and each file with its hash when it is loaded.

    Args:
        assets: The folder of the packaged files.
        among: Names of the files to hash; empty: all.

    Returns:
        Hexadecimal digits.

    Raises:
        BackboneError: A file is missing or has another size.
    """
    try:
        files = _listed(assets)
        sizes = {name: (assets / name).stat().st_size for name in files}
    except (OSError, ValueError, KeyError, DataError) as error:
        raise damaged(error) from error
    if wrong := [name for name in files if sizes[name] != files[name]["bytes"]]:
        raise damaged(f"{wrong[0]} has {sizes[wrong[0]]} bytes")
    names = sorted(among or files)
    parts = [PREPROCESSING, *(f"{name} {files[name]['sha256']}" for name in names)]
    return sha256("\n".join(parts).encode()).hexdigest()


def read(assets: Path, name: str, *, sums: Mapping[str, str] | None = None) -> dict[str, Tensor]:
    """Read the weights of a packaged file in float32, after a comparison with its hash.

    Args:
        assets: The folder of the packaged files.
        name: The file's name there.
        sums: Checksums of the folder's files, as `assets.asset` takes them.

    Returns:
        Tensors by name.

    Raises:
        BackboneError: The file is missing or damaged.
    """
    try:
        raw = asset(name, assets, sums=sums)
        if (
            assets.resolve() != ASSETS
            and sums is None
            and sha256(raw).hexdigest() != _listed(assets)[name]["sha256"]
        ):
            raise damaged(f"the hash of {name} differs")
        return {name: weight.float() for name, weight in load(raw).items()}
    except (OSError, ValueError, KeyError, SafetensorError, DataError) as error:
        raise damaged(error) from error


def _listed(assets: Path) -> dict[str, Any]:
    """The files of the manifest by name: sizes and hashes."""
    return dict(json.loads(asset("mini/manifest.json", assets))["files"])


def damaged(reason: object) -> BackboneError:
    """Make the error for packaged weights that cannot be used.

    Args:
        reason: What is wrong with them.

    Returns:
        The error, to be raised.
    """
    return BackboneError(
        f"the packaged backbone 'mini' is damaged ({reason}): install focoop again"
    )
