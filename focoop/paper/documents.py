"""The numbers of an item as plain values for a JSON file, and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from focoop.errors import ConfigError
from focoop.experiments import parse_sweep, tables
from focoop.paper.items import Item, paper_name
from focoop.paper.numbers import Entry
from focoop.paper.writing import Remarks

DIGITS = 4  # of percentages


@dataclass(frozen=True)
class Numbers:
    """All that is written and drawn of an item.

    Attributes:
        item: The item.
        entries: Every number, ours beside the paper's.
        remarks: What stands below the tables.
    """

    item: Item
    entries: tuple[Entry, ...]
    remarks: Remarks

    def document(self) -> dict[str, Any]:
        """Return them as plain values; the paper's stay in their own file.

        Returns:
            Values for a JSON file: `numbers` has part, point, method, column, mean, deviation, how
            many values, how many runs.
        """
        return {
            "item": self.item.name,
            "made_with": self.remarks.made_with,
            "notes": list(self.remarks.notes[len(self.item.notes) :]),
            "lacking": list(self.remarks.lacking),
            "failed": list(self.remarks.failed),
            "numbers": [_row(one) for one in self.entries if one.ours is not None],
        }


def _row(one: Entry) -> list[Any]:
    ours = one.ours or tables.Stat(0.0, None, 0)
    spread = None if ours.spread is None else round(ours.spread, DIGITS)
    place = [one.part, one.point, one.label, one.column]
    return [*place, round(ours.mean, DIGITS), spread, ours.count, one.runs]


def read_numbers(item: Item, tree: Mapping[str, Any]) -> Numbers:
    """Return the numbers that a document holds, the paper's values beside them.

    Args:
        item: The item.
        tree: What `Numbers.document` returned.

    Returns:
        The numbers; the entries of parts that are not in the document are empty.

    Raises:
        ConfigError: The document is of another item or damaged.
    """
    if tree.get("item") != item.name:
        raise ConfigError(f"these are the numbers of {tree.get('item')!r}, not of {item.name}")
    try:
        found = {tuple(row[:4]): row[4:] for row in tree["numbers"]}
        remarks = Remarks(
            str(tree["made_with"]),
            (*item.notes, *tree["notes"]),
            tuple(tree["lacking"]),
            tuple(tree["failed"]),
        )
        return Numbers(item, tuple(_entries(item, found)), remarks)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ConfigError(f"the numbers of {item.name} cannot be read: {error}") from error


def _entries(item: Item, found: Mapping[tuple[Any, ...], list[Any]]) -> list[Entry]:
    published = item.published()
    sweeps = {part.name: parse_sweep(part.sweep) for part in item.parts if part.sweep}
    labels = list(dict.fromkeys([*item.methods, *(place[2] for place in found)]))
    entries = []
    names = [*(part.name for part in item.parts), *(one.name for one in item.averages)]
    for name in names:
        sweep = sweeps.get(name)
        for point in sweep.values if sweep else ("",):
            for label in labels:
                for column in item.columns:
                    mean, spread, count, runs = found.get(
                        (name, point, label, column), (None, None, 0, "0")
                    )
                    ours = None if mean is None else tables.Stat(mean, spread, count)
                    theirs = published.get((name, point, paper_name(label), column))
                    place = (name, sweep.key if sweep else "", point, label, paper_name(label))
                    entries.append(Entry(*place, column, ours, runs, theirs))
    return entries
