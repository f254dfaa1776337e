"""Write docs/leaderboard.md from the committed runs: methods by groups of settings.

    python tools/leaderboard.py [docs]

Reads docs/results/cells.json, which `tools/results_tables.py` makes from grids of `focoop compare`,
and docs/results/origins.json, which says at what commit and where each method's runs were made. A
method stands in a group only with all settings of it and all seeds. Rows that show what a method is
worth must be there: training alone, closed-form statistics, training off.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from results_cells import REPEATS, Cells, read_cells

from focoop.experiments.tables import best, lower_is_better, stat

REQUIRED = ("local_only", "fedlda", "zeroshot")
GROUPS = {
    "No class in common": (
        "CIFAR-100, TinyImageNet, Caltech101, Pets and DTD, ten clients, 8 shots.",
        ("cifar100", "tinyimagenet", "caltech101", "oxford_pets", "dtd"),
    ),
    "No class in common, images with patch features": (
        "The same five datasets, but only images that have patch features, which FedOTP, FedLoCoOp "
        "and FedGalLoP read: per class 16 training and 20 test images of CIFAR-100, fewer of the "
        "others.",
        tuple(
            f"{name}-patches"
            for name in ("cifar100", "tinyimagenet", "caltech101", "oxford_pets", "dtd")
        ),
    ),
    "Shared classes": (
        "CIFAR-100 by Dirichlet 0.1, 0.5 and 5, ten clients, and a hundred clients of 20 classes. "
        f"{REPEATS}",
        ("cifar100-dir0.1", "cifar100-dir0.5", "cifar100-dir5", "cifar100-k100"),
    ),
    "A domain nobody has seen": (
        "PACS and Office, a client per domain, one domain left out. Own and all are the same here.",
        tuple(
            f"{data}-{domain}"
            for data, domains in (
                ("pacs", ("art_painting", "cartoon", "photo", "sketch")),
                ("office", ("amazon", "caltech10", "dslr", "webcam")),
            )
            for domain in domains
        ),
    ),
}
COLUMNS = ("own", "all", "ausuc", "auroc", "fpr95", "fpr95_oodpos", "alarm")
COMPACT = '<div class="compact" markdown>'  # a class of docs/stylesheets/site.css
PAGE = """# Leaderboard

Methods by groups of settings, made by `python tools/leaderboard.py` from [every run's numbers](results/cells.json).
Percent, last round, means over the settings of a group and {seeds} seeds ± deviation over seeds; `mini`, {runs} runs. auroc, fpr95
and fpr95_oodpos are means over all OOD sets. fpr95: OOD images accepted when 95% of ID images are kept; fpr95_oodpos: ID images flagged when 95%
of OOD images are. Methods are in the order of *{order}*; bold: best of a column. A method that lacks a run of a
group is not in it: the three that read patch features are in the second.

{groups}
## Where the rows come from

Seeds {seed_names} everywhere. [Commands](results/method.md#commands).

{origins}

## Add a method

1. Write `focoop/methods/NAME.py` ([how](guides/add-a-method.md)). It must pass the contract's tests: `make test`.
2. Tune it as all others were: `focoop tune settings/cifar100 --methods NAME --budget 16 --write configs/methods`.
   No other trials, no test images.
3. Run it on all settings (`clipb32-*` need [a folder](reference/backbones.md#what-the-results-were-made-with)): `focoop compare configs/settings/*.toml --methods NAME --seeds 0,1,2 --out runs/compare`. On subsets of ready
   features the numbers compare with the rows here ([data](results/method.md#data)).
4. `python tools/results_tables.py docs/results runs/compare/results.json && python tools/leaderboard.py`.
5. Open a pull request with the method, its preset, `docs/results/` and `docs/leaderboard.md`. A line in `docs/results/origins.json` says at
   which commit and on what machine your runs were made; it comes into the table above.

Training alone (`local_only`), closed-form statistics (`fedlda`) and training off (`zeroshot`) are always there: a method
that is not above them is not worth its rounds.
"""  # noqa: E501 (the page's own lines)


def main() -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("docs", nargs="?", type=Path, default=Path("docs"))
    docs = parser.parse_args().docs
    results = docs / "results"
    text = page(read_cells(results / "cells.json"), read_origins(results / "origins.json"))
    (docs / "leaderboard.md").write_text(text, encoding="utf-8")
    print(f"wrote {docs / 'leaderboard.md'}")
    return 0


def read_origins(path: Path) -> list[dict[str, Any]]:
    """Return where runs were made: methods, commit, machine."""
    origins: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return origins


def page(cells: Cells, origins: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the whole page.

    Args:
        cells: All runs.
        origins: Where they were made.

    Returns:
        Markdown.

    Raises:
        SystemExit: A required row lacks runs.
    """
    seeds = sorted({seed for _, _, seed in cells})
    parts = []
    for title, (what, settings) in GROUPS.items():
        rows = group(cells, settings, seeds)
        if lacking := [name for name in REQUIRED if name not in rows]:
            raise SystemExit(f"{title}: {', '.join(lacking)} must be run on {', '.join(settings)}")
        parts.append(f"## {title}\n\n{what}\n\n{COMPACT}\n\n{table(rows)}\n\n</div>\n")
    return PAGE.format(
        seeds=len(seeds),
        seed_names=", ".join(map(str, seeds)),
        runs=len(cells),
        order="area under own against other classes (ausuc), else own",
        groups="\n".join(parts),
        origins=origin_table(origins),
    )


def origin_table(origins: Sequence[Mapping[str, Any]]) -> str:
    """Return methods, commit and machine, a line each."""
    lines = ["| methods | commit | machine |", "|---|---|---|"]
    for one in origins:
        named = one["methods"]
        methods = named if isinstance(named, str) else ", ".join(f"`{name}`" for name in named)
        lines.append(f"| {methods} | {one['commit']} | {one['machine']} |")
    return "\n".join(lines)


def group(
    cells: Cells, settings: Sequence[str], seeds: Sequence[int]
) -> dict[str, dict[str, list[float]]]:
    """Return the numbers of a group by method and column, one per seed.

    Args:
        cells: All runs.
        settings: The group's settings.
        seeds: The seeds.

    Returns:
        Means over settings; methods without a run of every setting and seed are left out.
    """
    rows: dict[str, dict[str, list[float]]] = {}
    for method in sorted({method for _, method, _ in cells}):
        if not all((setting, method, seed) in cells for setting in settings for seed in seeds):
            continue
        runs = [[summed(cells[(s, method, seed)]) for s in settings] for seed in seeds]
        rows[method] = {
            name: [sum(run[name] for run in of_seed) / len(of_seed) for of_seed in runs]
            for name in COLUMNS
            if all(name in run for of_seed in runs for run in of_seed)
        }
    return rows


def summed(run: Mapping[str, float]) -> dict[str, float]:
    """Return a run's columns, those of OOD sets averaged over the sets.

    Args:
        run: Percent by column.

    Returns:
        Percent by one of `COLUMNS`.
    """
    found = {name: run[name] for name in COLUMNS if name in run}
    for metric in ("auroc", "fpr95", "fpr95_oodpos"):
        values = [value for name, value in run.items() if name.split(" ")[0] == metric]
        if values:
            found[metric] = sum(values) / len(values)
    return found


def table(rows: Mapping[str, Mapping[str, list[float]]]) -> str:
    """Return methods against columns, best area (or own accuracy) first."""
    names = [name for name in COLUMNS if any(name in row for row in rows.values())]
    stats = {m: {n: stat(values) for n, values in row.items()} for m, row in rows.items()}
    key = "ausuc" if "ausuc" in names else "own"
    top = {name: best(name, stats.values()) for name in names}
    lines = [f"| | method | {' | '.join(map(arrow, names))} |", "|---:|---|" + "---:|" * len(names)]
    ordered = sorted(stats, key=lambda m: -stats[m][key].mean if key in stats[m] else 0.0)
    for place, method in enumerate(ordered, 1):
        cells = []
        for name in names:
            value = stats[method].get(name)
            shown = "" if value is None else str(value).replace(" ", "&nbsp;")
            is_best = value is not None and f"{value.mean:.1f}" == top[name]
            cells.append(f"**{shown}**" if is_best else shown)
        lines.append(f"| {place} | `{method}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def arrow(column: str) -> str:
    """Return a column's title with the direction that is better."""
    return f"{column} {'↓' if lower_is_better(column) else '↑'}"


if __name__ == "__main__":
    sys.exit(main())
