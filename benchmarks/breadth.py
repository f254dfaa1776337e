"""Methods over many settings: shots, numbers of clients, partitions, unseen domains and classes.

Runs sets x shots x methods x seeds through `focoop.api` and writes every run as a cell
of `OUT/cells.json.xz`, and `OUT/tables.md` made of all cells there. Cells that are there already
are not run again, whoever made them; runs that were stopped go on from their last round.

    FOCOOP_FEATURES=DIR python benchmarks/breadth.py                     # closed forms, everything
    FOCOOP_FEATURES=DIR python benchmarks/breadth.py cifar100 --shots 1,4,16 \
        --methods promptfl,local_only,focoop --device cuda --jobs 15 --minutes 3
    python benchmarks/breadth.py --tables --add FILE/cells.json.xz      # tables alone

`--minutes` stops a call on a borrowed machine, `--add` takes in the cells it brought back.

Nothing is tuned here: methods have their presets. Seed s is the run's, which draws the shots, and
21 + s the partition's, which draws the clients' classes. Closed forms run two rounds and tell
classes of one image too; other methods run as many rounds as the setting says.
"""

import argparse
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.breadth_cells import CLOSED, OURS
from benchmarks.breadth_tables import markdown
from focoop.api import open_run, plan_comparison, run_comparison
from focoop.caching import write_whole
from focoop.config import merge, parse_override, read_toml
from focoop.experiments import Cell, Outcome, seeds_of
from focoop.experiments.variants import parse_methods
from focoop.methods import lookup
from tools.results_cells import read_rows, write_rows

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = ROOT / "configs" / "settings"
OUT = ROOT / "docs" / "results" / "breadth"
CELLS = "cells.json.xz"
SETS = ("cifar100", "dtd", "oxford_pets", "caltech101", "tinyimagenet")
SHOTS = (1, 2, 4, 8, 16, 0)
OTHERS = (
    "cifar100-k100",
    "cifar100-dir0.1",
    "cifar100-dir0.5",
    "cifar100-dir5",
    "pacs-photo",
    "pacs-art_painting",
    "pacs-cartoon",
    "pacs-sketch",
    "office-amazon",
    "office-caltech10",
    "office-dslr",
    "office-webcam",
    "cifar100-unknown",
    "dtd:data.unknown_classes=10",
    "oxford_pets:data.unknown_classes=7",
    "caltech101:data.unknown_classes=20",
    "cifar100-new",
    "dtd:data.new_classes=10",
    "oxford_pets:data.new_classes=7",
    "caltech101:data.new_classes=20",
    "cifar100-late",
    "dtd:federation.late_clients=1,federation.rounds=26",
    "oxford_pets:federation.late_clients=1,federation.rounds=26",
    "cifar100-dir0.5:federation.late_clients=1,federation.rounds=26",
)
SAME = ("setting", "shots", "method", "rounds")  # of the cells of a line
ROUNDS = 2  # of closed forms; the round in which late clients join comes on top
AS_SAID = -1  # shots as the setting says


def setting_of(text: str, shots: int, seed: int) -> dict[str, Any]:
    """A setting's values: its file, what follows its name, the shots and the partition's seed."""
    name, _, said = text.partition(":")
    tree = read_toml(SETTINGS / f"{name}.toml")
    changes = [*filter(None, said.split(",")), "data.corrupted=[]", f"partition.seed={21 + seed}"]
    changes += [f"partition.shots={shots}"] if shots != AS_SAID else []
    for change in changes:
        tree = merge(tree, parse_override(change))
    return {**tree, "name": f"{text}@{'said' if shots == AS_SAID else shots}"}


def planned(
    groups: Iterable[tuple[str, int]],
    methods: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    device: str | None,
    more: Sequence[str] = (),
) -> list[tuple[dict[str, Any], Cell]]:
    """Every run with what identifies its cell."""
    runs = []
    several = list(groups)
    for seed in seeds:  # outermost: a whole table of one seed comes first
        for text, shots in several:
            for method in methods:
                name = method.partition(":")[0]
                tree = setting_of(text, shots, seed)
                late = tree.get("federation", {}).get("late_clients", 0)
                closed = lookup(name).closed_form
                overrides = [f"federation.rounds={ROUNDS + bool(late)}"] if closed else []
                cells = plan_comparison(
                    tree,
                    method,
                    seeds=[seed],
                    overrides=[*overrides, *more],
                    out=out,
                    device=device,
                )
                key = {"setting": text, "shots": shots, "seed": seed, "method": method}
                runs += [(key, cell) for cell in cells]
    return runs


def cell_of(key: dict[str, Any], outcome: Outcome) -> dict[str, Any]:
    """What tables need of a finished run; shares of one, rounded to five digits."""
    run = open_run(outcome.cell.folder)
    summary, config = run.summary, run.config
    frontier = summary["frontier"] or {}
    found = {
        "own": summary["accuracy_own"],
        "all": summary["accuracy_all"],
        "new": summary.get("accuracy_new"),
        "ausuc": frontier.get("ausuc"),
        "alarm": summary.get("cross_alarm"),
        **{f"auroc {name}": values["auroc"] for name, values in summary["ood"].items()},
    }
    late = config.federation.late_clients
    for name in ("own", "all") if late else ():
        rows = [row[f"accuracy_{name}"] for row in run.clients[-late:]]
        found[f"late {name}"] = sum(rows) / len(rows)
    numbers = {name: round(value, 5) for name, value in found.items() if value is not None}
    return {**key, "rounds": max(run.last_round, 0), **numbers}


def identity(cell: dict[str, Any]) -> tuple[Any, ...]:
    """What distinguishes cells."""
    return (cell["setting"], cell["shots"], cell["method"], cell["seed"])


def read_cells(path: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """All cells of a file; none where there is no file."""
    cells = read_rows(path, SAME) if path.exists() else []
    return {identity(cell): cell for cell in cells}


def write_cells(path: Path, cells: dict[tuple[Any, ...], dict[str, Any]]) -> None:
    """A line per setting, shots and method, its numbers in lists over seeds."""
    write_rows(path, [cells[key] for key in sorted(cells, key=str)], SAME)


def run_all(runs: Sequence[tuple[dict[str, Any], Cell]], out: Path, jobs: int) -> dict[str, str]:
    """Make the runs whose cells are missing; returns why others failed."""
    path = out / CELLS
    cells = read_cells(path)
    keys = {cell.folder: key for key, cell in runs}
    left = [cell for key, cell in runs if identity(key) not in cells]
    print(f"{len(left)} of {len(runs)} runs are to be made", flush=True)

    def keep(outcome: Outcome) -> None:
        key = keys[outcome.cell.folder]
        if outcome.status != "finished" or identity(key) in cells:
            return
        cells[identity(key)] = cell = cell_of(key, outcome)
        write_cells(path, cells)
        shown = "  ".join(
            f"{name} {100 * cell[name]:.1f}" for name in ("own", "all", "ausuc") if name in cell
        )
        print(f"{key['setting']} {key['shots']} {key['seed']} {key['method']}: {shown}", flush=True)

    return dict(run_comparison(left, jobs=jobs, on_change=keep).failures) if left else {}


class OutOfTime(Exception):
    """The minutes of a call are over."""


def ring(*_: object) -> None:
    """End a call: runs that are not finished go on with the next one."""
    raise OutOfTime


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("settings", nargs="*", help="names of configs/settings; default: all")
    parser.add_argument("--methods", default=",".join((*CLOSED, OURS)), help="as in focoop compare")
    parser.add_argument("--shots", help="images per class, with commas; 0: all")
    parser.add_argument("--seeds", default="3", help="how many, or which: 0,4")
    parser.add_argument("--device", help="a torch device, such as cuda")
    parser.add_argument("--jobs", type=int, default=0, help="runs at a time; 0: in this process")
    parser.add_argument("--runs", type=Path, default=Path("runs/breadth"), help="run folders")
    parser.add_argument("--out", type=Path, default=OUT, help="for cells.json.xz and tables.md")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE for every run")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after these; 0: never")
    parser.add_argument("--add", type=Path, action="append", default=[], help="cells to take in")
    parser.add_argument("--tables", action="store_true", help="run nothing")
    given = parser.parse_args()
    shots = [int(one) for one in given.shots.split(",")] if given.shots else []
    groups = [(one, count) for one in given.settings for count in shots or [AS_SAID]]
    if not given.settings:
        groups = [(one, count) for one in SETS for count in shots or SHOTS]
        groups += [] if shots else [(one, AS_SAID) for one in OTHERS]
    failures = {}
    if given.add:
        cells = read_cells(given.out / CELLS)
        for path in given.add:
            cells |= read_cells(path)
        write_cells(given.out / CELLS, cells)
    if not given.tables:
        # The methods as they were written: their own settings stay in their names.
        methods = [variant.label for variant in parse_methods(given.methods) or []]
        runs = planned(groups, methods, seeds_of(given.seeds), given.runs, given.device, given.set)
        signal.signal(signal.SIGALRM, ring)
        signal.alarm(int(60 * given.minutes))
        try:
            failures = run_all(runs, given.out, given.jobs)
        except OutOfTime:
            print(f"stopped after {given.minutes} minutes", flush=True)
        signal.alarm(0)
    found = list(read_cells(given.out / CELLS).values())
    write_whole(given.out / "tables.md", markdown(found, SETS, SHOTS, OTHERS).encode())
    for folder, why in failures.items():
        print(f"failed: {folder}: {why}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
