"""A FOCoOp round as the field does it, for benchmarks/gpu.py: what the engine is compared with.

Written after the public code's way of working: a whole CLIP in half precision for every client,
moved to the device for its turn and back; raw images through ViT-B/16 in every step; all 77
positions of every prompt; one client at a time, eager; ascent in feature space through autograd;
a dense transport on the host. Images lie in memory as 32 x 32 bytes and are enlarged and normalised
one by one whenever a batch asks for them; decoding of files and loader processes are left out.
Weights are random and get no gradients.
"""

import time
from copy import deepcopy

import torch
import torch.nn.functional as F
from gpu_world import HELD, SHOTS, Sizes, wait
from torch import Tensor, nn
from transport import dense

from focoop.clip.text.tower import Names, TextTower

MEAN, DEVIATION = (0.481, 0.458, 0.408), (0.269, 0.261, 0.276)
TOKENS, BATCH, EPOCHS, ASCENT, SCALE, SHARE = 16, 32, 2, 4, 100.0, 0.2


class Norm(nn.LayerNorm):
    """In float32 whatever comes in, as CLIP has it."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return super().forward(x.float()).to(x.dtype)


class Block(nn.Module):
    """CLIP's residual attention block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads)
        self.ln_1, self.ln_2 = Norm(width), Norm(width)
        self.f1, self.f2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """(L, N, d) -> (L, N, d)."""
        y = self.ln_1(x)
        x = x + self.attention(y, y, y, need_weights=False, attn_mask=mask)[0]
        hidden = self.f1(self.ln_2(x))
        return x + self.f2(hidden * torch.sigmoid(1.702 * hidden))


class Clip(nn.Module):
    """A client's own model: both towers and its three prompt sets."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        text, width = sizes.text, sizes.image_width
        positions = (sizes.pixels // sizes.patch) ** 2 + 1
        self.patches = nn.Conv2d(3, width, sizes.patch, sizes.patch, bias=False)
        self.cls = nn.Parameter(0.02 * torch.randn(width))
        self.image_pos = nn.Parameter(0.02 * torch.randn(positions, width))
        self.image_blocks = nn.ModuleList(
            Block(width, sizes.image_heads) for _ in range(sizes.image_layers)
        )
        self.before, self.after, self.final = Norm(width), Norm(width), Norm(text.width)
        self.image_proj = nn.Parameter(width**-0.5 * torch.randn(width, text.dim))
        self.token_embedding = nn.Embedding(49408, text.width)
        self.pos = nn.Parameter(0.01 * torch.randn(text.context_length, text.width))
        self.text_blocks = nn.ModuleList(Block(text.width, text.heads) for _ in range(text.layers))
        self.text_proj = nn.Parameter(text.width**-0.5 * torch.randn(text.width, text.dim))
        self.requires_grad_(False)
        shape = (sizes.classes, TOKENS, text.width)
        self.shared = nn.Parameter(0.02 * torch.randn(shape))
        self.local = nn.Parameter(self.shared.detach().clone())
        self.ood = nn.Parameter(0.02 * torch.randn(sizes.words, *shape[1:]))
        mask = torch.full((text.context_length, text.context_length), -torch.inf).triu(1)
        self.register_buffer("mask", mask)

    def images(self, pixels: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, D) unit."""
        x = self.patches(pixels).flatten(2).permute(2, 0, 1)  # (P, B, d)
        x = torch.cat([self.cls.expand(1, x.shape[1], -1), x]) + self.image_pos[:, None]
        x = self.before(x)
        for block in self.image_blocks:
            x = block(x, None)
        return F.normalize(self.after(x[0]) @ self.image_proj, dim=-1)

    def texts(self, contexts: Tensor, names: Tensor, ends: Tensor) -> Tensor:
        """(N, n, d_t) contexts between SOT and the rest of `names` (N, 77, d_t) -> (N, D) unit."""
        x = torch.cat([names[:, :1], contexts, names[:, 1 + TOKENS :]], dim=1) + self.pos
        x = x.permute(1, 0, 2)
        for block in self.text_blocks:
            x = block(x, self.mask)
        x = self.final(x.permute(1, 0, 2))
        return F.normalize(x[torch.arange(len(x)), ends] @ self.text_proj, dim=-1)


def padded(tower: TextTower, names: Names) -> tuple[Tensor, Tensor]:
    """All positions' embeddings (N, 77, d_t), zeros where contexts go, and the EOTs' places."""
    count, length, width = names.embeddings.shape
    out = torch.zeros(count, tower.shape.context_length, width, device=tower.device)
    out[:, 0] = tower.sot
    out[:, 1 + TOKENS : 1 + TOKENS + length] = names.embeddings
    return out, names.lengths + TOKENS


def losses(
    images: Tensor, ids: Tensor, oods: Tensor, labels: Tensor, weight: float
) -> tuple[Tensor, Tensor]:
    """(B,) cross-entropies over C + U with the detection term, and the logits."""
    logits = SCALE * images @ torch.cat([ids, oods]).T
    detection = logits[:, len(ids) :].logsumexp(1) - logits[:, len(ids) :].mean(1)
    return F.cross_entropy(logits, labels, reduction="none") + weight * detection, logits


def ascend(images: Tensor, ids: Tensor, oods: Tensor, labels: Tensor, *, of_ood: bool) -> Tensor:
    """Four unit row gradients added up from small noise on one kind of features."""
    noise = 1e-4 * torch.rand_like(oods if of_ood else ids)
    for _ in range(ASCENT):
        noise = noise.detach().requires_grad_()
        moved = (ids, oods + noise) if of_ood else (ids + noise, oods)
        each, _ = losses(images, *moved, labels, float(of_ood))
        gradient = torch.autograd.grad(each.mean() - noise.norm(dim=1).mean(), noise)[0]
        noise = noise + F.normalize(gradient, dim=-1)
    return noise.detach()


def read(raw: Tensor, rows: Tensor, size: int) -> Tensor:
    """(B, 3, size, size) normalised images of the bytes (n, 3, H, W) at `rows`, one at a time."""
    mean, deviation = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, DEVIATION))
    found = []
    for image in raw[rows]:
        enlarged = F.interpolate(image[None].float(), size, mode="bilinear", antialias=True)[0]
        found.append((enlarged / 255.0 - mean) / deviation)
    return torch.stack(found)


def turn(
    model: Clip,
    raw: Tensor,
    labels: Tensor,
    names: list[tuple[Tensor, Tensor]],
    device: torch.device,
    size: int,
) -> float:
    """One client's epochs; seconds spent on reading images."""
    optimiser = torch.optim.SGD([model.shared, model.local, model.ood], lr=1e-3)
    reading = 0.0
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(labels)).split(BATCH):
            began = time.perf_counter()
            pixels = read(raw, rows, size)
            reading += time.perf_counter() - began
            images = model.images(pixels.to(device, model.pos.dtype))
            target = labels[rows].to(device)
            fused = (1.0 - SHARE) * model.local + SHARE * model.shared
            ids, oods = model.texts(fused, *names[0]), model.texts(model.ood, *names[1])
            still_id, still_ood = ids.detach(), oods.detach()

            moved_id = ids + ascend(images, still_id, still_ood, target, of_ood=False)
            moved_ood = oods + ascend(images, moved_id.detach(), still_ood, target, of_ood=True)
            each, logits = losses(images, moved_id, moved_ood, target, 0.5)
            optimiser.zero_grad()
            each.logsumexp(0).backward()
            optimiser.step()
            float((logits.argmax(1) == target).float().mean())  # logged by the field
    return reading


def naive_round(
    sizes: Sizes, tower: TextTower, names: list[Names], clients: int, device: torch.device
) -> dict[str, float]:
    """Seconds of a whole round of `clients` clients, by part, after one turn to warm up."""
    half = torch.float16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    base = Clip(sizes).to(half)
    for norm in (m for m in base.modules() if isinstance(m, Norm)):
        norm.float()
    spread = [(rows.to(half), ends) for rows, ends in (padded(tower, n) for n in names)]
    held = min(HELD, sizes.classes)
    raw = torch.randint(256, (held * SHOTS, 3, 32, 32), dtype=torch.uint8)
    labels = torch.arange(held).repeat_interleave(SHOTS)
    turn(deepcopy(base).to(device), raw, labels, spread, device, sizes.pixels)
    models = [deepcopy(base) for _ in range(clients)]
    spent = {"moving models": 0.0, "reading images": 0.0, "training": 0.0, "server": 0.0}
    wait(device)
    for model in models:
        began = time.perf_counter()
        model.to(device)
        wait(device)
        ready = time.perf_counter()
        reading = turn(model, raw, labels, spread, device, sizes.pixels)
        wait(device)
        trained = time.perf_counter()
        model.cpu()
        wait(device)
        spent["reading images"] += reading
        spent["training"] += trained - ready - reading
        spent["moving models"] += time.perf_counter() - trained + ready - began
    began = time.perf_counter()
    shared = torch.stack([model.shared.detach().float() for model in models]).mean(0).flatten(1)
    ood = torch.cat([model.ood.detach().float() for model in models]).flatten(1)
    cost = torch.cdist(shared, ood).square()
    dense(cost / cost.max().clamp_min(1e-12))
    for model in models:
        model.shared.data.copy_(shared.view_as(model.shared))
        model.ood.data.copy_(ood[: sizes.words].view_as(model.ood))
    spent["server"] = time.perf_counter() - began
    return {"round": sum(spent.values()), **spent}
