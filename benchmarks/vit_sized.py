"""An image tower of ViT-B/16's sizes in plain torch, for machines without open_clip."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focoop.clip.base import Backbone, ImageFeatures
from focoop.clip.pixels import levels, normalised

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
SIDE, PATCH, WIDTH, HEADS, LAYERS, DIM = 224, 16, 768, 12, 12, 512


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(N, P, d) -> (N, P, d)."""
        count, tokens, _ = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(count, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        hidden = self.up(self.ln_2(x))
        return x + self.down(hidden * torch.sigmoid(1.702 * hidden))


class VitSized(Backbone):
    """An image tower of ViT-B/16's sizes with random weights; no text."""

    pixel_type = torch.uint8

    def __init__(self, device: str, bf16: bool) -> None:
        self.name, self.image_size, self.patch_kinds = "ViT-B/16 size", SIDE, ()
        self.fingerprint = self.image_fingerprint = "random"
        self.bf16, self.where = bf16, torch.device(device)
        torch.manual_seed(0)
        self.cut = nn.Conv2d(3, WIDTH, PATCH, PATCH, bias=False).to(device)
        self.place = torch.randn(1 + (SIDE // PATCH) ** 2, WIDTH, device=device) * 0.02
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)]).to(device)
        self.last = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, DIM)).to(device)

    @property
    def device(self) -> torch.device:
        """Where the tower lives."""
        return self.where

    def preprocess(self, image: Any) -> Tensor:
        """Image -> (3, 224, 224) float32."""
        return normalised(self.prepare(image)[None], MEAN, STD)[0]

    def describe_pixels(self) -> dict[str, Any]:
        """Nobody exports it."""
        return {}

    def prepare(self, image: Any) -> Tensor:
        """Shorter side to 224 by a bicubic kernel, centre square; an array without Pillow."""
        if isinstance(image, np.ndarray):
            pixels = torch.from_numpy(image).permute(2, 0, 1)[None]
            scale = SIDE / min(image.shape[:2])
            size = [max(SIDE, round(scale * n)) for n in image.shape[:2]]
            pixels = F.interpolate(pixels, size, mode="bicubic", antialias=True)[0]
            top, left = (size[0] - SIDE) // 2, (size[1] - SIDE) // 2
            return pixels[:, top : top + SIDE, left : left + SIDE]
        from PIL import Image

        scale = SIDE / min(image.size)
        width, height = (max(SIDE, int(scale * n)) for n in image.size)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
        left, top = (width - SIDE) // 2, (height - SIDE) // 2
        return levels(image.crop((left, top, left + SIDE, top + SIDE)))

    @torch.no_grad()
    def encode_images(self, batch: Tensor, patches: str | None = None) -> ImageFeatures:
        """(N, 3, 224, 224) -> (N, 512)."""
        batch = normalised(batch.to(self.where), MEAN, STD)
        with torch.autocast(self.where.type, torch.bfloat16, enabled=self.bf16):
            x = self.cut(batch).flatten(2).transpose(1, 2)
            x = torch.cat([x.new_zeros(len(x), 1, WIDTH), x], 1) + self.place
            pooled = self.last(self.blocks(x)[:, 0])
        return ImageFeatures(F.normalize(pooled.float(), dim=-1).cpu(), None)
