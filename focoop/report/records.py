"""Read run folders into what a report shows: settings, methods, seeds, metrics, traffic."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from focoop.config import RunConfig, to_dict
from focoop.errors import RunError
from focoop.runs import CONFIG, RunFolder, survey_runs

GRID_FOLDER = re.compile(r"seed(\d+)")  # runs of `focoop compare` are in OUT/SETTING/LABEL/seedN
SHOWN_CHANGES = 3  # settings that a label names


@dataclass(frozen=True)
class RunRecord:
    """One run as a report shows it.

    Attributes:
        number: Its place in the report, which makes the links to it.
        folder: The run folder.
        setting: What it was run on; runs of one setting stand in one table.
        label: The method, with what makes this variant of it.
        metrics: Every evaluated round.
        rounds: Every trained round: participants, bytes, seconds.
    """

    number: int
    folder: RunFolder
    setting: str
    label: str
    metrics: Sequence[Mapping[str, Any]]
    rounds: Sequence[Mapping[str, Any]] = field(default_factory=list)

    @property
    def seed(self) -> int:
        """Return the run's seed."""
        return self.folder.config.seed

    @property
    def finished(self) -> bool:
        """Return whether the run has come to its end."""
        return self.folder.status == "finished"

    @property
    def last(self) -> Mapping[str, Any]:
        """Return the last evaluation."""
        return self.metrics[-1]


@dataclass(frozen=True)
class Collection:
    """The runs of a report, and the folders that could not be used, with the reason."""

    records: Sequence[RunRecord]
    unused: Mapping[str, str]

    def by_setting(self) -> dict[str, dict[str, list[RunRecord]]]:
        """Group runs by setting and label, seeds in order, the best on own classes first.

        Runs that are not finished stand apart and last, so that no mean is of different rounds.

        Returns:
            Setting -> label -> runs.
        """
        groups: dict[str, dict[str, list[RunRecord]]] = {}
        for record in self.records:
            label = record.label if record.finished else f"{record.label} ({record.folder.status})"
            groups.setdefault(record.setting, {}).setdefault(label, []).append(record)
        for rows in groups.values():
            for records in rows.values():
                records.sort(key=lambda record: record.seed)
        return {
            name: dict(sorted(rows.items(), key=lambda row: _place(row[1])))
            for name, rows in groups.items()
        }


def _place(records: Sequence[RunRecord]) -> tuple[bool, float]:
    """Where a method stands among others: finished before unfinished, then by own classes."""
    own = [float(record.last.get("accuracy_own") or 0.0) for record in records]
    return not records[0].finished, -sum(own) / len(own)


def collect_runs(paths: Iterable[str | Path]) -> Collection:
    """Read runs.

    Args:
        paths: Run folders, or folders with runs somewhere below, such as that of a comparison.

    Returns:
        The runs that have at least one evaluated round.

    Raises:
        RunError: There is no such folder, or no run with a result.
    """
    folders, unused = _folders(paths)
    usable: list[tuple[RunFolder, list[dict[str, Any]]]] = []
    for folder in folders:
        try:
            metrics = folder.metrics()
        except RunError as error:
            unused[str(folder.path)] = str(error)
            continue
        if metrics:
            usable.append((folder, metrics))
        else:
            unused[str(folder.path)] = f"{folder.status}, no round is evaluated yet"
    if not usable:
        reasons = "".join(f"\n  {path}: {reason}" for path, reason in list(unused.items())[:8])
        raise RunError(f"no run with a result was found{':' if reasons else ''}{reasons}")
    named = _named([folder for folder, _ in usable])
    records = [
        RunRecord(number, folder, *named[number], metrics, _rounds(folder))
        for number, (folder, metrics) in enumerate(usable)
    ]
    return Collection(records, unused)


def _folders(paths: Iterable[str | Path]) -> tuple[list[RunFolder], dict[str, str]]:
    """All runs at or below the given folders, each once, and why others cannot be read."""
    runs: dict[str, RunFolder] = {}
    unused: dict[str, str] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise RunError(f"there is no folder {path}: name a run folder, or a folder with runs")
        single = (path / CONFIG).is_file()
        below, damaged = ([RunFolder.open(path)], []) if single else survey_runs(path)
        unused |= {str(run.path): run.reason for run in damaged}
        if not below and not damaged:
            raise RunError(f"no run is in {path} or below")
        for folder in sorted(below, key=lambda folder: _natural(folder.path)):
            runs.setdefault(os.path.realpath(folder.path), folder)
    return list(runs.values()), unused


def _natural(path: Path) -> list[tuple[int, str]]:
    """An order of paths in which `shots=2` stands before `shots=16`."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _rounds(folder: RunFolder) -> list[Mapping[str, Any]]:
    return [entry for entry in folder.manifest.get("rounds", []) if entry["round"]]


def _named(folders: Sequence[RunFolder]) -> list[tuple[str, str]]:
    """Setting and label of every run: those of a comparison's folders, else made of settings."""
    names = _apart([_grid_name(folder.path) for folder in folders], folders)
    loose = [place for place, (setting, _) in enumerate(names) if not setting]
    for place, label in zip(loose, _labels([folders[i].config for i in loose]), strict=True):
        names[place] = (_setting_name(folders[place].config), label)
    return names


def _grid_name(path: Path) -> tuple[str, str] | None:
    path = path.resolve()
    if not GRID_FOLDER.fullmatch(path.name) or len(path.parts) < 4:
        return None
    return path.parents[1].name, path.parent.name


def _apart(
    names: Sequence[tuple[str, str] | None], folders: Sequence[RunFolder]
) -> list[tuple[str, str]]:
    """Names of grids' runs; settings of the same name in several grids get their grid's name."""
    grids: dict[str, set[Path]] = {}
    for name, folder in zip(names, folders, strict=True):
        if name is not None:
            grids.setdefault(name[0], set()).add(folder.path.resolve().parents[2])
    found = []
    for name, folder in zip(names, folders, strict=True):
        setting, label = name or ("", "")
        if len(grids.get(setting, ())) > 1:
            shown = _told_apart(folder.path.resolve().parents[2], grids[setting])
            setting = shown if shown.startswith(setting) else f"{shown}/{setting}"
        found.append((setting, label))
    return found


def _told_apart(grid: Path, others: set[Path]) -> str:
    """As much of the end of a path as tells it apart from the others."""
    length = 1
    while len({other.parts[-length:] for other in others}) < len(others):
        length += 1
    return "/".join(grid.parts[-length:])


def _setting_name(config: RunConfig) -> str:
    """What a run was run on, in a few words.

    Two settings that differ in something else, such as the shots, get different names by it.
    """
    data, partition = config.data, config.partition
    counted = partition.kind != "domain" and partition.clients > 0
    clients = f", {partition.clients} clients" if counted else ""
    shots = f", {partition.shots} shots" if partition.shots else ""
    return f"{data.id}, {partition.kind}{clients}{shots}, {config.federation.rounds} rounds"


def _labels(configs: Sequence[RunConfig]) -> list[str]:
    """Method names, with the settings that tell variants of one method on one setting apart."""
    groups: dict[tuple[str, str], list[int]] = {}
    for place, config in enumerate(configs):
        groups.setdefault((_setting_name(config), config.method.name), []).append(place)
    labels = [config.method.label for config in configs]
    for places in groups.values():
        flat = [_flat(to_dict(configs[place])) for place in places]
        keys = sorted({key for values in flat for key in values} - {"seed", "name"})
        differing = [key for key in keys if len({repr(values.get(key)) for values in flat}) > 1]
        for place, values in zip(places, flat, strict=True):
            shown = [f"{key.removeprefix('method.')}={values.get(key)}" for key in differing]
            if shown:
                more = ", …" if len(shown) > SHOWN_CHANGES else ""
                labels[place] += f" ({', '.join(shown[:SHOWN_CHANGES])}{more})"
    return labels


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            values |= _flat(value, f"{name}.")
        else:
            values[name] = value
    return values
