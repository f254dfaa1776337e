"""An item's numbers as Markdown, LaTeX and CSV, the paper's value behind each of ours."""

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from focoop.experiments import BOOKTABS, latex_table, markdown_table, tables
from focoop.paper.items import Item
from focoop.paper.numbers import Entry, blocks, seeds_told

WIDE = 8  # columns; with more, methods and columns change places
LOWER = ("fpr95", "fpr95_oodpos", "alarm")


@dataclass(frozen=True)
class Remarks:
    """What stands below the tables of an item.

    Attributes:
        made_with: Backbone, seeds and data, one sentence.
        notes: Notes of the item, and those on this making of it.
        lacking: Parts that could not run, and why.
        failed: Runs that failed, and why.
    """

    made_with: str
    notes: Sequence[str] = ()
    lacking: Sequence[str] = ()
    failed: Sequence[str] = ()


def csv_text(item: Item, found: Sequence[Entry]) -> str:
    """Return one line per number.

    Args:
        item: The item.
        found: Its numbers.

    Returns:
        CSV with a head; percent with all digits, empty where there is no number.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        ("item", "part", "swept", "point", "method", "label", "column")
        + ("ours", "std", "runs", "paper")
    )
    for one in found:
        mean, spread = ("", "") if one.ours is None else (one.ours.mean, one.ours.spread)
        place = (item.name, one.part, one.key, one.point, one.method, one.label, one.column)
        theirs = "" if one.published is None else one.published
        writer.writerow((*place, mean, "" if spread is None else spread, one.runs, theirs))
    return stream.getvalue()


def markdown(item: Item, found: Sequence[Entry], remarks: Remarks) -> str:
    """Return the tables of an item with its notes.

    Args:
        item: The item.
        found: Its numbers.
        remarks: What stands below them.

    Returns:
        Markdown.
    """
    text = [f"# {item.name}: {item.title}", f"{item.paper} of the paper. {remarks.made_with}"]
    for part, members in blocks(item, found).items():
        heads, rows, left = _grid(members, partial(_cell, best=_best(item, members)))
        text += [f"## {part}", markdown_table(heads, rows, left)]
        text += [told] if (told := seeds_told(members)) else []
    text.append(
        "Percent: ours, mean ± sample deviation over seeds, and in brackets the paper's value; "
        "bold: best of ours; -: no run or no value."
    )
    for title, listed in (
        ("Notes", remarks.notes),
        ("Not run", remarks.lacking),
        ("Failed", remarks.failed),
    ):
        if listed:
            text += [f"## {title}", "\n".join(f"- {_one_line(note)}" for note in listed)]
    return "\n\n".join(text) + "\n"


def latex(item: Item, found: Sequence[Entry], remarks: Remarks) -> str:
    """Return a table environment for each block; a document needs booktabs and graphicx.

    Args:
        item: The item.
        found: Its numbers.
        remarks: What the caption says beside the titles.

    Returns:
        LaTeX.
    """
    texts = [BOOKTABS]
    for part, members in blocks(item, found).items():
        heads, rows, left = _grid(members, partial(_latex_cell, best=_best(item, members)))
        told = [f"{item.title}: {part}.", "Ours, and in brackets the paper's.", remarks.made_with]
        caption = " ".join([*told, seeds_told(members)]).strip()
        name = f"{item.name}-{part}"
        texts.append(latex_table(heads, rows, left, caption=caption, name=name, fitted=True))
    return "\n\n".join(texts) + "\n"


def _grid(
    members: Sequence[Entry], shown: Callable[[Entry | None], str]
) -> tuple[list[str], list[list[str]], int]:
    """Heads, cells and text columns of a block.

    Rows are (point,) method -> columns; of a wide block column -> methods.
    """
    columns = list(dict.fromkeys(one.column for one in members))
    methods = list(dict.fromkeys(one.method for one in members))
    keys = [key for key in dict.fromkeys(one.key for one in members) if key]
    at = {(one.point, one.method, one.column): one for one in members}
    points = list(dict.fromkeys(one.point for one in members))
    if len(columns) > WIDE and not keys:
        rows = [[name, *(shown(at.get(("", m, name))) for m in methods)] for name in columns]
        return ["", *methods], rows, 1
    lines = [
        [*([point] if keys else []), method]
        + [shown(at.get((point, method, name))) for name in columns]
        for point in points
        for method in methods
    ]
    return [*keys, "method", *columns], lines, len(keys) + 1


def _best(item: Item, members: Sequence[Entry]) -> dict[tuple[str, str], str]:
    """The best of our means of each point and column, as it is shown."""
    groups: dict[tuple[str, str], list[float]] = {}
    for one in members:
        if one.ours is not None:
            groups.setdefault((one.point, one.column), []).append(one.ours.mean)
    return {
        place: f"{(min if lower_is_better(item, place[1]) else max)(means):.1f}"
        for place, means in groups.items()
        if len(means) > 1
    }


def lower_is_better(item: Item, column: str) -> bool:
    """Say whether less of a column is better.

    Args:
        item: The item.
        column: The paper's name of the column, or a part's name where there is one column alone.

    Returns:
        Whether it is.
    """
    ours = item.columns.get(column) or next(iter(item.columns.values()))
    return ours.split(" ")[0] in LOWER


def _is_best(one: Entry, best: dict[tuple[str, str], str]) -> bool:
    return one.ours is not None and f"{one.ours.mean:.1f}" == best.get((one.point, one.column))


def _cell(one: Entry | None, best: dict[tuple[str, str], str]) -> str:
    if one is None:
        return "-"
    ours = "-" if one.ours is None else str(one.ours)
    ours = f"**{ours}**" if _is_best(one, best) else ours
    return ours if one.published is None else f"{ours} ({one.published:.2f})"


def _latex_cell(one: Entry | None, best: dict[tuple[str, str], str]) -> str:
    if one is None:
        return "--"
    ours = "--" if one.ours is None else tables.latex_number(one.ours, bold=_is_best(one, best))
    return ours if one.published is None else f"{ours} ({one.published:.2f})"


def _one_line(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text.strip())
