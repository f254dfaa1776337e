"""A million test images in one pass: 256 features, 100 classes, 100 OOD prompts.

The usual way, written here, holds all logits and sorts anew for every metric. Each path runs in a
process of its own; prints times, peak memory over what the features take, and both as ratios. The
two are checked to give the same metrics. A second part has patches: 196 of each image, 1000
classes.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve
from torch import Tensor

from focoop.clip.base import LabelledFeatures
from focoop.federation.evaluation.answers import answers
from focoop.functional import metrics, scores
from focoop.methods.base import Logits, Task, Text
from focoop.methods.promptfl import PromptFL

WIDTH, SCALE = 256, 100.0


class Mass(PromptFL):
    """Cosines with classes and OOD prompts, scored by ID mass; with patches by GL-MCM."""

    def logits(self, text: Text, pooled: Tensor, patches: Tensor | None) -> Logits:
        """Cosines with every prompt and, where there are patches, of every patch."""
        ood = None if text.ood is None else pooled @ text.ood.T
        local = None if patches is None else patches @ text.id.T
        return Logits(pooled @ text.id.T, ood, local)

    def score(self, logits: Logits, task: Task) -> Tensor:
        """ID mass, or GL-MCM."""
        if logits.patches is not None:
            return scores.gl_mcm(logits.id, logits.patches)
        assert logits.ood is not None
        return scores.id_mass(logits.id, logits.ood, SCALE)


def unit(*shape: int, seed: int) -> Tensor:
    draw = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return F.normalize(draw, dim=-1, out=draw)


def task() -> Any:
    class Here:
        device = torch.device("cpu")

    return Here()


def held(text: Text, pooled: Tensor, patches: Tensor | None) -> tuple[np.ndarray, np.ndarray]:
    """All logits at once, then softmax in float64: predictions and scores."""
    method = Mass()
    with torch.no_grad():
        logits = method.logits(text, pooled, patches)
        return logits.id.argmax(1).numpy(), method.score(logits, task()).numpy()


def one_by_one(inside: np.ndarray, outside: np.ndarray) -> dict[str, float]:
    """scikit-learn, a sort for each metric."""
    labels = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    both = np.r_[inside, outside]
    found = {"auroc": roc_auc_score(labels, both)}
    found["aupr_in"] = average_precision_score(1 - labels, -both)
    found["aupr_out"] = average_precision_score(labels, both)
    for name, positive, sign in (("fpr95", 1 - labels, -1), ("fpr95_oodpos", labels, 1)):
        false, true, _ = roc_curve(positive, sign * both, drop_intermediate=False)
        found[name] = false[np.argmax(true >= 0.95 - 1e-12)]
    return {name: float(value) for name, value in found.items()}


def measure(path: str, images: int, classes: int, words: int, patches: int) -> None:
    text = Text(unit(classes, WIDTH, seed=1), unit(words, WIDTH, seed=2) if words else None)
    pooled = unit(images, WIDTH, seed=3)
    # One image's patches stand for all: the set is large, its features need not be.
    local = unit(1, patches, WIDTH, seed=4).expand(images, -1, -1) if patches else None
    held(text, pooled[:64], None if local is None else local[:64])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    if path == "held":
        predicted, score = held(text, pooled, local)
    else:
        found = answers(
            Mass(), text, LabelledFeatures(pooled, local, torch.zeros(images).long()), task()
        )
        predicted, score = found.predicted, found.score
    answered = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    half = images // 2
    detect = one_by_one if path == "held" else metrics.detection
    values = detect(score[:half], score[half:])
    report = {
        "answer_s": answered, "metrics_s": time.perf_counter() - began, "values": values,
        "extra": (after - before) * 1024, "classes": int(predicted.sum()),
    }  # fmt: skip
    print(json.dumps(report))


def run(path: str, *sizes: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--path", path, *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compare(*sizes: int) -> None:
    usual, ours = run("held", *sizes), run("chunks", *sizes)
    worst = max(abs(usual["values"][name] - ours["values"][name]) for name in usual["values"])
    images, classes, words, patches = sizes
    print(f"{images} images, {classes} + {words} prompts, {patches} patches, largest difference of")
    print(f"  a metric {worst:.0e}, sums of classes {usual['classes']} and {ours['classes']}")
    for key, label in (("answer_s", "answers"), ("metrics_s", "metrics")):
        ratio = usual[key] / ours[key]
        print(f"  {label}: {usual[key]:.2f} s held, {ours[key]:.2f} s in chunks: {ratio:.1f}x")
    ratio = usual["extra"] / max(ours["extra"], 1)
    print(
        f"  memory beside the features: {usual['extra'] / 2**20:.0f} MiB held, "
        f"{ours['extra'] / 2**20:.0f} MiB in chunks: {ratio:.1f}x"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--path", choices=("held", "chunks"))
    parser.add_argument("sizes", type=int, nargs="*", help="images, classes, words, patches")
    args = parser.parse_args()
    if args.path:
        measure(args.path, *args.sizes)
        return
    compare(1_000_000, 100, 100, 0)
    compare(2_000, 1000, 0, 196)


if __name__ == "__main__":
    main()
