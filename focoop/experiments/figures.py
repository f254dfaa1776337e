"""Figures of results: lines with a band of deviation, in colours that all tell apart."""

import io
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from focoop.errors import ConfigError, MissingExtra, nearest
from focoop.runs import write

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
MANYFOLD = 8  # the largest value by the smallest, from which on an axis is logarithmic
ROOM = 0.05  # of a logarithmic axis, which the name of a value needs


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


def _too_near(numbers: Sequence[float]) -> set[float]:
    """Numbers whose names would touch the next one's on a logarithmic axis."""
    ordered = sorted(numbers)
    least = ROOM * math.log(ordered[-1] / ordered[0])
    return {low for low, high in pairwise(ordered) if math.log(high / low) < least}


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
    base = log_base([number for number in numbers if number is not None]) if numeric else 0
    if base:
        axes.set_xscale("log", base=base)
    near = _too_near([number for number in numbers if number is not None]) if base else set()
    named = ["" if place[value] in near else value for value in values]
    axes.set_xticks([place[value] for value in values], named)
    axes.minorticks_off()
    axes.set_xlabel(key)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return {value: float(place[value] or 0.0) for value in values}


def log_base(values: Sequence[float]) -> int:
    """Choose the axis of a swept setting: logarithmic where its values grow manyfold.

    Args:
        values: The setting's values.

    Returns:
        2 for whole numbers, else 10; 0: an even axis.
    """
    if not values or min(values) <= 0 or max(values) / min(values) < MANYFOLD:
        return 0
    return 2 if all(value == int(value) for value in values) else 10


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
