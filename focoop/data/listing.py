"""Lists of images per split, as official files and CoOp's `split_zhou_*.json` give them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

from focoop.caching import parse_json
from focoop.data.formats import SUFFIXES
from focoop.data.image_set import ImageSet, Joined, Store
from focoop.errors import DataError

ALL = "all"
Row = tuple[str, int]  # file, label


@dataclass(frozen=True)
class Listing:
    """All a dataset holds: class names, and per split its rows.

    Attributes:
        base: the folder files are relative to.
        classes: names in label order.
        splits: split -> (file, label) rows.
        domains: split -> index into `domain_names` per row; empty without domains.
        stores: split -> pixels, where rows are no files.
    """

    base: Path
    classes: Sequence[str]
    splits: Mapping[str, Sequence[Row]]
    domains: Mapping[str, Sequence[int]] = field(default_factory=dict)
    domain_names: Sequence[str] = ()
    stores: Mapping[str, Store] = field(default_factory=dict)

    def pick(self, split: str) -> ImageSet:
        """Return one split as images.

        Args:
            split: The split's name; `all` is every split in turn.

        Returns:
            The images.

        Raises:
            DataError: There is no such split.
        """
        if split in ("val", "validation", "valid") and "val" in self.splits:
            split = "val"
        wanted = list(self.splits) if split == ALL else [split]
        if split != ALL and split not in self.splits:
            named = [name for name in self.splits if name != ALL]
            hint = f": it has {', '.join(named)}" if named else ""
            also = "; its clients are its domains (partition.kind = domain)" if self.domains else ""
            raise DataError(f"{self.base} has no split {split!r}{hint} (ask for {ALL!r}){also}")
        rows = [row for name in wanted for row in self.splits[name]]
        if not rows:
            raise DataError(f"no images for split {split!r} in {self.base}")
        bad = next((row for row in rows if not self._is_label(row[1])), None)
        if bad is not None:
            raise DataError(
                f"{self.base}: {bad[0]} has label {bad[1]!r} of {len(self.classes)} classes: "
                f"labels are whole numbers from 0 to {len(self.classes) - 1}"
            )
        return ImageSet(
            root=self.base,
            files=tuple(file for file, _ in rows),
            labels=tuple(label for _, label in rows),
            classes=tuple(self.classes),
            split=split,
            domains=tuple(d for name in wanted for d in self.domains[name]) if self.domains else (),
            domain_names=tuple(self.domain_names),
            store=Joined(tuple(self.stores[name] for name in wanted)) if self.stores else None,
            turned=False,
        )

    def _is_label(self, label: object) -> bool:
        return isinstance(label, Integral) and 0 <= int(label) < len(self.classes)


def spaced(name: str) -> str:
    """Return a class name as CLIP users write it.

    Args:
        name: The name with underscores.

    Returns:
        The name with spaces.

    >>> spaced("aquarium_fish")
    'aquarium fish'
    """
    return " ".join(name.replace("_", " ").split())


def coop(
    base: Path, images: str, split_file: str, rename: Callable[[str], str] = spaced
) -> Listing:
    """Read CoOp's split: train, val and test lists of (file, label, class name).

    Args:
        base: The dataset's folder.
        images: The folder of the images below it.
        split_file: Name of the JSON file.
        rename: Gives classes their names.

    Returns:
        All splits.

    Raises:
        DataError: The file is missing or damaged.
    """
    content = read_json(base / split_file)
    splits: dict[str, list[Row]] = {}
    names: dict[int, str] = {}
    try:
        for split in ("train", "val", "test"):
            rows = content[split]
            splits[split] = [(f"{images}/{file}".lstrip("/"), int(y)) for file, y, _ in rows]
            names |= {int(label): rename(name) for _, label, name in rows}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{base / split_file} is no CoOp split file (train, val and test lists of file, "
            f"label, class name): get it again ({type(error).__name__}: {error})"
        ) from error
    return Listing(base, in_order(names, base / split_file), splits)


def in_order(names: Mapping[int, str], source: Path) -> list[str]:
    """Return class names by label; labels must run from 0 without a gap.

    Args:
        names: Names by label.
        source: The file they come from, for messages.

    Returns:
        The names.

    Raises:
        DataError: A label is missing.
    """
    if sorted(names) != list(range(len(names))):
        missing = sorted(set(range(max(names, default=0) + 1)) - set(names))
        raise DataError(f"{source}: no image of label {missing[0] if missing else 0}: it is cut")
    return [names[label] for label in range(len(names))]


def read_lines(path: Path) -> list[str]:
    """Read the lines of a list file, without empty ones.

    Args:
        path: The file.

    Returns:
        The lines.

    Raises:
        DataError: The file cannot be read.
    """
    try:
        return [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path} ({error}): get the dataset again") from error


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Args:
        path: The file.

    Returns:
        Its content.

    Raises:
        DataError: The file is missing or damaged.
    """
    try:
        return parse_json(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path} ({error}): get it again") from error


def by_folder(files: Iterable[str]) -> tuple[list[str], list[Row]]:
    """Label files by their class folders.

    Args:
        files: Paths such as `CLASS/FILE`.

    Returns:
        Sorted class folders, and the rows labelled by them.
    """
    files = list(files)
    folders = sorted({file.split("/")[-2] for file in files})
    place = {name: i for i, name in enumerate(folders)}
    return folders, [(file, place[file.split("/")[-2]]) for file in files]


def flat(base: Path, folder: str, name: str) -> Listing:
    """List every image below a folder, in class folders or not, as one class of one split.

    Args:
        base: The dataset's folder.
        folder: The folder of the images below it.
        name: Name of the class.

    Returns:
        The images.
    """
    files = sorted(
        path.relative_to(base).as_posix()
        for path in (base / folder).rglob("*")
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()
    )
    return Listing(base, [name], {"test": [(file, 0) for file in files]})


def domain_folders(
    base: Path, domains: Mapping[str, str], rename: Callable[[str], str] = spaced
) -> Listing:
    """List images of `<domain folder>/<class>/*`.

    Args:
        base: The dataset's folder.
        domains: Domain name of each folder.
        rename: Gives classes their names.

    Returns:
        The images, with domains.
    """
    pairs = [
        (folder, file)
        for folder in domains
        for file in sorted(
            path.relative_to(base).as_posix()
            for path in (base / folder).glob("*/*")
            if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
        )
    ]
    classes, rows = by_folder([file for _, file in pairs])
    names = list(domains.values())
    place = {folder: names.index(name) for folder, name in domains.items()}
    at = {ALL: [place[folder] for folder, _ in pairs]}
    return Listing(base, [rename(name) for name in classes], {ALL: rows}, at, names)
