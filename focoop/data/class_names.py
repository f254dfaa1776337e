"""Class names: how two spellings are compared, and those that users write in `class_names.csv`."""

import csv
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from focoop.errors import DataError

FILES = ("class_names.csv", "names.txt", "classnames.txt")
NAMES = FILES[0]
SYNSETS = ("LOC_synset_mapping.txt", "words.txt")
WORDNET_ID = re.compile(r"n\d{8}")


def named_classes(folder: Path) -> dict[str, str]:
    """Read what the classes of a folder, or of a CSV file in it, are called.

    Args:
        folder: where `class_names.csv`, `names.txt` or `classnames.txt` may lie. Each line is
            `label,name`; in the text files a space, tab or colon may stand for the comma.

    Returns:
        Label or class folder -> class name; where there is no such file, the names of WordNet ids
        by ImageNet's own list; else empty.

    Raises:
        DataError: the file cannot be read, there are two, or a line is not `label,name`.
    """
    there = [folder / name for name in FILES if (folder / name).is_file()]
    if not there:
        return synset_names(folder)
    if len(there) > 1:
        both = " and ".join(path.name for path in there)
        raise DataError(f"{folder} holds {both}: keep one of them")
    path = there[0]
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = _csv_rows(file.read()) if path.suffix == ".csv" else _text_rows(file.read())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path} ({error}): write lines of label,name") from error
    names: dict[str, str] = {}
    for number, row in rows:
        if len(row) != 2 or not all(row):
            raise DataError(f"{path}, line {number}: write folder,name (or label,name)")
        if names.setdefault(row[0], row[1]) != row[1]:
            raise DataError(
                f"{path}, line {number}: {row[0]!r} is called {row[1]!r} here and "
                f"{names[row[0]]!r} above: keep one of them"
            )
    return names


def synset_names(folder: Path) -> dict[str, str]:
    """Name class folders that are ids of WordNet, by the list that ImageNet comes with.

    Args:
        folder: Where `LOC_synset_mapping.txt` or `words.txt` may lie, lines of `n01440764 tench,
            Tinca tinca`, beside the class folders or those of splits.

    Returns:
        Class folder -> its first name that no other has; empty where there is no such list, or no
        such folder.
    """
    lists = [folder / name for name in SYNSETS if (folder / name).is_file()]
    if not lists:
        return {}
    held = {path.name for path in (*folder.glob("n*"), *folder.glob("*/n*")) if path.is_dir()}
    names: dict[str, list[str]] = {}
    try:
        for line in lists[0].read_text("utf-8").splitlines():
            synset, _, words = line.strip().replace("\t", " ").partition(" ")
            if WORDNET_ID.fullmatch(synset) and synset in held and words.strip():
                names[synset] = [word.strip() for word in words.split(",") if word.strip()]
    except (OSError, UnicodeDecodeError):
        return {}
    often = Counter(word for words in names.values() for word in words)
    return {
        synset: next((word for word in words if often[word] == 1), f"{words[0]} {synset}")
        for synset, words in names.items()
    }


def name_of(label: str, names: Mapping[str, str]) -> str:
    """Return the name of a label; the label itself where it has none.

    A label such as `3.0`, as spreadsheets write whole numbers beside empty cells, is read as `3`,
    and a folder that ends with a blank, as `Mouse `, as the name without it: no line can hold it.

    Args:
        label: The label.
        names: Names by label.

    Returns:
        The class name.

    >>> name_of("3.0", {"3": "mug"}), name_of("cup", {"3": "mug"})
    ('mug', 'cup')
    """
    bare = label.strip()
    whole = re.sub(r"\.0+$", "", bare) if re.fullmatch(r"-?\d+\.0+", bare) else bare
    return next((names[key] for key in (label, bare, whole) if key in names), label)


def _csv_rows(text: str) -> list[tuple[int, list[str]]]:
    reader = csv.reader(text.splitlines())
    return [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]


def _text_rows(text: str) -> list[tuple[int, list[str]]]:
    """Lines of `label name`, split at the first comma, else tab, else colon, else space."""
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        mark = next((mark for mark in ",\t: " if mark in line.strip()), ",")
        label, _, name = line.strip().partition(mark)
        if line.strip():
            rows.append((number, [part for part in (label.strip(), name.strip()) if part]))
    return rows


def plain(name: str) -> str:
    """Return a class name in the form in which names of two sources are compared.

    Args:
        name: The name as a source spells it.

    Returns:
        The name in lower case, with spaces for underscores.

    >>> plain("Great_white_shark")
    'great white shark'
    """
    return name.replace("_", " ").strip().lower()
