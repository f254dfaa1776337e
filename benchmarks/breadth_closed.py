"""FOCoOp+ against the other closed forms: in the mean, cell by cell, at each end of the dial."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.breadth_cells import CLOSED, NUMBERS, OURS, Cells, in_words, means, table

ENDS = (("own alone", "own", "0"), ("all alone", "all", "1.0"))  # of the dial, by `open_share`
HELD = (*NUMBERS, *((name, name) for name, _, _ in ENDS))  # what closed forms are compared in


def with_ends(cells: Cells, varied: Cells) -> list[Mapping[str, Any]]:
    """Cells with the numbers of the same method at both ends of the dial, where there is one."""
    ends: dict[tuple[Any, ...], dict[str, float]] = {}
    for cell in varied:
        method, _, said = cell["method"].partition(":")
        for name, key, share in ENDS:
            if said == f"open_share={share}" and "ausuc" in cell:
                ends.setdefault((*run_of(cell), method), {})[name] = cell[key]
    return [{**cell, **ends.get((*run_of(cell), cell["method"]), {})} for cell in cells]


def run_of(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    """The federation that a cell is of, whatever its method."""
    return cell["setting"], cell["shots"], cell["seed"]


def gaps(cells: Cells, sets: Sequence[str], shots: Sequence[int]) -> str:
    """FOCoOp+ against the best closed form of each cell, and against each of them in the mean."""
    parts = ["## FOCoOp+ against federated statistics\n"]
    worst, over = [], {}  # type: list[str], dict[str, dict[str, tuple[float, float, int]]]
    for key, title in HELD:
        differences: list[tuple[float, str, str]] = []
        totals: dict[str, list[float]] = {}
        for name in sets:
            for count in shots:
                found = means(cells, key, setting=name, shots=count)
                rivals = {method: found[method][0] for method in CLOSED if method in found}
                if OURS not in found or not rivals:
                    continue
                best = max(rivals, key=lambda method: rivals[method])
                where = f"{name}, {in_words(count)} shot{'s' * (count != 1)}"
                differences.append((found[OURS][0] - rivals[best], where, best))
                for method in (*rivals, OURS):
                    totals.setdefault(method, []).append(found[method][0])
        if not differences:
            continue
        over[f"{title}, mean"] = {m: (fmean(v), 0.0, 2) for m, v in totals.items()}
        least, where, best = min(differences)
        above = sum(gap >= -0.3 for gap, _, _ in differences)
        worst.append(
            f"- {title}: {above} of {len(differences)} cells not more than 0.3 below the best "
            f"closed form there; mean gap {fmean(gap for gap, _, _ in differences):+.1f}, worst "
            f"{least:+.1f} ({where}, against `{best}`)"
        )
    shown = table(over).replace(" ± 0.0", "") if over else ""
    return "\n".join([*parts, shown, *worst, ""])


def behind(cells: Cells, groups: Sequence[tuple[str, int]]) -> str:
    """Every cell in which a closed form beats FOCoOp+ by more than is tolerated, and which."""
    keys = {key for cell in cells for key in cell if key in dict(HELD)}
    keys |= {key for cell in cells for key in cell if key.startswith("auroc ")}
    counts: dict[str, list[int]] = {}
    rows, dominated = [], 0
    for name, shots in groups:
        found = {key: means(cells, key, setting=name, shots=shots) for key in sorted(keys)}
        for key, values in found.items():
            rivals = {method: values[method][0] for method in CLOSED if method in values}
            if OURS not in values or not rivals:
                continue
            kind = "auroc" if key.startswith("auroc ") else key
            best = max(rivals, key=lambda method: rivals[method])
            gap = values[OURS][0] - rivals[best]
            lost = gap < -(0.5 if kind == "auroc" else 0.3)
            counts.setdefault(kind, [0, 0])
            counts[kind][0] += lost
            counts[kind][1] += 1
            if lost and kind != "all":
                where = f"{name}, {in_words(shots)}"
                numbers = f"{values[OURS][0]:.1f} | `{best}` {rivals[best]:.1f}"
                rows.append((gap, f"| {where} | {key} | {numbers} |"))
        own, everybody = found.get("own", {}), found.get("all", {})
        dominated += OURS in own and any(
            everybody[method][0] > everybody[OURS][0] + 0.3 and own[method][0] > own[OURS][0] - 0.3
            for method in CLOSED
            if method in own
        )
    if not counts:
        return ""
    titles = {"ausuc": "area", "auroc": "AUROC"}
    said = ", ".join(
        f"{titles.get(kind, kind)} in {lost} of {of} cells" for kind, (lost, of) in counts.items()
    )
    text = f"""## Where FOCoOp+ is behind

FOCoOp+ is more than 0.3 (AUROC: 0.5) below the best closed form, over all settings and shots:
{said}. All classes are lost to methods that pay with own ones: in {dominated} of the cells alone
one of them has more of all classes and not fewer of its own. The others, worst first:

| setting, shots | number | FOCoOp+ | best closed form |
|---|---|---:|---:|
"""
    return text + "\n".join(line for _, line in sorted(rows)) + "\n"


def detection(cells: Cells, varied: Cells) -> str:
    """Mean AUROC of closed forms over cells and OOD sets, at the default share and both ends."""
    columns = {}
    shares = [(f"`open_share` {share}", f":open_share={share}") for _, _, share in ENDS]
    for title, ending in (("default", ""), *shares):
        some = varied if ending else cells
        named = [{**one, "method": one["method"].removesuffix(ending)} for one in some]
        here = [one for one in named if one["method"] in (*CLOSED, OURS)]
        keys = sorted({key for one in here for key in one if key.startswith("auroc ")})
        values: dict[str, list[float]] = {}
        for name, shots in sorted({(one["setting"], one["shots"]) for one in here}, key=str):
            for found in (means(here, key, setting=name, shots=shots) for key in keys):
                for method, (mean, _, _) in found.items() if OURS in found else ():
                    values.setdefault(method, []).append(mean)
        if len(values) > 1:
            columns[title] = {method: (fmean(each), 0.0, 2) for method, each in values.items()}
    if not columns:
        return ""
    about = "AUROC in the mean over all settings, shots and OOD sets, three seeds."
    return f"## Detection by closed forms\n\n{about}\n\n" + table(columns).replace(" ± 0.0", "")
