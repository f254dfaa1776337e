"""Images a second from files on disk to features: decoding, CLIP's transform, image tower.

    python benchmarks/encoding.py
    python benchmarks/encoding.py --device cuda --out encoding.json

For each tower and kind of file, four rates: reading alone (decode and transform, all threads),
the tower alone (a batch that is there already), the naive loop (read a batch, encode it, one after
the other in one thread) and `encode` into an empty cache, hashes and feature file
included. The tower has all of torch's threads every time. "Of slower": ours over the lower of the
first two. Files are in the page cache; on a CPU the best of three turns counts, each by itself.
Towers:
`mini`, and one of ViT-B/16's sizes with random weights, on a GPU in float32 and in bfloat16.
"""

import argparse
import json
import math
import os
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where focoop is not installed

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from vit_sized import SIDE, VitSized

from focoop.clip import load_backbone
from focoop.clip.base import Backbone
from focoop.data import ImageSet
from focoop.data.prefetch import cores, read_ahead
from focoop.features.encoding import BATCH, BATCH_ON_GPU, PIECE, encode

DISTINCT = 64  # images that are made; further files are links to them
KINDS = {"jpeg": (500, 375), "png": (32, 32)}  # ImageNet's usual size, CIFAR's
TURNS, SLOW = 3, 10.0  # turns, but one for towers of fewer images a second
RATES = ("reading", "encoding", "naive", "focoop")
try:
    from PIL import Image
except ImportError:
    Image = None  # type: ignore[assignment]


class Arrays:
    """Images as array files, where Pillow is not installed."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def image(self, row: int) -> Any:
        """(H, W, 3) uint8."""
        return np.load(self.files[row])

    def digest(self) -> str:
        """Stands for the content, which nobody reads again."""
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


@dataclass
class Cost:
    """The best of several turns: wall seconds, processor seconds, most MiB held."""

    images: int
    seconds: float = math.inf
    cores: float = math.inf
    mib: float = 0.0

    def turn(self, work: Callable[[], object]) -> None:
        """Do the work once more."""
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        begin, used = time.perf_counter(), time.process_time()
        work()
        self.seconds = min(self.seconds, time.perf_counter() - begin)
        self.cores = min(self.cores, time.process_time() - used)
        try:
            status = Path("/proc/self/status").read_text()
            peak = float(status.partition("VmHWM:")[2].split()[0])
        except (OSError, IndexError):
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.mib = max(self.mib, peak / 1024)

    @property
    def rate(self) -> float:
        """Images a second."""
        return self.images / self.seconds

    @property
    def core_ms(self) -> float:
        """Processor time of an image."""
        return 1e3 * self.cores / self.images


def measured(name: str, kind: str, backbone: Backbone, seconds: float) -> dict[str, Any]:
    """The four rates of a tower and a kind of file; turns of the four alternate."""
    on_gpu = backbone.device.type == "cuda"
    size = BATCH_ON_GPU if on_gpu else BATCH
    tower = encode_only(backbone, size if on_gpu else PIECE, seconds)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        trial = written(folder / "trial", kind, 2 * size)
        read_only(trial, backbone, size)  # starts what the first use starts
        first = Cost(len(trial))
        first.turn(lambda: read_only(trial, backbone, size))
        # Enough batches that the first, which nothing overlaps, weighs little.
        count = size * max(3, min(64, round(min(tower, first.rate) * seconds / size)))
        images = written(folder / "images", kind, count)
        alone = 1 / (1 / tower + cores() / first.rate)  # what the loop will give
        some = images.take(range(min(count, size * max(1, round(alone * seconds / size)))))
        reading, slow, ours = Cost(count), Cost(len(some)), Cost(count)
        for turn in range(1 if on_gpu or tower < SLOW else TURNS):
            cache = folder / f"cache{turn}"
            reading.turn(lambda: read_only(images, backbone, size))
            slow.turn(lambda: naive(some, backbone, size))
            ours.turn(lambda cache=cache: encode(images, backbone, cache_dir=cache))
            if not on_gpu and turn:
                tower = max(tower, encode_only(backbone, PIECE, seconds))
        weight = (images.root / images.files[0]).stat().st_size
    row = {
        "tower": name,
        "files": f"{kind} {'x'.join(map(str, KINDS[kind]))}, {weight / 1024:.0f} KiB",
        "images": count,
        "batch": size,
        "reading": reading.rate,
        "encoding": tower,
        "naive": slow.rate,
        "focoop": ours.rate,
        "ratio": ours.rate / slow.rate,
        "of_the_slower": ours.rate / min(tower, reading.rate),
        "reading_core_ms": reading.core_ms,
        "naive_core_ms": slow.core_ms,
        "focoop_core_ms": ours.core_ms,
        "naive_mib": slow.mib,
        "focoop_mib": ours.mib,
    }
    if on_gpu:
        row["gpu_mib"] = torch.cuda.max_memory_allocated() / 2**20
    return row


def pieces(backbone: Backbone, images: int = 128) -> None:
    """Processor time of an image through the tower, by how many pass through it at once."""
    for size in (4, 8, 16, 32, 64):
        batch = torch.zeros(size, 3, SIDE, SIDE, dtype=backbone.pixel_type)
        backbone.encode_images(batch)
        before = os.times()
        for _ in range(images // size):
            backbone.encode_images(batch)
        spent = [1e3 * (b - a) / images for a, b in zip(before, os.times(), strict=True)]
        print(f"{size:4} at once: {spent[0]:6.1f} ms computing, {spent[1]:6.1f} ms in the kernel")


def shown(row: dict[str, Any]) -> str:
    rates = "".join(f"{row[key]:10.1f}" for key in RATES)
    rest = f"{row['ratio']:7.2f}x{100 * row['of_the_slower']:9.0f}%"
    work = "".join(f"{row[f'{key}_core_ms']:9.1f}" for key in ("reading", "naive", "focoop"))
    memory = f"{row['naive_mib']:8.0f}{row['focoop_mib']:8.0f}"
    return f"{row['tower']:24}{row['files']:24}{rates}{rest}{work}{memory}"


COLUMNS = ("ratio", "of slower", "reading", "naive", "focoop", "naive", "focoop")
HEAD = (
    f"{'':48}{'images a second':^40}{'':18}{'core ms an image':^27}{'MiB':^16}\n{'':48}"
    + "".join(f"{name:>10}" for name in RATES)
    + "".join(f"{n:>{w}}" for n, w in zip(COLUMNS, (8, 10, 9, 9, 9, 8, 8), strict=True))
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--towers", default="", help="of mini,vit,vit-bf16; default all that fit")
    parser.add_argument("--kinds", default="jpeg,png")
    parser.add_argument("--seconds", type=float, help="about, for each rate; 2, on a GPU 1")
    parser.add_argument("--pieces", action="store_true", help="only: mini by images at once")
    parser.add_argument("--out", type=Path, help="a JSON file")
    given = parser.parse_args()
    if given.pieces:
        return pieces(load_backbone("mini", device=given.device))
    on_gpu = torch.device(given.device).type == "cuda"
    seconds = given.seconds or (1.0 if on_gpu else 2.0)
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
    print(HEAD)
    rows = []
    for name in towers.split(","):
        if name == "mini":
            backbone: Backbone = load_backbone("mini", device=given.device)
        else:
            backbone = VitSized(given.device, bf16=name == "vit-bf16")
        label = {"vit": "ViT-B/16 size, float32", "vit-bf16": "ViT-B/16 size, bfloat16"}
        for kind in given.kinds.split(","):
            rows.append(measured(label.get(name, name), kind, backbone, seconds))
            print(shown(rows[-1]), flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
