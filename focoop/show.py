"""Results and partitions as people read them: tables, the label-by-client picture, a plot."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table
from rich.text import Text

from focoop.errors import DataError, MissingExtra

SHADES = " ░▒▓█"
PLAIN_SHADES = " .:+#"
NOTE = (
    "percent; fpr95: OOD accepted when 95% of ID is kept, alarm: other clients' ID images "
    "flagged (both: lower is better)"
)
PLOT_HINT = "plots need matplotlib: pip install matplotlib (or focoop[plot])"


def percent(value: float | None) -> str:
    """A share as a percentage with one decimal; a dash where there is none."""
    return "-" if value is None or value != value else f"{100 * value:.1f}"


def headline(summary: Mapping[str, Any]) -> dict[str, str]:
    """The columns of a result, in the order of the tables, as text."""
    columns = {
        "own classes": percent(summary.get("accuracy_own")),
        "all classes": percent(summary.get("accuracy_all")),
        "corrupted": percent(summary.get("accuracy_corrupted")),
    }
    for name, values in summary.get("ood", {}).items():
        columns[f"fpr95 {name}"] = percent(values.get("fpr95"))
        columns[f"auroc {name}"] = percent(values.get("auroc"))
    columns["cross-client alarm"] = percent(summary.get("cross_alarm"))
    return columns


def results_table(rows: Sequence[tuple[str, Mapping[str, Any]]], title: str = "") -> Table:
    """One line per metric and one column per (label, evaluation summary), in percent.

    Metrics outnumber the runs that are compared: this way up the table fits 80 columns.
    """
    table = Table(title=title or None, box=box.SIMPLE_HEAD)
    found = [headline(summary) for _, summary in rows]
    table.add_column("", no_wrap=True)
    for label, _ in rows:
        table.add_column(label, justify="right")
    for name in dict.fromkeys(name for one in found for name in one):
        table.add_row(name, *(one.get(name, "-") for one in found))
    return table


def clients_table(clients: Sequence[Mapping[str, Any]]) -> Table:
    """One row per client of an evaluation."""
    table = Table(box=box.SIMPLE_HEAD)
    columns: dict[str, None] = {}
    rows = []
    for row in clients:
        corrupted = [entry["accuracy"] for entry in row.get("corrupted", {}).values()]
        mean = sum(corrupted) / len(corrupted) if corrupted else None
        rows.append((row, headline({**row, "accuracy_corrupted": mean})))
        columns |= dict.fromkeys(rows[-1][1])
    for name in ("client", "classes", "test images", *columns):
        table.add_column(name, justify="right", overflow="fold")
    for row, found in rows:
        first = (row["client"], row["num_classes"], row["num_test"])
        table.add_row(*map(str, first), *(found.get(name, "-") for name in columns))
    return table


def partition_table(
    counts: NDArray[np.int64],
    width: int,
    *,
    unicode: bool = True,
    held_out: Sequence[int] = (),
    names: Sequence[str] = (),
) -> Table:
    """The label-by-client picture: a row per client, a shade per class (or few classes).

    `counts` (K, C) are images; `held_out` are test images of each client and `names` its name,
    where known.
    """
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("client", justify="left" if names else "right", no_wrap=True)
    for name in ("images", "classes"):
        table.add_column(name, justify="right", no_wrap=True)
    if len(held_out):
        table.add_column("test", justify="right", no_wrap=True)
    columns = max(1, min(counts.shape[1], width))
    table.add_column(f"classes 0 to {counts.shape[1] - 1}", no_wrap=True, min_width=columns)
    shades = SHADES if unicode else PLAIN_SHADES
    for client, (row, picture) in enumerate(zip(counts, _pictures(counts, columns), strict=True)):
        drawn = "".join(shades[level] for level in picture)
        named = Text(f"{client} {names[client]}" if names else str(client))
        cells: list[str | Text] = [named, str(row.sum()), str((row > 0).sum())]
        if len(held_out):
            cells.append(str(held_out[client]))
        table.add_row(*cells, Text(drawn))
    return table


def _pictures(counts: NDArray[np.int64], columns: int) -> Iterator[list[int]]:
    """Shade 0 (none) to 4 (the largest cell) of each group of neighbouring classes."""
    edges = np.linspace(0, counts.shape[1], columns + 1).astype(int)[:-1]
    grouped = np.add.reduceat(counts, edges, axis=1)  # (K, columns)
    top = max(1, int(grouped.max()))
    for row in grouped:
        yield [0 if value == 0 else 1 + min(3, int(4 * (value - 1) / top)) for value in row]


def plot_partition(counts: NDArray[np.int64], classes: Sequence[str], path: Path) -> None:
    """The label-by-client picture as an image file: bubbles, one per client and class."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise MissingExtra(PLOT_HINT) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    clients, labels = np.nonzero(counts)
    sizes = counts[clients, labels] / max(1, counts.max())
    figure, axes = pyplot.subplots(
        figsize=(max(5.0, 0.11 * counts.shape[1] + 2), max(2.5, 0.28 * counts.shape[0] + 1.2)),
        layout="constrained",
    )
    try:
        axes.scatter(labels, clients, s=8 + 60 * sizes, c=sizes, cmap="viridis", vmin=0, vmax=1)
        axes.set(xlabel="class", ylabel="client", xlim=(-1, counts.shape[1]))
        axes.set_ylim(counts.shape[0] - 0.5, -0.5)
        axes.grid(alpha=0.25)
        if counts.shape[1] <= 40:
            axes.set_xticks(range(counts.shape[1]), classes, rotation=90, fontsize=7)
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:  # an unwritable place or an unknown ending
        raise DataError(f"cannot write the plot {path}: {error}") from error
    finally:
        pyplot.close(figure)
