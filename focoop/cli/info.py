"""Commands that only tell: methods, settings, runs, and the state of the installation."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from focoop.cli.screen import AsJson, ConfigFile, Device, Overrides, load_config, out, print_json

COLOURS = {"ok": "green", "note": "yellow", "fail": "red"}


def methods(as_json: AsJson = False) -> None:
    """List the methods: paper, what is shared, what stays private, how OOD is scored."""
    from focoop.methods import available

    rows = [
        {
            "name": name,
            "what": (kind.__doc__ or "").strip().splitlines()[0],
            "paper": kind.paper,
            "shared": kind.shares,
            "private": kind.keeps,
            "score": kind.scores_by,
        }
        for name, kind in available().items()
    ]
    if as_json:
        return print_json(rows)
    table = Table(box=box.SIMPLE_HEAD)
    for name in rows[0]:
        table.add_column(name, style="bold" if name == "name" else None)
    for row in rows:
        table.add_row(*row.values())
    console = out()
    console.print(table)
    console.print("settings of one: focoop config --set method.name=NAME", markup=False)
    return None


def config(
    file: ConfigFile = None,
    overrides: Overrides = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Print the resolved settings as TOML, each with its meaning; save it as your own file."""
    from focoop.config import to_dict, to_toml

    resolved = load_config(file, overrides, device)
    if as_json:
        return print_json(to_dict(resolved))
    typer.echo(to_toml(resolved, docs=True), nl=False)
    return None


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder to search.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the runs below a folder, with how far they are."""
    from focoop.runs import list_runs
    from focoop.show import headline

    rows: list[dict[str, Any]] = []
    for run in list_runs(folder):
        metrics = run.metrics()
        rows.append(
            {
                "folder": str(run.path),
                "method": run.config.method.name,
                "status": run.status,
                "round": max(run.last_round(), 0),
                "rounds": run.config.federation.rounds,
                "metrics": metrics[-1] if metrics else None,
            }
        )
    if as_json:
        return print_json(rows)
    console = out()
    if not rows:
        console.print(f"no runs in {folder}; make one: focoop run", markup=False)
        return None
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("folder", "method", "status", "round", "own classes", "all classes"):
        table.add_column(name)
    for row in rows:
        shown = headline(row["metrics"] or {})
        progress = f"{row['round']}/{row['rounds']}"
        accuracies = (shown["own classes"], shown["all classes"])
        table.add_row(row["folder"], row["method"], row["status"], progress, *accuracies)
    console.print(table)
    return None


def doctor(file: ConfigFile = None, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Say what is installed and what is missing; with a configuration, what its run lacks."""
    from focoop.doctor import FAIL, examine

    found = []
    console = out()
    wanted = load_config(file, overrides, None) if file or overrides else None
    for check in examine(wanted):
        found.append(check)
        if not as_json:
            advice = f"  -> {check.advice}" if check.advice else ""
            console.print(f"[{COLOURS[check.state]}]{check.state:>4}[/]", end="  ")
            console.print(f"{check.topic}: {check.found}{advice}", markup=False, soft_wrap=True)
    if as_json:
        print_json([vars(check) for check in found])
    if any(check.state == FAIL for check in found):
        raise typer.Exit(1)
