"""Put the numbers of runs into the pages that quote them, so that nobody copies a number by hand.

    python tools/quoted_results.py [docs]

Reads docs/results/cells.json and rewrites what stands between marks in the pages of the folder:

    <!-- table NAME -->                     a table of `TABLES`
    <!-- end -->
    <!-- cifar100 focoop own -->78.4<!-- end -->     the mean of a setting, method and column

`tools/results_tables.py` calls it. A mark without runs stays as it is and is named.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from plot_results import METHODS
from results_cells import Cells, read_cells

from focoop.experiments.tables import Stat, lower_is_better, stat

MARK = re.compile(r"(<!-- table ([\w.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
NUMBER = re.compile(r"(<!-- ([\w.@-]+) ([\w.:=-]+) ([a-z][\w ]*) -->)[^<]*(<!-- end -->)")
Part = tuple[str, str]  # setting, column


@dataclass(frozen=True)
class Table:
    """Methods against columns; a column shows one part or several with strokes between them.

    Attributes:
        columns: title -> parts.
        methods: methods in order, with the names that readers see.
    """

    columns: dict[str, tuple[Part, ...]]
    methods: dict[str, str]


def of(setting: str, **columns: str) -> dict[str, tuple[Part, ...]]:
    """Columns of one setting; underscores in titles are blanks, strokes part columns."""
    return {
        title.replace("_", " "): tuple((setting, part) for part in text.split("/"))
        for title, text in columns.items()
    }


def detection(setting: str, words: str = "FPR95 / AUROC {}") -> dict[str, tuple[Part, ...]]:
    """Both test OOD sets of CIFAR-100 at its own size."""
    return {
        words.format(name): ((setting, f"fpr95 {found}"), (setting, f"auroc {found}"))
        for name, found in (("textures", "dtd_32px"), ("scenes", "sun_32px"))
    }


SOME = {name: METHODS[name] for name in ("focoop_plus", "focoop", "zeroshot", "centralized")}
TABLES = {
    "results": Table(
        {
            **of("cifar100", own_classes="own", all_classes="all", corrupted="corrupted"),
            **detection("cifar100"),
            **of("cifar100", alarm="alarm"),
        },
        METHODS,
    ),
    "columns": Table(
        of(
            "cifar100",
            own="own",
            all="all",
            corrupted="corrupted",
            FPR95_textures="fpr95 dtd_32px",
            alarm="alarm",
        ),
        SOME,
    ),
    "shared-classes": Table(
        {
            title: ((setting, "own"),)
            for title, setting in (
                ("Dirichlet 0.1", "cifar100-dir0.1"),
                ("0.5", "cifar100-dir0.5"),
                ("5", "cifar100-dir5"),
                ("100 clients", "cifar100-k100"),
            )
        },
        {name: SOME[name] for name in ("focoop_plus", "focoop", "centralized")},
    ),
    "domains": Table(
        {
            title: ((f"pacs-{domain}", "own"),)
            for title, domain in (
                ("paintings", "art_painting"),
                ("cartoons", "cartoon"),
                ("photos", "photo"),
                ("sketches", "sketch"),
            )
        },
        {name: SOME[name] for name in ("focoop_plus", "centralized", "focoop")},
    ),
}


def rendered(table: Table, cells: Cells) -> str:
    """Write a table as markdown; the best of every part is bold, methods without runs are left out.

    Args:
        table: What it shows.
        cells: All runs.

    Returns:
        Markdown, or nothing where no method has runs.
    """
    parts = [part for column in table.columns.values() for part in column]
    found = {
        method: {part: value for part in parts if (value := mean(cells, part, method))}
        for method in table.methods
    }
    rows = {method: values for method, values in found.items() if values}
    if not rows:
        return ""
    best = {
        part: _best(part[1], [row[part] for row in rows.values() if part in row]) for part in parts
    }

    def shown(method: str, part: Part) -> str:
        if part not in rows[method]:
            return "-"
        value = rows[method][part]
        text = f"{value.mean:.1f}"
        return f"**{text}**" if f"{value.mean:.1f}" == best[part] else text

    columns = {
        title: column
        for title, column in table.columns.items()
        if any(part in row for row in rows.values() for part in column)
    }
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for method in rows:
        entries = (
            " / ".join(shown(method, part) for part in column) for column in columns.values()
        )
        lines.append(f"| {table.methods[method]} | {' | '.join(entries)} |")
    return "\n".join(lines) + "\n"


def mean(cells: Cells, part: Part, method: str) -> Stat | None:
    """Mean and deviation of a method over the seeds that have a column."""
    setting, column = part
    values = [
        row[column]
        for (where, label, _), row in cells.items()
        if (where, label) == (setting, method) and column in row
    ]
    return stat(values) if values else None


def _best(column: str, values: Sequence[Stat]) -> str:
    """The best mean as it is shown; nothing where there is no choice."""
    if len(values) < 2:
        return ""
    chosen = (min if lower_is_better(column) else max)(value.mean for value in values)
    return f"{chosen:.1f}"


def rewritten(text: str, cells: Cells) -> tuple[str, list[str]]:
    """Return a page with today's numbers.

    Args:
        text: The page.
        cells: All runs.

    Returns:
        The page, and the marks that have no runs.
    """
    lacking: list[str] = []

    def table(match: re.Match[str]) -> str:
        made = rendered(TABLES[match[2]], cells) if match[2] in TABLES else ""
        if not made:
            lacking.append(f"table {match[2]}")
            return match[0]
        return f"{match[1]}\n{made}\n{match[3]}"  # blank lines: a mark is no row of the table

    def number(match: re.Match[str]) -> str:
        value = mean(cells, (match[2], match[4]), match[3])
        if value is None:
            lacking.append(f"{match[2]} {match[3]} {match[4]}")
            return match[0]
        return f"{match[1]}{value.mean:.1f}{match[5]}"

    return NUMBER.sub(number, MARK.sub(table, text)), lacking


def write_pages(docs: Path, cells: Cells) -> list[Path]:
    """Rewrite every page that quotes a number.

    Args:
        docs: The folder of pages; a README.md beside it is one too.
        cells: All runs.

    Returns:
        The pages that changed.
    """
    changed = []
    readme = docs.parent / "README.md"
    for path in [*([readme] if readme.is_file() else []), *sorted(docs.rglob("*.md"))]:
        before = path.read_text(encoding="utf-8")
        after, lacking = rewritten(before, cells)
        for mark in lacking:
            print(f"{path}: no runs for {mark}")
        if after != before:
            path.write_text(after, encoding="utf-8")
            changed.append(path)
    return changed


def main() -> int:
    """Rewrite the pages of a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("docs", nargs="?", type=Path, default=Path("docs"))
    docs = parser.parse_args().docs
    for path in write_pages(docs, read_cells(docs / "results" / "cells.json")):
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
