"""What names are worth to FOCoOp+ as a classifier beside class means, on validation images.

Answers with class means alone (`no texts`, revision 2), with Fisher's weight of the texts times 1,
2 (the method) and 3, with other beliefs in the posterior (`DOUBT`), and answers of `gda_clip` and
`fedlda` on the same images. Ten clients without a common class: accuracy with the classes of one's
own client expected (`own`), with everybody's images (`all`), and the area under own against other
classes (`area`). SET:new, a fifth of the classes is known by name alone: accuracy on their images
with all classes to choose from (`new`). SET:uneven, a class has 1 to 31 images, half of the classes
5 or less. PACS and Office: two domains are known, accuracy (`all`) in a third, twelve such triples.
Percent, means over seeds and triples.

    python benchmarks/breadth_classifier.py SHARED/features
    python benchmarks/breadth_classifier.py SHARED/features --sets cifar100:new,dtd:new --shots 2,8
    python benchmarks/breadth_classifier.py SHARED/features --sets cifar100:uneven --shots 0

Half of each class's training images validate. Test images are not read, but every domain is some
triple's third.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.breadth_tries import halves
from focoop.clip import Backbone, load_backbone
from focoop.config import from_dict
from focoop.experiments import seeds_of
from focoop.features.lookup import FeatureSet
from focoop.features.storage import load_split
from focoop.functional.frontier import Margins, frontier
from focoop.methods import Batch, ClientUpdate, Params, Server, Task, create
from focoop.methods import _text_weight as texts_part
from focoop.scenario.task import make_task
from focoop.seeds import torch_generator

SETS = ("cifar100", "dtd", "oxford_pets", "caltech101", "tinyimagenet")
DOMAINS = ("pacs", "office_caltech10")
SHOTS = (1, 2, 4, 8, 16, 0)  # 0: all, up to half of the images
CLIENTS, NOBODY = 10, -1
VALIDATE = 20  # images of a class at most
PLUS, AS_IT_IS = "focoop_plus", "x2, as it is"
CONSTANTS = ("LIKE_CLASSES", "DOUBT", "MOST")
WAYS: dict[str, tuple[str, dict[str, float]]] = {
    "no texts": (PLUS, {"LIKE_CLASSES": 0.0}),
    "x1": (PLUS, {"LIKE_CLASSES": 1.0}),
    AS_IT_IS: (PLUS, {}),
    "x3": (PLUS, {"LIKE_CLASSES": 3.0}),
    "doubt 0": (PLUS, {"DOUBT": 1e-6}),
    "doubt 100": (PLUS, {"DOUBT": 100.0}),
    "doubt 1600": (PLUS, {"DOUBT": 1600.0}),
    "most 3": (PLUS, {"MOST": 3.0}),
    "gda_clip": ("gda_clip", {}),
    "fedlda": ("fedlda", {}),
}


@dataclass(frozen=True)
class Cell:
    """A federation and images that nobody trained on.

    Attributes:
        task: names of the classes.
        clients: images of each client.
        images: (N, D) of unit length.
        labels: (N,) their classes.
    """

    task: Task
    clients: Sequence[Batch]
    images: Tensor
    labels: Tensor


def task_of(classes: tuple[str, ...], backbone: Backbone) -> Task:
    """The classes' names in the template, in double precision."""
    made = make_task(from_dict({}), backbone, classes, needs_ood=False)
    return Task(**{**vars(made), "anchors": made.anchors.double()})


def cells_of(
    found: FeatureSet,
    shots: int,
    seeds: Sequence[int],
    task: Task,
    kind: str,
    clients: int = CLIENTS,
) -> Iterator[Cell]:
    """Clients without a common class, for every seed; `new` or `uneven` where `kind` says."""
    images, labels = found.pooled.double(), found.labels
    for seed in seeds:
        generator = torch_generator(seed, "classifier")
        learn, validate = halves(labels, shots or len(labels), generator)
        order = torch.randperm(len(found.classes), generator=generator)
        holder = torch.where(order < (kind == "new") * len(order) // 5, NOBODY, order % clients)
        if kind == "uneven":
            most = 2.0 ** (5.0 * torch.rand(len(order), generator=generator))
            mine = [learn[labels[learn] == c][: int(most[c])] for c in range(len(order))]
            learn = torch.cat(mine)
        held = [learn[holder[labels[learn]] == k] for k in range(clients)]
        batches = [Batch(images[rows], None, labels[rows]) for rows in held]
        parts = [validate[labels[validate] == c][:VALIDATE] for c in range(len(found.classes))]
        rows = torch.cat(parts)
        yield Cell(task, batches, images[rows], labels[rows])


def triples_of(found: FeatureSet, shots: int, seed: int, task: Task) -> Iterator[Cell]:
    """Two domains that train and a third that is answered, for every such choice."""
    assert found.domains is not None
    images, labels = found.pooled.double(), found.labels
    generator = torch_generator(seed, "classifier triples")
    some = {}
    for domain in found.domains.unique().tolist():
        rows = torch.nonzero(found.domains == domain).flatten()
        rows = rows[torch.randperm(len(rows), generator=generator)]
        per_class = [rows[labels[rows] == c] for c in range(len(found.classes))]
        some[domain] = torch.cat([mine[: shots or len(mine)] for mine in per_class])
    for first, second, third in permutations(some, 3):
        if first < second:
            clients = [Batch(images[some[d]], None, labels[some[d]]) for d in (first, second)]
            tested = found.domains == third
            yield Cell(task, clients, images[tested], labels[tested])


def solved(cell: Cell, way: str) -> tuple[Any, Params]:
    """A method and what its server has made of one round."""
    name, constants = WAYS[way]
    method = create(name)
    shared = method.init(cell.task, torch_generator(0, "classifier")).shared
    updates = []
    for k, images in enumerate(cell.clients):
        counts = torch.bincount(images.labels, minlength=len(cell.task.classes))
        sent = {**shared, **method.measure(shared, images, cell.task)}
        updates.append(ClientUpdate(k, sent, len(images.labels), counts, 0.0))
    usual = {key: getattr(texts_part, key) for key in CONSTANTS}
    with mock.patch.multiple(texts_part, **{**usual, **constants}):
        server = method.aggregate(Server(shared), updates, cell.task)
    return method, server.shared


def margins_of(evidence: Tensor, mine: Tensor, labels: Tensor) -> tuple[Margins, Margins]:
    """How far other classes lead a client's own ones in images of own and of other classes.

    Args:
        evidence: (N, C) of images.
        mine: (C,) which classes the client holds.
        labels: (N,) the images' classes.

    Returns:
        Margins of both kinds of images.
    """
    own = mine[labels]
    ours, others = evidence[:, mine], evidence[:, ~mine]
    found = torch.where(
        own,
        torch.nonzero(mine).flatten()[ours.argmax(dim=1)],
        torch.nonzero(~mine).flatten()[others.argmax(dim=1)],
    )
    margin = (others.amax(dim=1) - ours.amax(dim=1)).numpy()
    good = (found == labels).numpy()
    here, there = own.numpy(), ~own.numpy()
    return Margins(margin[here], good[here]), Margins(margin[there], good[there])


def measured(cell: Cell, way: str) -> dict[str, float]:
    """Percent of own classes, all, and area, in the mean over clients."""
    method, shared = solved(cell, way)
    rows: dict[str, list[float]] = defaultdict(list)
    held = torch.cat([images.labels for images in cell.clients])
    new = ~torch.isin(cell.labels, held)
    for images in cell.clients:
        counts = torch.bincount(images.labels, minlength=len(cell.task.classes))
        text = method.text({**shared, "counts": counts}, {}, cell.task)
        logits = method.logits(text, cell.images, None).id
        right = logits.argmax(dim=1) == cell.labels
        rows["all"].append(float(right.double().mean()))
        mine = counts > 0
        if bool(new.any()):
            rows["new"].append(float(right[new].double().mean()))
        if bool(mine.all()):
            continue
        own = mine[cell.labels]
        sides = margins_of(method.evidence(text, cell.images).id, mine, cell.labels)
        rows["own"].append(float(right[own].double().mean()))
        rows["area"].append(frontier(*sides)["ausuc"])
    return {name: 100 * float(np.mean(values)) for name, values in rows.items()}


def all_cells(folder: Path, given: Any, backbone: Backbone) -> Iterator[tuple[str, Iterator[Cell]]]:
    """Names of settings and their cells."""
    seeds = seeds_of(given.seeds)
    for text in given.sets.split(","):
        name, _, kind = text.partition(":")
        split = "all" if name in DOMAINS else "train"
        found = load_split(folder / f"{name}.safetensors", split)
        task = task_of(found.classes, backbone)
        for shots in map(int, given.shots.split(",")):
            if name in DOMAINS:
                cells = (c for seed in seeds for c in triples_of(found, shots, seed, task))
            else:
                cells = cells_of(found, shots, seeds, task, kind)
            yield f"{text} {shots or 'all'}", cells


def main() -> None:
    """Print a line per setting, shots and way, and write all numbers where asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("features", type=Path)
    parser.add_argument("--sets", default=",".join((*SETS, *DOMAINS)))
    parser.add_argument("--shots", default=",".join(map(str, SHOTS)), help="0: all")
    parser.add_argument("--seeds", default="3", help="how many, or which: 0,4")
    parser.add_argument("--ways", default=";".join(WAYS), help="with semicolons")
    parser.add_argument("--out", type=Path, help="a JSON file of all numbers")
    given = parser.parse_args()
    backbone, ways = load_backbone("mini"), given.ways.split(";")
    table: list[dict[str, Any]] = []
    for setting, cells in all_cells(given.features, given, backbone):
        rows: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for cell in cells:
            for way in ways:
                for name, value in measured(cell, way).items():
                    rows[way][name].append(value)
        for way, columns in rows.items():
            means = {name: float(np.mean(values)) for name, values in columns.items()}
            table.append({"setting": setting, "way": way, **means})
            shown = "  ".join(f"{name} {value:.2f}" for name, value in means.items())
            print(f"{setting}, {way}: {shown}", flush=True)
        if given.out:
            given.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
