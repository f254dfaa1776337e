"""Image folders: which files there are, of which class, split and domain. No pixel is read here."""

import csv
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from focoop.data.imageset import ImageSet
from focoop.data.names import nearest
from focoop.errors import DataError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff"})
SPLITS = ("train", "test", "val", "valid", "validation")
ALL = "all"
NAMES = "class_names.csv"


Tree = Mapping[str, Mapping[str, Sequence[str]]]  # group -> class -> files relative to the root


def read_folder(root: Path | str, split: str, drop_classes: Sequence[str] = ()) -> ImageSet:
    """Images of `root/<split>/<class>/*`, `root/<domain>/<class>/*` or `root/<class>/*`.

    A folder without splits is one split, called `all` or `test`: training on it would be training
    on the test images. With domains, a split is a domain's name or `all`.
    """
    root = Path(root)
    tree = renamed(scan(root), named_classes(root))
    everything = _classes(root, tree)
    for name in drop_classes:
        if name not in everything:
            raise DataError(f"cannot drop class {name!r} of {root}{nearest(name, everything)}")
    classes = tuple(name for name in everything if name not in drop_classes)
    groups = _groups(root, tree, split)
    files: list[str] = []
    labels: list[int] = []
    domains: list[int] = []
    order = sorted(tree)
    for group in groups:
        for label, name in enumerate(classes):
            found = tree[group].get(name, ())
            files += found
            labels += [label] * len(found)
            domains += [order.index(group)] * len(found)
    if not files:
        raise DataError(f"no images for split {split!r} in {root} (looked for {_suffixes()})")
    by_domain = _has_domains(tree)
    return ImageSet(
        root=root,
        files=tuple(files),
        labels=tuple(labels),
        classes=classes,
        split=split,
        domains=tuple(domains) if by_domain else (),
        domain_names=tuple(order) if by_domain else (),
    )


def folder_splits(root: Path | str) -> tuple[str, ...]:
    """The splits or domains that an image folder offers."""
    tree = scan(Path(root))
    return (ALL,) if "" in tree else tuple(sorted(tree))


def _has_domains(tree: Tree) -> bool:
    return "" not in tree and not any(group in SPLITS for group in tree)


def _groups(root: Path, tree: Tree, split: str) -> list[str]:
    """The first-level folders that make up `split`."""
    if "" in tree:
        if split not in (ALL, "test"):
            raise DataError(
                f"{root} holds class folders and no {split!r} folder: sort the images into "
                f"train/<class> and test/<class> (or ask for {ALL!r}, where a split is asked for)"
            )
        return [""]
    if split == ALL:
        return sorted(tree)
    if split == "test" and split not in tree:
        split = next((name for name in SPLITS[2:] if name in tree), split)
    if split not in tree and _has_domains(tree):
        raise DataError(
            f"{root} has no folder {split!r}: {', '.join(sorted(tree))} are taken as domains; make "
            f"them the clients (partition.kind=domain), or sort the images into train/<class> and "
            f"test/<class> (a split here is a domain's name or {ALL!r})"
        )
    if split not in tree:
        raise DataError(f"{root} has no {split!r}: its splits are {', '.join(sorted(tree))}")
    return [split]


def _classes(root: Path, tree: Tree) -> tuple[str, ...]:
    """Sorted class names of the whole folder, so that every split numbers them alike."""
    if "train" in tree:
        for group, classes in tree.items():
            extra = sorted(set(classes) - set(tree["train"]))
            if extra:
                raise DataError(
                    f"{root}: class {extra[0]!r} is in {group!r} but not in 'train' "
                    f"({len(extra)} such): name the class folders of all splits alike"
                )
    return tuple(sorted({name for classes in tree.values() for name in classes}))


def named_classes(root: Path) -> dict[str, str]:
    """Class folder -> class name of `class_names.csv`, lines of `folder,name`, where it is."""
    path = root / NAMES
    if not path.is_file():
        return {}
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path} ({error}): write lines of folder,name") from error
    for number, row in enumerate(rows, start=1):
        if len(row) != 2 or not all(row):
            raise DataError(f"{path}, line {number}: write folder,name")
    return {row[0]: row[1] for row in rows}


def renamed(tree: Tree, names: Mapping[str, str]) -> dict[str, dict[str, list[str]]]:
    """The tree with its classes called by `names`; two folders of one name become one class."""
    found: dict[str, dict[str, list[str]]] = {}
    for group, classes in tree.items():
        found[group] = {}
        for folder, files in classes.items():
            found[group].setdefault(names.get(folder, folder), []).extend(files)
    return found


def scan(root: Path) -> dict[str, dict[str, list[str]]]:
    """Group -> class -> files; the group is the empty string for `root/<class>/*`."""
    if not root.is_dir():
        raise DataError(f"no image folder {root}: check the path")
    tree: dict[str, dict[str, list[str]]] = {}
    for first in _folders(root):
        direct = _images(root, first)
        if direct:
            tree.setdefault("", {})[first] = direct
            continue
        inner = {name: _images(root, f"{first}/{name}") for name in _folders(root / first)}
        inner = {name: files for name, files in inner.items() if files}
        if inner:
            tree[first] = inner
    if "" in tree and len(tree) > 1:
        other = sorted(group for group in tree if group)[0]
        raise DataError(
            f"{root} mixes class folders ({sorted(tree[''])[0]}) with split or domain folders "
            f"({other}): use one layout"
        )
    if not tree:
        raise DataError(
            f"no images in {root}: expected <class>/<image>, or <split>/<class>/<image>, "
            f"with images of {_suffixes()}"
        )
    return tree


def _folders(path: Path) -> list[str]:
    return sorted(e.name for e in _entries(path) if _is_dir(e) and not e.name.startswith("."))


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


def _images(root: Path, folder: str) -> list[str]:
    """Image files directly in `root/folder`, sorted, relative to `root`.

    Links that lead nowhere are among them, so that they are named with the unreadable ones.
    """
    names = sorted(e.name for e in _entries(root / folder) if not e.name.startswith("."))
    kept = [name for name in names if Path(name).suffix.lower() in SUFFIXES]
    return [f"{folder}/{name}" for name in kept if not (root / folder / name).is_dir()]


def _entries(path: Path) -> list[os.DirEntry[str]]:
    """What a folder holds; one that may not be looked into is refused by name."""
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError as error:
        raise DataError(f"cannot look into {path} ({error.strerror}): give read access") from error


def _suffixes() -> str:
    return ", ".join(sorted(suffix[1:] for suffix in SUFFIXES))
