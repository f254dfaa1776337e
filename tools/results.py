"""Run configurations over seeds and print one table: mean and spread of the last round.

    python tools/results.py configs/cifar100-*.toml --seeds 0 1 2 --out runs/cifar100

Runs that are finished are not repeated; killed ones go on where they stopped. Needs the core
packages alone, so that it also runs on a machine without the command line's.
"""

import argparse
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from focoop.config import load
from focoop.experiment import run_experiment
from focoop.manifest import collect
from focoop.runs import RunFolder, start


def main() -> int:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("configs", nargs="+", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/results"))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        run(given.configs[0], given.one, given.out, given.overrides)
        return 0
    jobs = [(path, seed) for path in given.configs for seed in given.seeds]
    with ThreadPoolExecutor(given.jobs) as pool:
        codes = list(pool.map(lambda job: spawn(*job, given), jobs))
    print(table([(path.stem, found(path, given.seeds, given.out)) for path in given.configs]))
    return max(codes)


def spawn(path: Path, seed: int, given: argparse.Namespace) -> int:
    """One run in a process of its own."""
    command = [sys.executable, __file__, str(path), "--one", str(seed), "--out", str(given.out)]
    for override in given.overrides:
        command += ["--set", override]
    done = subprocess.run(command, capture_output=True, text=True)
    print(f"{path.stem} seed {seed}: exit code {done.returncode}", file=sys.stderr, flush=True)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr, flush=True)
    return done.returncode


def folder_of(path: Path, seed: int, out: Path) -> Path:
    """Where the run of a configuration and seed lives."""
    return out / f"{path.stem}-seed{seed}"


def run(path: Path, seed: int, out: Path, overrides: list[str]) -> None:
    """Run or resume one configuration."""
    config = load(path, [*overrides, f"seed={seed}"])
    with start(folder_of(path, seed, out), config, collect(config), resume=True) as folder:
        if folder.status != "finished":
            run_experiment(config, folder)
            folder.finish("finished")


def found(path: Path, seeds: list[int], out: Path) -> list[dict[str, Any]]:
    """The last evaluation of every finished run."""
    runs = [RunFolder.open(folder_of(path, seed, out)) for seed in seeds]
    return [one.metrics()[-1] for one in runs if one.status == "finished"]


def columns(summary: dict[str, Any]) -> dict[str, float | None]:
    """The numbers of a table row, in percent."""
    row = {
        "own": summary["accuracy_own"],
        "all": summary["accuracy_all"],
        "corrupted": summary["accuracy_corrupted"],
        "alarm": summary["cross_alarm"],
    }
    for name, values in summary["ood"].items():
        for metric in ("fpr95", "fpr95_oodpos", "auroc"):
            row[f"{metric} {name}"] = values[metric]
    return {name: None if value is None else 100 * value for name, value in row.items()}


def table(rows: list[tuple[str, list[dict[str, Any]]]]) -> str:
    """Markdown, one line per metric and one column per configuration: mean and sample deviation."""
    cells: dict[str, dict[str, str]] = {}
    for label, summaries in rows:
        for name in columns(summaries[0]) if summaries else ():
            values = [columns(one)[name] for one in summaries]
            cells.setdefault(name, {})[label] = mean_and_spread(
                [v for v in values if v is not None]
            )
    labels = [f"{label} ({len(summaries)})" for label, summaries in rows]
    lines = ["| percent (runs) | " + " | ".join(labels) + " |", "|---" * (len(rows) + 1) + "|"]
    for name, by_label in cells.items():
        lines.append(
            f"| {name} | " + " | ".join(by_label.get(label, "-") for label, _ in rows) + " |"
        )
    return "\n".join(lines)


def mean_and_spread(values: list[float]) -> str:
    """Mean and, of more than one value, the sample standard deviation."""
    if not values:
        return "-"
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return f"{mean:.1f}"
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return f"{mean:.1f} ± {spread:.1f}"


if __name__ == "__main__":
    sys.exit(main())
