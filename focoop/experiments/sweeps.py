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

from focoop.errors import ConfigError, MissingExtra, nearest
from focoop.experiments import tables
from focoop.experiments.comparison import Outcome, row
from focoop.experiments.grid import Point, safe
from focoop.experiments.typeset import BOOKTABS, latex_table, markdown_table
from focoop.experiments.variants import split_list
from focoop.runs import write

COLUMNS = ("own", "all", "corrupted", "ausuc")  # what is drawn, beside the OOD sets
MOST_POINTS = 1000
# Okabe and Ito's colours, which the colour-blind tell apart, and a dark magenta.
COLOURS: tuple[str, ...] = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#946c00",
    "#56b4e9",
    "#000000",
    "#7a0177",
)
DASHES, MARKERS = ("-", "--", ":"), ("o", "s", "^", "D", "v", "P", "X", "*")
# Kinds of figures; without a date and a version equal figures give equal files.
UNDATED: dict[str, dict[str, Any]] = {
    "svg": {"Date": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
}
FORMATS: tuple[str, ...] = ("svg", "png", "pdf")
DOTS = 150  # per inch of a PNG


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
        raise ConfigError(f"cannot read --sweep {text!r}: write KEY=VALUE,VALUE, as shots=1,2,4")
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
    rows = long_rows(outcomes)
    keys = list(dict.fromkeys(key for outcome in outcomes for key, _ in outcome.cell.point))
    if not rows or not keys:
        return []
    files = {
        "sweep.csv": csv_text(rows),
        "sweep.md": markdown(rows, keys),
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


def markdown(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str:
    """Return a table with a line per point and method.

    Args:
        rows: The rows of `long_rows`.
        keys: The swept settings.

    Returns:
        Markdown.
    """
    heads, lines = _wide(rows, keys, lambda stat: "-" if stat is None else str(stat))
    return markdown_table(heads, lines, len(keys) + 2) + f"\n\n{tables.NOTE}\n"


def latex(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str:
    """Return a table (booktabs) with a line per point and method.

    Args:
        rows: The rows of `long_rows`.
        keys: The swept settings.

    Returns:
        LaTeX.
    """
    heads, lines = _wide(
        rows, keys, lambda stat: "--" if stat is None else tables.latex_number(stat)
    )
    caption = f"Sweep over {', '.join(keys)}: percent, mean and sample deviation over seeds"
    table = latex_table(heads, lines, len(keys) + 2, caption=caption, fitted=True)
    return f"{BOOKTABS}\n\n{table}\n"


def _wide(
    rows: Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    shown: Callable[[tables.Stat | None], str],
) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of a table with a line per point and method, a column per metric."""
    columns = list(dict.fromkeys(entry["column"] for entry in rows))
    lines: dict[tuple[str, ...], dict[str, tables.Stat]] = {}
    for entry in rows:
        place = (entry["setting"], *(entry.get(key, "") for key in keys), entry["method"])
        stat = tables.Stat(entry["mean"], entry["std"], entry["runs"])
        lines.setdefault(place, {})[entry["column"]] = stat
    cells = [
        [*place, *(shown(stats.get(name)) for name in columns)] for place, stats in lines.items()
    ]
    return ["setting", *keys, "method", *columns], cells


def plots(rows: Sequence[Mapping[str, Any]], keys: Sequence[str], out: Path) -> list[Path]:
    """Draw a line per method over the first swept setting, with the deviation as a band.

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
        for column in dict.fromkeys(entry["column"] for entry in panel):
            figure = new_figure(4.8, 3.4)
            draw_lines(figure.subplots(), [e for e in panel if e["column"] == column], keys[0])
            figure.suptitle(title, fontsize=10)
            figure.axes[0].set_ylabel(f"{column}, %")
            paths += save_figure(figure, out / safe(f"sweep {title} {column}"))
    return paths


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of matplotlib.

    Args:
        width: Inches.
        height: Inches.

    Returns:
        The figure.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("plots need matplotlib: pip install 'focoop[plot]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, stem: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure; equal figures give equal files.

    Args:
        figure: A figure of matplotlib.
        stem: The files' path without the ending.
        formats: `svg`, `png`, `pdf`.

    Returns:
        The files, one per format.
    """
    from matplotlib import rc_context

    paths = []
    for kind in formats:
        paths.append(stem.with_name(f"{stem.name}.{kind}"))
        stream = io.BytesIO()
        # Fixed identifiers, too, make equal files.
        with rc_context({"svg.hashsalt": "focoop", "text.parse_math": False}):
            figure.savefig(stream, format=kind, metadata=UNDATED[kind], dpi=DOTS)
        write(paths[-1], stream.getvalue())
    return paths


def parse_formats(text: str) -> tuple[str, ...]:
    """Read kinds of figures such as `svg,png`.

    Args:
        text: Names with commas between them.

    Returns:
        The names, each once.

    Raises:
        ConfigError: There is none, or one is not known.
    """
    names = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    for name in names:
        if name not in FORMATS:
            raise ConfigError(
                f"there is no format {name!r}{nearest(name, FORMATS)}: write {','.join(FORMATS)}"
            )
    if not names:
        raise ConfigError(f"--formats names none: write some of {','.join(FORMATS)}")
    return names


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


def draw_lines(axes: Any, rows: Sequence[Mapping[str, Any]], key: str) -> dict[str, float]:
    """Draw a line per method over the values of one setting, with the deviation as a band.

    Args:
        axes: Axes of matplotlib.
        rows: Rows of one column, as `long_rows` has them.
        key: The setting.

    Returns:
        Where each value of the setting stands on the axis.
    """
    values = list(dict.fromkeys(entry[key] for entry in rows))
    numbers = [_number(value) for value in values]
    numeric = all(number is not None for number in numbers)
    place = {value: numbers[i] if numeric else float(i) for i, value in enumerate(values)}
    for number, label in enumerate(dict.fromkeys(entry["method"] for entry in rows)):
        points = sorted(
            (place[e[key]], e["mean"], e["std"] or 0.0) for e in rows if e["method"] == label
        )
        x, mean, spread = (list(part) for part in zip(*points, strict=True))
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
        axes.plot(
            x,
            mean,
            color=colour,
            linestyle=dash,
            marker=MARKERS[number % len(MARKERS)],
            label=label,
        )
        low, high = ([m + sign * s for m, s in zip(mean, spread, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    positive = [number for number in numbers if number is not None and number > 0]
    if numeric and len(positive) == len(numbers) and max(positive) / min(positive) >= 8:
        axes.set_xscale("log", base=2 if all(n == int(n) for n in positive) else 10)
    axes.set_xticks([place[value] for value in values], values)
    axes.minorticks_off()
    axes.set_xlabel(key)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return {value: float(place[value] or 0.0) for value in values}


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
