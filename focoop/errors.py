"""Typed errors: each says what is wrong and what to do, and carries the exit code of the CLI.

`nearest` ends a message about an unknown name with the name that was probably meant.
"""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

PART = 4  # letters from which a part of a name stands for the name
LONGEST = 4000  # characters of a message: a damaged file may quote itself in it


class FocoopError(Exception):
    """Anything a user can mend; its message is complete and shown without a stack trace."""

    exit_code = 1

    def __str__(self) -> str:
        """Return the message; the middle of a very long one is left out."""
        text = super().__str__()
        if len(text) <= LONGEST:
            return text
        half = LONGEST // 2 - 50
        left_out = len(text) - 2 * half
        return f"{text[:half]} ... ({left_out:,} characters left out) ... {text[-half:]}"


class ConfigError(FocoopError):
    """An unknown key, a wrong type or an impossible value."""

    exit_code = 2


class DataError(FocoopError):
    """Missing, unreadable or inconsistent images, features or splits."""

    exit_code = 3


class BackboneError(FocoopError):
    """Backbone weights that are missing, damaged or of an unsupported family."""

    exit_code = 4


class MethodError(FocoopError):
    """A method that cannot run in the given setting."""

    exit_code = 5


class RunError(FocoopError):
    """A run folder that is missing, locked, damaged or of another configuration."""

    exit_code = 6


class FederationError(FocoopError):
    """A federation that cannot go on, or a message that cannot be used."""

    exit_code = 7


class MissingExtra(FocoopError):
    """An optional package is not installed; the message gives the `pip install` that brings it.

    Raised wherever a package of an extra is first needed (open_clip, Flower, matplotlib, datasets,
    pillow-heif, pydicom), so that scripts meet one exit code for all of them.
    """

    exit_code = 8


def newer_format(where: object, form: int, known: int) -> str:
    """Return the message about a file or folder of a format that this focoop does not know.

    Args:
        where: The file or folder.
        form: Its format.
        known: The newest format that can be read.

    Returns:
        The message.
    """
    return (
        f"{where} was made by a newer focoop (format {form}; this one reads up to {known}): "
        "install that version"
    )


def folded(name: str) -> str:
    """Return a name without what people write differently: case, spaces, dashes, a plus sign.

    Args:
        name: What a user wrote.

    Returns:
        The name in lower case, letters and digits alone.

    >>> folded("FOCoOp+"), folded("focoop_plus"), folded("CIFAR-100-C")
    ('focoopplus', 'focoopplus', 'cifar100c')
    """
    return re.sub(r"[\W_]+", "", name.casefold().replace("+", "plus")) or name


def closest(
    name: str,
    valid: Iterable[str],
    count: int = 1,
    *,
    cutoff: float = 0.6,
    spellings: Mapping[str, str] | None = None,
) -> list[str]:
    """Find the valid names that are most like a given one.

    Args:
        name: what a user wrote.
        valid: the names that exist.
        count: how many to return at most.
        cutoff: likeness from 0 to 1 below which a name is not returned.
        spellings: other ways to write valid names, as `folded` gives them.

    Returns:
        Valid names, the most alike first; empty if none is alike.
    """
    known: dict[str, list[str]] = {}
    for candidate in valid:
        known.setdefault(folded(candidate), []).append(candidate)
    wanted = folded(name)
    meant = (spellings or {}).get(wanted)
    if meant is not None and meant in known.get(folded(meant), ()):
        return [meant]
    matches = get_close_matches(wanted, known, n=count, cutoff=cutoff)
    if not matches and len(wanted) >= PART:  # "pets" for "oxford_pets"
        matches = [key for key in known if wanted in key]
    return [candidate for key in matches for candidate in known[key]][:count]


def nearest(name: str, valid: Iterable[str], *, spellings: Mapping[str, str] | None = None) -> str:
    """Return the end of an error message about an unknown name: the name that was probably meant.

    Args:
        name: What a user wrote.
        valid: The names that exist.
        spellings: Other ways to write valid names, as `folded` gives them.

    Returns:
        Text that begins with a semicolon.

    >>> nearest("tran", ["train", "test"])
    "; nearest is 'train'"
    >>> nearest("TRAIN", ["train", "test"])
    "; nearest is 'train'"
    >>> nearest("zzz", ["train", "test"])
    '; there are train, test'
    """
    known = list(valid)
    close = closest(name, known, spellings=spellings)
    if close:
        return f"; nearest is {close[0]!r}"
    shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return f"; there are {shown}" if known else ""
