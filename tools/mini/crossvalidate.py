"""How well each recipe places ImageNet classes it was not fitted on: five folds of 200 classes.

Choices of `targets.py` (kernels, lengths, shares) were made by this check and by nothing else.
Scores per recipe: share of class directions whose nearest of the 200 predicted names is the right
one, share of names whose nearest direction is right, mean cosine.
"""

import argparse
import json
from pathlib import Path

import targets
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from sentences import embed, model_folder
from torch import Tensor
from wordnet import WordNet, read

from focoop.seeds import torch_generator

FOLDS = 5


def scores(predicted: Tensor, truth: Tensor) -> Tensor:
    """(N, D) unit predictions and directions -> the three figures."""
    similarity = truth @ predicted.T  # (directions, names)
    right = torch.arange(len(truth))
    return torch.stack(
        [
            (similarity.argmax(1) == right).float().mean(),
            (similarity.argmax(0) == right).float().mean(),
            similarity.diagonal().mean(),
        ]
    )


class Memory:
    """`embed` that keeps what it has seen: the folds share nearly all their texts."""

    def __init__(self) -> None:
        self.known: dict[str, Tensor] = {}

    def __call__(self, texts: list[str], folder: Path, **options: object) -> Tensor:
        """Texts -> (N, 384)."""
        new = sorted(set(texts) - set(self.known))
        if new:
            options["progress"] = False
            self.known |= dict(zip(new, embed(new, folder, **options), strict=True))
        return torch.stack([self.known[text] for text in texts])


def fold_scores(
    net: WordNet, imagenet: targets.ImageNet, held: list[int], recipe: str, folder: Path
) -> Tensor:
    """Fit without the classes `held`, then name them by their first lemma."""
    names = [net.synsets[imagenet.keys[i]].lemmas[0].lower() for i in held]
    words = targets.Words(names, torch.empty(0), torch.ones(len(names)))
    predict = targets.plain_targets if recipe == "plain" else targets.sense_targets
    found = predict(net, imagenet.without(held), words, folder, "cpu")
    return scores(found, imagenet.directions[held])


def main() -> None:
    """Print the scores of both recipes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wordnet", type=Path, required=True)
    parser.add_argument("--head", type=Path, required=True)
    parser.add_argument("--imagenet", type=Path, help="JSON of imagenet_names()")
    parser.add_argument("--minilm", type=Path)
    args = parser.parse_args()
    net = read(args.wordnet)
    named = json.loads(args.imagenet.read_text()) if args.imagenet else targets.imagenet_names()
    directions = F.normalize(load_file(args.head)["imagenet_class_targets"].float(), dim=1)
    imagenet = targets.ImageNet(named["keys"], named["names"], directions)
    generator = torch_generator(0, "mini", "held-out classes")
    order = torch.randperm(len(imagenet.keys), generator=generator)
    targets.embed = Memory()
    for recipe in ("plain", "senses"):
        folds = [sorted(fold.tolist()) for fold in order.chunk(FOLDS)]
        each = [
            fold_scores(net, imagenet, fold, recipe, args.minilm or model_folder())
            for fold in folds
        ]
        mean = torch.stack(each).mean(0).tolist()
        spread = torch.stack(each).std(0).tolist()
        row = " | ".join(f"{m:.3f} +- {s:.3f}" for m, s in zip(mean, spread, strict=True))
        print(f"| {recipe} | {row} |", flush=True)


if __name__ == "__main__":
    main()
