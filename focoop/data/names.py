"""Names of classes and datasets: how they are compared and suggested."""

from collections.abc import Iterable
from difflib import get_close_matches


def plain(name: str) -> str:
    """A class name as compared between sources.

    >>> plain("Great_white_shark")
    'great white shark'
    """
    return name.replace("_", " ").strip().lower()


def nearest(name: str, valid: Iterable[str]) -> str:
    """The end of an error message about an unknown name.

    >>> nearest("tran", ["train", "test"])
    "; nearest is 'train'"
    >>> nearest("zzz", ["train", "test"])
    '; there are train, test'
    """
    known = list(valid)
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"; nearest is {close[0]!r}"
    shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return f"; there are {shown}" if known else ""
