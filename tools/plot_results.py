"""Draw the chart of docs/results.md from the committed numbers of every run.

    python tools/plot_results.py [docs/results]

Reads `cells.json` of the folder and writes `chart.svg` beside it: for each method the accuracy on a
client's own classes and on all classes, joined by a line. Colours are the page's own where the
drawing stands in the site, so that it fits the light and the dark theme.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from results_cells import read_rows

SETTING = "cifar100"
# Method -> its name in the chart; in the order of the chart, from the top.
METHODS = {
    "zeroshot": "zero-shot",
    "promptfl": "PromptFL",
    "fedlapt": "FedLAPT",
    "promptfolio": "PromptFolio",
    "fedpgp": "FedPGP",
    "local_only": "training alone",
    "focoop": "FOCoOp",
    "fedlda": "FedLDA",
    "focoop_plus": "FOCoOp+",
    "centralized": "all data pooled",
}
OURS = "focoop_plus"
WIDTH, LEFT, RIGHT, TOP, ROW = 360, 108, 344, 48, 28
STYLE = """
    .chart text { font: 12px system-ui, sans-serif; fill: var(--md-default-fg-color, #1d2b2b); }
    .chart .small { font-size: 11px; fill: var(--md-default-fg-color--light, #5a6767); }
    .chart .ours { font-weight: 700; }
    .chart .grid { stroke: var(--md-default-fg-color--lightest, #d8dedd); stroke-width: 1; }
    .chart .gap { stroke: var(--md-default-fg-color--lighter, #9aa5a4); stroke-width: 3; }
    .chart .own { fill: #12877d; }
    .chart .all { fill: #e0662f; }
    @media (prefers-color-scheme: dark) {
      svg.chart:root text { fill: #e3e8e8; }
      svg.chart:root .small { fill: #a9b4b3; }
      svg.chart:root .grid { stroke: #3a4444; }
      svg.chart:root .gap { stroke: #66716f; }
    }"""

Means = dict[str, tuple[float, float]]


def main() -> int:
    """Read the numbers and write the drawing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/results"))
    folder = parser.parse_args().folder
    (folder / "chart.svg").write_text(chart(means(folder / "cells.json")), encoding="utf-8")
    print(f"wrote {folder / 'chart.svg'}")
    return 0


def means(path: Path) -> Means:
    """Return for each method its mean accuracy on own and on all classes, over seeds.

    Args:
        path: `cells.json`.

    Returns:
        Method -> (own classes, all classes) in percent; methods without runs are left out.
    """
    cells = read_rows(path)
    found: Means = {}
    for method in METHODS:
        runs = [c for c in cells if c["setting"] == SETTING and c["method"] == method]
        if runs:
            own, every = (sum(run[name] for run in runs) / len(runs) for name in ("own", "all"))
            found[method] = own, every
    return found


def chart(values: Means) -> str:
    """Return the drawing: one row for each method, a scale from 0 to 100 percent."""
    height = TOP + ROW * len(values) + 30
    body = [*legend(), *scale(height)]
    for number, (method, (own, all_)) in enumerate(values.items()):
        body += row(method, own, all_, TOP + ROW * number + ROW // 2)
    return "\n".join(
        [
            f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
            ' role="img" aria-labelledby="chart-title">',
            f'  <title id="chart-title">{summary(values)}</title>',
            f"  <style>{STYLE}\n  </style>",
            *(f"  {line}" for line in body),
            "</svg>",
            "",
        ]
    )


def summary(values: Means) -> str:
    """Return the numbers as a sentence, for readers who cannot see the drawing."""
    parts = [f"{METHODS[m]} {own:.1f} and {all_:.1f}" for m, (own, all_) in values.items()]
    return "Accuracy on own and on all classes, percent: " + "; ".join(parts)


def legend() -> list[str]:
    """Return the two marks with their words, above the scale."""
    return [
        f'<circle class="own" cx="{LEFT + 6}" cy="14" r="6"/>',
        f'<text x="{LEFT + 18}" y="18">own classes</text>',
        f'<circle class="all" cx="{LEFT + 116}" cy="14" r="6"/>',
        f'<text x="{LEFT + 128}" y="18">all classes</text>',
    ]


def scale(height: int) -> list[str]:
    """Return grid lines at every quarter, with their percent below the rows."""
    lines = []
    for percent in (0, 25, 50, 75, 100):
        x = place(percent)
        lines.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP - 12}" y2="{height - 26}"/>')
        lines.append(
            f'<text class="small" x="{x}" y="{height - 10}" text-anchor="middle">{percent}%</text>'
        )
    return lines


def row(method: str, own: float, all_: float, y: int) -> list[str]:
    """Return one method: its name, both marks and the line between them."""
    bold = ' class="ours"' if method == OURS else ""
    return [
        f'<text{bold} x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{METHODS[method]}</text>',
        f'<line class="gap" x1="{place(all_)}" x2="{place(own)}" y1="{y}" y2="{y}"/>',
        f'<circle class="own" cx="{place(own)}" cy="{y}" r="7"/>',
        f'<circle class="all" cx="{place(all_)}" cy="{y}" r="5"/>',
    ]


def place(percent: float) -> str:
    """Return the horizontal place of a percentage, as the drawing writes it."""
    return f"{LEFT + (RIGHT - LEFT) * percent / 100:.1f}".removesuffix(".0")


if __name__ == "__main__":
    sys.exit(main())
