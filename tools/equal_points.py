"""Tables at points that are the same for all methods, of both backbones.

    python tools/equal_points.py docs/results [RESULTS.json ...]

Adds runs of `focoop compare` to FOLDER/equal.json and writes the tables of FOLDER/equal.md between
its marks: own classes alone, all classes without a prior and the area between, then detection.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from results_cells import Cells, read_cells, read_results, write_rows

from focoop.experiments.tables import stat

POINTS = ("own-alone", "all-open", "ausuc")
DETECTION = (("auroc", "sun"), ("auroc", "dtd"), ("fpr95", "dtd"))  # scenes, textures
PARTS = {
    "full": "focoop",
    "no ascent": "focoop:ascent=none",
    "random directions of the same lengths": "focoop:ascent=random",
    "no GOC": "focoop:goc=false",
    "no detection term": "focoop:detection_weight=0.0",
    "private prompts, share 0.2": "focoop:global_share=0.8",
    "soft maximum, width of a mean loss": "focoop:outer=soft_maximum",
    "PromptFL": "promptfl",
}
MARK = re.compile(r"(<!-- (points|detection|parts) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> int:
    """Merge and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="*", type=Path)
    given = parser.parse_args()
    evidence, page = given.folder / "equal.json", given.folder / "equal.md"
    cells = read_cells(evidence) if evidence.exists() else {}
    for path in given.files:
        cells |= read_results(path)
    write_rows(
        evidence,
        [
            {"setting": s, "method": m, "seed": n, **{k: round(v, 2) for k, v in row.items()}}
            for (s, m, n), row in sorted(cells.items())
        ],
    )
    page.write_text(filled(page.read_text(encoding="utf-8"), cells), encoding="utf-8")
    print(f"{len(cells)} runs in {evidence}, tables in {page}")
    return 0


def filled(page: str, cells: Cells) -> str:
    """The page with its tables made of the runs.

    Args:
        page: The page; a mark names a table and the settings it is of, `clipb32*` those so called.
        cells: The runs.

    Returns:
        The page.
    """
    tables = {"points": points, "detection": detection, "parts": parts}

    def table(match: re.Match[str]) -> str:
        wanted = match[3].split(",")
        names = dict.fromkeys(setting for setting, _, _ in sorted(cells))
        settings = [s for s in names if any(s == w or s.startswith(w[:-1] + "-") for w in wanted)]
        return f"{match[1]}\n{tables[match[2]](cells, settings)}\n\n{match[4]}"

    return MARK.sub(table, page)


def points(cells: Cells, settings: Sequence[str]) -> str:
    """Methods by settings: own alone / all without a prior / area; the best area first."""
    rows = []
    for method in methods_of(cells, settings):
        values = [[mean(cells, s, method, name) for name in POINTS] for s in settings]
        means = [sum(column) / len(column) for column in zip(*values, strict=True)]
        rows.append((means, method, values))
    rows.sort(key=lambda row: -row[0][2])
    lines = [
        [method, shown(means), *(shown(one) for one in values)] for means, method, values in rows
    ]
    return markdown(["", "mean", *map(short, settings)], lines)


def detection(cells: Cells, settings: Sequence[str]) -> str:
    """Methods by settings: AUROC of scenes and textures, FPR95 of textures, alarm."""
    lines = []
    for method in methods_of(cells, settings):
        line = []
        for setting in settings:
            names = {name for key, row in cells.items() if key[0] == setting for name in row}
            wanted = [
                # The longest name: of `dtd` and `dtd_32px` the set as blurred as CIFAR's images.
                max((n for n in names if n.startswith(f"{metric} {ood}")), default="", key=len)
                for metric, ood in DETECTION
            ]
            values = [mean(cells, setting, method, name) if name else None for name in wanted]
            line.append(shown([*values, mean(cells, setting, method, "alarm")]))
        lines.append([method, *line])
    return markdown(["", *map(short, settings)], lines)


def parts(cells: Cells, settings: Sequence[str]) -> str:
    """FOCoOp without its parts, as differences in pairs of seeds from the whole."""
    parts_ = []
    for setting in settings:
        whole = runs_of(cells, setting, PARTS["full"])
        names = [*POINTS, *(n for n in next(iter(whole.values())) if n.startswith("auroc"))]
        names += [n for n in next(iter(whole.values())) if n.startswith("fpr95 dtd")] + ["alarm"]
        lines = []
        for label, method in PARTS.items():
            runs = runs_of(cells, setting, method)
            seeds = sorted(set(runs) & set(whole))
            if len(seeds) < 2:
                continue
            if method == PARTS["full"]:
                found = [stat([runs[n][name] for n in seeds]) for name in names]
                lines.append([label, str(len(seeds)), *(str(one) for one in found)])
                continue
            found = [stat([runs[n][name] - whole[n][name] for n in seeds]) for name in names]
            lines.append(
                [label, str(len(seeds)), *(f"{s.mean:+.1f} ± {s.spread:.1f}" for s in found)]
            )
        parts_.append(f"{short(setting)}\n\n" + markdown(["", "seeds", *names], lines))
    return "\n\n".join(parts_)


def methods_of(cells: Cells, settings: Sequence[str]) -> list[str]:
    """Methods, without variants, that have a run in every one of the settings."""
    sets = [{m for s, m, _ in cells if s == setting and ":" not in m} for setting in settings]
    return sorted(set.intersection(*sets)) if sets else []


def runs_of(cells: Cells, setting: str, method: str) -> dict[int, dict[str, float]]:
    """Numbers by seed."""
    return {n: row for (s, m, n), row in cells.items() if (s, m) == (setting, method)}


def mean(cells: Cells, setting: str, method: str, name: str) -> float:
    """The mean over three seeds of a column in percent."""
    runs = runs_of(cells, setting, method)
    values = [row[name] for seed, row in sorted(runs.items()) if name in row and seed < 3]
    return sum(values) / len(values)


def shown(values: Sequence[float | None]) -> str:
    """Numbers side by side."""
    return " / ".join("-" if value is None else f"{value:.1f}" for value in values)


def short(setting: str) -> str:
    """A setting as a table's head calls it."""
    return setting.removeprefix("clipb32-")


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    rows = [head, ["---", *["---:"] * (len(head) - 1)], *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
