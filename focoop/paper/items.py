"""The tables and figures of the paper as data: one small TOML file each, and published values."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from focoop.config import shipped
from focoop.errors import ConfigError, nearest
from focoop.fields import parse_toml

FIGURES = ("bars", "lines", "map", "none")
PUBLISHED = "published"  # the folder beside the items
HEAD = ("part", "method", "column", "value")
POINT = "point"  # the column of published values that lie on a sweep
# What the paper calls our methods and variants.
PAPER_NAMES = {
    "promptfl": "PromptFL",
    "fedotp": "FedOTP",
    "fedpgp": "FedPGP",
    "promptfolio": "PromptFolio",
    "fedlocoop": "FedLoCoOp",
    "fedgallop": "FedGalLoP",
    "fedlapt": "FedLAPT",
    "focoop": "FOCoOp",
    "focoop:bos=false": "w/o BOS",
    "focoop:goc=false": "w/o GOC",
}


@dataclass(frozen=True)
class Part:
    """One block of a table or panel of a figure: a setting and what is changed in it.

    Attributes:
        name: The paper's heading, such as `CIFAR-100, K=10`.
        setting: A settings file: beside the items, or a name that comes with focoop.
        runs: The folder of its runs; items whose parts have the same one share them.
        set: Settings above the file's, by dotted key.
        packaged: Settings that use packaged images instead; empty: there are none.
        sweep: A setting at several values, such as `partition.shots=1,2,4`; empty: none.
    """

    name: str
    setting: str
    runs: str
    set: Mapping[str, Any] = field(default_factory=dict)
    packaged: Mapping[str, Any] = field(default_factory=dict)
    sweep: str = ""


@dataclass(frozen=True)
class Average:
    """The mean over parts, shown as a part of its own.

    Attributes:
        name: Its heading.
        parts: The parts' names.
    """

    name: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper.

    Attributes:
        name: What it is asked for by: `T1`, `F5`, `ablation`.
        title: What it shows.
        paper: Where it stands in the paper.
        methods: Methods, presets or variants, one row each.
        columns: The paper's name of a column -> ours: `own`, `corrupted`, `corrupted TYPE`, `fpr95`
            (mean over the OOD sets), `fpr95 SET`, `auroc`, ...
        parts: Its blocks.
        figure: How it is drawn: `bars`, `lines` over a sweep, `map` of similarities, `none`.
        also: Other tables and figures that the same runs make.
        averages: Means over parts.
        backbone: The backbone, where the item is about one; empty: the user's.
        notes: What a reader of the numbers must know.
        folder: The folder it was read from.
    """

    name: str
    title: str
    paper: str
    methods: tuple[str, ...]
    columns: Mapping[str, str]
    parts: tuple[Part, ...]
    figure: str = "none"
    also: tuple[str, ...] = ()
    averages: tuple[Average, ...] = ()
    backbone: str = ""
    notes: tuple[str, ...] = ()
    folder: Path = Path()

    def published(self) -> dict[tuple[str, str, str, str], float]:
        """Return the paper's values.

        Returns:
            (part, point of the sweep or empty, the paper's name of the method, column) -> percent.

        Raises:
            ConfigError: The file is damaged.
        """
        path = self.folder / PUBLISHED / f"{self.name}.csv"
        if not path.is_file():
            return {}
        found: dict[tuple[str, str, str, str], float] = {}
        with path.open(newline="", encoding="utf-8") as stream:
            for number, row in enumerate(csv.DictReader(stream), start=2):
                try:
                    part, method, column, value = (row[name] for name in HEAD)
                    key = (part, row.get(POINT) or "", method, column)
                    found[key] = float(value)
                except (KeyError, TypeError, ValueError) as error:
                    raise ConfigError(
                        f"{path}, line {number}: write {','.join(HEAD)} ({error})"
                    ) from error
        return found


def paper_name(label: str) -> str:
    """Return what the paper calls a method or variant.

    Args:
        label: Our name.

    Returns:
        The paper's, or our own where it has none.
    """
    return PAPER_NAMES.get(label, label)


def items_folder(folder: Path | None = None) -> Path:
    """Return the folder of the items.

    Args:
        folder: A folder of the user's own; None: the one that comes with focoop.

    Returns:
        The folder.

    Raises:
        ConfigError: It does not exist.
    """
    found = shipped("paper") if folder is None else folder
    if not found.is_dir():
        raise ConfigError(f"there is no folder {found} of items: check --items")
    return found


def read_items(folder: Path | None = None) -> list[Item]:
    """Read all items of a folder: tables by number, figures by number, then the others.

    Args:
        folder: The folder; None: the one that comes with focoop.

    Returns:
        The items.

    Raises:
        ConfigError: An item cannot be used, or there is none.
    """
    found = items_folder(folder)
    items = [read_item(path) for path in sorted(found.glob("*.toml"))]
    if not items:
        raise ConfigError(f"{found} holds no item: an item is a file such as T1.toml")
    return sorted(items, key=lambda item: _place(item.name))


def _place(name: str) -> tuple[int, int, str]:
    match = re.fullmatch(r"([TF])(\d+)", name)
    return ("TF".index(match[1]), int(match[2]), name) if match else (2, 0, name)


def read_item(path: Path) -> Item:
    """Read one item.

    Args:
        path: Its TOML file.

    Returns:
        The item.

    Raises:
        ConfigError: The file is no item.
    """
    try:
        tree = parse_toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the item {path}: {error}") from error
    _known(path, "", tree, Item, ("name", "folder"))
    try:
        parts = tuple(_part(path, entry) for entry in tree["parts"])
        averages = tuple(
            Average(str(entry["name"]), tuple(entry["parts"])) for entry in tree.get("averages", ())
        )
        item = Item(
            name=path.stem,
            title=str(tree["title"]),
            paper=str(tree["paper"]),
            methods=tuple(tree["methods"]),
            columns=dict(tree["columns"]),
            parts=parts,
            figure=str(tree.get("figure", "none")),
            also=tuple(tree.get("also", ())),
            averages=averages,
            backbone=str(tree.get("backbone", "")),
            notes=tuple(tree.get("notes", ())),
            folder=path.parent,
        )
    except KeyError as error:
        raise ConfigError(f"the item {path} has no {error.args[0]}") from error
    except (TypeError, AttributeError, ValueError) as error:
        raise ConfigError(f"the item {path} cannot be used: {error}") from error
    _check(path, item)
    return item


def _part(path: Path, entry: Mapping[str, Any]) -> Part:
    _known(path, "parts.", entry, Part)
    return Part(
        name=str(entry["name"]),
        setting=str(entry["setting"]),
        runs=str(entry["runs"]),
        set=dict(entry.get("set", {})),
        packaged=dict(entry.get("packaged", {})),
        sweep=str(entry.get("sweep", "")),
    )


def _known(
    path: Path, where: str, tree: Mapping[str, Any], kind: type, less: Sequence[str] = ()
) -> None:
    names = [one.name for one in fields(kind) if one.name not in less]
    for name in tree:
        if name not in names:
            raise ConfigError(f"the item {path} has no key {where}{name}{nearest(name, names)}")


def _check(path: Path, item: Item) -> None:
    """Refuse an item that contradicts itself."""
    names = [part.name for part in item.parts]
    if item.figure not in FIGURES:
        raise ConfigError(f"figure = {item.figure!r} in {path}: write {', '.join(FIGURES)}")
    if not names or not item.methods or not item.columns:
        raise ConfigError(f"the item {path} needs at least one part, method and column")
    for what, all_of in (("part", names), ("folder of runs", [part.runs for part in item.parts])):
        twice = [name for name in all_of if all_of.count(name) > 1]
        if twice:
            raise ConfigError(f"the item {path} names the {what} {twice[0]!r} twice")
    for average in item.averages:
        for part in average.parts:
            if part not in names:
                raise ConfigError(f"{average.name!r} in {path} names no part: {part!r}")


def choose_items(wanted: Sequence[str], items: Sequence[Item]) -> list[Item]:
    """Return the items asked for, each once, in the order of `items`.

    Args:
        wanted: Names such as `T1` or `f5`, in any case; `all`.
        items: All items.

    Returns:
        The items; for a name under `also` the item whose runs make it.

    Raises:
        ConfigError: There is no such item.
    """
    names = {item.name.lower(): item for item in items}
    names |= {other.lower(): item for item in items for other in item.also}
    chosen: list[Item] = []
    for name in wanted:
        if name.lower() == "all":
            chosen += items
        elif name.lower() in names:
            chosen.append(names[name.lower()])
        else:
            known = [item.name for item in items] + [one for item in items for one in item.also]
            raise ConfigError(
                f"there is no item {name!r}{nearest(name, known)}; focoop paper lists them all"
            )
    return [item for item in items if item in chosen]
