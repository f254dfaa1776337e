"""Scores of FOCoOp+ on validation images: what its distance and its background are worth.

Holds FOCoOp+ as it is against itself with other scores (the answers are the same), with a prior
that expects fewer images of other clients, and against `fed3r`. AUROC in percent on unknown classes
(a fifth of all) and on foreign images (the settings' OOD sets and scenes), and the alarm: other
clients' images that are flagged when a client keeps 95% of its own. `length` is that of the new
images, in percent of what the score takes for typical. A score that leans more on the
client's prior finds more unknown classes and flags more of other clients' images, so that an AUROC
means little without its alarm.

    python tools/validation_settings.py SHARED/features runs/chosen_on
    FOCOOP_FEATURES=SHARED/features:OUT python benchmarks/breadth_scores.py SHARED \
        runs/chosen_on/cifar100.toml,runs/chosen_on/dtd.toml --shots 1,2,8,0

OUT is that of tools/prepare_features.py. The settings hold no test image.
"""

import sys
from collections import defaultdict
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.breadth_texts import federated
from benchmarks.breadth_words import cells_of, parser_of
from focoop.config import from_dict, merge
from focoop.experiments import evaluate_state
from focoop.functional import scores
from focoop.methods import Logits, Method, Params, Task, create
from focoop.methods._metric import whitening
from focoop.methods._sums import Totals
from focoop.methods.focoop_plus import BACKGROUND, FOCoOpPlus
from focoop.scenario import build_scenario

ALL = "all cells"


class Distance(FOCoOpPlus):
    """FOCoOp+ in whose score every distance counts, in lengths of the training images."""

    slope = 6.0

    def solve(self, totals: Totals, task: Task, extras: Params) -> tuple[Params, dict[str, float]]:
        """The metric in units of the length that training images have under it."""
        solved, report = super().solve(totals, task, extras)
        metric = solved["metric"]
        total = totals.moment.cpu() - solved["centre"][:, None] * solved["centre"]
        fitted = float(((total @ metric) * metric).sum()) ** 0.5
        return {**solved, "metric": metric / (fitted or 1.0)}, report

    def score(self, logits: Logits, task: Task) -> Tensor:
        """ID mass and the distance, whatever it is."""
        known: Tensor = scores.energy(logits.parts["against"], self.scale)
        return known + self.slope * logits.parts["length"]


class Before(Distance):
    """The score until November 2026: every distance, and a background that is always shrunk."""

    def solve(self, totals: Totals, task: Task, extras: Params) -> tuple[Params, dict[str, float]]:
        """The background's shrinkage does not depend on the number of images."""
        solved, report = super().solve(totals, task, extras)
        return {**solved, "background": whitening(totals.moment, BACKGROUND)}, report


class NoDistance(FOCoOpPlus):
    """FOCoOp+ whose score asks for classes against images at large alone."""

    def score(self, logits: Logits, task: Task) -> Tensor:
        """ID mass alone."""
        known: Tensor = scores.energy(logits.parts["against"], self.scale)
        return known


WAYS: dict[str, tuple[type[Method], dict[str, Any]]] = {
    "as it is": (FOCoOpPlus, {}),
    "before": (Before, {}),
    "every distance": (Distance, {}),
    "no distance": (NoDistance, {}),
    "as it is, share 0.15": (FOCoOpPlus, {"open_share": 0.15}),
    "fed3r": (type(create("fed3r")), {}),
}


def measured(tree: dict[str, Any], ways: list[str]) -> dict[str, dict[str, float]]:
    """AUROC of unknown classes and foreign images, and alarm, in percent, by way."""
    scenario = build_scenario(from_dict(tree))
    found = {}
    for way in ways:
        kind, said = WAYS[way]
        config = from_dict(merge(tree, {"method": said}))
        known = {
            one.name: getattr(config.method.settings, one.name)
            for one in fields(kind.Config)
            if hasattr(config.method.settings, one.name)
        }
        method = kind(kind.Config(**known))
        task = replace(scenario.task, frozen=method.prepare(scenario.task))
        told = replace(scenario, method=method, task=task)
        server, store = federated(config, told)
        summary = evaluate_state(told, server, store, config.seed).summary
        auroc = {name: 100 * values["auroc"] for name, values in summary["ood"].items()}
        unknown = auroc.pop("unknown_classes")
        foreign = float(np.mean(list(auroc.values())))
        alarm = 100 * summary["cross_alarm"]
        found[way] = {"unknown classes": unknown, "foreign images": foreign, "alarm": alarm}
        if "metric" in server.shared:
            images = scenario.sets.test.images.pooled.float()
            found[way]["length"] = 100 * typical(images, server.shared)
    return found


def typical(images: Tensor, shared: Params) -> float:
    """Root of the mean square of |W(h)| / r over new images: 1 where r is right."""
    seen = (images - shared["centre"].float()) @ shared["metric"].float()
    return float(seen.square().sum(dim=1).mean()) ** 0.5


def main() -> None:
    """Print a line per setting, shots and way, means over seeds, then the mean over all cells."""
    parser = parser_of(__doc__ or "", shots="1,2,8,0")
    parser.add_argument("--ways", default=";".join(WAYS), help="with semicolons")
    given = parser.parse_args()
    ways = given.ways.split(";")
    rows: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for setting, shots, trees in cells_of(given):
        here = f"{setting.stem}, {shots} shots"
        for tree in trees:
            for way, row in measured(tree, ways).items():
                for name, value in row.items():
                    for cell in (here, ALL):
                        rows[f"{cell}: {way}"][name].append(value)
        tell(rows, here)
    tell(rows, ALL)


def tell(rows: dict[str, dict[str, list[float]]], cell: str) -> None:
    """Print the lines of one cell."""
    for name, row in rows.items():
        if name.startswith(f"{cell}: "):
            shown = "  ".join(f"{key} {np.mean(values):.1f}" for key, values in row.items())
            print(f"{name}  {shown}", flush=True)


if __name__ == "__main__":
    main()
