"""Find the sweeps among a report's settings, and draw methods over the swept values."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from focoop.config import to_dict
from focoop.experiments import log_base
from focoop.report.drawings import Chart, Rows, short_numbers
from focoop.report.records import GRID_FOLDER, RunRecord
from focoop.report.summary import HEADLINES, headline

POINT = re.compile(r"-(\w+)=((?:(?!-\w+=).)+)")  # of `toy-shots=2-alpha=0.5`, a setting's folder


@dataclass(frozen=True)
class Swept:
    """Settings that differ in one number alone.

    Attributes:
        name: What they have in common, such as `cifar100, alpha=0.5`.
        key: The number that varies, such as `partition.shots`.
        points: Its values in order, with the setting of each.
    """

    name: str
    key: str
    points: Mapping[float, str]

    @property
    def title(self) -> str:
        """Return a heading."""
        return f"{self.name} over {self.key}"


def find_sweeps(settings: Mapping[str, Rows]) -> list[Swept]:
    """Find the sweeps that `focoop compare --sweep` and `focoop paper` made.

    Args:
        settings: Runs by setting and method.

    Returns:
        One per line of settings that differ in the first swept number alone.
    """
    groups: dict[tuple[Path, str, str], dict[str, RunRecord]] = {}
    for setting, rows in settings.items():
        record = next(iter(rows.values()))[0]
        path = record.folder.path.resolve()
        values = POINT.findall(path.parents[1].name) if GRID_FOLDER.fullmatch(path.name) else []
        if values:
            base = POINT.sub("", path.parents[1].name)
            name = ", ".join([base, *(f"{key}={value}" for key, value in values[1:])])
            place = (path.parents[2], name, values[0][0])
            groups.setdefault(place, {})[setting] = record
    found = []
    for (_, name, key), members in groups.items():
        dotted, numbers = _values(key, list(members.values()))
        if len(set(numbers)) == len(members) > 1:
            points = dict(sorted(zip(numbers, members, strict=True)))
            found.append(Swept(name, dotted, points))
    return found


def _values(key: str, records: Sequence[RunRecord]) -> tuple[str, list[float]]:
    """The section and the values of a swept setting; no values where they are no numbers."""
    trees = [to_dict(record.folder.config) for record in records]
    for section, tree in trees[0].items():
        if isinstance(tree, Mapping) and key in tree:
            values = [one[section].get(key) for one in trees]
            if len(set(map(str, values))) > 1 and all(map(_is_number, values)):
                return f"{section}.{key}", [float(value) for value in values]
    return key, []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def sweep_charts(swept: Swept, settings: Mapping[str, Rows]) -> list[Chart]:
    """Draw each headline number of every method over the swept values.

    Args:
        swept: The sweep.
        settings: Runs by setting and method; only finished ones are drawn.

    Returns:
        Charts; means over seeds, with the lowest and the highest seed as a band.
    """
    labels = dict.fromkeys(label for name in swept.points.values() for label in settings[name])
    charts = []
    for metric, title in HEADLINES.items():
        lines = [_line(metric, label, swept, settings) for label in labels]
        drawn = [line for line in lines if line["x"]]
        if drawn:
            chart = {"title": f"{title}, %", "x": swept.key, "methods": True, "points": True}
            chart |= {"log": log_base(list(swept.points))}
            charts.append({**chart, "lines": drawn})
    return charts


def _line(metric: str, label: str, swept: Swept, settings: Mapping[str, Rows]) -> Chart:
    """One method over the swept values."""
    found: dict[float, list[float]] = {}
    for value, name in swept.points.items():
        runs = [headline(run) for run in settings[name].get(label, ()) if run.finished]
        numbers = [run[metric] for run in runs if metric in run]
        if numbers:
            found[value] = numbers
    line: Chart = {
        "name": label,
        "x": list(found),
        "y": short_numbers([np.mean(numbers) for numbers in found.values()]),
    }
    if any(len(numbers) > 1 for numbers in found.values()):
        line |= {
            "low": short_numbers([min(numbers) for numbers in found.values()]),
            "high": short_numbers([max(numbers) for numbers in found.values()]),
        }
    return line
