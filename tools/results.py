"""`focoop compare` and `focoop tune` where typer and rich are missing, such as on a GPU machine.

    python tools/results.py compare configs/settings/cifar100.toml --methods promptfl,focoop \
        --seeds 0,1,2 --presets configs/methods --out runs/compare --jobs 2
    python tools/results.py tune --setting configs/settings/cifar100.toml --methods all \
        --budget 12 --out runs/tune --write configs/methods

Without `--methods` the files are whole configurations, each a row of one table, and the word
`compare` may be left out. Needs torch, numpy and safetensors alone.
docs/guides/compare-and-tune.md tells the rest.
"""

import argparse
import os
import sys
from pathlib import Path

# Read by OpenMP when torch is first imported: threads that spin slow a shared machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from focoop.errors import FocoopError
from focoop.experiments import comparison, grid, tuning
from focoop.experiments.tuning_report import OBJECTIVE, parse_objective, write_choice
from focoop.experiments.workers import default_jobs


def main(arguments: list[str]) -> int:
    """Run a command; errors a user can mend end with their exit code."""
    if arguments and arguments[0].endswith(".toml"):
        arguments = ["compare", *arguments]
    given = parser().parse_args(arguments)
    try:
        outcomes = given.command(given)
    except FocoopError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; the same command goes on", file=sys.stderr)
        return 130
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    for outcome in failed:
        print(f"failed: {outcome.cell.folder}\n{outcome.error}", file=sys.stderr)
    return failed[0].exit_code or 1 if failed else 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = top.add_subparsers(required=True)
    one = commands.add_parser("compare", help="methods x settings x seeds")
    one.set_defaults(command=run_compare)
    one.add_argument("files", nargs="*", type=Path)
    one.add_argument("--settings", nargs="+", type=Path, default=[])
    one.add_argument("--methods")
    one.add_argument("--seeds", nargs="+", default=["0,1,2"])
    one.add_argument("--presets", type=Path, default=Path("configs/methods"))
    one.add_argument("--no-run", action="store_true")
    two = commands.add_parser("tune", help="choose settings on validation images")
    two.set_defaults(command=run_tune)
    two.add_argument("--setting", type=Path, required=True)
    two.add_argument("--methods", required=True)
    two.add_argument("--budget", type=int, default=12)
    two.add_argument("--write", type=Path)
    two.add_argument("--only", action="store_true", help="presets NAME@SETTING.toml")
    two.add_argument("--objective", default=OBJECTIVE)
    two.add_argument("--ood", nargs="+", default=[])
    two.add_argument("--validation", type=int)
    two.add_argument("--seed", type=int, default=0)
    for command, out in ((one, "runs/compare"), (two, "runs/tune")):
        command.add_argument("--out", type=Path, default=Path(out))
        command.add_argument("--jobs", type=int, help="runs at a time")
        command.add_argument("--together", type=int, default=1, help="runs of a job, as one batch")
        command.add_argument("--device")
        command.add_argument("--set", action="append", default=[], dest="overrides")
    return top


def run_compare(given: argparse.Namespace) -> list[comparison.Outcome]:
    files = [*given.settings, *given.files]
    seeds = grid.parse_seeds(",".join(given.seeds))
    changes = overrides(given)
    cells = grid.plan(
        files, given.methods, seeds, given.out, presets=given.presets, overrides=changes
    )
    if given.no_run:
        comparison.refuse_changed(cells)
        outcomes = [comparison.found(cell) for cell in cells]
    else:
        outcomes = comparison.run(cells, say, jobs=jobs(given, cells), together=given.together)
    comparison.write_results(given.out, outcomes)
    for name, rows in comparison.grouped(outcomes).items():
        print(comparison.markdown(name, rows))
    return outcomes


def run_tune(given: argparse.Namespace) -> list[comparison.Outcome]:
    weights = parse_objective(given.objective)
    studies = tuning.studies(
        given.setting,
        given.methods,
        given.budget,
        given.out,
        validation=given.validation,
        ood=given.ood,
        overrides=overrides(given),
        seed=given.seed,
    )
    cells = [cell for study in studies for cell in study.cells]
    choices = tuning.tune(
        studies, weights, jobs=jobs(given, cells), together=given.together, watch=say
    )
    suffix = f"@{given.setting.stem}" if given.only else ""
    for choice in choices:
        write_choice(choice, weights, given.out, given.write, suffix)
        print(choice.preset or f"# {choice.study.label}: no trial succeeded\n")
    return [trial.outcome for choice in choices for trial in choice.trials]


def overrides(given: argparse.Namespace) -> list[str]:
    return [*given.overrides, *([f"backbone.device={given.device}"] if given.device else [])]


def jobs(given: argparse.Namespace, cells: list[grid.Cell]) -> int:
    devices = [cell.config.backbone.device for cell in cells]
    return default_jobs(devices) if given.jobs is None else int(given.jobs)


def say(outcome: comparison.Outcome) -> None:
    if outcome.status != "running":
        print(comparison.line(outcome), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
