"""Switch FOCoOp's parts off one at a time, over seeds, and test the differences in pairs.

    python tools/ablations.py --out runs/ablations --device cuda --jobs 12 --minutes 7
    python tools/ablations.py --out runs/ablations --settings siblings --variants "full,no GOC"
    python tools/ablations.py --out runs/ablations --settings apart --variants full,local_only
    python tools/ablations.py --out docs/results/focoop --page    # runs nothing

Needs torch, numpy and safetensors alone, and no data beside the packaged features. Every run is a
cell of the grid that `focoop compare` makes, in RUNS, by default a folder beside OUT; a run that
is finished is not made again. Seeds are run in groups, and after each group the results so far are
written into OUT: `ablations.md`, `ablations.json` and `curves.json`. `--minutes` stops before a
group that would not end in time; the same command goes on. `--page` writes the tables of a folder's
`ablations.json` and `curves.json` between the marks of its `parts.md`.

Settings, all of the packaged CIFAR-100 with ten clients and 8 shots:
- `apart`: no class in common, classes dealt at random. All parts are switched off in turn.
- `siblings`: no class in common, and every class has its four siblings (CIFAR-100's superclasses)
  at other clients, so that clients' classes are each other's near-OOD. Here consistency should
  matter most, which is why it is here.
- `mixed`: a Dirichlet split (0.5), in which clients share classes and OOD knowledge.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from results_cells import read_rows, write_rows

from focoop.experiments import seeds_of
from focoop.experiments.__main__ import main as grid
from focoop.experiments.tables import columns
from focoop.features.demo import demo_path
from focoop.features.storage import load_split, save_splits
from focoop.functional import paired
from focoop.scenario.partition import pathological

ROOT = Path(__file__).resolve().parents[1]
CLIENTS, SEED = 10, 21  # of the partition
# Label -> settings of this variant; `full` is the method as it is.
BOS = {
    "full": "",
    "no detection term": "detection_weight=0.0",
    "no ascent": "ascent=none",
    "random directions": "ascent=random",
    "no price": "tau_id=0.0,tau_ood=0.0",
    "dear OOD moves": "tau_ood=0.1",  # few OOD prompts move
    "soft maximum": "outer=soft_maximum",
    "neither ascent nor noise": "bos=false",
    "paper's w/o BOS": "bos=false,detection_weight=0.0",
}
GOC = {
    "full": "",
    "no GOC": "goc=false",
    "product plan": "plan=product",
    "no calibration": "calibration=none",
    "barycentres": "calibration=barycentre",
    "OOD prompts averaged": "keep=mean",
    "paper's top-U": "keep=paper",
    "pool of means": "goc_pool=mean",
}
SETS = {"no private prompts": "global_share=1.0"}
BESIDE = {"local_only": "local_only", "promptfl": "promptfl"}  # in `apart` alone, by their presets
FEW = ("full", "no GOC", "no calibration", "barycentres", "OOD prompts averaged")
TABLES = {
    "apart": {**BOS, **GOC, **SETS},
    "siblings": {name: GOC[name] for name in FEW} | SETS,
    "mixed": {name: GOC[name] for name in FEW} | SETS,
}
SPLITS = {
    "apart": '[partition]\nkind = "pathological"',
    "siblings": '[partition]\nkind = "pathological"',
    "mixed": '[partition]\nkind = "dirichlet"\nalpha = 0.5',
}
BEGIN, END = "<!-- parts: begin -->", "<!-- parts: end -->"
# Means over rounds that are drawn, from what the server reports.
CURVES = (
    "spread", "row_entropy", "distinct_words", "seemly_overlap", "pull", "transport_gap",
    "transport_gained", "transport_steps",
)  # fmt: skip
SHOWN = (1, 2, 3, 5, 10, 15, 20, 25)  # rounds in the tables, beside the last
# CIFAR-100's 20 superclasses, five classes each.
SUPERCLASSES = """
beaver dolphin otter seal whale; aquarium_fish flatfish ray shark trout;
orchid poppy rose sunflower tulip; bottle bowl can cup plate;
apple mushroom orange pear sweet_pepper; clock keyboard lamp telephone television;
bed chair couch table wardrobe; bee beetle butterfly caterpillar cockroach;
bear leopard lion tiger wolf; bridge castle house road skyscraper;
cloud forest mountain plain sea; camel cattle chimpanzee elephant kangaroo;
fox porcupine possum raccoon skunk; crab lobster snail spider worm;
baby boy girl man woman; crocodile dinosaur lizard snake turtle;
hamster mouse rabbit shrew squirrel; maple oak palm pine willow;
bicycle bus motorcycle pickup_truck train; lawn_mower rocket streetcar tank tractor
"""

Cells = dict[tuple[str, str, int], dict[str, float]]


def main() -> int:
    """Run what is not there yet, and write the tables."""
    given = parser().parse_args()
    if given.page:
        write_page(given.out)
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    runs = given.runs or given.out.with_name(given.out.name + "-runs")
    files = {name: setting_file(name, runs, given) for name in given.settings.split(",")}
    began, each, code = time.monotonic(), 0.0, 0
    for group in groups_of(given.seeds):
        spent, count = time.monotonic() - began, len(group.split(","))
        if given.minutes and spent + each * count > 60 * given.minutes:
            print(f"stopped before seeds {group}: {spent:.0f} s are spent", file=sys.stderr)
            break
        for name, file in files.items():
            code = run(name, file, group, runs, given) or code
            write(runs, given.out)
        each = max(each, (time.monotonic() - began - spent) / count)
    print((given.out / "ablations.md").read_text(encoding="utf-8"))
    return code


def groups_of(text: str) -> list[str]:
    """Groups of seeds, as in `0,1;2`; of one group how many, `3`, or which, `0,1` or `4,`."""
    return text.split(";") if ";" in text else [",".join(map(str, seeds_of(text)))]


def parser() -> argparse.ArgumentParser:
    """The options."""
    one = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--page", action="store_true", help="write the tables of OUT into its page")
    one.add_argument("--runs", type=Path, help="folder of run folders, about 16 MB each")
    one.add_argument("--settings", default=",".join(TABLES))
    one.add_argument("--variants", default="", help="only these, as in 'full,no GOC'")
    one.add_argument(
        "--seeds", default="0,1;2,3,4", help="how many, 3, or which, 0,1; groups: 0,1;2,3,4"
    )
    one.add_argument("--rounds", type=int, default=25)
    one.add_argument("--minutes", type=float, default=0.0)
    one.add_argument("--device", default="cpu")
    one.add_argument(
        "--precision", default="auto", help="as backbone.precision; auto: a CPU's is float32"
    )
    one.add_argument("--jobs", type=int, default=1)
    return one


def setting_file(name: str, runs: Path, given: argparse.Namespace) -> Path:
    """The setting as a file of the grid."""
    runs.mkdir(parents=True, exist_ok=True)
    data = 'id = "demo:cifar100"\ncorrupted = ["auto"]'
    if name == "siblings":
        data = f'id = "file:{siblings(runs)}"\ncorrupted = []'
    sets = '["demo:dtd_32px", "demo:sun_32px", "demo:dtd", "demo:sun"]'
    base = (ROOT / "configs" / "settings" / "cifar100.toml").as_posix()
    file = runs / f"{name}.toml"
    text = f'extends = "{base}"\n\n[data]\n{data}\nood = {sets}\nvalidation_ood = []\n\n'
    text += f"{SPLITS[name]}\nclients = {CLIENTS}\nseed = {SEED}\n\n"
    text += f'[backbone]\nprecision = "{given.precision}"\n\n'
    file.write_text(text + f"[federation]\nrounds = {given.rounds}\n", encoding="utf-8")
    return file


def siblings(runs: Path) -> Path:
    """The packaged features, classes in an order in which the split separates all siblings.

    Client k holds one class of each of ten superclasses; the four others of the same parity hold
    its siblings.
    """
    file = runs / "siblings.safetensors"
    groups = [part.split() for part in SUPERCLASSES.split(";")]
    hands = [[group[k // 2] for group in groups[k % 2 :: 2]] for k in range(CLIENTS)]
    order = [""] * 100
    for hand, held in zip(hands, pathological(100, CLIENTS, SEED).holds(), strict=True):
        for name, place in zip(hand, held.nonzero()[0], strict=True):
            order[place] = name
    clean = demo_path("cifar100")
    splits = {s: load_split(clean, s).with_classes(order) for s in ("train", "test")}
    save_splits(file, splits)
    return file.resolve()


def run(name: str, file: Path, seeds: str, runs: Path, given: argparse.Namespace) -> int:
    """All variants of a setting for some seeds, by the grid's own command."""
    methods = list(methods_of(name, given.variants).values())
    out = runs / f"seeds{seeds.replace(',', '-')}" / name
    return grid(
        ["compare", str(file), "--methods", ",".join(methods), "--seeds", f"{seeds},",
         "--presets", str(ROOT / "configs" / "methods"), "--out", str(out),
         "--device", given.device, "--jobs", str(given.jobs)]
    )  # fmt: skip


def methods_of(name: str, variants: str = "") -> dict[str, str]:
    """What the grid calls each variant of a setting: all of them, or those named by `variants`."""
    known = {one: f"focoop:{changes}" if changes else "focoop"
             for one, changes in TABLES[name].items()}  # fmt: skip
    known |= BESIDE if name == "apart" else {}
    asked = [part.strip() for part in variants.split(",") if part.strip()]
    strange = [one for one in asked if not any(one in [*t, *BESIDE] for t in TABLES.values())]
    if strange:
        raise SystemExit(f"no variant {strange[0]!r}; there are {', '.join(known)}")
    return {one: label for one, label in known.items() if not asked or one in asked}


def write(runs: Path, out: Path) -> None:
    """The tables of all that is there."""
    cells, curves = collect(runs)
    told = [
        {"setting": s, "variant": v, "seed": n, **{k: round(x, 3) for k, x in row.items()}}
        for (s, v, n), row in sorted(cells.items())
    ]
    write_rows(out / "ablations.json", told, ("setting", "variant"))
    (out / "curves.json").write_text(by_line(curves), encoding="utf-8")
    (out / "ablations.md").write_text(page(cells, curves), encoding="utf-8")


def by_line(curves: Mapping[str, Mapping[str, Any]]) -> str:
    """JSON of all curves with one variant in a line."""
    settings = []
    for setting, variants in curves.items():
        lines = ",\n".join(
            f" {json.dumps(name)}: {json.dumps(drawn, separators=(',', ':'))}"
            for name, drawn in variants.items()
        )
        settings.append(f"{json.dumps(setting)}: {{\n{lines}\n}}")
    return "{\n" + ",\n".join(settings) + "\n}\n"


def write_page(folder: Path) -> None:
    """Write the tables of committed runs between the marks of `parts.md`."""
    page = folder / "parts.md"
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n\n{committed(folder)}\n\n{END}{after}", encoding="utf-8")


def committed(folder: Path) -> str:
    """The tables of a folder's `ablations.json` and `curves.json`."""
    rows = read_rows(folder / "ablations.json", ("setting", "variant"))
    cells = {(row.pop("setting"), row.pop("variant"), row.pop("seed")): row for row in rows}
    curves = json.loads((folder / "curves.json").read_text(encoding="utf-8"))
    return tables(cells, curves)


def collect(runs: Path) -> tuple[Cells, dict[str, Any]]:
    """Percentages by (setting, variant, seed), and means over seeds of every round's report."""
    names = {label: name for setting in TABLES for name, label in methods_of(setting).items()}
    cells: Cells = {}
    reports: dict[str, dict[str, list[list[dict[str, float]]]]] = {}
    for file in sorted(runs.glob("seeds*/*/results.json")):
        for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
            if cell["status"] != "finished":
                continue
            setting, variant = cell["setting"], names.get(cell["label"], cell["label"])
            cells[setting, variant, cell["seed"]] = columns(cell["summary"])
            kept = reports.setdefault(setting, {}).setdefault(variant, [])
            kept.append(rounds_of(Path(cell["folder"])))
    curves = {
        setting: {variant: mean_curves(found) for variant, found in variants.items()}
        for setting, variants in reports.items()
    }
    return cells, curves


def rounds_of(folder: Path) -> list[dict[str, float]]:
    """What the server reported in each round of a run."""
    rounds = folder / "rounds.jsonl"
    if rounds.is_file():
        entries = [json.loads(line) for line in rounds.read_text(encoding="utf-8").splitlines()]
    else:  # of an earlier focoop
        entries = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["rounds"]
    return [entry["server"] for entry in entries if "server" in entry]


def mean_curves(runs: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, list[float]]:
    """Means over runs, round by round."""
    found = {}
    for name in CURVES:
        each = [[one[name] for one in run] for run in runs if all(name in one for one in run)]
        if any(each):
            found[name] = [round(mean(values), 6) for values in zip(*each, strict=False)]
    return found


def page(cells: Cells, curves: Mapping[str, Any]) -> str:
    """All tables, with what they hold."""
    return (
        "# Ablations\n\nMade by `tools/ablations.py`. Percent; mean over seeds. Below `full` every "
        "row is the *difference* to it in pairs of equal seed, with the half width of its 95% "
        "confidence interval (t distribution) and, in brackets, the p-value of the paired t test."
        f"\n\n{tables(cells, curves)}\n"
    )


def tables(cells: Cells, curves: Mapping[str, Any]) -> str:
    """The tables of every setting, each under a heading."""
    parts = []
    for setting in (name for name in TABLES if any(key[0] == name for key in cells)):
        rows = {v: {n: row for (s, w, n), row in cells.items() if (s, w) == (setting, v)}
                for v in dict.fromkeys(key[1] for key in cells if key[0] == setting)}  # fmt: skip
        parts.append(f"## {setting}\n\n{table(setting, rows)}")
        drawn = {v: c for v, c in curves.get(setting, {}).items() if "spread" in c}
        parts.append(f"Spread of T^g over rounds:\n\n{curve_table(drawn, 'spread')}")
        full = {k: curves[setting]["full"] for k in ("full",) if k in curves.get(setting, {})}
        for name in CURVES[1:]:
            if full and name in full["full"]:
                parts.append(f"`{name}`:\n\n{curve_table(full, name)}")
    return "\n\n".join(parts)


def table(setting: str, rows: Mapping[str, Mapping[int, Mapping[str, float]]]) -> str:
    """Variants against columns."""
    full = rows.get("full", {})
    names = [n for n in dict.fromkeys(n for row in full.values() for n in row) if "oodpos" not in n]
    lines = [f"| variant | seeds | {' | '.join(names)} |", "| --- |" + " ---: |" * (len(names) + 1)]
    order = [*TABLES.get(setting, {}), *BESIDE]
    for variant in sorted(rows, key=lambda v: order.index(v) if v in order else len(order)):
        found, entries = rows[variant], []
        shared = sorted(set(found) & set(full))
        for name in names:
            if variant == "full":
                values = [row[name] for row in found.values()]
                entries.append(f"{mean(values):.1f} ± {deviation(values):.1f}")
                continue
            pairs = [(found[n].get(name), full[n].get(name)) for n in shared]
            steps = [a - b for a, b in pairs if a is not None and b is not None]
            entries.append(difference(steps))
        lines.append(f"| {variant} | {len(shared) or len(found)} | {' | '.join(entries)} |")
    return "\n".join(lines)


def difference(steps: Sequence[float]) -> str:
    """A mean of paired differences, half its interval and the p-value."""
    if not steps:
        return "-"
    found = paired.difference(steps, [0.0] * len(steps))
    if found.half_width is None or found.p is None:
        return f"{found.mean:+.1f}"
    shown = f"{found.mean:+.1f} ± {found.half_width:.1f}"
    return f"{shown} ({found.p:.2f})" if found.half_width else shown


def curve_table(curves: Mapping[str, Mapping[str, Sequence[float]]], name: str) -> str:
    """A curve of every variant at some rounds."""
    last = max((len(c[name]) for c in curves.values() if name in c), default=0)
    rounds = sorted({r for r in SHOWN if r <= last} | {last})
    lines = [f"| variant | {' | '.join(map(str, rounds))} |", "| --- |" + " ---: |" * len(rounds)]
    for variant, found in curves.items():
        if name in found:
            values = [f"{found[name][r - 1]:.4g}" if r <= len(found[name]) else "-" for r in rounds]
            lines.append(f"| {variant} | {' | '.join(values)} |")
    return "\n".join(lines)


def mean(values: Sequence[float]) -> float:
    """The mean."""
    return math.fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """The sample's standard deviation; 0 of a single value."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.sqrt(math.fsum((x - middle) ** 2 for x in values) / (len(values) - 1))


if __name__ == "__main__":
    sys.exit(main())
