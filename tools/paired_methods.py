"""One method against another in every setting of the results: differences in pairs of equal seed.

    python tools/paired_methods.py focoop local_only docs/results/focoop/alone.md

Reads docs/results/cells.json and writes a table between the marks `<!-- paired: begin -->` and
`<!-- paired: end -->` of the page.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

sys.path.insert(0, str(Path(__file__).resolve().parent))

from results_cells import read_rows

from focoop.functional import paired

ROOT = Path(__file__).resolve().parents[1]
CELLS = ROOT / "docs" / "results" / "cells.json"
MARK = re.compile(r"(<!-- paired: begin -->\n).*?(<!-- paired: end -->)", re.DOTALL)
COLUMNS = ("own", "all", "alarm", "auroc")  # the last: mean over the OOD sets of a setting


def value(cell: Mapping[str, Any], name: str) -> float | None:
    """Return a number of a run; for `auroc` the mean over its OOD sets.

    Args:
        cell: The run.
        name: One of `COLUMNS`.

    Returns:
        The number; None where it was not measured.
    """
    if name != "auroc":
        return cell.get(name)
    found = [number for key, number in cell.items() if key.startswith("auroc ")]
    return sum(found) / len(found) if found else None


def table(cells: Sequence[Mapping[str, Any]], first: str, second: str) -> str:
    """Return the differences first - second by setting.

    Args:
        cells: All runs.
        first: A method.
        second: The method it is held against.

    Returns:
        Markdown; bold where the 95% interval of the mean excludes 0.
    """
    runs = {(c["setting"], c["method"], c["seed"]): c for c in cells}
    lines = ["| setting | " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * len(COLUMNS)]
    higher = dict.fromkeys(COLUMNS, 0)
    counted = dict.fromkeys(COLUMNS, 0)
    for setting in sorted({setting for setting, method, _ in runs if method == first}):
        seeds = [n for s, m, n in runs if (s, m) == (setting, first) and (s, second, n) in runs]
        entries = []
        for name in COLUMNS:
            pairs = [
                (value(runs[setting, first, n], name), value(runs[setting, second, n], name))
                for n in seeds
            ]
            known = [(a, b) for a, b in pairs if a is not None and b is not None]
            if not known:
                entries.append("")
                continue
            found = paired.difference([a for a, _ in known], [b for _, b in known])
            counted[name] += 1
            higher[name] += found.mean > 0
            width = found.half_width
            shown = f"{found.mean:+.1f}" + (f" ± {width:.1f}" if width is not None else "")
            sure = width is not None and abs(found.mean) > width
            entries.append(f"**{shown}**" if sure else shown)
        lines.append(f"| `{setting}` | " + " | ".join(entries) + " |")
    told = (f"higher in {higher[name]} of {counted[name]}" for name in COLUMNS)
    return "\n".join([*lines, "| all | " + " | ".join(told) + " |"])


def main() -> int:
    """Write the table into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("first")
    parser.add_argument("second")
    parser.add_argument("page", type=Path)
    given = parser.parse_args()
    page = given.page.read_text(encoding="utf-8")
    if not MARK.search(page):
        print(f"{given.page} has no marks of the table", file=sys.stderr)
        return 1
    found = table(read_rows(CELLS), given.first, given.second)
    page = MARK.sub(lambda mark: f"{mark[1]}\n{found}\n\n{mark[2]}", page)
    given.page.write_text(page, encoding="utf-8")
    print(f"wrote {given.page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
