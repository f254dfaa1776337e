"""Commands that only tell: methods, settings, runs, and the state of the installation."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len
from rich.text import Text

from focoop.cli import completion
from focoop.cli.fetch import Features
from focoop.cli.screen import (
    AsJson,
    ConfigFile,
    Device,
    Overrides,
    Untuned,
    Weights,
    load_config,
    load_tuned,
    out,
    print_json,
    with_weights,
)
from focoop.errors import ConfigError, RunError

if TYPE_CHECKING:
    from focoop.cli.display import Sheet
    from focoop.cli.doctor import Check

DAMAGED = "damaged"  # in the place of a run's status
WIDE = 4  # columns of "note" and "fail", the states before a finding
COLOURS = {"ok": "green", "note": "yellow", "fail": "red"}


def methods(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A method whose settings to show, or your own file, ./mine.py.",
            autocompletion=completion.method,
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check NAME against the contract of a method.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the methods: paper, what is shared, what stays private, how OOD is scored."""
    from focoop.methods import available

    if check:
        return _check_method(name, as_json)
    if name is not None:
        return _method_settings(name, as_json)
    rows = [
        {
            "name": name,
            "what": _summary(kind),
            "paper": kind.paper,
            "shared": kind.shares,
            "private": kind.keeps,
            "score": kind.scores_by,
        }
        for name, kind in available().items()
    ]
    if as_json:
        return print_json(rows)
    from focoop.cli.display import PROSE, Column, Sheet

    columns = [Column(name, prose=0 if name == "name" else PROSE) for name in rows[0]]
    console = out()
    console.print(Sheet(columns, [list(row.values()) for row in rows]))
    console.print("\nsettings of one: focoop methods NAME")
    return None


def _check_method(name: str | None, as_json: bool) -> None:
    """Say of each rule of the contract whether a method keeps it."""
    from focoop.api import check_method
    from focoop.cli.doctor import FAIL, OK

    if name is None:
        raise ConfigError("name the method to check: focoop methods ./mine.py --check")
    checks = check_method(name)
    console = out()
    if as_json:
        print_json([vars(check) for check in checks])
    for check in () if as_json else checks:
        console.print(_marked(OK if check.kept else FAIL, check.rule, console.width))
        if check.problem:
            console.print(_marked("", f"-> {check.problem}", console.width))
    if not all(check.kept for check in checks):
        raise typer.Exit(1)


def _summary(kind: type) -> str:
    """The first line of a class's docstring; empty where a method of a user's own has none."""
    return (kind.__doc__ or "").strip().partition("\n")[0]


def _method_settings(name: str, as_json: bool) -> None:
    """Show the settings of one method by their group: defaults and meanings."""
    from focoop.cli.display import PROSE, Column, Sheet
    from focoop.fields import GROUPS, grouped, toml_value
    from focoop.methods import lookup

    kind = lookup(name)
    rows: list[dict[str, Any]] = [
        {
            "group": group,
            "setting": f"method.{field.name}",
            "default": field.default,
            "meaning": str(field.metadata.get("doc", "")),
        }
        for group, members in grouped(kind.Config).items()
        for field in members
    ]
    if as_json:
        return print_json(rows)
    console = out()
    summary = _summary(kind) or "no description (write a docstring below the class)"
    console.print(f"{name}: {summary} ({kind.paper})" if kind.paper else f"{name}: {summary}")
    columns = [Column("setting"), Column("default"), Column("meaning", prose=PROSE)]
    for group in dict.fromkeys(row["group"] for row in rows):
        cells = [
            [row["setting"], toml_value(row["default"]), row["meaning"]]
            for row in rows
            if row["group"] == group
        ]
        title = f"{group}: {GROUPS[group]}" if group else "settings"
        console.print()
        console.print(Sheet(columns, cells, title=title))
    if not rows:
        console.print("it has no settings of its own")
    return None


def config(
    file: ConfigFile = None,
    overrides: Overrides = None,
    device: Device = None,
    weights: Weights = None,
    untuned: Untuned = False,
    as_json: AsJson = False,
) -> None:
    """Print the settings a run would have as TOML, with their meaning; save it as your own file."""
    from focoop.config import to_dict, to_toml

    resolved, _ = load_tuned(file, with_weights(overrides, weights), device, untuned)
    if as_json:
        return print_json(to_dict(resolved))
    console = out()
    for line in to_toml(resolved, docs=True).splitlines():
        console.print(_commented(line, console.width))
    return None


def _commented(line: str, width: int) -> str:
    """A line of TOML; a comment that makes it wider than the screen goes on in further lines."""
    from focoop.cli.display import wrapped

    if line.startswith("# "):
        return "# " + wrapped(line[2:], width - 2).replace("\n", "\n# ")
    setting, mark, comment = line.partition("  # ")
    if not mark or cell_len(line) <= width:
        return line
    below = wrapped(comment, width - len("    # ")).replace("\n", "\n    # ")
    return f"{setting}\n    # {below}"


def runs(
    folder: Annotated[Path, typer.Argument(help="Folder to search.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the runs below a folder, with how far they are."""
    from focoop.runs import survey_runs

    if folder != Path("runs") and not folder.is_dir():
        raise RunError(f"there is no folder {folder}: name one with runs below it, such as runs")
    found, damaged = survey_runs(folder)
    rows: list[dict[str, Any]] = []
    for run in found:
        metrics = run.metrics()
        rows.append(
            {
                "folder": str(run.path),
                "method": run.config.method.label,
                "status": run.status,
                "round": max(run.last_round(), 0),
                "rounds": run.config.federation.rounds,
                "metrics": metrics[-1] if metrics else None,
            }
        )
    if as_json:
        bad = [{"folder": str(d.path), "status": DAMAGED, "reason": d.reason} for d in damaged]
        return print_json([*rows, *bad])
    console = out()
    if not rows and not damaged:
        console.print(f"no runs in {folder}; make one: focoop run", markup=False)
    if rows:
        console.print(_runs_table(rows))
    for one in damaged:
        console.print(f"{DAMAGED}: {one.path}: {one.reason}", markup=False, hang=2)
    return None


def _runs_table(rows: Sequence[Mapping[str, Any]]) -> "Sheet":
    from focoop.cli.display import Column, Sheet, headline

    cells = []
    for row in rows:
        shown = headline(row["metrics"] or {})
        progress = f"{row['round']}/{row['rounds']}"
        accuracies = (shown["own classes"], shown["all classes"])
        cells.append([row["folder"], row["method"], row["status"], progress, *accuracies])
    names = ("folder", "method", "status", "round", "own classes", "all classes")
    return Sheet([Column(name, right=place > 2) for place, name in enumerate(names)], cells)


def doctor(
    file: ConfigFile = None,
    overrides: Overrides = None,
    features: Features = None,
    weights: Weights = None,
    as_json: AsJson = False,
) -> None:
    """Say what is installed and what is missing; with a configuration, what its run lacks."""
    from focoop.cli.doctor import FAIL, examine

    checks = []
    console = out()
    overrides = with_weights(overrides, weights)
    wanted = load_config(file, overrides, None) if file or overrides else None
    for check in examine(wanted):
        checks.append(check)
        if not as_json:
            console.print(_finding(check, console.width))
    if as_json:
        print_json([vars(check) for check in checks])
    if any(check.state == FAIL for check in checks):
        raise typer.Exit(1)


def _finding(check: "Check", width: int) -> Text:
    """A finding of the doctor, with what to do about it."""
    advice = f"  -> {check.advice}" if check.advice else ""
    return _marked(check.state, f"{check.topic}: {check.found}{advice}", width)


def _marked(state: str, message: str, width: int) -> Text:
    """A message behind its state in colour; further lines start below the first one's text."""
    from focoop.cli.display import wrapped

    text = Text(no_wrap=True, overflow="ignore")
    text.append(f"{state:>{WIDE}}", style=COLOURS.get(state, ""))
    lines = wrapped(message, width - WIDE - 2).replace("\n", "\n" + " " * (WIDE + 2))
    return text.append("  " + lines)
