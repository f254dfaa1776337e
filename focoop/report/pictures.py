"""Small pictures of a report that need no plot library: images of matrices, strips of points."""

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

LARGEST = 512  # cells of a side; larger matrices are averaged in blocks
# From light to dark, readable in both themes and by the colour-blind (a part of "cividis").
RAMP = np.array([[253, 234, 69], [166, 157, 117], [124, 123, 120], [66, 78, 107], [0, 34, 78]])


def matrix_image(values: np.ndarray[Any, Any], alt: str, cut: int = 0) -> str:
    """Draw a matrix as an image: dark cells are large.

    Args:
        values: (rows, columns) of numbers, none negative.
        alt: What the picture shows, for those who do not see it.
        cut: Behind so many columns stands a line; 0: there is none.

    Returns:
        An element with the picture inside.
    """
    cells = _blocks(np.asarray(values, dtype=np.float64))
    top = cells.max()
    share = cells / top if top > 0 else cells
    place = share * (len(RAMP) - 1)
    low = np.minimum(place.astype(int), len(RAMP) - 2)
    part = (place - low)[..., None]
    colours = RAMP[low] * (1 - part) + RAMP[low + 1] * part
    colours[cells <= 0] = (236, 236, 236)
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(colours.round().astype(np.uint8)).save(stream, "PNG", optimize=True)
    source = base64.b64encode(stream.getvalue()).decode()
    rows, columns = cells.shape
    at = f'<span class="cut" style="left:{100 * cut / len(values[0]):.2f}%"></span>' if cut else ""
    return (
        f'<div class="plan">{at}<img class="matrix" width="{columns}" height="{rows}" '
        f'alt="{escape(alt)}" src="data:image/png;base64,{source}"></div>'
    )


def _blocks(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A matrix of at most `LARGEST` rows and columns, by means of blocks."""
    for axis in (0, 1):
        size = values.shape[axis]
        if size > LARGEST:
            starts = np.linspace(0, size, LARGEST, endpoint=False).astype(int)
            counts = np.diff([*starts, size])
            shape = (-1, 1) if axis == 0 else (1, -1)
            values = np.add.reduceat(values, starts, axis=axis) / counts.reshape(shape)
    return values


def strip(groups: Mapping[str, Sequence[float]], what: str) -> str:
    """Draw one line of points per group, such as the accuracy of every client by method.

    Args:
        groups: Percentages by the name of a group.
        what: What a point is, for the description.

    Returns:
        An `<svg>` element, 0 to 100 from left to right.
    """
    # Names stand above their points, where long ones have room; on a phone letters are larger.
    step, left, width = 66, 14, 760
    height = step * len(groups) + 34
    scale = (width - left - 30) / 100
    parts = [
        f'<svg class="strip" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(what)}">'
    ]
    for tick in range(0, 101, 20):
        x = left + tick * scale
        parts.append(f'<line class="grid" x1="{x:.0f}" x2="{x:.0f}" y1="4" y2="{height - 26}"/>')
        parts.append(f'<text class="tick" x="{x:.0f}" y="{height - 8}">{tick}</text>')
    for row, (name, values) in enumerate(groups.items()):
        y = step * row + 50
        parts.append(f'<text class="name" x="0" y="{y - 24}">{escape(_short(name))}</text>')
        for value in values:
            parts.append(f'<circle cx="{left + value * scale:.1f}" cy="{y:.1f}" r="5"/>')
        if values:
            x = left + min(values) * scale
            parts.append(
                f'<circle class="worst" cx="{x:.1f}" cy="{y:.1f}" r="8">'
                f"<title>{escape(name)}: worst {min(values):.1f}</title></circle>"
            )
    return "".join([*parts, "</svg>"])


def _short(name: str) -> str:
    return name if len(name) <= 48 else name[:47] + "…"


def bar(value: float, most: float = 100.0) -> str:
    """Draw a number as a bar behind its digits.

    Args:
        value: The number.
        most: The number whose bar is full.

    Returns:
        An HTML element.
    """
    share = 0.0 if most <= 0 else min(max(100 * value / most, 0.0), 100.0)
    return f'<span class="bar" style="width:{share:.1f}%"></span>'
