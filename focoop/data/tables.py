"""A user's own images: a CSV file, one folder per client, or a dataset of the Hugging Face hub."""

import csv
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from focoop.data.class_names import FILES, name_of, named_classes
from focoop.data.decoding import as_rgb
from focoop.data.folders import FLAT, NAMED_CLASSES, SPLITS, scan
from focoop.data.image_set import ImageSet, Store
from focoop.data.labels import is_missing, refuse_missing
from focoop.data.listing import ALL
from focoop.data.splits import column_splits, split_of
from focoop.errors import DataError, MissingExtra, nearest

if TYPE_CHECKING:
    from PIL.Image import Image

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
    """

    root: Path
    rows: Sequence[tuple[str, str, str, str]]
    source: str
    warnings: Sequence[str] = ()

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
    if not rows:
        raise DataError(f"{path} lists no images")
    bad = next((number for number, row in rows.items() if is_missing(row["path"])), None)
    if bad is not None:
        raise DataError(f"{path}, line {bad}: path and label must both be given")
    names = named_classes(path.parent) | _column_names(path, rows)
    classes = {number: name_of(row["label"], names) for number, row in rows.items()}
    refuse_missing(str(path), classes)
    splits = column_splits(str(path), {n: _given(row["split"]) for n, row in rows.items()})
    entries = [(row["path"], classes[n], splits[n], _given(row[by])) for n, row in rows.items()]
    doubts = [] if any(splits.values()) else _like_splits(path, header, lines)
    return Table(path.parent, entries, str(path), doubts)


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


def clients_of(kind: str, path: Path) -> tuple[str, ...]:
    """Return the names of the clients that a user's images come divided into.

    Args:
        kind: The kind of source, such as `clients`.
        path: Its path.

    Returns:
        The names; empty where images are not divided.
    """
    if kind not in ("csv", "clients"):
        return ()
    table = csv_table(path, "client") if kind == "csv" else clients_table(path)
    return tuple(sorted({group for *_, group in table.rows if group}))


def clients_table(root: Path) -> Table:
    """Read one folder per client.

    A client's images are `root/<client>/<class>/*` or `root/<client>/<split>/<class>/*`, or those
    that a table in its folder lists, such as `root/<client>/labels.csv`.

    Args:
        root: The folder of the clients.

    Returns:
        The images of all clients.

    Raises:
        DataError: There is no such folder, or the layout of a client's folder is not clear.
    """
    if not root.is_dir():
        raise DataError(f"no folder {root}: check the path")
    shared = named_classes(root)
    of_client = {}
    for client in sorted(p.name for p in root.iterdir() if p.is_dir() and p.name[0] != "."):
        names = {**shared, **named_classes(root / client)}  # sites may number classes otherwise
        listed = listing(root / client)
        if listed is None:
            of_client[client] = _folder_rows(root, client, names)
        else:
            of_client[client] = _listed_rows(listed, client, shared)
    if not any(of_client.values()):
        raise DataError(f"no client folders with images in {root}: expected CLIENT/CLASS/IMAGE")
    kinds = {client: {row[2] for row in rows} for client, rows in of_client.items()}
    if any("test" in splits for splits in kinds.values()):
        # A client without test images of its own is tested on its validation images, as alone.
        for client in [name for name, splits in kinds.items() if "test" not in splits]:
            rows = of_client[client]
            of_client[client] = [(f, c, "test" if s == "val" else s, k) for f, c, s, k in rows]
    return Table(root, [row for rows in of_client.values() for row in rows], str(root))


def _folder_rows(
    root: Path, client: str, names: Mapping[str, str]
) -> list[tuple[str, str, str, str]]:
    """The rows of a client's folder of class folders."""
    rows: list[tuple[str, str, str, str]] = []
    for split, classes in scan(root / client, names).items():
        if FLAT in classes:
            raise DataError(
                f"{root / client} holds images and no class folders: sort them into "
                f"{client}/CLASS, or list them in a table {client}/labels.csv (path,label)"
            )
        if split and split not in SPLITS:
            raise DataError(
                f"{root / client / split}: expected <class> or train/<class> and test/<class> "
                f"in each client's folder. {NAMED_CLASSES}"
            )
        rows += [
            (f"{client}/{file}", names.get(name, name), split, client)
            for name, files in classes.items()
            for file in files
        ]
    return rows


def _listed_rows(
    listed: Path, client: str, names: Mapping[str, str]
) -> list[tuple[str, str, str, str]]:
    """The rows of a client's table; their paths begin with the client's folder."""
    return [
        (str(Path(client) / file), name_of(name, names), split, client)  # absolute paths stay so
        for file, name, split, _ in csv_table(listed).rows
    ]


def listing(folder: Path) -> Path | None:
    """The table of images in a folder: a CSV file with the columns path and label.

    Args:
        folder: where it may lie; folders below are not looked into.

    Returns:
        The file; None where there is none.

    Raises:
        DataError: there are several.
    """
    paths = []
    for path in sorted(folder.iterdir()):
        if path.suffix.lower() != ".csv" or path.name in FILES or path.name[0] == ".":
            continue
        if not path.is_file():
            continue
        try:
            header, _ = _csv_lines(path)
        except DataError:  # not a table of text
            continue
        if set(COLUMNS[:2]) <= set(header):
            paths.append(path)
    if len(paths) > 1:
        both = " and ".join(path.name for path in paths)
        raise DataError(
            f"{folder} holds {both}, which both list images: keep one of them there, with all rows"
        )
    return paths[0] if paths else None


def listings(root: Path) -> dict[str, str]:
    """Find the tables of the clients of `clients:` whose images a table lists.

    Args:
        root: The folder of the clients.

    Returns:
        Name of the table by client.
    """
    folders = root.iterdir() if root.is_dir() else ()
    paths = {p.name: listing(p) for p in folders if p.is_dir() and p.name[0] != "."}
    return {client: path.name for client, path in sorted(paths.items()) if path is not None}


@dataclass(frozen=True, eq=False)
class HubRows:
    """Images of one split of a `datasets.Dataset`."""

    rows: Any
    column: str

    def image(self, row: int) -> "Image":
        """Read one image.

        Args:
            row: Its number.

        Returns:
            The image as RGB.
        """
        image: Image = self.rows[row][self.column]
        return as_rgb(image)

    def digest(self) -> str:
        """Return the library's own fingerprint of the rows."""
        return hashlib.sha256(f"hf {self.rows._fingerprint} {len(self)}".encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.rows)


def read_hub(target: str, split: str) -> ImageSet:
    """Read a dataset of the hub: one image column, one column of class labels.

    Args:
        target: `NAME` or `NAME@CONFIG`.
        split: The split.

    Returns:
        The images.

    Raises:
        DataError: It cannot be read, or its columns are not clear.
        MissingExtra: The package `datasets` is not installed.
    """
    try:
        library = import_module("datasets")
    except ImportError as error:
        raise MissingExtra(
            f"hf:{target} needs the package datasets (pip install datasets), or save the images "
            "as folders and name them folder:PATH"
        ) from error
    name, _, config = target.partition("@")
    try:
        splits = library.load_dataset(name, config or None)
    except Exception as error:  # the library raises errors of many packages
        raise DataError(
            f"cannot load hf:{target} ({type(error).__name__}: {error}): check the name and the "
            "network, or use a copy on disk (folder:PATH)"
        ) from error
    if split not in splits:
        same = [name for name in splits if split_of(name) == split]
        same += [name for name in splits if split == "test" and split_of(name) == "val"]
        split = next(iter(same), split)
    if split not in splits:
        raise DataError(f"hf:{target} has no split {split!r}{nearest(split, list(splits))}")
    rows = splits[split]
    kinds = {column: type(kind).__name__ for column, kind in rows.features.items()}
    images = [column for column, kind in kinds.items() if kind == "Image"]
    labels = [column for column, kind in kinds.items() if kind == "ClassLabel"]
    if not images or not labels:
        raise DataError(f"hf:{target} needs an Image and a ClassLabel column; it has {kinds}")
    label = "fine_label" if "fine_label" in labels else labels[0]
    store: Store = HubRows(rows, images[0])
    _refuse_unlabelled(target, split, rows[label], len(rows.features[label].names))
    return ImageSet(
        root=Path(name),
        files=tuple(f"{split}/{i:07d}" for i in range(len(rows))),
        labels=tuple(int(value) for value in rows[label]),
        classes=tuple(rows.features[label].names),
        split=split,
        store=store,
    )


def _refuse_unlabelled(target: str, split: str, labels: Sequence[Any], classes: int) -> None:
    """Refuse a split of the hub without labels, before any image is encoded."""
    wrong = [value for value in labels if value is None or not 0 <= value < classes]
    if wrong:
        raise DataError(
            f"hf:{target}: {len(wrong)} of {len(labels)} images of the split {split!r} have no "
            f"label of the {classes} classes ({wrong[0]} in its place), as hidden test sets do: "
            "use a dataset whose test images are labelled, or save its labelled images as folders "
            "and name them folder:PATH"
        )
