"""The table and the figure of `privacy_price.py`."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tools.small_svg import small

Rows = Sequence[Mapping[str, Any]]
# Colours of Okabe and Ito, told apart by marker and line too.
LOOKS = {
    "focoop_plus": ("FOCoOp+", "#0072B2", "o", "-"),
    "fedlda": ("FedLDA", "#D55E00", "s", "--"),
    "promptfl": ("PromptFL", "#009E73", "^", "-."),
    "focoop": ("FOCoOp", "#CC79A7", "D", ":"),
}
ATTACKED = ("focoop_plus", "fedlda")  # whose class means are attacked


def curve(
    rows: Rows, setting: str, method: str, name: str, what: str = "price"
) -> dict[float, float]:
    """Epsilon -> mean over seeds in percent; no privacy is an infinite epsilon."""
    values: dict[float, list[float]] = {}
    for row in rows:
        if (row["what"], row["setting"], row["method"]) == (what, setting, method):
            epsilon = math.inf if row["epsilon"] is None else row["epsilon"]
            values.setdefault(epsilon, []).append(100 * row[name])
    return {epsilon: fmean(found) for epsilon, found in sorted(values.items())}


def table(rows: Rows, setting: str) -> str:
    """Markdown: own / all of the methods by epsilon, and the attack on those of `ATTACKED`."""
    attack = {
        (name, method): curve(rows, setting, method, name, "attack")
        for name in ("named", "closest", "chance")
        for method in ATTACKED
    }
    curves = {
        method: [curve(rows, setting, method, name) for name in ("own", "all")] for method in LOOKS
    }
    curves = {method: pair for method, pair in curves.items() if any(pair)}
    heads = [LOOKS[method][0] for method in curves]
    lines = [f"| epsilon | {' | '.join(heads)} | member named | closest is a member |"]
    lines.append("|---|" + "---|" * (len(heads) + 2))
    every = {epsilon for pair in curves.values() for one in pair for epsilon in one}
    for epsilon in sorted(every, reverse=True):
        cells = ["no privacy" if math.isinf(epsilon) else f"{epsilon:,.0f}"]
        for own, whole in curves.values():
            known = epsilon in own and epsilon in whole
            cells.append(f"{own[epsilon]:.1f} / {whole[epsilon]:.1f}" if known else "")
        for name in ("named", "closest"):
            found = [attack[name, method].get(epsilon) for method in ATTACKED]
            cells.append(" / ".join(f"{one:.0f}" for one in found if one is not None))
        lines.append(f"| {' | '.join(cells)} |")
    chances = [one for method in ATTACKED for one in attack["chance", method].values()]
    if chances:
        lines.append(f"\nThe attack in percent; chance: 50 and {fmean(chances):.0f}.")
    return "\n".join(lines)


def figure(rows: Rows, setting: str, path: Path) -> None:
    """Own, all and the attack against epsilon, one below the other, as an SVG file."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "focoop", "svg.fonttype": "none", "font.size": 11}
    from matplotlib import pyplot

    drawn, axes = pyplot.subplots(3, 1, figsize=(5, 8.6), sharex=True, layout="constrained")
    finite = [row["epsilon"] for row in rows if row["what"] == "price" and row["epsilon"]]
    right = 30 * max(finite)  # where no privacy at all is drawn
    for axis, name in zip(axes, ("own", "all"), strict=False):
        for method, (label, colour, marker, line) in LOOKS.items():
            draw(axis, curve(rows, setting, method, name), right, label, colour, marker, line)
        axis.set_title(f"accuracy on {name} classes (%)", fontsize=11)
        axis.set_ylim(0, 102)
    for name, label, colour, marker, line in (
        ("named", "member named (chance: 50)", "#000000", "v", "-"),
        ("closest", "closest is a member", "#E69F00", "P", "--"),
        ("chance", "chance of the latter", "#7f7f7f", "", ":"),
    ):
        curves = [curve(rows, setting, method, name, "attack") for method in ATTACKED]
        found = next(filter(None, curves), {})
        draw(axes[2], found, right, label, colour, marker, line)
    axes[2].set_title("attack on class means as they are sent (%)", fontsize=11)
    axes[2].set_ylim(0, 118)
    axes[2].set_xlabel("epsilon (left: more private)")
    for axis in axes:
        axis.set_xscale("log")
        ticks = [one for one in (1, 100, 1e4, 1e6) if one < right]
        axis.set_xticks([*ticks, right], [*(f"{one:,.0f}" for one in ticks), "none"])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[1].legend(frameon=False, loc="upper left", fontsize=10)  # where nothing is drawn
    axes[2].legend(frameon=False, loc="upper left", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(path, metadata={"Date": None})
    pyplot.close(drawn)
    path.write_text(small(path.read_text(encoding="utf-8")), encoding="utf-8")


def draw(
    axis: Any,
    found: Mapping[float, float],
    right: float,
    label: str,
    colour: str,
    marker: str,
    line: str,
) -> None:
    """A curve; what no privacy gives stands apart from it at the right edge."""
    if not found:
        return
    x = [epsilon for epsilon in found if epsilon < right]
    y = [found[epsilon] for epsilon in x]
    axis.plot(x, y, line, color=colour, marker=marker, label=label, markersize=6)
    if math.inf in found:
        axis.plot([right], [found[math.inf]], color=colour, marker=marker or "_", markersize=6)
