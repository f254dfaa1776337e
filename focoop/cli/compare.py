"""`focoop compare`: run methods over settings and seeds, and show their tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from focoop.cli import completion
from focoop.cli.display import Column, Sheet, dataset_of
from focoop.cli.fetch import Features
from focoop.cli.grid_board import board, jobs_of, leave, progress, runs_of
from focoop.cli.grid_notes import note_data, note_presets, note_seeds
from focoop.cli.grid_options import Jobs, Methods, NoRun, Presets, Seeds
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

if TYPE_CHECKING:
    from focoop.experiments import Outcome, Row

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
        with board(cells, live_comparison) as watch:
            many = jobs_of(jobs, cells)
            table = run_comparison(cells, jobs=many, on_change=watch, on_round=track)
    paths = table.save(folder)
    if as_json:
        print_json({"cells": table.runs})
    else:
        if not print_sweep(table.outcomes):
            _print_tables(table.outcomes)
        messages().print(f"written: {listed(paths)}")
    leave(table.outcomes)


def live_comparison(outcomes: "list[Outcome]") -> RenderableType:
    """Draw one table per setting that is under way; means over the seeds that are finished.

    Args:
        outcomes: The outcomes so far.

    Returns:
        What is shown.
    """
    from focoop.experiments import grouped, row

    parts: list[RenderableType] = [progress(outcomes)]
    groups = grouped(outcomes)
    busy = {o.cell.setting for o in outcomes if o.status == "running"}
    for setting, rows in groups.items():
        if setting not in (busy or {outcomes[-1].cell.setting}):
            continue
        by_label = {label: row(some)[0] for label, some in rows.items()}
        names = dict.fromkeys(name for stats in by_label.values() for name in stats)
        names = dict.fromkeys(name for name in names if name.split(" ")[0] in BRIEF)
        cells = [
            [label, runs_of(some)]
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
