"""What `focoop-paper` does over its rounds: a table and a drawing for docs/model/focoop.md.

    python tools/plot_letter.py OUT/grid-1.json    # takes runs into docs/results/focoop/letter.json
    python tools/plot_letter.py                    # table and drawing again, from that file

The runs are those of `focoop compare configs/settings/cifar100.toml --methods focoop-paper --seeds
0,1,2` as `tools/device_runs.py grid-1` writes them: what the server told of every round
(`rounds.jsonl` of each run). The table goes between the marks `<!-- letter: begin -->` and
`<!-- letter: end -->` of the page, the drawing to docs/results/focoop/letter.svg.
"""

import argparse
import json
import math
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from plot_consistency import PANEL_H, PANEL_W, STYLE, panel

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "docs" / "results" / "focoop" / "letter.json"
DRAWING = EVIDENCE.with_suffix(".svg")
PAGE = ROOT / "docs" / "model" / "focoop.md"
MARK = re.compile(r"(<!-- letter: begin -->\n).*?(<!-- letter: end -->)", re.DOTALL)
ROUNDS = (1, 2, 3, 5, 10, 25)
# Number -> its title, figures behind the point, and whether its scale is logarithmic.
NUMBERS = {
    "distinct_words": ("words left of 100", 0, False),
    "spread": ("spread of T^g", 3, True),
    "transport_gap": ("gap after 300 steps", 3, True),
    "transport_gained": ("gained over product plan", 3, False),
    "row_entropy": ("entropy of rows", 2, False),
}
KINDS = {"0": "full", "1": "pulled", "2": "kept"}  # the line of each seed

Runs = dict[str, dict[str, list[float]]]  # seed -> number -> value by round


def read_grid(path: Path) -> Runs:
    """Return the server's numbers of `focoop-paper` on CIFAR-100.

    Args:
        path: What `tools/device_runs.py grid-1` wrote.

    Returns:
        Values by round, for each seed.
    """
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return {
        str(cell["seed"]): {n: [round(v, 6) for v in cell["server"][n]] for n in NUMBERS}
        for cell in cells
        if (cell["setting"], cell["label"]) == ("cifar100", "focoop-paper")
    }


def table(runs: Runs) -> str:
    """Return the numbers of some rounds, the seeds beside each other.

    Args:
        runs: The server's numbers.

    Returns:
        Markdown.
    """
    lines = [
        "| round | " + " | ".join(title for title, _, _ in NUMBERS.values()) + " |",
        "|---:|" + "---|" * len(NUMBERS),
    ]
    for number in ROUNDS:
        cells = [
            ", ".join(f"{run[name][number - 1]:.{figures}f}" for _, run in sorted(runs.items()))
            for name, (_, figures, _) in NUMBERS.items()
        ]
        lines.append(f"| {number} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def drawing(runs: Runs) -> str:
    """Return small charts, two in a row, with a line for each seed.

    Args:
        runs: The server's numbers.

    Returns:
        SVG.
    """
    body = []
    for place, (name, (title, _, logarithmic)) in enumerate(NUMBERS.items()):
        x, y = 36 + (place % 2) * (PANEL_W + 44), 26 + (place // 2) * (PANEL_H + 46)
        lines = {seed: run[name] for seed, run in sorted(runs.items())}
        body += panel(x, y, title, lines, logarithmic, KINDS)
    last = "; ".join(
        f"{title}: " + ", ".join(f"{run[name][-1]:.3g}" for _, run in sorted(runs.items()))
        for name, (title, _, _) in NUMBERS.items()
    )
    height = 26 + math.ceil(len(NUMBERS) / 2) * (PANEL_H + 46) - 8
    return "\n".join(
        [
            f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 360 {height}"'
            ' role="img" aria-labelledby="letter-title">',
            '  <title id="letter-title">FOCoOp to the letter over 25 rounds, three seeds; in the'
            f" last round {last}</title>",
            f"  <style>{STYLE}\n  </style>",
            *(f"  {line}" for line in body),
            "</svg>",
            "",
        ]
    )


def main() -> int:
    """Take the runs in, then write the table and the drawing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("grid", nargs="?", type=Path, help="results with focoop-paper")
    given = parser.parse_args()
    if given.grid is not None:
        lines = [
            f' "{seed}": {{\n'
            + ",\n".join(f'  "{name}": {json.dumps(values)}' for name, values in run.items())
            + "\n }"
            for seed, run in sorted(read_grid(given.grid).items())
        ]
        EVIDENCE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    runs: Runs = json.loads(EVIDENCE.read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    if not MARK.search(page):
        print(f"{PAGE} has no marks of the table letter", file=sys.stderr)
        return 1
    PAGE.write_text(
        MARK.sub(lambda found: f"{found[1]}\n{table(runs)}\n\n{found[2]}", page), encoding="utf-8"
    )
    DRAWING.write_text(drawing(runs), encoding="utf-8")
    print(f"wrote {PAGE} and {DRAWING}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
