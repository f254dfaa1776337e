"""Sweeps: a comparison at several values of a setting, as a long table and as lines.

`--sweep partition.shots=1,2,4` makes three settings of each; several sweeps are a product.
"""

import csv
import io
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focoop.errors import ConfigError, MissingExtra
from focoop.experiments import tables
from focoop.experiments.comparison import Outcome, row
from focoop.experiments.figures import draw_lines, new_figure, save_figure
from focoop.experiments.grid import Point, safe
from focoop.experiments.typeset import BOOKTABS, latex_table, markdown_table
from focoop.experiments.variants import split_list
from focoop.runs import write

COLUMNS = ("own", "all", "corrupted", "ausuc")  # what is drawn, beside the OOD sets
MOST_POINTS, ACROSS = 1000, 3  # ACROSS: columns drawn side by side


@dataclass(frozen=True)
class Sweep:
    """A setting and the values that it takes.

    Attributes:
        key: The setting's name, such as `partition.shots`.
        values: Its values as text, in the order given.
    """

    key: str
    values: tuple[str, ...]


def parse_sweep(text: str) -> Sweep:
    """Read a sweep such as `partition.shots=1,2,4`.

    Args:
        text: The text; commas within brackets or quotes do not divide.

    Returns:
        The sweep.

    Raises:
        ConfigError: There is no `=`, no value, or a value stands twice.

    >>> parse_sweep("partition.shots=1, 2")
    Sweep(key='partition.shots', values=('1', '2'))
    """
    key, equals, raw = text.partition("=")
    values = tuple(part.strip() for part in split_list(raw))
    if not equals or not key.strip() or not values:
        raise ConfigError(
            f"cannot read --sweep {text!r}: write KEY=VALUE,VALUE, as partition.shots=1,2"
        )
    if "." not in key:
        raise ConfigError(
            f"--sweep {text!r} names no section: write SECTION.NAME, as partition.shots=1,2,4"
        )
    if len(set(values)) != len(values):
        raise ConfigError(f"--sweep {text!r} names a value twice")
    return Sweep(key.strip(), values)


def sweep_points(sweeps: Sequence[Sweep]) -> list[Point]:
    """Return every combination of the values of sweeps, the last sweep changing fastest.

    Args:
        sweeps: The sweeps.

    Returns:
        The points; one without settings where there is no sweep.

    Raises:
        ConfigError: A setting is swept twice, or there are too many points.
    """
    keys = [sweep.key for sweep in sweeps]
    if len(set(keys)) != len(keys):
        raise ConfigError("two --sweep have the same setting: give all its values in one")
    count = math.prod(len(sweep.values) for sweep in sweeps)
    if count > MOST_POINTS:
        raise ConfigError(f"the sweeps have {count} points; the most is {MOST_POINTS}")
    combinations = itertools.product(*(sweep.values for sweep in sweeps))
    return [Point(tuple(zip(keys, values, strict=True))) for values in combinations]


def long_rows(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Return one row per point, method and column of a comparison.

    Args:
        outcomes: The runs.

    Returns:
        Rows with `setting`, the swept settings, `method`, `column`, `mean`, `std` and `runs`; means
        are in percent.
    """
    groups: dict[tuple[str, tuple[tuple[str, str], ...], str], list[Outcome]] = {}
    for outcome in outcomes:
        cell = outcome.cell
        groups.setdefault((cell.base, cell.point, cell.label), []).append(outcome)
    rows = []
    for (setting, point, label), members in groups.items():
        for column, stat in row(members)[0].items():
            rows.append(
                {
                    "setting": setting,
                    **dict(point),
                    "method": label,
                    "column": column,
                    "mean": stat.mean,
                    "std": stat.spread,
                    "runs": stat.count,
                }
            )
    return rows


def write_sweep(out: Path, outcomes: Sequence[Outcome]) -> list[Path]:
    """Write OUT/sweep.csv, sweep.md, sweep.tex and, with matplotlib, line plots.

    Args:
        out: The folder.
        outcomes: The runs.

    Returns:
        The files written; none where nothing was swept or nothing is finished.
    """
    rows, keys, table = long_rows(outcomes), _swept(outcomes), sweep_table(outcomes)
    if table is None:
        return []
    files = {
        "sweep.csv": csv_text(rows),
        "sweep.md": table.markdown(),
        "sweep.tex": latex(rows, keys),
    }
    for name, text in files.items():
        write(out / name, text.encode())
    paths = [out / name for name in files]
    with suppress(MissingExtra):  # the tables are there; lines need the extra `plot`
        paths += plots(rows, keys, out)
    return paths


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV with a head.

    Args:
        rows: The rows.

    Returns:
        The text.
    """
    stream = io.StringIO()
    names = list(dict.fromkeys(name for entry in rows for name in entry))
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


@dataclass(frozen=True)
class SweepTable:
    """All points of a sweep in one table, a line per point and method.

    Attributes:
        heads: Names of the columns: setting, swept settings, method, then those of numbers.
        cells: The lines, as Markdown.
        left: How many columns are no numbers.
    """

    heads: list[str]
    cells: list[list[str]]
    left: int

    @property
    def note(self) -> str:
        """Return what its columns mean."""
        return tables.NOTE.replace("best of a column", "best of a point")

    def markdown(self) -> str:
        """Return the table and its note as Markdown."""
        return f"{markdown_table(self.heads, self.cells, self.left)}\n\n{self.note}\n"


def sweep_table(outcomes: Sequence[Outcome]) -> SweepTable | None:
    """Put the points of a sweep into one table.

    Args:
        outcomes: The runs.

    Returns:
        The table; None where nothing was swept or nothing is finished.
    """
    rows, keys = long_rows(outcomes), _swept(outcomes)
    if not rows or not keys:
        return None
    heads, cells = _wide(rows, keys, _plain)
    return SweepTable(heads, cells, len(keys) + 2)


def _plain(stat: tables.Stat | None, bold: bool) -> str:
    shown = "-" if stat is None else str(stat)
    return f"**{shown}**" if bold else shown


def _in_latex(stat: tables.Stat | None, bold: bool) -> str:
    return "--" if stat is None else tables.latex_number(stat, bold=bold)


def _swept(outcomes: Iterable[Outcome]) -> list[str]:
    return list(dict.fromkeys(key for outcome in outcomes for key, _ in outcome.cell.point))


def latex(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str:
    """Return a table (booktabs) with a line per point and method.

    Args:
        rows: The rows of `long_rows`.
        keys: The swept settings.

    Returns:
        LaTeX.
    """
    heads, lines = _wide(rows, keys, _in_latex)
    caption = (
        f"Sweep over {', '.join(keys)}: percent, mean and sample deviation over seeds; "
        "bold: best of a point; ↑: more is better, ↓: less is better"
    )
    left = len(keys) + 2
    heads[left:] = map(tables.with_arrow, heads[left:])
    table = latex_table(heads, lines, left, caption=caption, name="sweep", fitted=True)
    return f"{BOOKTABS}\n\n{table}\n"


def _wide(
    rows: Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    shown: Callable[[tables.Stat | None, bool], str],
) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of a table with a line per point and method, a column per metric.

    Where a point has several methods, the best of each column is bold.
    """
    columns = list(dict.fromkeys(entry["column"] for entry in rows))
    points: dict[tuple[str, ...], dict[str, dict[str, tables.Stat]]] = {}
    for entry in rows:
        place = (entry["setting"], *(entry.get(key, "") for key in keys))
        stat = tables.Stat(entry["mean"], entry["std"], entry["runs"])
        methods = points.setdefault(place, {})
        methods.setdefault(entry["method"], {})[entry["column"]] = stat
    cells = []
    for place, methods in points.items():
        top = {name: tables.best(name, methods.values()) for name in columns}
        for method, stats in methods.items():
            numbers = []
            for name in columns:
                found = stats.get(name)
                bold = found is not None and f"{found.mean:.1f}" == top[name]
                numbers.append(shown(found, bold))
            cells.append([*place, method, *numbers])
    return ["setting", *keys, "method", *columns], cells


def plots(rows: Sequence[Mapping[str, Any]], keys: Sequence[str], out: Path) -> list[Path]:
    """Draw a line per method over the first swept setting, with the deviation as a band.

    One figure has all columns.

    Args:
        rows: The rows of `long_rows`.
        keys: The swept settings; where there are several, a figure per value of the others.
        out: The folder.

    Returns:
        The figures.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    paths = []
    for title, panel in _panels(rows, keys).items():
        columns = list(dict.fromkeys(entry["column"] for entry in panel))
        down = math.ceil(len(columns) / ACROSS)
        figure = new_figure(3.8 * min(ACROSS, len(columns)), 3.2 * down)
        for place, column in enumerate(columns, 1):
            axes = figure.add_subplot(down, min(ACROSS, len(columns)), place)
            draw_lines(axes, [entry for entry in panel if entry["column"] == column], keys[0])
            axes.set_ylabel(f"{tables.with_arrow(column)}, %")
        figure.suptitle(title, fontsize=10)
        paths += save_figure(figure, out / safe(f"sweep {title}"), ("svg", "pdf"))
    return paths


def _panels(
    rows: Sequence[Mapping[str, Any]], keys: Sequence[str]
) -> dict[str, list[Mapping[str, Any]]]:
    """Rows by setting and the values of all swept settings but the first; few columns each."""
    panels: dict[str, list[Mapping[str, Any]]] = {}
    for entry in rows:
        if entry["column"] in COLUMNS or entry["column"].startswith(("auroc ", "fpr95 ")):
            others = [f"{key}={entry[key]}" for key in keys[1:] if key in entry]
            panels.setdefault(", ".join([entry["setting"], *others]), []).append(entry)
    return panels
