"""Put the results of several machines together: one evidence file, one page of tables.

    python tools/results_tables.py docs/results runs/compare/results.json other/results.json

Reads `results.json` files of `focoop compare` and the `cells.json` already there (not with
`--fresh`); a cell that comes up twice is taken from the file named last. Writes `cells.json` (every
finished run: setting, method, seed, percent by column), `tables.md`, and the tables and numbers
that the pages beside the folder quote (`quoted_results.py`).
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from quoted_results import write_pages
from results_cells import REPEATS, Cells, read_cells, read_results, write_rows

from focoop.experiments.tables import NOTE, markdown, stat

# Settings whose test images come from a domain that no client has.
LEFT_OUT = ("office", "pacs")
SEEDS = 3


def main() -> int:
    """Merge and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--fresh", action="store_true", help="forget the runs already there")
    given = parser.parse_args()
    evidence = given.folder / "cells.json"
    cells = read_cells(evidence) if evidence.exists() and not given.fresh else {}
    for path in given.files:
        cells |= read_results(path)
    given.folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"setting": s, "method": m, "seed": n, **{k: round(v, 3) for k, v in row.items()}}
        for (s, m, n), row in sorted(cells.items())
    ]
    write_rows(evidence, rows)
    (given.folder / "tables.md").write_text(page(cells), encoding="utf-8")
    print(f"{len(cells)} runs in {evidence}")
    for path in write_pages(given.folder.parent, cells):
        print(f"wrote {path}")
    return 0


def page(cells: Cells) -> str:
    """All settings, each with its tables."""
    parts = [f"# Tables\n\n{NOTE}\nMade by `tools/results_tables.py` from `cells.json`. {REPEATS}"]
    parts += [f"## At a glance: {title}\n\n{table}" for title, table in glance(cells).items()]
    for setting in dict.fromkeys(key[0] for key in sorted(cells)):
        labels = dict.fromkeys(key[1] for key in cells if key[0] == setting)
        rows = []
        for label in sorted(labels, key=order):
            runs = [row for key, row in sorted(cells.items()) if key[:2] == (setting, label)]
            names = dict.fromkeys(name for row in runs for name in row)
            means = {name: stat([row[name] for row in runs if name in row]) for name in names}
            rows.append((label, means, str(len(runs))))
        parts.append(f"## {setting}\n\n{markdown(rows)}")
    return "\n\n".join(parts) + "\n"


def glance(cells: Cells) -> dict[str, str]:
    """Settings against methods, means alone; a number in brackets counts runs below three."""
    settings = list(dict.fromkeys(key[0] for key in sorted(cells)))
    domains = [s for s in settings if s.split("-")[0] in LEFT_OUT]
    others = [s for s in settings if s not in domains]
    sets = {
        s: nearest({n for key, row in cells.items() if key[0] == s for n in row}) for s in settings
    }
    found = {
        "own / all / alarm": pivot(cells, dict.fromkeys(others, ("own", "all", "alarm"))),
        "FPR95 / AUROC of the first OOD set, at the ID images' size where there is such": pivot(
            cells, {s: (f"fpr95 {sets[s]}", f"auroc {sets[s]}") for s in settings}
        ),
    }
    if domains:
        found["accuracy on the domain that nobody has seen"] = pivot(
            cells, dict.fromkeys(domains, ("own",))
        )
    return found


def nearest(names: set[str]) -> str:
    """The first OOD set by name, one that was made as small as the ID images before all others."""
    sets = sorted(name.removeprefix("auroc ") for name in names if name.startswith("auroc "))
    return min(sets, key=lambda name: (not name.endswith("px"), name))


def pivot(cells: Cells, wanted: dict[str, tuple[str, ...]]) -> str:
    """One row per setting, one column per method that ran there."""
    labels = sorted({key[1] for key in cells if key[0] in wanted}, key=order)
    lines = [f"| setting | {' | '.join(labels)} |", "| --- |" + " ---: |" * len(labels)]
    for setting, names in wanted.items():
        entries = []
        for label in labels:
            runs = [row for key, row in cells.items() if key[:2] == (setting, label)]
            runs = [row for row in runs if all(name in row for name in names)]
            means = [f"{stat([row[name] for row in runs]).mean:.1f}" for name in names if runs]
            few = f" ({len(runs)})" if 0 < len(runs) < SEEDS else ""
            entries.append(" / ".join(means) + few if runs else "-")
        lines.append(f"| {setting} | {' | '.join(entries)} |")
    return "\n".join(lines)


def order(label: str) -> tuple[int, str]:
    """Floors and bounds first, then baselines, FOCoOp last."""
    first = ["zeroshot", "local_only", "centralized", "promptfl"]
    if label in first:
        return first.index(label), label
    return (9 if label.startswith("focoop") else 5), label


if __name__ == "__main__":
    sys.exit(main())
