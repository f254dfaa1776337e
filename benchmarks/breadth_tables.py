"""The tables of `breadth.py`: means over seeds in percent, the best of a column bold."""

from collections.abc import Callable, Sequence
from statistics import fmean

from benchmarks.breadth_cells import (
    CLOSED,
    NUMBERS,
    OURS,
    Cells,
    in_words,
    means,
    order,
    table,
    with_means,
)
from benchmarks.breadth_closed import ENDS, behind, detection, gaps, with_ends
from tools.results_cells import REPEATS

FULL, SEEDS = "focoop", 3
WITHOUT = {
    "global_share=1.0": "no private prompts",
    "goc=false": "no GOC",
    "bos=false": "no BOS",
    "detection_weight=0.0": "no detection term",
}

HEAD = f"""# Breadth: settings, shots and methods

Made by `python benchmarks/breadth.py`; nothing was tuned for any cell. Percent, mean ± deviation
over seeds where there are several; the best mean of a column, and what is within 0.05 of it, bold.
*own*, *all*: accuracy on a client's own test images and on everybody's, over all classes. *mix*:
accuracy on the images that the default prior expects, 70% own ones and 30% of everybody's. *area*:
area under own against other classes as the bias on own classes varies (`ausuc`). *own alone*: own
with `open_share = 0`, where only own classes are answered; *all alone*: all with `open_share = 1`,
without a prior. At these two ends of the dial the size of a method's log-odds does not matter.
{REPEATS}
"""
FLAGGED = "*flagged*: other clients' images that are flagged when a client keeps 95% of its own."


def by_shots(cells: Cells, sets: Sequence[str], shots: Sequence[int]) -> str:
    """Own, all and area of every set by shots."""
    parts = ["## Shots\n\nTen clients without a common class.\n"]
    for name in sets:
        for key, title in (("ausuc", "area"), ("own", "own"), ("all", "all")):
            columns = {
                f"{count or 'all'} {'shots' if count != 1 else 'shot'}": means(
                    cells, key, setting=name, shots=count
                )
                for count in shots
            }
            parts.append(f"### {name}: {title}\n\n{table(columns)}")
    return "\n".join(parts)


def trained(cells: Cells, sets: Sequence[str], shots: Sequence[int]) -> str:
    """Statistics and trained methods in the mean over the sets and shots that all of them have."""
    groups = [(name, count) for name in sets for count in shots]
    columns: dict[str, dict[str, tuple[float, float, int]]] = {}
    common: list[tuple[str, int]] = []
    for key, title in NUMBERS:
        found = {group: means(cells, key, setting=group[0], shots=group[1]) for group in groups}
        methods = {method for values in found.values() for method in values} - {"zeroshot"}
        whole = {
            group: values
            for group, values in found.items()
            if methods <= {method for method, one in values.items() if one[2] >= SEEDS}
        }
        if not whole or methods <= {*CLOSED, OURS}:
            return ""
        there = {
            name for name, _ in whole
        }  # shots that a few of these sets have would tilt the mean
        even = [count for count in shots if there == {one for one, n in whole if n == count}]
        whole = {group: values for group, values in whole.items() if group[1] in even} or whole
        common = list(whole)
        columns[title] = {
            method: (fmean(values[method][0] for values in whole.values()), 0.0, 2)
            for method in methods
        }
    said = ", ".join(in_words(count) for count in dict.fromkeys(count for _, count in common))
    return (
        f"## Federated statistics against federated prompts\n\nMeans over {len(common)} cells, "
        f"{len({name for name, _ in common})} sets with {said} shots, {SEEDS} seeds each. Trained "
        "methods have their presets and 25 rounds.\n\n" + table(columns).replace(" ± 0.0", "")
    )


def others(cells: Cells, names: Sequence[str]) -> str:
    """Settings beside the shots: partitions, unseen domains, unknown, new and late."""
    groups: list[tuple[str, Callable[[str], bool], tuple[tuple[str, str], ...]]] = [
        (
            "Clients and partitions (8 shots)",
            lambda name: "-k100" in name or ("-dir" in name and "late" not in name),
            (("own", "own"), ("all", "all"), ("ausuc", "area"), ("auroc", "mean AUROC")),
        ),
        (
            "Unseen domains: PACS, accuracy on a domain that nobody holds, all images",
            lambda name: name.startswith("pacs"),
            (("own", ""), ("auroc", "mean AUROC")),
        ),
        (
            "Unseen domains: Office-Caltech10, the same",
            lambda name: name.startswith("office"),
            (("own", ""), ("auroc", "mean AUROC")),
        ),
        (
            "Unknown classes: AUROC of images of classes that nobody knows (near OOD)",
            lambda name: "unknown" in name,
            (("auroc unknown_classes", ""),),
        ),
        (
            "New classes: known by name alone, no training image anywhere",
            lambda name: "new" in name,
            (("new", "new classes"), ("own", "own"), ("all", "all")),
        ),
        (
            "Late: the numbers of a client that joins after training",
            lambda name: "late" in name,
            (("late own", "own"), ("late all", "all")),
        ),
    ]
    parts = []
    for title, belongs, keys in groups:
        tables = []
        for key, label in keys:
            columns = {
                short(name): means(cells, key, setting=name) for name in names if belongs(name)
            }
            if any(columns.values()):
                tables.append(f"{label}:\n\n{table(columns)}" if label else table(columns))
        if tables:
            parts.append("\n".join([f"## {title}\n", *tables]))
    return "\n".join(parts)


def short(name: str) -> str:
    """A setting's name for a column."""
    return (
        name.partition(":")[0].removesuffix("-unknown").removesuffix("-new").removesuffix("-late")
    )


def far(cells: Cells, sets: Sequence[str]) -> str:
    """Mean AUROC over a setting's OOD sets at 8 shots."""
    columns = {name: means(cells, "auroc", setting=name, shots=8) for name in sets}
    return f"## Detection: AUROC, mean of a setting's OOD sets, 8 shots\n\n{table(columns)}"


def missing(cells: Cells, sets: Sequence[str], shots: Sequence[int], names: Sequence[str]) -> str:
    """How many runs of the whole grid, of three seeds, are not there, by method."""
    groups = {(name, count) for name in sets for count in shots} | {(name, -1) for name in names}
    there: dict[str, int] = {}
    for cell in cells:
        there[cell["method"]] = there.get(cell["method"], 0) + (
            (cell["setting"], cell["shots"]) in groups and cell["seed"] < SEEDS
        )
    total = SEEDS * len(groups)
    lines = ["## What is missing\n"]
    lines.append(
        "\\* one seed alone. An empty place is a run that was not made, or a number that does not "
        "exist there: clients that hold all classes have no area. Deviations of zero: nothing is "
        "drawn where all images of a domain are used. Zero-shot answers do not depend on shots.\n"
    )
    for method in order(set(there)):
        absent = total - there[method]
        lines.append(f"- `{method}`: {f'{absent} of {total} runs' if absent else 'nothing'}")
    return "\n".join(lines) + "\n"


def beside(cells: Cells, varied: Cells, others: Sequence[str]) -> str:
    """A table of methods with settings of their own, beside others, where such runs are there."""
    groups = dict.fromkeys((cell["setting"], cell["shots"]) for cell in varied)
    lines = ["| setting, shots | | own | all | area | flagged | AUROC | unknown classes |"]
    lines.append("|---|---|" + "---:|" * 6)
    for setting, shots in sorted(groups, key=str):
        here = [
            cell
            for cell in (*(one for one in cells if one["method"] in others), *varied)
            if (cell["setting"], cell["shots"]) == (setting, shots)
        ]
        columns = ("own", "all", "ausuc", "alarm", "auroc", "auroc unknown_classes")
        found = [means(here, name) for name in columns]
        about = f"{setting_in_words(setting)}, {in_words(shots)}"
        for method in order({cell["method"] for cell in here}):
            entries = [f" {one[method][0]:.1f} |" if method in one else " |" for one in found]
            lines.append(f"| {about} | {varied_in_words(method)} |{''.join(entries)}")
            about = ""
    return "\n".join(lines) + "\n" if groups else ""


def setting_in_words(setting: str) -> str:
    """A setting's name, and the first thing that it is set to: words that a column can break."""
    name, _, said = setting.partition(":")
    key, _, value = said.partition(",")[0].partition("=")
    return f"{name}, {value} {key.rpartition('.')[2].replace('_', ' ')}" if said else name


def varied_in_words(method: str) -> str:
    """A method's name, or what it is set to: words that a narrow column can break."""
    name, _, said = method.partition(":")
    words = [WITHOUT.get(one, f"`{one.replace('=', '` ')}") for one in said.split(",") if one]
    return ", ".join(words) or f"`{name}`"


def dial(cells: Cells, varied: Cells) -> str:
    """FOCoOp+ with another prior, beside itself and `fed3r`."""
    turned = [cell for cell in varied if cell["method"].startswith(f"{OURS}:")]
    ends = tuple(f"={share}" for _, _, share in ENDS)
    between = {
        (cell["setting"], cell["shots"]) for cell in turned if not cell["method"].endswith(ends)
    }
    turned = [cell for cell in turned if (cell["setting"], cell["shots"]) in between]
    shown = beside(cells, turned, (OURS, "fed3r"))
    return f"## The dial of FOCoOp+\n\nMeans over seeds. {FLAGGED}\n\n{shown}" if shown else ""


def private_prompts(cells: Cells, varied: Cells) -> str:
    """FOCoOp without its private prompts and without its mechanisms, beside PromptFL."""
    without = [cell for cell in varied if cell["method"].startswith(f"{FULL}:")]
    shown = beside(cells, without, (FULL, "promptfl"))
    about = (
        "Rows below `focoop` are FOCoOp without private prompts (`global_share=1.0`), GOC "
        "(`goc=false`), BOS (ascent and soft maximum, `bos=false`) or its detection term "
        "(`detection_weight=0.0`). Means over three seeds; where more than private prompts are "
        f"left out over two, with all images one. {FLAGGED}"
    )
    return f"## FOCoOp without its private prompts\n\n{about}\n\n{shown}" if shown else ""


def markdown(cells: Cells, sets: Sequence[str], shots: Sequence[int], names: Sequence[str]) -> str:
    """The whole page; methods with settings of their own stand in a table of their own."""
    cells = [with_means(cell) for cell in cells]
    varied = [cell for cell in cells if ":" in cell["method"]]
    cells = with_ends([cell for cell in cells if ":" not in cell["method"]], varied)
    parts = [
        HEAD,
        gaps(cells, sets, shots),
        behind(cells, [*((name, n) for name in sets for n in shots), *((n, -1) for n in names)]),
        trained(cells, sets, shots),
        by_shots(cells, sets, shots),
        far(cells, sets),
        detection(cells, varied),
        others(cells, names),
        private_prompts(cells, varied),
        dial(cells, varied),
        missing(cells, sets, shots, names),
    ]
    return "\n".join(filter(None, parts))
