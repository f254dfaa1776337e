"""Results over seeds: mean and spread in percent, as markdown with the best of a column bold."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from focoop.errors import ConfigError, nearest
from focoop.experiments.typeset import latex_table, markdown_table

DETECTION = ("fpr95", "fpr95_oodpos", "auroc")
LOWER_IS_BETTER = ("alarm", "fpr95", "fpr95_oodpos")
REVERSED = 0.3  # an AUROC below this is no chance: the score orders images the wrong way round
SETS_PER_TABLE = 2  # three columns each: what a page holds
NOTE = (
    "Percent, mean ± sample deviation over seeds; bold: best of a column. fpr95: OOD accepted when "
    "95% of ID is kept; fpr95_oodpos: ID flagged when 95% of OOD is; alarm: other clients' ID "
    "images flagged. Lower is better for these three. new: accuracy on classes without training "
    "images. own and all: as answered, at each method's open_share. The same for all methods: own-"
    "alone (own images, answered among own classes), all-open (all images, without a prior) and "
    "ausuc (area under own against other classes as a bias on own classes varies). harmonic: "
    "harmonic mean of own and other classes as answered."
)


@dataclass(frozen=True)
class Stat:
    """Mean and, of two values or more, sample standard deviation."""

    mean: float
    spread: float | None
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.1f}" if self.spread is None else f"{self.mean:.1f} ± {self.spread:.1f}"


Row = Mapping[str, Stat]


def columns(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a result in percent; what was not measured is left out.

    Args:
        summary: The summary of an evaluation.

    Returns:
        Numbers by column.
    """
    row = {
        "own": summary.get("accuracy_own"),
        "all": summary.get("accuracy_all"),
        "own-alone": summary.get("accuracy_own_alone"),
        "all-open": summary.get("accuracy_all_open"),
        "new": summary.get("accuracy_new"),
        "corrupted": summary.get("accuracy_corrupted"),
        "ausuc": (summary.get("frontier") or {}).get("ausuc"),
        "harmonic": (summary.get("frontier") or {}).get("harmonic"),
        "alarm": summary.get("cross_alarm"),
    }
    for name, values in summary.get("ood", {}).items():
        row |= {f"{metric} {name}": values.get(metric) for metric in DETECTION}
    return {name: 100 * value for name, value in row.items() if value is not None}


def doubt_sign(summary: Mapping[str, Any]) -> str:
    """Say that a score seems to have the wrong sign.

    Args:
        summary: The summary of an evaluation.

    Returns:
        A sentence; nothing where no AUROC is far below 50%.
    """
    found = {name: values.get("auroc") for name, values in summary.get("ood", {}).items()}
    low = [f"{name} {100 * v:.1f}%" for name, v in found.items() if v is not None and v < REVERSED]
    if not low:
        return ""
    return (
        f"AUROC far below 50% ({', '.join(low)}): the score may have the wrong sign, a higher one "
        "must mean more foreign"
    )


def stat(values: Sequence[float]) -> Stat:
    """Return mean and sample deviation.

    Args:
        values: The values.

    Returns:
        Both.

    >>> str(stat([1.0, 2.0, 3.0])), str(stat([4.0]))
    ('2.0 ± 1.0', '4.0')
    """
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Stat(mean, None, 1)
    square = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return Stat(mean, math.sqrt(square), len(values))


def over_seeds(summaries: Iterable[Mapping[str, Any]]) -> dict[str, Stat]:
    """Average results over runs.

    Args:
        summaries: Summaries of evaluations.

    Returns:
        Mean and spread by column, over the runs that have it.
    """
    by_column: dict[str, list[float]] = {}
    for summary in summaries:
        for name, value in columns(summary).items():
            by_column.setdefault(name, []).append(value)
    return {name: stat(values) for name, values in by_column.items()}


def lower_is_better(column: str) -> bool:
    """Say whether less of a column, such as `fpr95 dtd`, is better.

    Args:
        column: The column's name.

    Returns:
        Whether it is.
    """
    return column.split(" ", 1)[0] in LOWER_IS_BETTER


def best(column: str, rows: Iterable[Row]) -> str | None:
    """Return the best mean of a column as it is shown, so that what looks equal is equally best.

    Args:
        column: The column's name.
        rows: The rows.

    Returns:
        The number as text, or None where no row has one.
    """
    means = [row[column].mean for row in rows if column in row]
    if len(means) < 2:
        return None
    return f"{min(means) if lower_is_better(column) else max(means):.1f}"


def markdown(rows: Sequence[tuple[str, Row, str]]) -> str:
    """Write narrow tables: accuracy, then detection.

    Args:
        rows: Label, columns and number of runs of each line.

    Returns:
        Markdown.
    """
    present = dict.fromkeys(name for _, row, _ in rows for name in row)
    sets = list(dict.fromkeys(name.split(" ", 1)[1] for name in present if " " in name))
    tables = [[name for name in present if " " not in name]]
    for i in range(0, len(sets), SETS_PER_TABLE):
        group = sets[i : i + SETS_PER_TABLE]
        tables.append([f"{metric} {dataset}" for dataset in group for metric in DETECTION])
    return "\n\n".join(_table(names, rows, runs=not i) for i, names in enumerate(tables))


def _table(names: Sequence[str], rows: Sequence[tuple[str, Row, str]], *, runs: bool) -> str:
    top = {name: best(name, [row for _, row, _ in rows]) for name in names}
    lines = []
    for label, row, count in rows:
        cells = [_cell(row.get(name), top[name]) for name in names]
        lines.append([label.replace("|", "\\|"), *cells, *([count] if runs else [])])
    return markdown_table(["method", *names, *(["runs"] if runs else [])], lines)


def _cell(value: Stat | None, top: str | None) -> str:
    if value is None:
        return "-"
    return f"**{value}**" if f"{value.mean:.1f}" == top else str(value)


def with_arrow(column: str) -> str:
    """Add to a column's name whether more or less of it is better.

    Args:
        column: The column's name.

    Returns:
        Such as `own ↑`.

    >>> with_arrow("fpr95 dtd")
    'fpr95 dtd ↓'
    """
    return f"{column} {'↓' if lower_is_better(column) else '↑'}"


def latex(
    rows: Sequence[tuple[str, Row, str]],
    setting: str,
    chosen: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
) -> str:
    """One LaTeX table (booktabs), the best of a column bold.

    Args:
        rows: (label, columns, number of runs) of each method.
        setting: What they ran on, for the caption and the label.
        chosen: The columns to show, in this order; empty: all, and the number of runs.
        labels: How methods, columns and the setting are written, by their names; others stay.

    Returns:
        A `table` environment; the document needs the package booktabs.

    Raises:
        ConfigError: No row has such a column.
    """
    known = list(dict.fromkeys(name for _, row, _ in rows for name in row))
    for name in chosen:
        if known and name not in known:
            raise ConfigError(f"there is no column {name!r}{nearest(name, known)}")
    names, called = list(chosen or known), labels or {}
    top = {name: best(name, [row for _, row, _ in rows]) for name in names}
    lines = [
        [
            called.get(label, label),
            *(_latex_cell(row.get(name), top[name]) for name in names),
            *([] if chosen else [count]),
        ]
        for label, row, count in rows
    ]
    arrows = {name: with_arrow(name).removeprefix(name) for name in names}
    heads = [f"{called.get(name, name)}{arrows[name]}" for name in names]
    heads = [called.get("method", "method"), *heads, *([] if chosen else ["runs"])]
    most = max((value.count for _, row, _ in rows for value in row.values()), default=1)
    told = f"mean ± sample deviation over {most} seeds" if most > 1 else "one seed"
    caption = (
        f"Methods on {called.get(setting, setting)}: percent, {told}; bold: best of a column; "
        "↑: more is better, ↓: less is better."
    )
    return latex_table(heads, lines, caption=caption, name=setting) + "\n"


def _latex_cell(value: Stat | None, top: str | None) -> str:
    if value is None:
        return "--"
    return latex_number(value, bold=f"{value.mean:.1f}" == top)


def latex_number(value: Stat, *, bold: bool = False) -> str:
    """Return a mean and its deviation in LaTeX.

    Args:
        value: Both.
        bold: Whether the mean is bold.

    Returns:
        LaTeX in math mode.
    """
    mean = f"\\mathbf{{{value.mean:.1f}}}" if bold else f"{value.mean:.1f}"
    return f"${mean}$" if value.spread is None else f"${mean} \\pm {value.spread:.1f}$"
