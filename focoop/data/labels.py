"""Labels that a class cannot be called by: missing ones, codes, two spellings of one name."""

import re
from collections.abc import Mapping, Sequence

from focoop.data.class_names import NAMES, SYNSETS, WORDNET_ID
from focoop.data.image_set import ImageSet
from focoop.data.splits import split_of
from focoop.errors import DataError

MISSING = frozenset(
    ("", "nan", "none", "null", "nil", "na", "n/a", "#n/a", "<na>", "missing", "-", "--", "?")
)
# A number, alone or behind a word that only says that it is one: `3`, `class_3`, `n01440764`.
CODE = re.compile(r"(class|label|category|cat|cls|id|c|n)?[\s_\-]*\d+", re.IGNORECASE)
SHOWN = 5


def is_missing(label: str) -> bool:
    """Say whether a label stands for no label, as spreadsheets and data frames write it.

    Args:
        label: The label.

    Returns:
        Whether it does.

    >>> is_missing("NaN"), is_missing(" N/A "), is_missing("nano")
    (True, True, False)
    """
    return label.strip().lower() in MISSING


def is_code(label: str) -> bool:
    """Say whether a label is a number or a code rather than a word.

    Args:
        label: The label.

    Returns:
        Whether it is.

    >>> is_code("3"), is_code("class_12"), is_code("n01440764"), is_code("mug")
    (True, True, True, False)
    """
    return not any(letter.isalpha() for letter in label) or CODE.fullmatch(label) is not None


def refuse_missing(source: str, labels: Mapping[int, str]) -> None:
    """Refuse a table whose rows lack labels.

    Args:
        source: the table's name, for the message.
        labels: line number -> label, as the user means it (after names are looked up).

    Raises:
        DataError: some labels are missing; the message has their line numbers.
    """
    lines = [line for line, label in labels.items() if is_missing(label)]
    if not lines:
        return
    values = sorted({labels[line] for line in lines})
    more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    plural = "s" if len(lines) > 1 else ""
    words = [label for label in values if label.lower() not in ("", "nan")]
    meant = ""
    if words:
        meant = (
            f". If {words[0]!r} is one of your classes, say what is seen in {NAMES} beside the "
            f"file, by a line such as {words[0]},no defect"
        )
    raise DataError(
        f"{source}, line{plural} {', '.join(map(str, lines[:SHOWN]))}{more}: no label "
        f"({', '.join(repr(label) if label else 'empty' for label in values)}): path and label "
        "must both be given; write the class, or remove "
        f"{'these rows' if plural else 'this row'}{meant}"
    )


def refuse_classes(images: ImageSet, source: str) -> None:
    """Refuse classes to learn that are called as if there were no label, or as splits are.

    Args:
        images: what is learned from.
        source: its name, for the message.

    Raises:
        DataError: a class is called `NaN`, or all of them are called `train` and `test`.
    """
    missing = [name for name in images.classes if is_missing(name)]
    if missing:
        raise DataError(
            f"{source}: the class {missing[0]!r} is no class: sort its images into their classes, "
            f"or say what is seen in them, as a line {missing[0]},no defect in {NAMES} there"
        )
    if len(images.classes) > 1 and all(split_of(name) for name in images.classes):
        raise DataError(
            f"{source}: {', '.join(images.classes)} hold images and no class folders: sort the "
            "images into train/CLASS and test/CLASS"
        )


def label_warnings(images: ImageSet, source: str) -> list[str]:
    """Say what is doubtful about the classes of a set.

    Args:
        images: The set, with its clients or domains where it has some.
        source: Its name, for the messages.

    Returns:
        One sentence or two each.
    """
    return [*code_warnings(images.classes, source), *_spellings(images, source)]


def code_warnings(classes: Sequence[str], source: str) -> list[str]:
    """Say which classes are called by numbers or codes, and where to write their names.

    Args:
        classes: the class names.
        source: the dataset's name, such as `csv:t.csv`, for the message.

    Returns:
        One text; none where all are words.
    """
    codes = [name for name in classes if is_code(name)]
    if not codes:
        return []
    some = f"{len(codes)} of {len(classes)} classes are" if len(classes) > 1 else "the class is"
    shown = ", ".join(map(repr, codes[:SHOWN])) + (", ..." if len(codes) > SHOWN else "")
    lines = f"with lines such as {codes[0]},coffee mug"
    how = f"a file {NAMES} beside the data {lines}"
    if source.startswith("csv:"):
        how += ", or give the CSV a column class_name"
    elif source.startswith(("file:", "hf:")):
        how = f"a file {NAMES} in a folder of the images {lines}, then encode that folder"
    if all(WORDNET_ID.fullmatch(name) for name in codes):
        how = (
            f"these are ids of WordNet, and the packaged word list has no ids: put ImageNet's "
            f"{SYNSETS[0]} (or {SYNSETS[1]}) beside the class folders, or {how}"
        )
    return [
        f"{source}: {some} called by a number or code ({shown}). CLIP reads the name: "
        f"'a photo of a {codes[0]}.' tells it nothing. Write names: {how}"
    ]


def _spellings(images: ImageSet, source: str) -> list[str]:
    alike: dict[str, list[int]] = {}
    for label, name in enumerate(images.classes):
        alike.setdefault(" ".join(re.split(r"[\W_]+", name.casefold())).strip(), []).append(label)
    holders: dict[int, set[int]] = {}
    for label, domain in zip(images.labels, images.domains, strict=False):
        holders.setdefault(label, set()).add(domain)

    def with_holders(label: int) -> str:
        where = [images.domain_names[domain] for domain in sorted(holders.get(label, ()))]
        more = ", ..." if len(where) > SHOWN else ""
        held = f" ({', '.join(where[:SHOWN])}{more})" if where else ""
        return f"{images.classes[label]!r}{held}"

    def outcome(labels: list[int]) -> str:
        read = {" ".join(images.classes[label].replace("_", " ").split()) for label in labels}
        as_one = "are read as one name, which a run refuses"
        return "are learned as different classes" if len(read) == len(labels) else as_one

    return [
        f"{source}: the classes {' and '.join(map(with_holders, labels))} differ in spelling only, "
        f"and {outcome(labels)}. Write them alike, or give them one name in {NAMES} (lines of "
        "label,name)"
        for key, labels in alike.items()
        if key and len(labels) > 1
    ]
