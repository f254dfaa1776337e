"""Judge what `tools/soak.py` saw: memory and descriptors must be flat after the first rounds.

A line is fitted to the memory of each group of processes against the round (the median of the
slopes between all pairs of samples, which single peaks do not move), and likewise to descriptors,
threads and processes. The verdict, thinned samples and a drawing go to a folder.
"""

import io
import json
import math
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WARM_UP = 0.2  # share of the rounds that do not count: caches and allocators fill
PAIRS = 400  # samples that a slope is made from
KEPT, DRAWN = 110, 60  # samples that are written down, and drawn
BOUNDS = {  # how much a thousand rounds may add
    "memory": 20.0,  # MiB
    "descriptors": 2.0,
    "threads": 2.0,
    "processes": 1.0,
}
UNITS = {
    "memory": "MiB",
    "descriptors": "descriptors",
    "threads": "threads",
    "processes": "processes",
}
LIMIT = 30_000  # bytes of a result
TICK = 100.0  # of a processor's second in /proc
SMALLER = (  # what a drawing does without, by tag
    (r"^<g [^>]*id=\"[^>]*>", "<g>"),
    (r"font-family: [^;\"]*;? ?", ""),
    (r" transform=\"rotate\(-?0 [^\"]*\"", ""),
    (r"^(<use [^>]*) style=\"[^\"]*\"", r"\1"),
    (r"^<svg ", '<svg font-family="sans-serif" '),
)
Sample = dict[str, Any]


@dataclass(frozen=True)
class Fit:
    """A line through the samples of one measure of one group.

    Attributes:
        group: the processes.
        measure: what was measured, a key of `BOUNDS`.
        slope: growth in a thousand rounds.
        start: value of the line at round 0.
        middle: median of the values.
    """

    group: str
    measure: str
    slope: float
    start: float
    middle: float

    @property
    def flat(self) -> bool:
        """Return whether the growth is within its bound."""
        return abs(self.slope) <= BOUNDS[self.measure] or self.slope < 0


def slope_of(xs: list[float], ys: list[float]) -> float:
    """Return the median slope between pairs of points; 0 where there are too few.

    Args:
        xs: Places.
        ys: Values there.

    Returns:
        The slope.
    """
    step = max(1, len(xs) // PAIRS)
    points = list(zip(xs, ys, strict=True))[::step]
    slopes = [
        (second[1] - first[1]) / (second[0] - first[0])
        for place, first in enumerate(points)
        for second in points[place + 1 :]
        if second[0] != first[0]
    ]
    return statistics.median(slopes) if slopes else 0.0


def exponent(xs: list[float], ys: list[float]) -> float:
    """Return b of y = a x^b, by least squares of logarithms.

    Args:
        xs: Places, above 0.
        ys: Values there, above 0.

    Returns:
        The exponent.
    """
    lx, ly = [math.log(x) for x in xs], [math.log(y) for y in ys]
    mx, my = statistics.fmean(lx), statistics.fmean(ly)
    spread = sum((x - mx) ** 2 for x in lx)
    return sum((x - mx) * (y - my) for x, y in zip(lx, ly, strict=True)) / spread


def groups_of(sample: Sample) -> list[str]:
    """Return the names of the groups of processes in a sample."""
    return [name for name, value in sample.items() if isinstance(value, dict)]


def fits(samples: list[Sample], warm_up: float = WARM_UP) -> list[Fit]:
    """Fit lines to the samples after the warm-up.

    Args:
        samples: All samples.
        warm_up: Share of the rounds that are left out.

    Returns:
        A line for each group and measure.

    Raises:
        ValueError: There are too few rounds to say anything.
    """
    last = samples[-1]["round"]
    late = [one for one in samples if warm_up * last <= one["round"] and one["round"] > 0]
    if last < 10 or len(late) < 8:
        raise ValueError(f"{last} rounds and {len(late)} samples after the warm-up are too few")
    found = []
    for group in groups_of(samples[0]):
        rounds = [float(one["round"]) for one in late]
        for measure in BOUNDS:
            unit = 2**20 if measure == "memory" else 1
            values = [one[group][measure] / unit for one in late]
            slope, middle = slope_of(rounds, values), statistics.median(values)
            start = middle - slope * statistics.median(rounds)
            found.append(Fit(group, measure, 1000 * slope, start, middle))
    return found


def thinned(samples: list[Sample]) -> Sample:
    """Return few samples as columns, small enough to be kept."""
    step = max(1, math.ceil(len(samples) / KEPT))
    few = samples[::step]
    columns: Sample = {
        "round": [one["round"] for one in few],
        "seconds": [round(one["seconds"]) for one in few],
        "folder_kb": [round(one["folder"] / 1000) for one in few],
    }
    for group in groups_of(samples[0]):
        columns[group] = {
            "memory_mib": [round(one[group]["memory"] / 2**20, 1) for one in few],
            **{
                name: [one[group][name] for one in few]
                for name in ("descriptors", "threads", "processes")
            },
            "written_kb": [round(one[group]["written"] / 1000) for one in few],
        }
        if "ticks" in samples[0][group]:
            columns[group]["processor_s"] = [round(one[group]["ticks"] / TICK, 1) for one in few]
    return columns


def judge(
    part: str, command: str, samples: list[Sample], folder: Path, warm_up: float = WARM_UP
) -> bool:
    """Write the verdict and the drawing of a part into a folder, and print the verdict.

    Args:
        part: Name of the part.
        command: What makes it again.
        samples: All samples.
        folder: Where `soak-PART.json` and `soak-PART.svg` go.
        warm_up: Share of the rounds that are left out.

    Returns:
        Whether all is flat.
    """
    found = fits(samples, warm_up)
    result = {
        "command": command,
        "warm_up": warm_up,
        "rounds": samples[-1]["round"],
        "seconds": round(samples[-1]["seconds"]),
        "verdict": "flat" if all(fit.flat for fit in found) else "growing",
        "added_in_1000_rounds": {
            f"{fit.group}, {UNITS[fit.measure]}": {
                "median": round(fit.middle, 1),
                "added": round(fit.slope, 2),
                "allowed": BOUNDS[fit.measure],
            }
            for fit in found
        },
        "samples": thinned(samples),
    }
    text = json.dumps(result, separators=(",", ":"))
    if len(text) > LIMIT:
        raise ValueError(f"{len(text)} bytes are too many for a result")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"soak-{part}.json").write_text(text + "\n", encoding="utf-8")
    draw(samples, found, folder / f"soak-{part}.svg", warm_up)
    for fit in found:
        print(
            f"{fit.group}: {fit.middle:.1f} {UNITS[fit.measure]}, {fit.slope:+.2f} in 1,000 rounds "
            f"(at most {BOUNDS[fit.measure]:g}){'' if fit.flat else ': NOT FLAT'}"
        )
    print(f"{part}: {result['rounds']} rounds in {result['seconds']} s: {result['verdict']}")
    return result["verdict"] == "flat"


def draw(samples: list[Sample], found: list[Fit], path: Path, warm_up: float) -> None:
    """Draw memory with its fitted lines, descriptors, the folder, and seconds per round."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    mpl.rcParams |= {"svg.fonttype": "none", "font.size": 8, "svg.hashsalt": "focoop"}
    few = samples[:: max(1, math.ceil(len(samples) / DRAWN))]
    few = [one for one in few if one["round"] > 0]
    rounds = [one["round"] for one in few]
    figure, places = plt.subplots(2, 2, figsize=(7.5, 4.6), sharex=True)
    (memory, handles), (size, pace) = places
    for number, group in enumerate(groups_of(samples[0])):
        colour = f"C{number}"
        memory.plot(rounds, [one[group]["memory"] / 2**20 for one in few], lw=0.6, c=colour)
        fit = next(one for one in found if (one.group, one.measure) == (group, "memory"))
        ends = [warm_up * rounds[-1], rounds[-1]]
        line = [fit.start + fit.slope / 1000 * end for end in ends]
        label = f"{group}: {fit.slope:+.1f} MiB in 1,000 rounds"
        memory.plot(ends, line, c=colour, label=label)
        handles.plot(rounds, [one[group]["descriptors"] for one in few], c=colour)
        handles.plot(rounds, [one[group]["threads"] for one in few], ":", c=colour)
    size.plot(rounds, [one["folder"] / 1e6 for one in few])
    steps = [
        (second["round"], (second["seconds"] - first["seconds"]) / gone)
        for first, second in zip(few, few[1:], strict=False)
        if (gone := second["round"] - first["round"])
    ]
    pace.plot([step[0] for step in steps], [step[1] for step in steps])
    memory.set(title="memory (MiB)", ylim=(0, None))
    handles.set(title="descriptors, threads (dotted)", ylim=(0, None))
    size.set(title="run folder (MB)", xlabel="round", ylim=(0, None))
    pace.set(title="seconds per round", xlabel="round", ylim=(0, None))
    memory.legend(fontsize=6, loc="lower right")
    for axes in places.flat:
        axes.locator_params(nbins=5)
    figure.tight_layout()
    save_small(figure, path)


def save_small(figure: Any, path: Path) -> None:
    """Save a drawing as SVG without comments, with coordinates of one digit: half the bytes.

    Args:
        figure: The drawing; it is closed.
        path: The file.
    """
    import matplotlib.pyplot as plt

    def small(tag: "re.Match[str]") -> str:
        text = tag.group()
        for pattern, instead in SMALLER:
            text = re.sub(pattern, instead, text)
        return re.sub(r"-?\d+\.\d{2,}", lambda found: f"{float(found.group()):.1f}", text)

    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    plain = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text.getvalue(), flags=re.DOTALL)
    lines = [line.strip() for line in re.sub(r"<[^>]*>", small, plain).splitlines()]
    path.write_text("\n".join(line for line in lines if line) + "\n", encoding="utf-8")
