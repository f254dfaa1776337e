"""Step 3: zero-shot accuracy of towers on stored features; a report only, nothing is chosen by it.

Test rows are those of `split` 1, or all rows where `split` is a domain. `--shots` adds the accuracy
after tuning class-specific contexts on the first images of each class.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from focoop.clip.mini import SHAPE, TOKEN_RANK, VOCABULARY, FactorisedEmbedding
from focoop.clip.text.tower import TextTower
from focoop.clip.tokenizer import Tokenizer
from focoop.seeds import torch_generator

DATASETS = ("cifar100", "tinyimagenet", "caltech101", "oxford_pets", "dtd", "office_caltech10",
            "pacs")  # fmt: skip
LOGIT_SCALE = 30.0


@dataclass(frozen=True)
class Features:
    """Unit features (N, D) with labels (N,), which rows are for testing, and the class names."""

    pooled: Tensor
    labels: Tensor
    test: Tensor
    classes: list[str]


def load_features(path: Path, device: str = "cpu") -> Features:
    """Read a feature file."""
    data = load_file(path, device=device)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    split = data["split"]
    test = torch.ones_like(split, dtype=torch.bool) if "domains" in metadata else split == 1
    pooled = F.normalize(data["pooled"].float(), dim=1)
    return Features(pooled, data["labels"].long(), test, json.loads(metadata["classes"]))


def load_tower(path: Path) -> TextTower:
    """Read a text tower file."""
    weights = {name: weight.float() for name, weight in load_file(path).items()}
    weights["tok.up.weight"] = weights.pop("up.weight")
    tower = TextTower(SHAPE, FactorisedEmbedding(VOCABULARY, TOKEN_RANK, SHAPE.width))
    tower.load_state_dict(weights)
    return tower.freeze()


def accuracy(features: Tensor, labels: Tensor, texts: Tensor) -> float:
    """Percentage of rows whose nearest text is their class."""
    return 100 * ((features @ texts.T).argmax(1) == labels).float().mean().item()


def zero_shot(tower: TextTower, data: Features) -> float:
    """Accuracy of "a photo of a {name}."."""
    names = [name.replace("_", " ") for name in data.classes]
    tokens = Tokenizer(SHAPE.context_length)([f"a photo of a {name}." for name in names])
    texts = tower.encode_tokens(tokens.to(tower.device))
    return accuracy(data.pooled[data.test], data.labels[data.test], texts)


def few_shot(tower: TextTower, data: Features, shots: int, steps: int = 300) -> float:
    """Accuracy after tuning 16 context vectors per class by Adam 2e-3 on whole batches."""
    generator = torch_generator(0, "mini", "few-shot")
    train = (~data.test).nonzero().flatten()
    order = train[torch.randperm(len(train), generator=generator).to(train.device)]
    rows = torch.cat([order[data.labels[order] == c][:shots] for c in range(len(data.classes))])
    names = tower.prepare(Tokenizer(SHAPE.context_length), data.classes)
    free = SHAPE.context_length - 1 - names.embeddings.shape[1]
    shape = (len(data.classes), min(16, free), SHAPE.width)
    initial = 0.02 * torch.randn(shape, generator=generator)
    contexts = initial.to(tower.device).requires_grad_(True)
    optimiser = torch.optim.Adam([contexts], 2e-3)
    for _ in range(steps):
        texts = tower(contexts, names)
        loss = F.cross_entropy(LOGIT_SCALE * data.pooled[rows] @ texts.T, data.labels[rows])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        texts = tower(contexts, names)
    return accuracy(data.pooled[data.test], data.labels[data.test], texts)


def main() -> None:
    """Print one table row per tower."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features", type=Path, help="folder of feature files")
    parser.add_argument("towers", type=Path, nargs="+")
    parser.add_argument("--datasets", nargs="+", default=DATASETS)
    parser.add_argument("--shots", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    print("| tower | " + " | ".join(args.datasets) + " |")
    print("|---" * (len(args.datasets) + 1) + "|")
    for path in args.towers:
        tower = load_tower(path).to(args.device)
        row = []
        for name in args.datasets:
            data = load_features(args.features / f"{name}.safetensors", args.device)
            if args.shots:
                row.append(few_shot(tower, data, args.shots))
            else:
                row.append(zero_shot(tower, data))
        print(f"| {path.stem} | " + " | ".join(f"{x:.2f}" for x in row) + " |", flush=True)


if __name__ == "__main__":
    main()
