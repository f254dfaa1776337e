"""Own against other classes: closed forms over datasets and shots, and whether FOCoOp+ leads.

For every setting, number of shots and partition seed each method runs in memory. A line has, in
percent: accuracy on own classes and on all as the method answers (`open_share`), what that makes
of the mix of images that the prior expects (`mixed`), own classes where they alone are answered
(`own_alone`, `open_share` 0) and all without a prior (`all_alone`, 1), the area under the own-other
frontier (`ausuc`), the harmonic mean of both accuracies, and the AUROC on every OOD set. How large
a method's log-odds are does not matter for `own_alone` and `all_alone`. With `--validation` images
per class, taken from the training images, the harmonic mean is at the bias on own classes that was
best there. At the end FOCoOp+ is held against the best of the others, cell by cell.

    FOCOOP_FEATURES=DIR python benchmarks/frontier.py cifar100,dtd,oxford_pets --shots 1,2,4,8,16
    FOCOOP_FEATURES=DIR python benchmarks/frontier.py split:sun,split:pacs --seeds 10,11,12

`split:NAME` are files of DIR whose images are divided into 20 training images a class and the
rest, domains together: sets that no setting uses as ID.
"""

import argparse
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from focoop.config.files import read_toml
from focoop.config.layers import merge, parse_override
from focoop.config.loading import from_dict
from focoop.experiments import evaluate_state, seeds_of
from focoop.experiments.presets import configured
from focoop.experiments.variants import Variant, parse_methods
from focoop.features.storage import read_file, write_file
from focoop.federation import simulate, start
from focoop.federation.simulator import MemoryStore
from focoop.methods import create
from focoop.methods.base import Server
from focoop.scenario import Scenario, build_scenario, schedule_of
from focoop.seeds import numpy_generator

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
METHODS = "fedncm,fedlda,fed3r,gda_clip,tofa,focoop_plus"
OURS = "focoop_plus"
TRAINING = 20  # images of a class of `split:`
# OOD sets, of those that folders of ready features hold.
OOD = {"cifar100": ("dtd@32px", "sun@32px", "dtd", "sun"), "dtd": ("sun", "oxford_pets")}
OOD |= {"sun": ("dtd", "oxford_pets"), "places_like": ("dtd", "oxford_pets")}
TOLERATED = {"own": 0.3, "all": 0.3, "mixed": 0.3, "ausuc": 0.3, "auroc": 0.5}
ENDS = (("own_alone", "accuracy_own", 0.0), ("all_alone", "accuracy_all", 1.0))  # of `open_share`
TOLERATED |= {name: 0.3 for name, _, _ in ENDS}


def tree_of(setting: str, variant: Variant, folder: Path) -> dict[str, Any]:
    """A setting of configs/settings, or one made for a file of features."""
    name = setting.removeprefix("split:")
    base = setting if name == setting else "dtd"
    file = CONFIGS / "settings" / f"{base}.toml"
    tree = configured(read_toml(file), base, variant, CONFIGS / "methods")
    if name != setting:
        tree = merge(tree, {"data": {"id": f"file:{divided(name, folder)}"}})
        tree = merge(tree, {"partition": {"clients": 5}})
    known = next((key for key in OOD if name.startswith(key)), "")
    return merge(tree, {"data": {"ood": list(OOD.get(known, ("dtd", "sun")))}})


def divided(name: str, folder: Path) -> Path:
    """A file of ready features with `TRAINING` images of each class to train on, the rest to test.

    Args:
        name: the file's name in one of the folders of `FOCOOP_FEATURES`.
        folder: where it is written, once.
    """
    target = folder / f"{name}.safetensors"
    if target.is_file():
        return target
    folders = os.environ.get("FOCOOP_FEATURES", "").split(os.pathsep)
    source = next(Path(one) / target.name for one in folders if (Path(one) / target.name).is_file())
    tensors, metadata = read_file(source, with_patches=False)
    labels, generator = tensors["labels"], numpy_generator(0, "divided", name)
    split = torch.ones_like(tensors["split"])
    for label in labels.unique().tolist():
        rows = torch.nonzero(labels == label).flatten().numpy()
        split[generator.permutation(rows)[:TRAINING]] = 0
    kept = {key: metadata[key] for key in ("classes", "kind") if key in metadata}
    kept |= {"splits": json.dumps(["train", "test"])}
    write_file(target, {**tensors, "split": split}, kept)
    return target


def scenarios(
    setting: str, variants: Sequence[Variant], overrides: Sequence[str], folder: Path
) -> Iterator[tuple[Variant, Any, Scenario]]:
    """The same images for every method: they are read once."""
    made: Scenario | None = None
    for variant in variants:
        tree = tree_of(setting, variant, folder)
        fixed = ["data.corrupted=[]", "data.validation_ood=[]"]
        fixed += ["federation.participation=1.0", "federation.rounds=1"]
        for text in (*fixed, *variant.overrides, *overrides):
            tree = merge(tree, parse_override(text))
        config = from_dict(tree)
        if made is None:
            made = build_scenario(config)
        method = create(config.method.name, config.method.settings)
        task = replace(made.task, frozen=method.prepare(made.task))
        yield variant, config, replace(made, method=method, task=task)


def trained(config: Any, scenario: Scenario) -> tuple[Server, MemoryStore]:
    """What a run in memory ends with."""
    store, schedule = MemoryStore(), schedule_of(config, scenario)
    server = Server(start(scenario.method, scenario.task, config.seed).shared)
    clients = scenario.training_clients()
    for result in simulate(
        scenario.method, scenario.task, clients, schedule, store, seed=config.seed
    ):
        server = result.server
    return server, store


def measured(config: Any, scenario: Scenario) -> dict[str, Any]:
    """The summary of a run in memory."""
    return evaluate_state(scenario, *trained(config, scenario), config.seed).summary


def ends_of(
    config: Any, scenario: Scenario, server: Server, store: MemoryStore
) -> dict[str, float]:
    """Own classes alone and all without a prior: the same model answers under another prior."""
    ends = {}
    for name, key, share in ENDS if hasattr(config.method.settings, "open_share") else ():
        other = create(config.method.name, replace(config.method.settings, open_share=share))
        told = evaluate_state(replace(scenario, method=other), server, store, config.seed)
        ends[name] = told.summary[key]
    return ends


def row_of(found: dict[str, Any], open_share: float) -> dict[str, Any]:
    """What a line of the table has, in percent."""
    frontier = found["frontier"] or {}
    own, all_ = found["accuracy_own"], found["accuracy_all"]
    row = {"own": own, "all": all_, "mixed": (1 - open_share) * own + open_share * all_}
    row |= {name: found.get(name) for name, _, _ in ENDS}
    row |= {name: frontier.get(name) for name in ("ausuc", "harmonic", "harmonic_best")}
    row |= {f"auroc {name}": scores["pooled"]["auroc"] for name, scores in found["ood"].items()}
    return {name: 100 * value for name, value in row.items() if value is not None}


def cell(
    setting: str, variants: Sequence[Variant], shots: int, seed: int, validation: int, folder: Path
) -> Iterator[dict[str, Any]]:
    """One line of the table per method."""
    overrides = [f"partition.shots={shots}", f"partition.seed={seed}"]
    biases: dict[str, float] = {}
    if validation:
        held = [*overrides, f"data.validation={validation}"]
        for variant, config, scenario in scenarios(setting, variants, held, folder):
            found = measured(config, scenario)["frontier"] or {}
            biases[variant.label] = found.get("bias", 0.0)
    for variant, config, scenario in scenarios(setting, variants, overrides, folder):
        bias = biases.get(variant.label, 0.0)
        share = getattr(config.method.settings, "open_share", 1.0)
        state = trained(config, scenario)
        found = evaluate_state(scenario, *state, config.seed, bias=bias).summary
        row = row_of({**found, **ends_of(config, scenario, *state)}, share)
        about = {"setting": setting, "shots": shots, "seed": seed, "method": variant.label}
        yield {**about, "bias": bias, **row}


def verdict(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """FOCoOp+ against the best of the others in every cell, and against each in the mean."""
    cells: dict[tuple[str, int], dict[str, dict[str, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for row in rows:
        for name, value in row.items():
            if name.split()[0] in TOLERATED:
                cells[row["setting"], row["shots"]][name][row["method"]].append(value)
    leads: dict[str, list[tuple[float, str]]] = defaultdict(list)
    against: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (setting, shots), metrics in cells.items():
        for name, methods in metrics.items():
            means = {method: float(np.mean(values)) for method, values in methods.items()}
            ours, kind = means.pop(OURS), name.split()[0]
            best = max(means, key=means.__getitem__)
            told = f"{setting} {shots} shots {name}: {ours:.1f}, {best} {means[best]:.1f}"
            leads[kind].append((ours - means[best], told))
            for method, value in means.items():
                against[kind][method].append(ours - value)
    for kind, found in leads.items():
        below = sorted(one for one in found if one[0] < -TOLERATED[kind])
        least = min(against[kind], key=lambda m: float(np.mean(against[kind][m])))
        lead = float(np.mean(against[kind][least]))
        yield (
            f"{kind}: {len(below)} of {len(found)} cells more than {TOLERATED[kind]} below the "
            f"best of the others; {lead:+.1f} in the mean against the best single one ({least})"
        )
        yield from (f"    {lead:+.1f}  {told}" for lead, told in below)


def main() -> None:
    """Print a line per run as it is done, then the verdict; all as JSON where `--out` says so."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", help="names of configs/settings or split:FILE, with commas")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--shots", default="8")
    parser.add_argument("--seeds", default="21,", help="of partition and shots: how many, or which")
    parser.add_argument("--validation", type=int, default=0, help="validation images per class")
    parser.add_argument("--out", type=Path, help="a JSON file of all rows, which may have some")
    given = parser.parse_args()
    variants = parse_methods(given.methods) or []
    rows = json.loads(given.out.read_text()) if given.out and given.out.is_file() else []
    done = {(row["setting"], row["shots"], row["seed"]) for row in rows}
    with tempfile.TemporaryDirectory() as folder:
        for setting in given.settings.split(","):
            for shots in map(int, given.shots.split(",")):
                for seed in seeds_of(given.seeds):
                    if (setting, shots, seed) in done:
                        continue
                    made = cell(setting, variants, shots, seed, given.validation, Path(folder))
                    for found in made:
                        rows.append(found)
                        shown = (
                            k for k, v in found.items() if isinstance(v, float) and k != "bias"
                        )
                        numbers = "  ".join(f"{name} {found[name]:5.1f}" for name in shown)
                        label = f"{setting:13s} {shots:3d} {seed:3d} {found['method']:12s}"
                        print(f"{label} {numbers}", flush=True)
                    if given.out:
                        given.out.write_text(json.dumps(rows, indent=1) + "\n")
    if any(row["method"] == OURS for row in rows) and len(variants) > 1:
        print("\n".join(verdict(rows)))


if __name__ == "__main__":
    main()
