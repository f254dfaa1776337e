"""A table of a user's own images, as a CSV file lists them."""

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from focoop.data.class_names import FILES, name_of, named_classes
from focoop.data.formats import SUFFIXES, suffix
from focoop.data.image_set import ImageSet
from focoop.data.labels import is_missing, refuse_missing
from focoop.data.listing import ALL
from focoop.data.splits import TEST, VAL, column_splits, split_of
from focoop.errors import DataError, nearest

COLUMNS = ("path", "label", "split", "client", "domain", "class_name")
# Columns that are not read and that look as if their author meant `split` by them.
LIKE_SPLIT = ("set", "subset", "partition", "fold", "phase", "usage", "is_train", "train")


@dataclass(frozen=True)
class Table:
    """Images before one split of them is chosen.

    Attributes:
        root: the folder files are relative to.
        rows: file, class name, split (empty: none) and group (domain or client; empty: none). Some
            clients may have splits and others none.
        source: where they were listed, for messages.
        warnings: what is doubtful about the list itself.
        validated: clients that are tested on their validation images, for want of test images.
    """

    root: Path
    rows: Sequence[tuple[str, str, str, str]]
    source: str
    warnings: Sequence[str] = ()
    validated: Sequence[str] = ()

    def tested_alone(self) -> "Table":
        """Test each client on what it would be tested on alone.

        Returns:
            The table; validation images of a client without test images are its test images.
        """
        splits: dict[str, set[str]] = {}
        for _, _, split, group in self.rows:
            splits.setdefault(group, set()).add(split)
        some = {group for group, there in splits.items() if VAL in there and TEST not in there}
        rows = [
            (file, name, TEST if split == VAL and group in some else split, group)
            for file, name, split, group in self.rows
        ]
        return replace(self, rows=rows, validated=tuple(sorted(some)))

    @property
    def splits(self) -> tuple[str, ...]:
        """Return the splits there are; empty without any."""
        return tuple(sorted({split for _, _, split, _ in self.rows if split}))

    @property
    def undivided(self) -> tuple[str, ...]:
        """Return the clients without training and test images apart, where others have them."""
        groups = {group for _, _, split, group in self.rows if not split}
        return tuple(sorted(groups)) if self.splits else ()

    def pick(self, split: str) -> ImageSet:
        """Return one split; classes and groups are numbered alike in all of them.

        Args:
            split: The split's name.

        Returns:
            The images.

        Raises:
            DataError: There is no such split.
        """
        there = self.splits
        if split not in there:
            split = split_of(split) or split
        if split == "test" and "val" in there and "test" not in there:
            split = "val"
        if not there and split not in (ALL, "test"):
            raise DataError(
                f"{self.source} has no {split!r} images: it is one set without splits; ask for "
                f"{ALL!r}, or add splits (a run holds some images out as test by itself)"
            )
        if there and split != ALL and split not in there:
            raise DataError(f"{self.source} has no {split!r} images{nearest(split, there)}")
        if self.undivided and split != ALL:
            raise DataError(
                f"{self.source}: {', '.join(self.undivided)} has no {split!r} images of its own, "
                f"others have: ask for {ALL!r} (a run holds some images out as test by itself)"
            )
        chosen = [row for row in self.rows if not there or split in (ALL, row[2])]
        classes = sorted({name for _, name, _, _ in self.rows})
        groups = sorted({group for *_, group in self.rows if group})
        if groups and any(not group for *_, group in self.rows):
            bad = next(file for file, _, _, group in self.rows if not group)
            raise DataError(f"{self.source}: {bad} has no client or domain while others have one")
        label = {name: i for i, name in enumerate(classes)}
        place = {name: i for i, name in enumerate(groups)}
        return ImageSet(
            root=self.root,
            files=tuple(file for file, *_ in chosen),
            labels=tuple(label[name] for _, name, _, _ in chosen),
            classes=tuple(classes),
            split=split,
            domains=tuple(place[group] for *_, group in chosen) if groups else (),
            domain_names=tuple(groups),
            splits=tuple(row[2] for row in chosen) if there else (),
        )


def csv_table(path: Path, by: str = "domain") -> Table:
    """Read a CSV with columns path, label and perhaps split, client, domain, class_name.

    Args:
        path: the file; the paths in it are relative to its folder. Class names may also come from
            `class_names.csv` beside it.
        by: the column that divides the rows into groups, `domain` or `client`.

    Returns:
        The images it lists.

    Raises:
        DataError: the file cannot be read, or a row lacks a path, a label or a known split.
    """
    header, lines = _csv_lines(path)
    for name in COLUMNS[:2]:
        if name not in header:
            raise DataError(
                f"{path} has no column {name!r} (it has {', '.join(header) or 'nothing'}): its "
                f"first line must be path,label and, where they apply, {', '.join(COLUMNS[2:])}"
            )
    rows = {
        number: {name: (line.get(name) or "").strip() for name in COLUMNS}
        for number, line in lines.items()
    }
    for row in rows.values():  # as Windows writes paths; here a file's name may hold a backslash
        if "\\" in row["path"] and not os.path.lexists(path.parent / row["path"]):
            row["path"] = row["path"].replace("\\", "/")
    if not rows:
        raise DataError(f"{path} lists no images")
    bad = next((number for number, row in rows.items() if is_missing(row["path"])), None)
    if bad is not None:
        raise DataError(f"{path}, line {bad}: path and label must both be given")
    bad = next((number for number, row in rows.items() if "\0" in row["path"]), None)
    if bad is not None:
        raise DataError(f"{path}, line {bad}: the path holds a zero byte: the file is damaged")
    names = named_classes(path.parent) | _column_names(path, rows)
    classes = {number: name_of(row["label"], names) for number, row in rows.items()}
    refuse_missing(str(path), classes)
    splits = column_splits(str(path), {n: _given(row["split"]) for n, row in rows.items()})
    entries = [(row["path"], classes[n], splits[n], _given(row[by])) for n, row in rows.items()]
    doubts = [] if any(splits.values()) else _like_splits(path, header, lines)
    table = Table(path.parent, entries, str(path), doubts)
    return table.tested_alone() if by == "client" and any(row[3] for row in entries) else table


def _like_splits(
    path: Path, header: Sequence[str], lines: Mapping[int, Mapping[str, str]]
) -> list[str]:
    """Columns that may be meant as `split`; one that says train and test is refused."""
    remarks = []
    for name in [name for name in header if name in LIKE_SPLIT]:
        values = {(line.get(name) or "").strip() for line in lines.values()}
        if all(split_of(value) for value in values):
            raise DataError(
                f"{path}: the column {name!r} says {', '.join(sorted(values))} and is not read: "
                "call it split"
            )
        remarks.append(
            f"{path}: the column {name!r} is not read. Call it split if it says which images "
            "train and which are tests"
        )
    return remarks


def _given(value: str) -> str:
    """A cell; empty where it says that there is no value, as `NaN` does."""
    return "" if is_missing(value) else value


def _csv_lines(path: Path) -> tuple[list[str], dict[int, dict[str, str]]]:
    """Header, in small letters, and lines by number; a semicolon or tab may separate cells."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            mark = max(",;\t", key=first.count)
            reader = csv.DictReader(file, delimiter=mark)
            header = [name.strip().lower() for name in reader.fieldnames or []]
            reader.fieldnames = header
            lines = {}
            for line in reader:
                lines[reader.line_num] = line
            return header, lines
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path.absolute()}: check the path") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path} ({error}): it must be a CSV file in UTF-8") from error


def _column_names(path: Path, rows: Mapping[int, Mapping[str, str]]) -> dict[str, str]:
    """Label -> name as the column `class_name` says, which must say one thing for each label."""
    names: dict[str, str] = {}
    for number, row in rows.items():
        label, name = row["label"], row["class_name"]
        if is_missing(name):
            continue
        if names.setdefault(label, name) != name:
            raise DataError(
                f"{path}, line {number}: label {label!r} has the class_name {name!r} here and "
                f"{names[label]!r} above: give each label one name"
            )
    return names


def listing(folder: Path) -> Path | None:
    """The table of images in a folder: a CSV file with the columns path and label.

    Args:
        folder: where it may lie; folders below are not looked into.

    Returns:
        The file; None where there is none.

    Raises:
        DataError: there are several.
    """
    paths = [path for path, header, _ in _tables(folder) if set(COLUMNS[:2]) <= set(header)]
    if len(paths) > 1:
        both = " and ".join(path.name for path in paths)
        raise DataError(
            f"{folder} holds {both}, which both list images: keep one of them there, with all rows"
        )
    return paths[0] if paths else None


def unread_tables(folder: Path) -> list[str]:
    """Say which tables in a folder name images and are not read, for want of a column.

    Args:
        folder: Where they may lie.

    Returns:
        A sentence or two each.
    """
    remarks = []
    for path, header, lines in _tables(folder):
        first = next(iter(lines.values()), {})
        named = any(isinstance(v, str) and suffix(v.strip()) in SUFFIXES for v in first.values())
        lacking = [name for name in COLUMNS[:2] if name not in header]
        if named and lacking:
            remarks.append(
                f"{path} names images and is not read: it has no column {' and no '.join(lacking)} "
                f"({', '.join(header)}). A table of images is any CSV file, such as labels.csv, "
                "whose first line is path,label"
            )
    return remarks


def _tables(folder: Path) -> Iterator[tuple[Path, list[str], dict[int, dict[str, str]]]]:
    """The CSV files in a folder but lists of class names, each with its header and lines."""
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() != ".csv" or path.name in FILES or path.name[0] == ".":
            continue
        if not path.is_file():
            continue
        try:
            yield path, *_csv_lines(path)
        except DataError:  # not a table of text
            continue
