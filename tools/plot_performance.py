"""Plots of benchmarks/gpu.py's answers, for docs/notebook/speed.md.

    python tools/plot_performance.py docs/performance/h200.json [docs/performance]

Writes clients.svg (K), classes.svg (C) and tower.svg (share of the matrix peak).
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import NullLocator  # noqa: E402

Row = dict[str, Any]


def rows_of(found: dict[str, Any], part: str, wanted: str) -> list[Row]:
    """Rows of a part that hold the value; those that ran out of memory or time have none."""
    return [row for row in found.get(part, []) if wanted in row]


def panel(title: str, across: str, up: str) -> tuple[Any, Any]:
    """An empty plot of a page's width."""
    figure, axes = plt.subplots(figsize=(5, 3))
    axes.set(title=title, xlabel=across, ylabel=up)
    axes.grid(alpha=0.3)
    return figure, axes


def plain(axes: Any, across: Sequence[float], up: Sequence[float] = ()) -> None:
    """Ticks at the measured values, written out."""
    axes.set_xticks(across, [f"{value:g}" for value in across])
    axes.xaxis.set_minor_locator(NullLocator())
    if up:
        axes.set_yticks(up, [f"{value:g}" for value in up])
        axes.yaxis.set_minor_locator(NullLocator())


def clients(found: dict[str, Any]) -> Any:
    """Milliseconds per client of a round against K."""
    rows = rows_of(found, "clients", "s per client")
    figure, axes = panel("cost of a client in a round", "clients K", "ms per client")
    axes.loglog([r["K"] for r in rows], [1e3 * r["s per client"] for r in rows], marker="o")
    plain(axes, [r["K"] for r in rows], [10, 12, 15, 20])
    return figure


def classes(found: dict[str, Any]) -> Any:
    """Seconds of a round against C."""
    rows = rows_of(found, "classes", "round s")
    figure, axes = panel("a round of 10 clients", "classes C", "seconds")
    axes.loglog([r["C"] for r in rows], [r["round s"] for r in rows], marker="o")
    plain(axes, [r["C"] for r in rows], [0.1, 0.2, 0.5, 1.0])
    return figure


def tower(found: dict[str, Any]) -> Any:
    """Share of the matrix peak against the number of prompts, and the bar."""
    figure, axes = panel("text tower, forward and backward", "prompts", "share of matrix peak")
    for kind in ("class-specific", "unified"):
        rows = [r for r in rows_of(found, "tower", "share of peak") if r["contexts"] == kind]
        shares = [r["share of peak"] for r in rows]
        axes.semilogx([r["prompts"] for r in rows], shares, marker="o", label=kind)
    plain(axes, sorted({r["prompts"] for r in rows_of(found, "tower", "share of peak")}))
    axes.axhline(0.45, color="grey", linestyle="--", label="bar")
    axes.set_ylim(bottom=0)
    axes.legend()
    return figure


def write(found: dict[str, Any], folder: Path) -> list[Path]:
    """One SVG per part that was measured."""
    folder.mkdir(parents=True, exist_ok=True)
    # Text stays text and ids do not change from run to run: small files, small diffs.
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "focoop"})
    written = []
    for name, draw in (("clients", clients), ("classes", classes), ("tower", tower)):
        if not any("error" not in row for row in found.get(name, [])):
            continue
        figure = draw(found)
        path = folder / f"{name}.svg"
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
        plt.close(figure)
        written.append(path)
    return written


def main() -> None:
    source = Path(sys.argv[1])
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else source.parent
    for path in write(json.loads(source.read_text()), folder):
        print(path)


if __name__ == "__main__":
    main()
