"""A backbone small enough for exact and slow checks: random weights, no files, any text."""

import zlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focoop.clip.base import Backbone, ImageFeatures
from focoop.clip.text.tower import TextShape, TextTower
from focoop.seeds import torch_generator

VOCABULARY = 512
CONTEXT_LENGTH = 32
SOT, EOT = VOCABULARY - 2, VOCABULARY - 1


def toy_tokenize(texts: Sequence[str]) -> Tensor:
    """One token per word or period: its hash, in 1..VOCABULARY-3; too long texts are cut."""
    tokens = torch.zeros(len(texts), CONTEXT_LENGTH, dtype=torch.int64)
    for row, text in zip(tokens, texts, strict=True):
        words = text.lower().replace(".", " . ").split()
        ids = [zlib.crc32(word.encode()) % (VOCABULARY - 3) + 1 for word in words]
        ids = [SOT, *ids[: CONTEXT_LENGTH - 2], EOT]
        row[: len(ids)] = torch.tensor(ids)
    return tokens


class ToyBackbone(Backbone):
    """Random frozen towers; images are (N, 3, 8, 8), split into 4 patches of 4 x 4 pixels."""

    def __init__(self, seed: int, width: int, dim: int, layers: int) -> None:
        generator = torch_generator(seed, "toy backbone")
        shape = TextShape(width, layers, heads=2, dim=dim, context_length=CONTEXT_LENGTH)
        with torch.random.fork_rng(devices=[]):  # modules draw initial values globally
            self.text = TextTower(shape, nn.Embedding(VOCABULARY, width))
        for name, weight in self.text.named_parameters():
            scale = 1.0 if name.startswith("tok.") else 0.3
            noise = torch.randn(weight.shape, generator=generator)
            # Norm gains stay near one, so that random towers do not saturate.
            weight.data = (
                1 + 0.1 * noise if ".ln" in f".{name}" and "weight" in name else scale * noise
            )
        self.pixels = torch.randn(48, dim, generator=generator)
        self.name = "toy"
        self.tokenize = toy_tokenize
        self.logit_scale = 10.0
        self.fingerprint = f"toy-{seed}-{width}-{dim}-{layers}"
        self.image_fingerprint = f"toy-{seed}-{dim}"
        self.patch_kinds = ("grid",)
        self.image_size = 8

    def preprocess(self, image: Any) -> Tensor:
        """PIL image -> (3, 8, 8) in -1..1."""
        import numpy as np

        pixels = np.asarray(image.convert("RGB").resize((8, 8)), dtype=np.float32)
        return torch.from_numpy(pixels).permute(2, 0, 1) / 127.5 - 1

    def describe_pixels(self) -> dict[str, Any]:
        """As much as a test of the description needs."""
        return {"size": 8, "dtype": "float32", "mean": [127.5] * 3, "std": [127.5] * 3}

    def encode_images(self, batch: Tensor, patches: str | None = None) -> ImageFeatures:
        """(N, 3, 8, 8) -> unit (N, D) and (N, 4, D)."""
        local = F.unfold(batch, 4, stride=4).transpose(1, 2) @ self.pixels  # (N, 4, D)
        pooled = F.normalize(local.mean(1), dim=-1)
        return ImageFeatures(pooled, F.normalize(local, dim=-1) if patches else None)


def toy_backbone(seed: int = 0, width: int = 16, dim: int = 12, layers: int = 2) -> ToyBackbone:
    """A deterministic toy backbone; two calls with equal arguments have equal weights."""
    return ToyBackbone(seed, width, dim, layers)
