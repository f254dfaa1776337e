"""Our numbers beside the paper's: means over seeds for every block, method and column."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from focoop.experiments import DETECTION, Outcome, tables
from focoop.paper.items import Item, paper_name
from focoop.paper.planning import Planned


@dataclass(frozen=True)
class Entry:
    """One number of an item.

    Attributes:
        part: The paper's heading of the block.
        key: The swept setting; empty: none.
        point: Its value; empty: none.
        label: Our name of the method.
        method: The paper's.
        column: The paper's name of the column.
        ours: Mean and deviation over seeds in percent; None: nothing is finished.
        runs: How many runs are finished, such as `3` or `1 of 3`.
        published: The paper's value; None: it has none.
    """

    part: str
    key: str
    point: str
    label: str
    method: str
    column: str
    ours: tables.Stat | None
    runs: str
    published: float | None


def measured(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of an evaluation in percent, by the names that items use.

    Args:
        summary: The evaluation.

    Returns:
        Those of the tables, `corrupted TYPE` for each type, and `fpr95`, `fpr95_oodpos` and `auroc`
        as means over the OOD sets.
    """
    values = tables.columns(summary)
    for kind, value in summary.get("corrupted_by_type", {}).items():
        values[f"corrupted {kind}"] = 100 * value
    for metric in DETECTION:
        found = [value for name, value in values.items() if name.startswith(f"{metric} ")]
        if found:
            values[metric] = sum(found) / len(found)
    return values


def entries(
    item: Item, plans: Sequence[Planned], outcomes: Mapping[str, Outcome], methods: Sequence[str]
) -> list[Entry]:
    """Put our means beside the paper's values.

    Args:
        item: The item.
        plans: Its runs.
        outcomes: What became of them, by folder.
        methods: Our names of the rows.

    Returns:
        One entry per block, point, method and column.
    """
    published = item.published()
    found: list[Entry] = []
    for plan in plans:
        groups: dict[tuple[tuple[tuple[str, str], ...], str], list[Outcome]] = {}
        for cell in plan.cells:
            outcome = outcomes.get(str(cell.folder), Outcome(cell))
            groups.setdefault((cell.point, cell.label), []).append(outcome)
        points = list(dict.fromkeys(point for point, _ in groups)) or [()]
        for point in points:
            key, value = point[0] if point else ("", "")
            for label in methods:
                stats, runs = _over_seeds(groups.get((point, label), []))
                found += [
                    Entry(
                        plan.part.name,
                        key,
                        value,
                        label,
                        paper_name(label),
                        column,
                        stats.get(ours),
                        runs,
                        published.get((plan.part.name, value, paper_name(label), column)),
                    )
                    for column, ours in item.columns.items()
                ]
    return [*found, *_averages(item, found, published)]


def blocks(item: Item, found: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Divide an item's numbers into tables and figures.

    Args:
        item: The item.
        found: Its numbers.

    Returns:
        Heading -> numbers: one block per part. Parts of a single column without a sweep are the
        columns of one block, called as the item's only column is.
    """
    parts: dict[str, list[Entry]] = {}
    for one in found:
        parts.setdefault(one.part, []).append(one)
    if len(parts) < 2 or len(item.columns) > 1 or any(one.key for one in found):
        return parts
    (name,) = item.columns
    return {name: [replace(one, part=name, column=one.part) for one in found]}


def seeds_told(members: Sequence[Entry]) -> str:
    """Say over how many seeds the numbers of a block are means, row by row where they differ.

    Args:
        members: The block's numbers.

    Returns:
        Such as `Seeds: 3.` or `Seeds: 3 (FOCoOp), 1 (PromptFL, FedPGP).`; empty: there is no
        number.
    """
    rows: dict[str, set[int]] = {}
    for one in members:
        if one.ours is not None and one.runs:  # means over parts have no runs of their own
            rows.setdefault(one.method, set()).add(int(one.runs.split(" ")[0]))
    groups: dict[tuple[int, int], list[str]] = {}
    for method, counts in rows.items():
        groups.setdefault((min(counts), max(counts)), []).append(method)
    if not groups:
        return ""
    spans = {span: _span(*span) for span in sorted(groups, reverse=True)}
    if len(groups) == 1:
        return f"Seeds: {', '.join(spans.values())}."
    told = [f"{text} ({', '.join(groups[span])})" for span, text in spans.items()]
    return f"Seeds: {', '.join(told)}."


def seeds_span(members: Sequence[Entry]) -> str:
    """Say in two or three words over how many seeds the numbers of a block are means.

    Args:
        members: The block's numbers.

    Returns:
        Such as `3 seeds` or `1 to 3 seeds`; empty: there is no number.
    """
    counts = [int(m.runs.split(" ")[0]) for m in members if m.ours is not None and m.runs]
    if not counts:
        return ""
    return f"{_span(min(counts), max(counts))} seed{'s'[: max(counts) > 1]}"


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _over_seeds(outcomes: Sequence[Outcome]) -> tuple[dict[str, tables.Stat], str]:
    done = [measured(o.summary or {}) for o in outcomes if o.status == "finished"]
    names = dict.fromkeys(name for values in done for name in values)
    stats = {name: tables.stat([v[name] for v in done if name in v]) for name in names}
    count = f"{len(done)}" if len(done) == len(outcomes) else f"{len(done)} of {len(outcomes)}"
    return stats, count


def _averages(
    item: Item, found: Sequence[Entry], published: Mapping[tuple[str, str, str, str], float]
) -> list[Entry]:
    """Means over parts, where every part has a number."""
    result = []
    by_place = {(entry.part, entry.label, entry.column): entry for entry in found}
    for average in item.averages:
        for label in dict.fromkeys(entry.label for entry in found):
            for column in item.columns:
                members = [by_place[part, label, column].ours for part in average.parts]
                means = [stat.mean for stat in members if stat is not None]
                whole = len(means) == len(average.parts)
                ours = tables.Stat(sum(means) / len(means), None, len(means)) if whole else None
                theirs = published.get((average.name, "", paper_name(label), column))
                result.append(
                    Entry(average.name, "", "", label, paper_name(label), column, ours, "", theirs)
                )
    return result
