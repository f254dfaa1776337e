"""The words that people write for train, test and validation, read by one rule everywhere."""

import re
from collections.abc import Iterable, Mapping

from focoop.errors import DataError

TRAIN, TEST, VAL = "train", "test", "val"
# Words that can mean nothing else, and short ones that could also be the name of a domain.
PLAIN_WORDS = {
    TRAIN: ("train", "training", "trainval"),
    TEST: ("test", "testing", "holdout", "heldout"),
    VAL: ("val", "valid", "validation", "validate", "eval", "evaluation"),
}
SHORT_WORDS = {TRAIN: ("tr", "trn"), TEST: ("te", "tst"), VAL: ("dev", "development")}
UNDERSTOOD = (
    "understood are train (training, tr), test (testing, te, holdout) and val (valid, validation, "
    "dev, eval), in any case"
)
SHOWN = 6


def split_of(word: str, *, short: bool = True) -> str | None:
    """Return the split that a word means.

    Args:
        word: what a user wrote, such as `Training` or `test_set`.
        short: whether abbreviations such as `tr` count too.

    Returns:
        `train`, `test` or `val`; None where the word means none of them.

    >>> split_of("Training"), split_of("test-set"), split_of("dev"), split_of("0")
    ('train', 'test', 'val', None)
    """
    bare = re.sub(r"[\s_\-]+", "", word.strip().lower())
    bare = re.sub(r"(?<=.)(sets?|data|split|images)$", "", bare)
    for words in (PLAIN_WORDS, SHORT_WORDS) if short else (PLAIN_WORDS,):
        for split, known in words.items():
            if bare in known:
                return split
    return None


def column_splits(source: str, words: Mapping[int, str]) -> dict[int, str]:
    """Return the split of every row of a table.

    Args:
        source: the table's name, for messages.
        words: line number -> value of the column `split`; empty in all rows: no splits.

    Returns:
        Line number -> `train`, `test`, `val`, or the empty string where there are no splits.

    Raises:
        DataError: a word means no split, or some rows have a split and others have none.
    """
    if not any(words.values()):
        return dict(words)
    strange: dict[str, list[int]] = {}
    for line, word in words.items():
        if word and split_of(word) is None:
            strange.setdefault(word, []).append(line)
    if strange:
        shown = [f"{word!r} ({len(lines)} rows)" for word, lines in strange.items()]
        more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
        digits = " Numbers could mean either: focoop does not guess." * any(
            word.isdigit() for word in strange
        )
        raise DataError(
            f"{source}, line {min(lines[0] for lines in strange.values())}: the column split "
            f"holds {', '.join(shown[:SHOWN])}{more}, which is no split: write train, test or val "
            f"there ({UNDERSTOOD}), and remove rows that are neither.{digits}"
        )
    if not all(words.values()):
        bad = next(line for line, word in words.items() if not word)
        raise DataError(
            f"{source}, line {bad}: split is empty here and given elsewhere: write train, test or "
            "val in every row, or leave the whole column out"
        )
    return {line: split_of(word) or "" for line, word in words.items()}


def folder_groups(root: str, folders: Iterable[str]) -> Mapping[str, str]:
    """Return what each first-level folder with class folders inside is called.

    Folders are splits where one of them has a plain word for a split, or where all have a short
    one; otherwise they are domains or clients, and keep their names.

    Args:
        root: the folder they are in, for messages.
        folders: their names.

    Returns:
        What each folder is called: a split, or its own name.

    Raises:
        DataError: some are splits and others are not.
    """
    names = list(folders)
    splits = {name: split_of(name) for name in names}
    certain = [name for name in names if split_of(name, short=False)]
    if not certain and not (all(splits.values()) and TRAIN in splits.values()):
        return {name: name for name in names}
    strange = sorted(name for name, split in splits.items() if split is None)
    if strange:
        raise DataError(
            f"{root} holds the split folder {certain[0]!r} beside {', '.join(strange[:SHOWN])}, "
            f"which is no split: {UNDERSTOOD}. Rename or move the others"
        )
    return {name: split or name for name, split in splits.items()}


def whole(source: str, splits: Iterable[str], *, need_test: bool = True) -> bool:
    """Say whether images come divided into training and test images.

    Args:
        source: the dataset's name, for messages.
        splits: the splits it has.
        need_test: whether test images are needed; not while `data.validation` stands in for them.

    Returns:
        True where both are there, False where there are no splits at all.

    Raises:
        DataError: one of the two is missing.
    """
    there = set(splits)
    if not there:
        return False
    if TRAIN not in there:
        raise DataError(
            f"{source} has the splits {', '.join(sorted(there))} and no train: add training images"
        )
    if need_test and not there & {TEST, VAL}:
        raise DataError(
            f"{source} has training images and no test or val: add some, or name the train folder "
            "itself or drop the column split: then some are held out as test (data.test_share)"
        )
    return True
