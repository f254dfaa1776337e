"""Draw what FOCoOp's server tells of every round: one figure of six small charts.

    python tools/plot_consistency.py [docs/results/focoop]
    python tools/plot_consistency.py docs/results/focoop --grid OUT/grid-1.json

Reads `curves.json` of the folder (of setting `apart`, made at commit 7398147) and writes
`consistency.svg` beside it. With `--grid`, the mean over seeds of `focoop-paper` on CIFAR-100 is
put into `curves.json` and drawn too. Colours are the page's own where the drawing stands in the
site.
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SETTING = "apart"
PAPER = "focoop-paper"
# Variant -> its words in the drawing, and the class of its line.
VARIANTS = {
    "full": ("FOCoOp", "full"),
    "barycentres": ("barycentres", "pulled"),
    "paper's top-U": ("top-U of all", "kept"),
    PAPER: ("to the letter", "paper"),
    "no GOC": ("without GOC", "none"),
}
# What is drawn -> its title, and whether its scale is logarithmic.
CHARTS = {
    "spread": ("spread of T^g", False),
    "distinct_words": ("distinct words", False),
    "row_entropy": ("entropy of rows", False),
    "seemly_overlap": ("overlap of seemly sets", False),
    "transport_gap": ("gap of the transport", True),
    "transport_steps": ("steps of the solver", True),
}
WIDTH, TOP, PANEL_W, PANEL_H, GAP_X, GAP_Y, LEFT = 360, 60, 132, 84, 44, 46, 36
STYLE = """
    .chart text { font: 11px system-ui, sans-serif; fill: var(--md-default-fg-color, #1d2b2b); }
    .chart .small { fill: var(--md-default-fg-color--light, #5a6767); }
    .chart .grid { stroke: var(--md-default-fg-color--lightest, #d8dedd); stroke-width: 1; }
    .chart polyline { fill: none; stroke-width: 2; }
    .chart .full { stroke: #12877d; }
    .chart .none { stroke: #8d9998; stroke-width: 5; }
    .chart .pulled { stroke: #e0662f; }
    .chart .kept { stroke: #8a5bc4; }
    .chart .paper { stroke: #c2255c; stroke-dasharray: 6 2; }
    @media (prefers-color-scheme: dark) {
      svg.chart:root text { fill: #e3e8e8; }
      svg.chart:root .small { fill: #a9b4b3; }
      svg.chart:root .grid { stroke: #3a4444; }
    }"""

Curves = dict[str, dict[str, list[float]]]  # variant -> number -> value by round


def drawing(curves: Curves) -> str:
    """Return the figure.

    Args:
        curves: Values by round, of the variants that are drawn.

    Returns:
        SVG.
    """
    shown = {name: curves[name] for name in VARIANTS if curves.get(name)}
    rows = math.ceil(len(CHARTS) / 2)
    height = TOP + rows * (PANEL_H + GAP_Y) - 8
    body = legend(list(shown))
    for place, (number, (title, logarithmic)) in enumerate(CHARTS.items()):
        x = LEFT + (place % 2) * (PANEL_W + GAP_X)
        y = TOP + (place // 2) * (PANEL_H + GAP_Y)
        lines = {name: values[number] for name, values in shown.items() if values.get(number)}
        kinds = {name: kind for name, (_, kind) in VARIANTS.items()}
        body += panel(x, y, title, lines, logarithmic, kinds)
    return "\n".join(
        [
            f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
            ' role="img" aria-labelledby="consistency-title">',
            f'  <title id="consistency-title">{summary(shown)}</title>',
            f"  <style>{STYLE}\n  </style>",
            *(f"  {line}" for line in body),
            "</svg>",
            "",
        ]
    )


def summary(curves: Curves) -> str:
    """Return the figure in words, for readers who cannot see it: values of the last round."""
    parts = [
        f"{title}: "
        + ", ".join(
            f"{VARIANTS[name][0]} {values[number][-1]:.3g}"
            for name, values in curves.items()
            if values.get(number)
        )
        for number, (title, _) in CHARTS.items()
    ]
    return "Reports of FOCoOp's server over the rounds; in the last one " + "; ".join(parts)


def legend(names: Sequence[str]) -> list[str]:
    """Return a short line and the words of every variant, three in a row."""
    lines = []
    for place, name in enumerate(names):
        words, kind = VARIANTS[name]
        x, y = 8 + (place % 3) * 118, 14 + (place // 3) * 18
        lines.append(f'<polyline class="{kind}" points="{x},{y - 4} {x + 20},{y - 4}"/>')
        lines.append(f'<text x="{x + 26}" y="{y}">{words}</text>')
    return lines


def panel(
    x: int,
    y: int,
    title: str,
    lines: dict[str, list[float]],
    logarithmic: bool,
    kinds: Mapping[str, str],
) -> list[str]:
    """Return one chart: a frame with the scale's two ends, and a line of its kind for each name."""

    def scaled(value: float) -> float:
        return math.log10(max(value, 1e-6)) if logarithmic else value

    values = [scaled(value) for line in lines.values() for value in line]
    low, high = (min(values, default=0.0), max(values, default=1.0))
    low = low if logarithmic else min(low, 0.0)
    high = high if high > low else low + 1.0
    most = max((len(line) for line in lines.values()), default=1)
    drawn = [f'<text x="{x}" y="{y - 6}">{title}</text>']
    for end, at in ((high, y), (low, y + PANEL_H)):
        told = 10**end if logarithmic else end
        drawn.append(f'<line class="grid" x1="{x}" x2="{x + PANEL_W}" y1="{at}" y2="{at}"/>')
        drawn.append(
            f'<text class="small" x="{x - 4}" y="{at + 4}" text-anchor="end">{short(told)}</text>'
        )
    for name, line in reversed(lines.items()):  # FOCoOp on top; a broad line shows below it
        points = " ".join(
            f"{x + PANEL_W * step / max(1, most - 1):.1f},"
            f"{y + PANEL_H * (1 - (scaled(value) - low) / (high - low)):.1f}"
            for step, value in enumerate(line)
        )
        drawn.append(f'<polyline class="{kinds[name]}" points="{points}"/>')
    for step, anchor in ((1, "start"), (most, "end")):
        at = x + (PANEL_W if step == most else 0)
        drawn.append(
            f'<text class="small" x="{at}" y="{y + PANEL_H + 14}" text-anchor="{anchor}">'
            f"round {step}</text>"
        )
    return drawn


def short(value: float) -> str:
    """Return a number as the end of a scale: 100, 3.4, 0.36 or 5e-5."""
    if 0 < abs(value) < 0.01:
        figure, power = f"{value:.0e}".split("e")
        return f"{figure}e{int(power)}"
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def of_the_paper(path: Path) -> dict[str, list[float]]:
    """Return the mean over seeds of what `focoop-paper`'s server told on CIFAR-100.

    Args:
        path: What `tools/device_runs.py grid-1` wrote.

    Returns:
        Values by round.
    """
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    found = [c["server"] for c in cells if (c["setting"], c["label"]) == ("cifar100", PAPER)]
    return {
        name: [
            round(sum(values) / len(values), 6)
            for values in zip(*(report[name] for report in found), strict=True)
        ]
        for name in (found[0] if found else {})
        if all(None not in report[name] for report in found)
    }


def main() -> int:
    """Read the curves and write the drawing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("docs/results/focoop"))
    parser.add_argument("--grid", type=Path, help="results of a grid with focoop-paper")
    given = parser.parse_args()
    path = given.folder / "curves.json"
    curves = json.loads(path.read_text(encoding="utf-8"))
    if given.grid is not None:
        curves[SETTING][PAPER] = of_the_paper(given.grid)
        path.write_text(json.dumps(curves, indent=1) + "\n", encoding="utf-8")
    target = given.folder / "consistency.svg"
    target.write_text(drawing(curves[SETTING]), encoding="utf-8")
    print(f"wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
