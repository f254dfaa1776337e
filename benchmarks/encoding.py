"""Images a second from files on disk to features: decoding, CLIP's transform, image tower.

    python benchmarks/encoding.py
    python benchmarks/encoding.py --device cuda --out encoding.json

For each tower and kind of file, four rates: reading alone (decode and transform, all threads),
the tower alone (a batch that is there already), the naive loop (read a batch, encode it, one after
the other in one thread) and `focoop.encode.encode` into an empty cache, hashes and feature file
included. The tower has all of torch's threads every time. Files are in the page cache. Towers:
`mini`, and one of ViT-B/16's sizes with random weights, on a GPU in float32 and in bfloat16.
"""

import argparse
import json
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where focoop is not installed

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from focoop.clip import load_backbone
from focoop.clip.base import Backbone, ImageFeatures
from focoop.clip.pixels import levels, normalised
from focoop.data import ImageSet
from focoop.data.ahead import cores, read_ahead
from focoop.encode import BATCH, BATCH_ON_GPU, encode

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
SIDE, PATCH, WIDTH, HEADS, LAYERS, DIM = 224, 16, 768, 12, 12, 512
DISTINCT = 64  # images that are made; further files are links to them
KINDS = {"jpeg": (500, 375), "png": (32, 32)}  # ImageNet's usual size, CIFAR's
try:
    from PIL import Image
except ImportError:
    Image = None  # type: ignore[assignment]


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
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
        return self.where

    def preprocess(self, image: Any) -> Tensor:
        return normalised(self.prepare(image)[None], MEAN, STD)[0]

    def prepare(self, image: Any) -> Tensor:
        """Shorter side to 224 by a bicubic kernel, centre square; an array without Pillow."""
        if isinstance(image, np.ndarray):
            pixels = torch.from_numpy(image).permute(2, 0, 1)[None]
            scale = SIDE / min(image.shape[:2])
            size = [max(SIDE, round(scale * n)) for n in image.shape[:2]]
            pixels = F.interpolate(pixels, size, mode="bicubic", antialias=True)[0]
            top, left = (size[0] - SIDE) // 2, (size[1] - SIDE) // 2
            return pixels[:, top : top + SIDE, left : left + SIDE]
        scale = SIDE / min(image.size)
        width, height = (max(SIDE, int(scale * n)) for n in image.size)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
        left, top = (width - SIDE) // 2, (height - SIDE) // 2
        return levels(image.crop((left, top, left + SIDE, top + SIDE)))

    @torch.no_grad()
    def encode_images(self, batch: Tensor, patches: str | None = None) -> ImageFeatures:
        batch = normalised(batch.to(self.where), MEAN, STD)
        with torch.autocast(self.where.type, torch.bfloat16, enabled=self.bf16):
            x = self.cut(batch).flatten(2).transpose(1, 2)
            x = torch.cat([x.new_zeros(len(x), 1, WIDTH), x], 1) + self.place
            pooled = self.last(self.blocks(x)[:, 0])
        return ImageFeatures(F.normalize(pooled.float(), dim=-1).cpu(), None)


class Arrays:
    """Images as array files, where Pillow is not installed."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def image(self, row: int) -> Any:
        return np.load(self.files[row])

    def digest(self) -> str:
        return f"{len(self.files)} arrays"

    def __len__(self) -> int:
        return len(self.files)


def drawn(generator: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Noise at several scales: about as much detail as a photograph."""
    out = np.full((3, height, width), 127.0, dtype=np.float32)
    for cells, strength in ((4, 60), (16, 35), (64, 18), (375, 14)):
        coarse = torch.from_numpy(generator.normal(size=(1, 3, cells, cells)))
        fine = F.interpolate(coarse, (height, width), mode="bilinear")
        out += strength * fine[0].numpy()
    return np.clip(out, 0, 255).astype(np.uint8).transpose(1, 2, 0)


def written(folder: Path, kind: str, count: int) -> ImageSet:
    """`count` files of a kind, `DISTINCT` of them different."""
    generator = np.random.default_rng(0)
    suffix = ".npy" if Image is None else f".{kind}"
    files = [folder / f"{i:06d}{suffix}" for i in range(count)]
    folder.mkdir()
    for i, file in enumerate(files):
        if i >= DISTINCT:
            file.hardlink_to(files[i % DISTINCT])
        elif Image is None:
            np.save(file, drawn(generator, *KINDS[kind]))
        else:
            Image.fromarray(drawn(generator, *KINDS[kind])).save(file, quality=90)
    names = tuple(file.name for file in files)
    store = Arrays(files) if Image is None else None
    return ImageSet(folder, names, (0,) * count, ("thing",), "test", store=store)


def naive(images: ImageSet, backbone: Backbone, size: int) -> None:
    """Read a batch, then encode it, then read the next: one thread but the tower's own."""
    for first in range(0, len(images), size):
        rows = range(first, min(first + size, len(images)))
        batch = torch.stack([backbone.preprocess(images.image(row)) for row in rows])
        backbone.encode_images(batch)


def read_only(images: ImageSet, backbone: Backbone, size: int) -> None:
    """All that happens to images before the tower, by all threads."""

    def fill(rows: range, into: Tensor) -> None:
        for place, row in zip(into, rows, strict=False):
            place.copy_(backbone.prepare(images.image(row)))

    batches = [range(i, min(i + size, len(images))) for i in range(0, len(images), size)]
    for _ in read_ahead(batches, fill, (3, SIDE, SIDE), backbone.pixel_type):
        pass


def encode_only(backbone: Backbone, size: int, seconds: float) -> float:
    """Images a second through the tower."""
    batch = torch.zeros(size, 3, SIDE, SIDE, dtype=backbone.pixel_type)
    batch = batch.to(backbone.device)
    backbone.encode_images(batch)
    begin, done = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        backbone.encode_images(batch)
        done += size
    return done / (time.perf_counter() - begin)


def peaked(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and the most MiB of memory held during `work` (of the process, where Linux tells)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    except OSError:
        pass
    begin = time.perf_counter()
    work()
    seconds = time.perf_counter() - begin
    try:
        status = Path("/proc/self/status").read_text()
        peak = float(status.partition("VmHWM:")[2].split()[0]) / 1024
    except (OSError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return seconds, peak


def measured(name: str, kind: str, backbone: Backbone, seconds: float) -> dict[str, Any]:
    """The four rates of a tower and a kind of file."""
    on_gpu = backbone.device.type == "cuda"
    size = BATCH_ON_GPU if on_gpu else BATCH
    tower = encode_only(backbone, size, seconds)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        trial = written(folder / "trial", kind, 2 * size)
        read_only(trial, backbone, size)
        taken, _ = peaked(lambda: read_only(trial, backbone, size))
        expected = min(tower, len(trial) / taken)
        # At least six batches, so that the first, which nothing overlaps, weighs little.
        count = size * max(6, min(64, round(expected * seconds / size)))
        images = written(folder / "images", kind, count)
        reading, _ = peaked(lambda: read_only(images, backbone, size))
        slow, slow_peak = peaked(lambda: naive(images, backbone, size))
        ours, peak = peaked(lambda: encode(images, backbone, cache_dir=folder / "cache"))
        weight = (folder / "images" / images.files[0]).stat().st_size
    row = {
        "tower": name,
        "files": f"{kind} {'x'.join(map(str, KINDS[kind]))}, {weight / 1024:.0f} KiB",
        "images": count,
        "batch": size,
        "reading": count / reading,
        "encoding": tower,
        "naive": count / slow,
        "focoop": count / ours,
        "ratio": slow / ours,
        "of_the_slower": count / ours / min(tower, count / reading),
        "mib": peak,
        "naive_mib": slow_peak,
    }
    if on_gpu:
        row["gpu_mib"] = torch.cuda.max_memory_allocated() / 2**20
    return row


def shown(row: dict[str, Any]) -> str:
    rates = "".join(f"{row[key]:10.1f}" for key in ("reading", "encoding", "naive", "focoop"))
    rest = f"{row['ratio']:7.2f}x{100 * row['of_the_slower']:7.0f}%{row['mib']:8.0f}"
    return f"{row['tower']:24}{row['files']:24}{rates}{rest}  ({row['images']} images)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--towers", default="", help="of mini,vit,vit-bf16; default all that fit")
    parser.add_argument("--kinds", default="jpeg,png")
    parser.add_argument("--seconds", type=float, default=2.0, help="about, for each rate")
    parser.add_argument("--out", type=Path, help="a JSON file")
    given = parser.parse_args()
    on_gpu = torch.device(given.device).type == "cuda"
    towers = given.towers or ("mini,vit,vit-bf16" if on_gpu else "mini,vit")
    machine = {
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "cpu": platform.processor() or platform.machine(),
        "reading_threads": cores(),
        "torch_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "pillow": None if Image is None else Image.__version__,
    }
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    if Image is None:
        print("Pillow is not installed: images are array files, nothing is decoded; no mini")
        towers = towers.replace("mini,", "")
    heads = "".join(f"{name:>10}" for name in ("reading", "encoding", "naive", "focoop"))
    print(f"images a second{'':33}{heads}   ratio of slower    MiB")
    rows = []
    for name in towers.split(","):
        if name == "mini":
            backbone: Backbone = load_backbone("mini", device=given.device)
        else:
            backbone = VitSized(given.device, bf16=name == "vit-bf16")
        label = {"vit": "ViT-B/16 size, float32", "vit-bf16": "ViT-B/16 size, bfloat16"}
        for kind in given.kinds.split(","):
            rows.append(measured(label.get(name, name), kind, backbone, given.seconds))
            print(shown(rows[-1]), flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
