"""The label-by-client picture: who holds which classes, as text and as an image file."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from focoop.cli.display.sheet import GAP, Column, Sheet
from focoop.errors import DataError, MissingExtra

if TYPE_CHECKING:  # every command imports this module, and numpy takes its time
    import numpy as np
    from numpy.typing import NDArray

SHADES = " ░▒▓█"
PLAIN_SHADES = " .:+#"
LEAST_PICTURE = 10  # shades of a client, however narrow the screen
LABEL, ROW = 0.14, 0.28  # inches along an axis for one name and for one client
MOST_WIDE, MOST_HIGH = 30.0, 40.0  # inches of the axes
LONGEST = 28  # letters of a name beside an axis
PLOT_HINT = "plots need matplotlib: pip install matplotlib (or focoop[plot])"


def partition_table(
    counts: "NDArray[np.int64]",
    width: int,
    *,
    unicode: bool = True,
    held_out: Sequence[int] = (),
    names: Sequence[str] = (),
) -> Sheet:
    """The label-by-client picture: a row per client, a shade per class (or few classes).

    Args:
        counts: (K, C) images of each client and class.
        width: columns of the screen; many classes share a shade so that a row fits.
        unicode: whether the screen can show blocks.
        held_out: (K) test images of each client, if known.
        names: (K) names of the clients, if they have some.

    Returns:
        The table.
    """
    columns = [Column("client", right=not names), Column("images", True), Column("classes", True)]
    rows: list[list[str | Text]] = []
    for client, row in enumerate(counts):
        named = f"{client} {names[client]}" if names else str(client)
        rows.append([named, str(row.sum()), str((row > 0).sum())])
    if len(held_out):
        columns.append(Column("test", True))
        for cells, held in zip(rows, held_out, strict=True):
            cells.append(str(held))
    taken = Sheet(columns, rows).width + GAP
    drawn = max(1, min(counts.shape[1], max(width - taken, LEAST_PICTURE)))
    shades = SHADES if unicode else PLAIN_SHADES
    for cells, picture in zip(rows, _pictures(counts, drawn), strict=True):
        cells.append(Text("".join(shades[level] for level in picture)))
    return Sheet([*columns, Column(f"classes 0 to {counts.shape[1] - 1}")], rows)


def _pictures(counts: "NDArray[np.int64]", columns: int) -> Iterator[list[int]]:
    """Shade 0 (none) to 4 (the largest cell) of each group of neighbouring classes."""
    import numpy as np

    edges = np.linspace(0, counts.shape[1], columns + 1).astype(int)[:-1]
    grouped = np.add.reduceat(counts, edges, axis=1)  # (K, columns)
    top = max(1, int(grouped.max()))
    for row in grouped:
        yield [0 if value == 0 else 1 + min(3, int(4 * (value - 1) / top)) for value in row]


def plot_partition(
    counts: "NDArray[np.int64]", classes: Sequence[str], path: Path, names: Sequence[str] = ()
) -> None:
    """Draw the label-by-client picture as an image file: bubbles, one per client and class.

    Args:
        counts: (K, C) images of each client and class.
        classes: (C) names of the classes.
        path: the file; its ending says which format.
        names: (K) names of the clients, if they have some.

    Raises:
        MissingExtra: if matplotlib is not installed.
        DataError: if the file cannot be written.
    """
    try:
        import matplotlib
        import numpy as np
    except ModuleNotFoundError as error:
        raise MissingExtra(PLOT_HINT) from error
    matplotlib.use("Agg")
    from matplotlib import colormaps, pyplot
    from matplotlib.colors import ListedColormap

    clients, labels = np.nonzero(counts)
    shares = counts[clients, labels] / max(1, counts.max())
    # The light end of a colour map is lost on white paper.
    blues = ListedColormap(colormaps["Blues"](np.linspace(0.6, 1.0, 256)))
    with matplotlib.rc_context({"text.parse_math": False}):  # names may hold dollar signs
        wide, high = (
            _inches(counts.shape[1], LABEL, MOST_WIDE),
            _inches(len(counts), ROW, MOST_HIGH),
        )
        figure, axes = pyplot.subplots(figsize=(wide + 2.5, high + 1.8), layout="constrained")
        try:
            drawn = axes.scatter(
                labels, clients, s=8 + 60 * shares, c=counts[clients, labels], cmap=blues,
                vmin=0, vmax=max(1, counts.max()), zorder=2,
            )  # fmt: skip
            axes.set(xlabel="class", ylabel="client", xlim=(-1, counts.shape[1]))
            axes.set_ylim(counts.shape[0] - 0.5, -0.5)
            axes.grid(alpha=0.25)
            _ticks(axes.set_xticks, classes, wide, rotation=90)
            _ticks(axes.set_yticks, names or list(map(str, range(len(counts)))), high)
            size = {"fraction": 0.3 / wide, "shrink": min(1.0, 3 / high), "aspect": 15}
            figure.colorbar(drawn, ax=axes, label="images", **size)
            figure.savefig(path, dpi=150)
        except (OSError, ValueError) as error:  # an unwritable place or an unknown ending
            raise DataError(f"cannot write the plot {path}: {error}") from error
        finally:
            pyplot.close(figure)


def _inches(count: int, each: float, most: float) -> float:
    """The length of an axis with so many rows or columns."""
    return min(max(2.0, each * count), most)


def _ticks(
    set_ticks: Callable[..., object], names: Sequence[str], inches: float, **how: int
) -> None:
    """Write names along an axis: all of them where they fit, else every second, third, ..."""
    every = max(1, math.ceil(len(names) * LABEL / inches - 1e-9))
    shown = [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in names[::every]]
    set_ticks(range(0, len(names), every), shown, fontsize=7, **how)
