"""Cells of `breadth.py` and what all of its tables are made with."""

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

Cells = Sequence[Mapping[str, Any]]
CLOSED = ("fedncm", "fedlda", "fed3r", "gda_clip", "tofa")  # what focoop_plus is held against
OURS = "focoop_plus"
OPEN_SHARE = 0.3  # the default prior's share of images expected of any class
NUMBERS = (("ausuc", "area"), ("mix", "mix"), ("own", "own"), ("all", "all"))


def means(cells: Cells, name: str, **wanted: Any) -> dict[str, tuple[float, float, int]]:
    """Method -> mean, deviation and number of seeds of a number, in percent."""
    values: dict[str, list[float]] = {}
    for cell in cells:
        if name in cell and all(cell[key] == value for key, value in wanted.items()):
            values.setdefault(cell["method"], []).append(100 * cell[name])
    return {
        method: (fmean(found), stdev(found) if len(found) > 1 else 0.0, len(found))
        for method, found in values.items()
    }


def with_means(cell: Mapping[str, Any]) -> dict[str, Any]:
    """A cell with `auroc`, the mean over its OOD sets, and `mix`, what the default prior expects.

    `mix` is the accuracy on such images. Where all classes are everybody's own there is nothing to
    mix, as there is no area.
    """
    made = dict(cell)
    found = [value for key, value in cell.items() if key.startswith("auroc ")]
    if found:
        made["auroc"] = fmean(found)
    if "ausuc" in cell:
        made["mix"] = (1 - OPEN_SHARE) * cell["own"] + OPEN_SHARE * cell["all"]
    return made


def order(methods: set[str]) -> list[str]:
    """Closed forms first, then ours, then what is trained."""
    known = ("zeroshot", *CLOSED, OURS)
    return sorted(methods, key=lambda one: (known.index(one) if one in known else 99, one))


def table(columns: Mapping[str, Mapping[str, tuple[float, float, int]]]) -> str:
    """A markdown table of methods by columns; a number of one seed alone has an asterisk."""
    methods = order({method for found in columns.values() for method in found})
    lines = ["| |" + "".join(f" {name} |" for name in columns), "|---|" + "---:|" * len(columns)]
    for method in methods:
        row = [f"| `{method}` |"]
        for found in columns.values():
            if method not in found:
                row.append(" |")
                continue
            mean, spread, count = found[method]
            best = max(value for value, _, _ in found.values())
            text = f"{mean:.1f}" + (f" ± {spread:.1f}" if count > 1 else " \\*")
            row.append(f" **{text}** |" if len(found) > 1 and mean > best - 0.05 else f" {text} |")
        lines.append("".join(row))
    return "\n".join(lines) + "\n"


def in_words(shots: int) -> str:
    """Shots in words."""
    return {0: "all", -1: "as said"}.get(shots, str(shots))
