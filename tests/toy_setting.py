"""A setting small enough for whole grids: four classes of noisy features in mini's joint space."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from focoop.experiments import grid
from focoop.features.lookup import FeatureSet, save_splits
from focoop.seeds import torch_generator

CLASSES = ("apple", "boat", "cat", "drum")
DIM = 256  # of mini
TEXT = """
[data]
id = "file:{folder}/{id}.safetensors"
corrupted = []
ood = ["file:{folder}/far.safetensors"]
validation_ood = ["file:{folder}/held.safetensors"]
{data}

[partition]
clients = 2
shots = 2

[federation]
rounds = {rounds}
epochs = 1
batch_size = 8
evaluate_every = 0
"""


def images(name: str, each: int) -> FeatureSet:
    """`each` unit features per class around random centres; another `name`, other noise."""
    centres = torch.randn(len(CLASSES), DIM, generator=torch_generator(0, "centres"))
    noise = torch.randn(len(CLASSES), each, DIM, generator=torch_generator(0, name))
    pooled = F.normalize(centres[:, None] + 2 * noise, dim=-1).flatten(0, 1)
    return FeatureSet(pooled, None, torch.arange(len(CLASSES)).repeat_interleave(each), CLASSES)


def write_setting(folder: Path, name: str = "toy", *, rounds: int = 2, data: str = "") -> Path:
    """The setting's file and its feature files: train and test, and two OOD sets.

    `train_only` beside them has no test split at all.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_splits(folder / "id.safetensors", {"train": images("train", 8), "test": images("test", 5)})
    save_splits(folder / "train_only.safetensors", {"train": images("train", 8)})
    for other in ("far", "held"):
        save_splits(folder / f"{other}.safetensors", {"test": images(other, 4)})
    path = folder / f"{name}.toml"
    source = "train_only" if "train_only" in data else "id"
    path.write_text(
        TEXT.format(folder=folder, id=source, rounds=rounds, data=data.replace("train_only", ""))
    )
    return path


def toy_plan(
    folder: Path, methods: str | None, seeds: tuple[int, ...] = (0,), **given: Any
) -> list[grid.Cell]:
    """The cells of methods on the toy setting."""
    setting = write_setting(folder / "data")
    return grid.plan([setting], methods, seeds, folder / "out", **given)


def summary(own: float, fpr95: float = 0.5) -> dict[str, Any]:
    """A run's last line with the numbers that tables show."""
    found = {"fpr95": fpr95, "fpr95_oodpos": 0.4, "auroc": 0.9}
    return {
        "accuracy_own": own,
        "accuracy_all": own / 2,
        "accuracy_corrupted": None,
        "cross_alarm": 1 - own,
        "ood": {"dtd": found},
    }
