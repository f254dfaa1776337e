"""`focoop compare` and `focoop tune` for machines without typer and rich, such as a GPU machine.

    python -m focoop.experiments compare settings/cifar100 --methods promptfl,focoop --seeds 3
    python -m focoop.experiments tune settings/cifar100 --methods all --budget 12

Both call what the commands of `focoop` call and need torch, numpy and safetensors alone.
docs/guides/compare-and-tune.md explains the options.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from focoop.config import shipped
from focoop.errors import FocoopError
from focoop.experiments import comparison
from focoop.experiments.grid import Cell, describe_seeds, plan, seeds_of
from focoop.experiments.sweeps import parse_sweep, sweep_points, write_sweep
from focoop.experiments.tuning import studies, tune
from focoop.experiments.tuning_report import OBJECTIVE, parse_objective, write_choice
from focoop.experiments.workers import default_jobs, shorten_warnings


def main(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: the words of the command line, without the program's name.

    Returns:
        The exit code: 0, the code of the error that stopped the command, or that of the first run
        that failed.
    """
    given = _parser().parse_args(arguments)
    shorten_warnings()
    try:
        outcomes: list[comparison.Outcome] = given.command(given)
    except FocoopError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped: the same command goes on where it stopped", file=sys.stderr)
        return 130
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    for outcome in failed:
        print(f"failed: {outcome.cell.folder}\n{outcome.error}", file=sys.stderr)
    return failed[0].exit_code or 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m focoop.experiments", description=(__doc__ or "").splitlines()[0]
    )
    commands = top.add_subparsers(required=True)
    compare_parser = commands.add_parser("compare", help="methods x settings x seeds")
    compare_parser.set_defaults(command=_compare)
    compare_parser.add_argument("files", nargs="*", type=Path)
    compare_parser.add_argument("--methods")
    compare_parser.add_argument(
        "--seeds", default="3", help="how many, 3, or which, 0,4 ('4,': seed 4 alone)"
    )
    compare_parser.add_argument("--presets", type=Path, help="default: configs/methods, else ours")
    compare_parser.add_argument(
        "--no-run", action="store_true", help="only the tables of what is finished"
    )
    compare_parser.add_argument(
        "--sweep", action="append", default=[], metavar="KEY=V,V", help="as partition.shots=1,2,4"
    )
    compare_parser.add_argument(
        "--track", action="append", default=[], metavar="NAME[:WHERE]", help="as tensorboard:FOLDER"
    )
    tune_parser = commands.add_parser("tune", help="choose settings on validation images")
    tune_parser.set_defaults(command=_tune)
    tune_parser.add_argument("files", nargs="+", type=Path, metavar="SETTING")
    tune_parser.add_argument("--methods", required=True)
    tune_parser.add_argument("--budget", type=int, default=12)
    tune_parser.add_argument("--write", type=Path)
    tune_parser.add_argument("--only", action="store_true", help="presets NAME@SETTING.toml")
    tune_parser.add_argument("--objective", default=OBJECTIVE)
    tune_parser.add_argument("--ood", action="append", default=[])
    tune_parser.add_argument("--validation", type=int)
    tune_parser.add_argument("--seed", type=int, default=0)
    for command, out in ((compare_parser, "runs/compare"), (tune_parser, "runs/tune")):
        command.add_argument("--out", type=Path, default=Path(out))
        command.add_argument("--jobs", type=int, help="runs at a time")
        command.add_argument("--device")
        command.add_argument("--set", action="append", default=[], dest="overrides")
    return top


def _compare(given: argparse.Namespace) -> list[comparison.Outcome]:
    seeds = seeds_of(given.seeds)
    cells = plan(
        given.files,
        given.methods,
        seeds,
        given.out,
        presets=given.presets or shipped("methods"),
        overrides=_overrides(given),
        points=sweep_points([parse_sweep(text) for text in given.sweep]),
    )
    if given.no_run:
        comparison.refuse_changed(cells)
        outcomes = [comparison.outcome_of(cell) for cell in cells]
    else:
        print(f"{len(cells)} runs with {describe_seeds(seeds)}", file=sys.stderr)
        outcomes = comparison.run(cells, _say, jobs=_jobs(given, cells), on_round=given.track)
    comparison.write_results(given.out, outcomes)
    write_sweep(given.out, outcomes)
    for name, rows in comparison.grouped(outcomes).items():
        print(comparison.markdown(name, rows))
    return outcomes


def _tune(given: argparse.Namespace) -> list[comparison.Outcome]:
    weights = parse_objective(given.objective)
    trials = studies(
        given.files,
        given.methods,
        given.budget,
        given.out,
        validation=given.validation,
        ood=given.ood,
        overrides=_overrides(given),
        seed=given.seed,
    )
    cells = [cell for study in trials for cell in study.cells]
    choices = tune(trials, weights, jobs=_jobs(given, cells), watch=_say)
    suffix = f"@{given.files[0].stem}" if given.only else ""
    for choice in choices:
        write_choice(choice, weights, given.out, given.write, suffix)
        print("\n".join(choice.presets.values()) or f"# {choice.study.label}: no trial succeeded\n")
    return [outcome for choice in choices for outcome in choice.outcomes]


def _overrides(given: argparse.Namespace) -> list[str]:
    return [*given.overrides, *([f"backbone.device={given.device}"] if given.device else [])]


def _jobs(given: argparse.Namespace, cells: Sequence[Cell]) -> int:
    devices = [cell.config.backbone.device for cell in cells]
    return default_jobs(devices) if given.jobs is None else int(given.jobs)


def _say(outcome: comparison.Outcome) -> None:
    if outcome.status != "running":
        print(comparison.line(outcome), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
