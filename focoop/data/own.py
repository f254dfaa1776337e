"""A user's own images: a CSV file, one folder per client, or a dataset of the Hugging Face hub."""

import csv
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from focoop.data._listing import ALL
from focoop.data._readers import SPLITS, named_classes, scan
from focoop.data.decoding import as_rgb
from focoop.data.imageset import ImageSet, Store
from focoop.data.names import nearest
from focoop.errors import DataError, MissingExtra

if TYPE_CHECKING:
    from PIL.Image import Image

COLUMNS = ("path", "label", "split", "client", "domain")


@dataclass(frozen=True)
class Table:
    """Images before one split of them is chosen.

    Attributes:
        root: the folder files are relative to.
        rows: file, class name, split (empty: none) and group (domain or client; empty: none).
    """

    root: Path
    rows: Sequence[tuple[str, str, str, str]]
    source: str

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits there are; empty without any."""
        return tuple(sorted({split for _, _, split, _ in self.rows if split}))

    def pick(self, split: str) -> ImageSet:
        """One split; classes and groups are numbered alike in all of them."""
        there = self.splits
        if split == "test" and "test" not in there:
            split = next((name for name in SPLITS[2:] if name in there), split)
        if not there and split not in (ALL, "test"):
            raise DataError(
                f"{self.source} has no {split!r} images: it is one set without splits; add splits, "
                "or use partition.kind = given or domain, which hold some images out"
            )
        if there and split != ALL and split not in there:
            raise DataError(f"{self.source} has no {split!r} images{nearest(split, there)}")
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
        )


def csv_table(path: Path, by: str = "domain") -> Table:
    """A CSV with columns path, label and perhaps split, client, domain; paths relative to it.

    `by` names the column that divides the rows into groups: `domain`, or `client`.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            header = [name.strip().lower() for name in reader.fieldnames or []]
            reader.fieldnames = header
            lines = list(reader)
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path.absolute()}: check the path") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path} ({error}): it must be a CSV file in UTF-8") from error
    for name in COLUMNS[:2]:
        if name not in header:
            raise DataError(
                f"{path} has no column {name!r} (it has {', '.join(header) or 'nothing'}): its "
                f"first line must be path,label and, where they apply, {', '.join(COLUMNS[2:])}"
            )
    rows = []
    for number, line in enumerate(lines, start=2):
        values = {name: (line.get(name) or "").strip() for name in COLUMNS}
        if not values["path"] or not values["label"]:
            raise DataError(f"{path}, line {number}: path and label must both be given")
        rows.append((values["path"], values["label"], values["split"].lower(), values[by]))
    if not rows:
        raise DataError(f"{path} lists no images")
    if any(row[2] for row in rows) and not all(row[2] for row in rows):
        bad = next(i for i, row in enumerate(rows, start=2) if not row[2])
        raise DataError(f"{path}, line {bad}: split is empty here and given elsewhere")
    return Table(path.parent, rows, str(path))


def clients_of(kind: str, path: Path) -> tuple[str, ...]:
    """Names of the clients that a user's images come divided into; empty where they do not."""
    if kind not in ("csv", "clients"):
        return ()
    table = csv_table(path, "client") if kind == "csv" else clients_table(path)
    return tuple(sorted({group for *_, group in table.rows if group}))


def clients_table(root: Path) -> Table:
    """One folder per client: `root/<client>/<class>/*` or `root/<client>/<split>/<class>/*`."""
    if not root.is_dir():
        raise DataError(f"no folder {root}: check the path")
    rows: list[tuple[str, str, str, str]] = []
    names: Mapping[str, str] = named_classes(root)
    for client in sorted(p.name for p in root.iterdir() if p.is_dir() and p.name[0] != "."):
        for split, classes in scan(root / client).items():
            if split and split not in SPLITS:
                raise DataError(
                    f"{root / client / split}: expected <class> or train/<class> and test/<class> "
                    "in each client's folder"
                )
            rows += [
                (f"{client}/{file}", names.get(name, name), split, client)
                for name, files in classes.items()
                for file in files
            ]
    if len({bool(row[2]) for row in rows}) > 1:
        bad = next(row for row in rows if not row[2])
        raise DataError(f"{root}: client {bad[3]!r} has no train and test folders, others have")
    if not rows:
        raise DataError(f"no client folders with images in {root}: expected CLIENT/CLASS/IMAGE")
    return Table(root, rows, str(root))


@dataclass(frozen=True, eq=False)
class HubRows:
    """Images of one split of a `datasets.Dataset`."""

    rows: Any
    column: str

    def image(self, row: int) -> "Image":
        """The image of one row as RGB."""
        found: Image = self.rows[row][self.column]
        return as_rgb(found)

    def digest(self) -> str:
        """The library's own fingerprint of the rows."""
        return hashlib.sha256(f"hf {self.rows._fingerprint} {len(self)}".encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.rows)


def read_hub(target: str, split: str) -> ImageSet:
    """`NAME` or `NAME@CONFIG` of the hub: one image column, one column of class labels."""
    try:
        library = import_module("datasets")
    except ImportError as error:
        raise MissingExtra(
            f"hf:{target} needs the package datasets (pip install datasets), or save the images "
            "as folders and name them folder:PATH"
        ) from error
    name, _, config = target.partition("@")
    try:
        found = library.load_dataset(name, config or None)
    except Exception as error:  # the library raises errors of many packages
        raise DataError(
            f"cannot load hf:{target} ({type(error).__name__}: {error}): check the name and the "
            "network, or use a copy on disk (folder:PATH)"
        ) from error
    if split == "test" and "test" not in found:
        split = next((s for s in SPLITS[2:] if s in found), split)
    if split not in found:
        raise DataError(f"hf:{target} has no split {split!r}{nearest(split, list(found))}")
    rows = found[split]
    kinds = {column: type(kind).__name__ for column, kind in rows.features.items()}
    images = [column for column, kind in kinds.items() if kind == "Image"]
    labels = [column for column, kind in kinds.items() if kind == "ClassLabel"]
    if not images or not labels:
        raise DataError(f"hf:{target} needs an Image and a ClassLabel column; it has {kinds}")
    label = "fine_label" if "fine_label" in labels else labels[0]
    store: Store = HubRows(rows, images[0])
    return ImageSet(
        root=Path(name),
        files=tuple(f"{split}/{i:07d}" for i in range(len(rows))),
        labels=tuple(int(value) for value in rows[label]),
        classes=tuple(rows.features[label].names),
        split=split,
        store=store,
    )
