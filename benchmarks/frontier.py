"""Own against other classes: closed forms over datasets and shots, the share chosen on validation.

For every setting, number of shots and partition seed each method runs its one or two rounds. The
table has, in percent: accuracy on own classes and on all as the method answers (`open_share`), the
area under the own-other frontier (`ausuc`), and the harmonic mean of both accuracies at the bias on
own classes that was best on validation images, with `--validation` images per class taken from the
training images for that.

    FOCOOP_FEATURES=DIR python benchmarks/frontier.py cifar100,dtd,oxford_pets --shots 1,2,4,8,16
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from focoop.config.loading import from_dict, merge, parse_override, read_toml
from focoop.experiments import evaluate_state
from focoop.experiments.grid import Variant, configured, parse_methods
from focoop.federation import simulate, start
from focoop.federation.simulator import MemoryStore
from focoop.methods.base import Server
from focoop.scenario import build_scenario, schedule_of

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
METHODS = "fedncm,fedlda,fed3r,gda_clip,focoop_plus"
# Toy numbers of images are the point here, and nobody's privacy: classes of one image are told.
LEAST = {"least_images": 1, "least_freedom": 1}
ROUNDS = 2


def measured(
    setting: str, variant: Variant, overrides: Sequence[str], bias: float = 0.0
) -> dict[str, Any]:
    """The summary of a run in memory, with the harmonic mean at `bias`."""
    file = CONFIGS / "settings" / f"{setting}.toml"
    tree = configured(read_toml(file), setting, variant, CONFIGS / "methods")
    known = from_dict(tree).method.settings
    least = [f"method.{k}={v}" for k, v in LEAST.items() if hasattr(known, k)]
    fixed = ["data.corrupted=[]", "data.ood=[]", "data.validation_ood=[]"]
    fixed += ["federation.participation=1.0", f"federation.rounds={ROUNDS}"]
    for text in (*fixed, *least, *variant.overrides, *overrides):
        tree = merge(tree, parse_override(text))
    config = from_dict(tree)
    scenario = build_scenario(config)
    store, schedule = MemoryStore(), schedule_of(config, scenario)
    server = Server(start(scenario.method, scenario.task, config.seed).shared)
    clients = scenario.training_clients()
    for result in simulate(
        scenario.method, scenario.task, clients, schedule, store, seed=config.seed
    ):
        server = result.server
    found = evaluate_state(scenario, server, store, config.seed, bias=bias)
    return found.summary


def row(setting: str, variant: Variant, shots: int, seed: int, validation: int) -> dict[str, Any]:
    """One line of the table."""
    overrides = [f"partition.shots={shots}", f"partition.seed={seed}"]
    bias = 0.0
    if validation:
        chosen = measured(setting, variant, [*overrides, f"data.validation={validation}"])
        bias = (chosen["frontier"] or {}).get("bias", 0.0)
    found = measured(setting, variant, overrides, bias)
    frontier = found["frontier"] or {}
    return {
        "setting": setting,
        "shots": shots,
        "seed": seed,
        "method": variant.label,
        "own": found["accuracy_own"],
        "all": found["accuracy_all"],
        "ausuc": frontier.get("ausuc"),
        "harmonic": frontier.get("harmonic"),
        "harmonic_best": frontier.get("harmonic_best"),
        "bias": bias,
    }


def main() -> None:
    """Print a line per run as it is done, and all of them as JSON where `--out` says so."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("settings", help="names of configs/settings, with commas")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--shots", default="8")
    parser.add_argument("--seeds", default="21", help="seeds of the partition and its shots")
    parser.add_argument("--validation", type=int, default=0, help="validation images per class")
    parser.add_argument("--out", type=Path, help="a JSON file of all rows")
    given = parser.parse_args()
    variants = parse_methods(given.methods) or []
    rows = []
    for setting in given.settings.split(","):
        for shots in map(int, given.shots.split(",")):
            for seed in map(int, given.seeds.split(",")):
                for variant in variants:
                    found = row(setting, variant, shots, seed, given.validation)
                    rows.append(found)
                    shown = ("own", "all", "ausuc", "harmonic", "harmonic_best")
                    numbers = "  ".join(f"{k} {100 * (found[k] or 0):5.1f}" for k in shown)
                    print(
                        f"{setting:13s} {shots:3d} {seed:3d} {variant.label:28s} {numbers}",
                        flush=True,
                    )
                    if given.out:
                        given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
