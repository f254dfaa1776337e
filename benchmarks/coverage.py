"""Does a calibrated client keep what it promises? Kept share of ID images over random splits.

Every setting is trained once. The images of a client that training did not see (calibration and
test images) are then divided 100 times at random into halves: thresholds from one, the kept share
from the other. `kept` is the mean over splits of the share of ID images below the threshold,
`covered` that of class sets with the right class. A split's kept number of m images has a
beta-binomial distribution where images are exchangeable; `in band` is the share of splits inside
its central 95%. `run` is what the run's own calibration images do to its own test images, once: in
`unseen domain` settings these are of a domain that no client has, and the promise does not cover
them.

    python benchmarks/coverage.py --features DIR --out docs/results/coverage.md
"""

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import betabinom

import focoop
from focoop.clip import LabelledFeatures
from focoop.experiments import open_state
from focoop.methods import lookup
from focoop.predict import Sketch, least_images, model_of_run
from focoop.predict.calibrating import Scored, scored
from focoop.runs import RunFolder
from focoop.seeds import numpy_generator

TARGETS = (0.9, 0.95, 0.99)
SPLITS = 100
# Settings with the kind of data that the table names, and what they need beside their file.
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "cifar100": ("no class in common", {}),
    "cifar100-dir0.1": ("Dirichlet 0.1", {}),
    "cifar100-dir0.5": ("Dirichlet 0.5", {}),
    "oxford_pets": ("no class in common", {}),
    "dtd": ("no class in common", {}),
    "pacs-photo": ("unseen domain", {"data.calibration": 0.3}),
    "pacs-sketch": ("unseen domain", {"data.calibration": 0.3}),
}


@dataclass(frozen=True)
class Site:
    """One client's held-out images as its model scores them."""

    name: str
    aside: Scored
    test: Scored
    same: bool  # whether test images come from where calibration images come from


def sites_of(setting: str, method: str, folder: Path) -> list[Site]:
    """Train a setting once and score every client's held-out images."""
    kind, more = SETTINGS[setting]
    small = {"data.corrupted": [], "data.ood": [], "federation.evaluate_every": 0}
    given = {"method.name": method, **small, **more}
    if lookup(method).closed_form:
        given["federation.rounds"] = 2  # in the first clients measure, in the second they judge
    run = focoop.run(f"settings/{setting}", given, out=folder / setting)
    opened = RunFolder.open(run.path)
    sets = open_state(opened).scenario.sets
    model = model_of_run(opened)
    assert sets.calibration is not None, f"{setting} sets no calibration images aside"
    found = []
    for client, name in enumerate(model.clients):
        parts = [
            _rows(owned.images, owned.index[client]) for owned in (sets.calibration, sets.test)
        ]
        if min(map(len, parts)):
            aside, test = (scored(model, client, part) for part in parts)
            found.append(Site(name, aside, test, kind != "unseen domain"))
    return found


def _rows(images: LabelledFeatures, rows: np.ndarray) -> LabelledFeatures:
    return images.rows(torch.from_numpy(rows))


def measured(site: Site, splits: int) -> dict[str, Any]:
    """A client's row: kept and covered shares at every target."""
    aside, test = site.aside, site.test
    both = [
        np.concatenate([getattr(part, name) for part in ((aside, test) if site.same else (aside,))])
        for name in ("scores", "class_scores")
    ]
    count = len(both[0]) // 2
    row: dict[str, Any] = {"site": site.name, "calibration": count, "test": len(both[0]) - count}
    for keep in TARGETS:
        if count < least_images(keep):
            row[f"{keep}"] = None
            continue
        row[f"{keep}"] = {**_splits(both, count, keep, splits), **_fixed(site, keep)}
    return row


def _splits(both: Sequence[np.ndarray], count: int, keep: float, splits: int) -> dict[str, float]:
    kept, covered, inside = [], [], []
    rest = len(both[0]) - count
    rank = int(np.ceil(round((count + 1) * keep, 9)))
    low, high = betabinom.interval(0.95, rest, rank, count + 1 - rank)
    for number in range(splits):
        order = numpy_generator(number, "coverage").permutation(len(both[0]))
        shares = [
            float(
                np.mean(
                    part[order[count:]]
                    <= Sketch.of(part[order[:count]], exact=count).threshold(keep)
                )
            )
            for part in both
        ]
        kept.append(shares[0])
        covered.append(shares[1])
        inside.append(low <= round(shares[0] * rest) <= high)
    mean = {"kept": float(np.mean(kept)), "covered": float(np.mean(covered))}
    return {**mean, "in_band": float(np.mean(inside))}


def _fixed(site: Site, keep: float) -> dict[str, float]:
    """What the run's calibration images do to its test images."""
    pairs = (("scores", "run_kept"), ("class_scores", "run_covered"))
    limits = [
        Sketch.of(getattr(site.aside, name), exact=len(site.aside.scores)).threshold(keep)
        for name, _ in pairs
    ]
    return {
        told: float(np.mean(getattr(site.test, name) <= limit))
        for (name, told), limit in zip(pairs, limits, strict=True)
        if np.isfinite(limit)
    }


def page(found: dict[str, list[dict[str, Any]]], method: str, splits: int) -> str:
    """All tables in Markdown."""
    lines = [
        "# Coverage",
        "",
        f"Percent of images of known classes that clients keep, `{method}`, {splits} random splits "
        "of held-out images per client. *kept*: mean over splits, then lowest to highest client. "
        "*covered*: class sets that hold the right class. *in band*: splits inside the central 95% "
        "of the beta-binomial law. *run*: the run's own calibration images against its own test "
        "images (- where the former are too few); in `pacs` settings these are of a domain that no "
        "client has. Made by `benchmarks/coverage.py`.",
        "",
        "| setting | sites | target | kept | covered | in band | run kept | run covered |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for setting, rows in found.items():
        for keep in TARGETS:
            cells = [row[f"{keep}"] for row in rows if row[f"{keep}"]]
            if cells:
                lines.append(_summary(setting, keep, cells))
    for setting, rows in found.items():
        lines += ["", f"## {setting}: {SETTINGS[setting][0]}", ""]
        lines += ["| site | images | kept 90 / 95 / 99 | in band | run kept 90 / 95 / 99 |"]
        lines += ["|---|---:|---:|---:|---:|"]
        lines += [_site_line(row) for row in rows]
    return "\n".join(lines) + "\n"


def _summary(setting: str, keep: float, cells: Sequence[dict[str, float]]) -> str:
    def spread(name: str) -> str:
        values = [100 * cell[name] for cell in cells if name in cell]
        if not values:
            return "-"
        return f"{np.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"

    columns = [spread(name) for name in ("kept", "covered")]
    columns.append(f"{100 * np.mean([cell['in_band'] for cell in cells]):.0f}")
    columns += [spread(name) for name in ("run_kept", "run_covered")]
    return f"| {setting} | {len(cells)} | {100 * keep:g} | {' | '.join(columns)} |"


def _site_line(row: dict[str, Any]) -> str:
    def three(name: str) -> str:
        cells = [row[f"{keep}"] for keep in TARGETS]
        return " / ".join(
            f"{100 * cell[name]:.1f}" if cell and name in cell else "-" for cell in cells
        )

    told = [row[f"{keep}"]["in_band"] for keep in TARGETS if row[f"{keep}"]]
    band = f"{100 * np.mean(told):.0f}" if told else "-"
    return (
        f"| {row['site']} | {row['calibration']} | {three('kept')} | {band} | {three('run_kept')} |"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("settings", nargs="?", default=",".join(SETTINGS))
    parser.add_argument("--features", type=Path, required=True, help="folder of ready features")
    parser.add_argument("--method", default="focoop_plus")
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--out", type=Path, help="write the tables here")
    parser.add_argument("--json", action="store_true", help="print all numbers")
    given = parser.parse_args()
    os.environ["FOCOOP_FEATURES"] = str(given.features.absolute())
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for setting in given.settings.split(","):
            sites = sites_of(setting, given.method, Path(folder))
            found[setting] = [measured(site, given.splits) for site in sites]
    text = page(found, given.method, given.splits)
    if given.out:
        given.out.write_text(text, encoding="utf-8")
    print(json.dumps(found, indent=1) if given.json else text)


if __name__ == "__main__":
    main()
