"""What privacy costs: accuracy against epsilon, beside what an attacker gets from a sent mean.

Every client clips the change of its shared tensors to length S and adds noise (`privacy.clip`,
`privacy.noise`); epsilon is the project's, for one client's whole data set replaced, over all
rounds of the run (docs/reliability/threat-model.md). For each epsilon the noise follows from the
number of rounds: one for closed forms, `--rounds` for methods that train. S is chosen from
`CLIPS` on validation images at epsilon `CHOSEN_AT`, by own + all, with as many trials for every
method; the rest is the method's preset, and class counts are sent as they are.

The attack is on what leaves the clients of closed forms: the server holds all training images of
a class, those behind the mean and others, and guesses by the cosine with the sent mean who is
behind it. `named`: of a member and another image of its class, how often the member has the higher
cosine (0.5: nothing is learned). `closest`: how often the closest image is a member.

    FOCOOP_FEATURES=DIR python benchmarks/privacy_price.py --seeds 0,1,2
    python benchmarks/privacy_price.py --draw        # the table and the figure alone

Rows are kept in OUT/price.json, and not computed again.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.frontier import CONFIGS, measured
from benchmarks.means_attack import told_apart
from focoop.config import RunConfig, from_dict, merge, parse_override, read_toml
from focoop.experiments import seeds_of
from focoop.experiments.presets import configured
from focoop.experiments.variants import Variant, parse_methods
from focoop.federation import composed
from focoop.federation.rounds import RoundSetup, client_round, start
from focoop.methods import lookup
from focoop.scenario import build_scenario, schedule_of
from tools.results_cells import read_rows, write_rows

OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "privacy"
METHODS = "focoop_plus,fedlda,promptfl,focoop"
EPSILONS = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6)
CLIPS = (0.01, 0.1, 1.0, 10.0)
CHOSEN_AT = 1e4
DELTA = 1e-5
FIXED = ("data.corrupted=[]", "data.ood=[]", "data.validation_ood=[]", "federation.participation=1")
SAME = ("what", "setting", "method", "epsilon", "clip")  # of the runs of a line of the file
Row = dict[str, Any]


def noise_for(epsilon: float, rounds: int) -> float:
    """The noise, in units of the clip, that gives `epsilon` over `rounds`; by halving."""
    low, high = 1e-6, 1e6
    for _ in range(200):
        middle = (low * high) ** 0.5
        low, high = (
            (middle, high) if composed([middle] * rounds, DELTA) > epsilon else (low, middle)
        )
    return high


def rounds_of(variant: Variant, trained: int) -> int:
    """Rounds of a method."""
    return 1 if lookup(variant.name).closed_form else trained


def config_of(setting: str, variant: Variant, overrides: Sequence[str]) -> RunConfig:
    """A method's configuration in a setting, with its preset."""
    values = read_toml(CONFIGS / "settings" / f"{setting}.toml")
    tree = configured(values, setting, variant, CONFIGS / "methods")
    for text in (*FIXED, *variant.overrides, *overrides):
        tree = merge(tree, parse_override(text))
    return from_dict(tree)


def overrides_of(rounds: int, clip: float, epsilon: float | None) -> list[str]:
    """Settings of a run under privacy; without an epsilon there is none."""
    said = [f"federation.rounds={rounds}"]
    if epsilon is not None:
        said += [f"privacy.clip={clip}", f"privacy.noise={noise_for(epsilon, rounds)}"]
    return said


def price(
    setting: str, variant: Variant, rounds: int, clip: float, epsilon: float | None, more: list[str]
) -> Row:
    """Own and all of a run, in shares of one."""
    config = config_of(setting, variant, [*overrides_of(rounds, clip, epsilon), *more])
    found = measured(config, build_scenario(config))
    return {"own": round(found["accuracy_own"], 5), "all": round(found["accuracy_all"], 5)}


def attacked(setting: str, variant: Variant, clip: float, epsilon: float | None, seed: int) -> Row:
    """How well members are told from others by the means that leave clients in the first round."""
    seeds = [f"seed={seed}", f"partition.seed={21 + seed}"]
    config = config_of(setting, variant, [*overrides_of(1, clip, epsilon), *seeds])
    scenario = build_scenario(config)
    setup = RoundSetup(scenario.method, scenario.task, schedule_of(config, scenario), config.seed)
    first = start(scenario.method, scenario.task, config.seed).shared
    named, closest, chance = [], [], []
    train = scenario.split.train
    for k, rows in enumerate(scenario.split.train_index):
        told = client_round(setup, 1, first, [k], [scenario.client(k)], None)[0].update
        for label in train.labels[torch.from_numpy(rows)].unique().tolist():
            of_class = (train.labels == label).nonzero()[:, 0]
            member = torch.isin(of_class, torch.from_numpy(rows))
            if member.all():
                continue
            features = F.normalize(train.pooled[of_class].double(), dim=1)
            mean = told.shared["means"][label].double()
            area, found = told_apart(mean, features[member], features[~member])
            named.append(area)
            closest.append(float(found))
            chance.append(float(member.double().mean()))
    count = len(named)
    return {
        "named": round(sum(named) / count, 5),
        "closest": round(sum(closest) / count, 5),
        "chance": round(sum(chance) / count, 5),
    }


def keep(path: Path, rows: list[Row], row: Row) -> None:
    """Add a row and write all of them, those of several seeds in a line."""
    rows.append(row)
    write_rows(path, rows, SAME)
    print(row, flush=True)


def same(rows: Sequence[Row], **wanted: Any) -> Row | None:
    """The row that has these entries."""
    return next((row for row in rows if all(row.get(k) == v for k, v in wanted.items())), None)


def chosen_clip(
    path: Path, rows: list[Row], setting: str, variant: Variant, rounds: int, validation: int
) -> float:
    """The clip with the best own + all on validation images."""
    totals = {}
    for clip in CLIPS:
        key = {"what": "clip", "setting": setting, "method": variant.label, "clip": clip}
        row = same(rows, **key)
        if row is None:
            more = [f"data.validation={validation}", "seed=0", "partition.seed=21"]
            row = key | {"epsilon": CHOSEN_AT, "seed": 0}
            row |= price(setting, variant, rounds, clip, CHOSEN_AT, more)
            keep(path, rows, row)
        totals[clip] = row["own"] + row["all"]
    return max(totals, key=lambda clip: totals[clip])


def compute(given: argparse.Namespace, path: Path, rows: list[Row]) -> None:
    """All rows that are missing."""
    epsilons = [float(one) for one in given.epsilons.split(",")]
    for variant in parse_methods(given.methods) or []:
        rounds, closed = rounds_of(variant, given.rounds), lookup(variant.name).closed_form
        clip = chosen_clip(path, rows, given.setting, variant, rounds, given.validation)
        for epsilon in (None, *epsilons):
            for seed in seeds_of(given.seeds):
                key: Row = {"setting": given.setting, "method": variant.label}
                key |= {"epsilon": epsilon, "seed": seed}
                if same(rows, what="price", **key) is None:
                    more = [f"seed={seed}", f"partition.seed={21 + seed}"]
                    found = price(given.setting, variant, rounds, clip, epsilon, more)
                    keep(
                        path,
                        rows,
                        {"what": "price", **key, "rounds": rounds, "clip": clip, **found},
                    )
                if closed and same(rows, what="attack", **key) is None:
                    found = attacked(given.setting, variant, clip, epsilon, seed)
                    keep(path, rows, {"what": "attack", **key, "clip": clip, **found})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--setting", default="oxford_pets", help="a name of configs/settings")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--epsilons", default=",".join(f"{one:g}" for one in EPSILONS))
    parser.add_argument("--rounds", type=int, default=3, help="of methods that train")
    parser.add_argument("--seeds", default="1", help="how many, or which: 0,4")
    parser.add_argument("--validation", type=int, default=4, help="validation images per class")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--draw", action="store_true", help="compute nothing")
    given = parser.parse_args()
    path = given.out / "price.json"
    rows: list[Row] = read_rows(path, SAME) if path.exists() else []
    if not given.draw:
        compute(given, path, rows)
    from benchmarks.privacy_figure import figure, table

    print(table(rows, given.setting))
    figure(rows, given.setting, given.out / "price.svg")


if __name__ == "__main__":
    main()
