"""Cosines with class means, Gaussian log-odds, or half way: how FOCoOp+ might answer.

All rules have the same class means and the same metric, those of FOCoOp+. `cosine` is the method.
`gaussian` answers argmax_c z.v_c - |v_c|^2 / 2, with z the image and v_c the class mean as the
metric sees them. `half` scales z and v_c by the root of their lengths. Answers have no prior.

Ten clients without a common class (five where there are fewer than forty classes): area under own
against other classes. SET:C, C classes drawn at random for every seed. SET:new, a fifth of the
classes is known by name alone. PACS and Office: accuracy in a third domain where two are known;
`pacs:7`: all domains mixed. Percent, means over seeds.

    python benchmarks/breadth_rules.py SHARED/features
    python benchmarks/breadth_rules.py SHARED/features --sets cifar100:10,dtd:10,pacs:7 --seeds 6

Half of each class's images, those that train where there is a division, validate.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.breadth_classifier import (
    AS_IT_IS,
    DOMAINS,
    Cell,
    cells_of,
    margins_of,
    measured,
    solved,
    task_of,
    triples_of,
)
from benchmarks.breadth_classifier import SETS as WHOLE
from focoop.clip import Backbone, load_backbone
from focoop.experiments import seeds_of
from focoop.features.lookup import FeatureSet
from focoop.features.storage import load_split
from focoop.functional.frontier import frontier
from focoop.methods._text_weight import across_plane
from focoop.seeds import torch_generator

SOME = (*(f"{name}:{count}" for name in (*WHOLE, "sun") for count in (10, 20)), "pacs:7")
SETS = (*WHOLE, *SOME, *DOMAINS, *(f"{name}:new" for name in WHOLE))
MANY = 40  # classes from which on there are ten clients
RIVALS = ("fedlda", "gda_clip")


def rules_of(cell: Cell) -> dict[str, Tensor]:
    """Evidence (N, C) by each rule."""
    _, shared = solved(cell, AS_IT_IS)
    centre, metric = shared["centre"].double(), shared["metric"].double()
    along = F.normalize(centre @ metric, dim=0)
    images = across_plane((cell.images - centre) @ metric, along)
    classes = across_plane((shared["answers"].double() - centre) @ metric, along)
    root = images / torch.linalg.vector_norm(images, dim=1, keepdim=True).sqrt()
    length = torch.linalg.vector_norm(classes, dim=1, keepdim=True)
    half = classes / length.sqrt() * length.mean().sqrt()
    return {
        "cosine": F.normalize(images, dim=1) @ F.normalize(classes, dim=1).T,
        "half": root @ half.T - half.square().sum(dim=1) / 2.0,
        "gaussian": images @ classes.T - classes.square().sum(dim=1) / 2.0,
    }


def numbers_of(cell: Cell) -> dict[str, float]:
    """Percent by rule: area, or accuracy where clients hold all classes; two other methods."""
    held = [
        torch.bincount(one.labels, minlength=len(cell.task.classes)) > 0 for one in cell.clients
    ]
    apart = not all(bool(mine.all()) for mine in held)
    found = {}
    for name, evidence in rules_of(cell).items():
        if apart:
            values = [frontier(*margins_of(evidence, mine, cell.labels))["ausuc"] for mine in held]
        else:
            values = [float((evidence.argmax(dim=1) == cell.labels).double().mean())]
        found[name] = 100 * float(np.mean(values))
    return found | {name: measured(cell, name)["area" if apart else "all"] for name in RIVALS}


def some_classes(found: FeatureSet, count: int, seed: int) -> FeatureSet:
    """The images of some classes, drawn at random."""
    order = torch.randperm(len(found.classes), generator=torch_generator(seed, "rules"))
    kept = order[:count].sort().values
    rows = torch.isin(found.labels, kept)
    return FeatureSet(
        pooled=found.pooled[rows],
        patches=None,
        labels=torch.searchsorted(kept, found.labels[rows]),
        classes=tuple(found.classes[one] for one in kept.tolist()),
    )


def cells(
    text: str, shots: int, seeds: Sequence[int], folder: Path, backbone: Backbone
) -> Iterator[Cell]:
    """The federations of a setting."""
    name, _, count = text.partition(":")
    found = load_split(folder / f"{name}.safetensors", "train" if name in WHOLE else "all")
    for seed in seeds:
        if name in DOMAINS and not count:
            yield from triples_of(found, shots, seed, task_of(found.classes, backbone))
            continue
        some = some_classes(found, int(count), seed) if count.isdigit() else found
        clients = 10 if len(some.classes) >= MANY else 5
        task = task_of(some.classes, backbone)
        yield from cells_of(some, shots, [seed], task, count, clients)


def main() -> None:
    """Print a line per setting and shots, and means over them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("features", type=Path)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--shots", default="2,8,16")
    parser.add_argument("--seeds", default="3", help="how many, or which: 0,4")
    given = parser.parse_args()
    backbone, groups = load_backbone("mini"), defaultdict[str, list[dict[str, float]]](list)
    for text in given.sets.split(","):
        name, _, count = text.partition(":")
        group = "unseen domains" if name in DOMAINS and not count else "sets"
        group = "new classes" if count == "new" else "few classes" if count else group
        for shots in map(int, given.shots.split(",")):
            made = cells(text, shots, seeds_of(given.seeds), given.features, backbone)
            rows = [numbers_of(cell) for cell in made]
            means = {rule: float(np.mean([row[rule] for row in rows])) for rule in rows[0]}
            groups[group].append(means)
            shown = "  ".join(f"{rule} {value:.2f}" for rule, value in means.items())
            print(f"{text} {shots}: {shown}", flush=True)
    for group, each in groups.items():
        means = {rule: float(np.mean([one[rule] for one in each])) for rule in each[0]}
        print(f"{group}: " + "  ".join(f"{rule} {value:.2f}" for rule, value in means.items()))


if __name__ == "__main__":
    main()
