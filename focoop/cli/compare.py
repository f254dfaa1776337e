"""Commands over many runs: compare methods, tune them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from focoop.cli import completion, interruption
from focoop.cli.display import PROSE, Column, Sheet, dataset_of
from focoop.cli.display.sheet import joined
from focoop.cli.fetch import Features
from focoop.cli.grid_notes import note_answers, note_data, note_presets, note_seeds
from focoop.cli.grid_options import Jobs, Methods, NoRun, Presets, Seeds, count_jobs
from focoop.cli.screen import (
    AsJson,
    Device,
    Overrides,
    Track,
    Untuned,
    Weights,
    messages,
    out,
    print_json,
    with_weights,
)
from focoop.cli.sweep_table import listed, print_sweep
from focoop.errors import ConfigError

if TYPE_CHECKING:
    from focoop.experiments import Cell, Choice, Outcome, Row, Study

BRIEF = ("own", "all", "corrupted", "alarm", "fpr95", "auroc")


def compare(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILES",
            help="Settings, such as settings/cifar100 or a file of yours; without --methods a run "
            "each.",
            autocompletion=completion.configuration,
        ),
    ] = None,
    settings: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="The same as FILES.", autocompletion=completion.configuration
        ),
    ] = None,
    methods: Methods = None,
    seeds: Seeds = "3",
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V,V",
            help="Run a setting at several values, such as partition.shots=1,2,4.",
        ),
    ] = None,
    presets: Presets = None,
    folder: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of the runs and tables.")
    ] = Path("runs/compare"),
    untuned: Untuned = False,
    jobs: Jobs = None,
    features: Features = None,
    device: Device = None,
    overrides: Overrides = None,
    weights: Weights = None,
    track: Track = None,
    no_run: NoRun = False,
    as_json: AsJson = False,
) -> None:
    """Run methods x settings x seeds as one resumable grid, and print its tables.

    Example: focoop compare settings/cifar100 --methods promptfl,./mine.py --seeds 3
    """
    from focoop.api import plan_comparison, run_comparison
    from focoop.experiments import comparison as grid_runs

    cells = plan_comparison(
        [*(settings or []), *(files or [])],
        methods,
        seeds=seeds,
        sweep=sweep or (),
        overrides=with_weights(overrides, weights),
        out=folder,
        use_tuned=not untuned,
        presets=presets,
        device=device,
    )
    if methods and not untuned:
        note_presets(cells, presets)
    if no_run:
        table = run_comparison(cells, run=False)
    else:
        note_seeds(seeds, cells)
        note_data([cell for cell in cells if grid_runs.outcome_of(cell).status != "finished"])
        with _board(cells, live_comparison) as watch:
            many = _jobs(jobs, cells)
            table = run_comparison(cells, jobs=many, on_change=watch, on_round=track)
    paths = table.save(folder)
    if as_json:
        print_json({"cells": table.runs})
    else:
        if not print_sweep(table.outcomes):
            _print_tables(table.outcomes)
        messages().print(f"written: {listed(paths)}")
    _leave(table.outcomes)


def tune(
    methods: Annotated[
        str,
        typer.Option(
            help="Names or variants, such as promptfl,./mine.py; or all.",
            autocompletion=completion.method_list,
        ),
    ],
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="SETTING",
            help="The setting to tune on, such as settings/cifar100 or a file of yours.",
            autocompletion=completion.configuration,
        ),
    ] = None,
    setting: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The same as SETTING.", autocompletion=completion.configuration
        ),
    ] = None,
    budget: Annotated[int, typer.Option(help="Trials of each method.")] = 12,
    folder: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of the trials and their tables.")
    ] = Path("runs/tune"),
    write: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write the presets here.")
    ] = None,
    only: Annotated[
        bool, typer.Option("--only", help="Write presets for this setting alone: NAME@SETTING.")
    ] = False,
    objective: Annotated[
        str,
        typer.Option(
            help="Weights of own, all, auroc, fpr95, fpr95_oodpos, alarm, ausuc, harmonic."
        ),
    ] = "own=1,all=1,auroc=1",
    ood: Annotated[
        list[str] | None,
        typer.Option(help="A validation OOD set; default: the setting's data.validation_ood."),
    ] = None,
    validation: Annotated[
        int | None, typer.Option(help="Validation images per class; default 30.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the runs and of the sample.")] = 0,
    jobs: Jobs = None,
    features: Features = None,
    device: Device = None,
    overrides: Overrides = None,
    weights: Weights = None,
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Choose methods' settings on validation images, the same number of trials for each.

    Example: focoop tune settings/cifar100 --methods promptfl,./mine.py --write presets
    """
    from focoop.api import plan_tuning, run_tuning
    from focoop.experiments import objective_text, parse_objective

    given = file or setting
    if given is None or (file and setting):
        raise ConfigError("name one setting: focoop tune settings/cifar100 --methods promptfl")
    parts = parse_objective(objective)
    studies = plan_tuning(
        given,
        methods,
        budget=budget,
        out=folder,
        validation=validation,
        ood=ood or [],
        overrides=with_weights(overrides, weights),
        device=device,
        seed=seed,
    )
    note_answers(studies)
    cells = [cell for study in studies for cell in study.cells]
    with _board(cells, live_tuning(studies, parts)) as watch:
        many = _jobs(jobs, cells)
        tuning = run_tuning(studies, objective, jobs=many, on_change=watch, on_round=track)
    choices = tuning.choices
    paths = tuning.save(folder, write, f"@{given.stem}" if only else "")
    if as_json:
        print_json([_as_json(choice) for choice in choices])
    else:
        out().print(_choices_table(choices))
        out().print(f"{objective_text(parts)}, in percent of validation images and sets")
        messages().print(f"written: {', '.join(map(str, paths))}")
    _leave([trial.outcome for choice in choices for trial in choice.trials])


def _jobs(given: int | None, cells: "list[Cell]") -> int:
    return count_jobs(given, [cell.config.backbone.device for cell in cells])


def _leave(outcomes: "Sequence[Outcome]") -> None:
    """Name what failed, and exit with the first failure's code."""
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    for outcome in failed:
        messages().print(f"failed: {outcome.cell.folder}\n{outcome.error}")
    if failed:
        raise typer.Exit(failed[0].exit_code or 1)


Draw = Callable[["list[Outcome]"], RenderableType]


@contextmanager
def _board(cells: "list[Cell]", draw: Draw) -> "Iterator[Callable[[Outcome], None]]":
    """Shows outcomes as they change: a live table on a terminal, lines elsewhere."""
    from focoop.experiments import Outcome, line

    console = messages()
    current = {cell.folder: Outcome(cell) for cell in cells}
    live = Live(console=console, refresh_per_second=4, transient=True)

    def show(outcome: Outcome) -> None:
        current[outcome.cell.folder] = outcome
        if console.is_terminal:
            live.update(draw(list(current.values())))
        elif outcome.status != "running":
            done = sum(latest.status in ("finished", "failed") for latest in current.values())
            text = f"[{done}/{len(current)}] {line(outcome)}"
            console.print(joined(text.split("  "), console.width))

    try:
        if not console.is_terminal:
            yield show
        else:
            with live:
                yield show
    except KeyboardInterrupt:
        console.print("stopped: the same command goes on where it stopped")
        interruption.mark_announced()
        raise


def live_comparison(outcomes: "list[Outcome]") -> RenderableType:
    """Draw one table per setting that is under way; means over the seeds that are finished.

    Args:
        outcomes: The outcomes so far.

    Returns:
        What is shown.
    """
    from focoop.experiments import grouped, row

    parts: list[RenderableType] = [_progress(outcomes)]
    groups = grouped(outcomes)
    busy = {o.cell.setting for o in outcomes if o.status == "running"}
    for setting, rows in groups.items():
        if setting not in (busy or {outcomes[-1].cell.setting}):
            continue
        by_label = {label: row(some)[0] for label, some in rows.items()}
        names = dict.fromkeys(name for stats in by_label.values() for name in stats)
        names = dict.fromkeys(name for name in names if name.split(" ")[0] in BRIEF)
        cells = [
            [label, _runs(some)]
            + [
                f"{by_label[label][name].mean:.1f}" if name in by_label[label] else ""
                for name in names
            ]
            for label, some in rows.items()
        ]
        columns = [Column("method"), *(Column(name, right=True) for name in ("runs", *names))]
        parts += [Text(""), Sheet(columns, cells, title=setting)]
    return Group(*parts)


def _print_tables(outcomes: "Sequence[Outcome]") -> None:
    """The tables of every setting: markdown in a pipe, on a terminal as they fit it."""
    from focoop.experiments import comparison as grid_runs

    console = out()
    for setting, rows in grid_runs.grouped(outcomes).items():
        text = grid_runs.markdown(setting, rows)
        if not console.is_terminal:
            typer.echo(text)
            continue
        stats = {label: grid_runs.row(some) for label, some in rows.items()}
        console.print(comparison(setting, [(label, *row) for label, row in stats.items()]))
        after = [part for part in text.split("\n\n") if not part.startswith(("#", "|"))]
        console.print("\n" + "\n\n".join(after))


def comparison(setting: str, rows: "list[tuple[str, Row, str]]") -> Sheet:
    """Draw one row per method, the best of a column in bold.

    Args:
        setting: The setting's name.
        rows: Label, columns and number of runs of each line.

    Returns:
        The table.
    """
    from focoop.experiments import best

    names = list(dict.fromkeys(name for _, row, _ in rows for name in row))
    top = {name: best(name, [row for _, row, _ in rows]) for name in names}
    cells: list[list[str | Text]] = []
    for label, row, count in rows:
        line: list[str | Text] = [label, count]
        for name in names:
            bold = name in row and f"{row[name].mean:.1f}" == top[name]
            line.append(Text(str(row.get(name, "-")), style="bold" if bold else ""))
        cells.append(line)
    columns = [Column("method"), Column("runs", right=True)]
    columns += [Column(name, right=True, group=dataset_of(name)) for name in names]
    return Sheet(columns, cells, title=setting)


def live_tuning(studies: "list[Study]", weights: dict[str, float]) -> Draw:
    """Draw one row per method: trials, and the objective of the defaults and of the best so far.

    Args:
        studies: The studies.
        weights: The objective.

    Returns:
        A function that draws the outcomes so far.
    """
    from focoop.experiments import choose

    def draw(outcomes: "list[Outcome]") -> RenderableType:
        by_folder = {outcome.cell.folder: outcome for outcome in outcomes}
        current = [
            choose(study, [by_folder[cell.folder] for cell in study.cells], weights)
            for study in studies
        ]
        return Group(_progress(outcomes), _choices_table(current))

    return draw


def _choices_table(choices: "Sequence[Choice]") -> Sheet:
    rows = []
    for choice in choices:
        default = next(trial for trial in choice.trials if trial.number == 0)
        best = choice.best
        values = (default.value, None if best is None else best.value)
        point = {} if best is None else best.point
        rows.append(
            [
                choice.study.label,
                _runs([trial.outcome for trial in choice.trials]),
                *("-" if value is None else f"{100 * value:.2f}" for value in values),
                ", ".join(f"{key.split('.')[1]}={value}" for key, value in point.items()),
            ]
        )
    columns = [Column("method"), Column("trials"), Column("defaults", True), Column("best", True)]
    return Sheet([*columns, Column("chosen settings", prose=PROSE)], rows)


def _progress(outcomes: "list[Outcome]") -> Text:
    counts = dict.fromkeys(("finished", "running", "failed"), 0)
    for outcome in outcomes:
        counts[outcome.status] = counts.get(outcome.status, 0) + 1
    shown = [f"{counts['finished']} of {len(outcomes)} runs finished"]
    shown += [f"{counts[name]} {name}" for name in ("running", "failed") if counts[name]]
    return Text(", ".join(shown))


def _runs(outcomes: "list[Outcome]") -> str:
    """Finished of all, and the rounds of those under way, such as `1/3 (12/25)`."""
    done = sum(outcome.status == "finished" for outcome in outcomes)
    failed = sum(outcome.status == "failed" for outcome in outcomes)
    rounds = [f"{o.round}/{o.cell.rounds}" for o in outcomes if o.status == "running"]
    notes = [*rounds, *([f"{failed} failed"] if failed else [])]
    return f"{done}/{len(outcomes)}" + (f" ({', '.join(notes)})" if notes else "")


def _as_json(choice: "Choice") -> dict[str, Any]:
    trials = [
        {
            "trial": trial.number,
            "value": trial.value,
            "point": trial.point,
            "status": trial.outcome.status,
            "folder": str(trial.outcome.cell.folder),
        }
        for trial in choice.trials
    ]
    return {"label": choice.study.label, "points": choice.study.size, "trials": trials}
