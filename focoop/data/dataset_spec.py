"""Names of datasets as settings write them, and the version of the images that they ask for.

`KIND:TARGET` or NAME, with any of these behind it, in this order:

    @train        the training images in place of the test images, for an OOD set (file: too)
    @32px         the centre square of every image, reduced to 32 px
    @shuffled     every image cut into 16 blocks that are put together in random order
    #fog@3        images corrupted at severity 3
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from focoop.data.corruptions import apply
from focoop.data.registry import lookup, parted
from focoop.errors import DataError
from focoop.plugins import is_file

KINDS = ("demo", "file", "folder", "clients", "csv", "hf")
NAMED = "name"  # the kind of a public dataset, written without one
ALTERABLE = (NAMED, "folder", "clients", "csv")  # the kinds that take @train, @32px and @shuffled
SMALLEST, LARGEST = 8, 1024  # sides in px that make sense


@dataclass(frozen=True)
class Source:
    """A parsed dataset name.

    Attributes:
        kind: `name` for a public dataset, else what stands before the colon.
        target: the dataset's name, or a path.
        corruption: name of a corruption, or None for clean images.
        severity: 1..5 of the corruption; 0 for clean images.
        split: the split that is asked for in place of the test images; empty: none.
        side: px that images are reduced to; 0: they stay as they are.
        shuffled: whether blocks of every image are put together in random order.
    """

    kind: str
    target: str
    corruption: str | None = None
    severity: int = 0
    split: str = ""
    side: int = 0
    shuffled: bool = False

    @classmethod
    def parse(cls, spec: str) -> "Source":
        """Read a dataset name.

        Args:
            spec: The name, as settings write it.

        Returns:
            The parsed name.

        Raises:
            DataError: The name cannot be read, or names no known dataset or corruption.

        >>> Source.parse("demo:cifar100#brightness@3").corruption
        'brightness'
        >>> Source.parse("oxford_pets@train@32px").side
        32

        Raises:
            DataError: the name cannot be read, or names no known dataset or corruption.
        """
        before, colon, behind = spec.partition(":")
        kind, rest = (before, behind) if colon else (NAMED, spec)
        if (colon and kind not in KINDS) or not rest:
            raise DataError(
                f"cannot read dataset {spec!r}: write a name of focoop data list, demo:NAME, "
                "file:PATH.safetensors, folder:PATH, clients:PATH, csv:FILE or hf:NAME"
            )
        match = re.fullmatch(r"(.+)#([A-Za-z_]\w*)(?:@(\S+))?", rest, re.DOTALL)
        target, corruption, severity = match.groups() if match else (rest, None, None)
        split, side, shuffled = "", 0, False
        if kind in ALTERABLE:
            target, split, side, shuffled = _version(spec, target)
        if kind == "file" and target.endswith("@train"):
            target, split = target.removesuffix("@train"), "train"
        if kind == NAMED:
            try:
                lookup(parted(target)[0])
            except DataError:
                if not os.path.isdir(os.path.expanduser(target)):  # False for a name too long
                    raise
                told = f"no dataset is called {target!r}; a folder of images is folder:{target}"
                raise DataError(told) from None
        if corruption is None:
            return cls(kind, target, None, 0, split, side, shuffled)
        if severity is None or not severity.isdecimal():
            base = spec.partition("#")[0]
            raise DataError(f"dataset {spec!r} needs a severity from 1 to 5: {base}#{corruption}@3")
        apply.check(corruption, int(severity))
        return cls(kind, target, corruption, int(severity), split, side, shuffled)

    @property
    def name(self) -> str:
        """Return the public dataset that is meant, without its variant."""
        return parted(self.target)[0]

    @property
    def suffix(self) -> str:
        """Return what a corrupted file's name has behind the clean one's."""
        return f".{self.corruption}.{self.severity}" if self.corruption else ""

    @property
    def altered(self) -> bool:
        """Return whether another version of the images is meant than the one on disk."""
        return bool(self.side or self.shuffled)

    @property
    def stem(self) -> str:
        """Return the name of a file of ready features that stands in for a public dataset.

        >>> Source.parse("oxford_pets@train@32px").stem
        'oxford_pets_train_32px'
        >>> Source.parse("cifar100#fog@2").stem
        'cifar100.fog.2'
        """
        name, variant = parted(self.target)
        parts = [Path(name).stem if is_file(name) else name, variant, self.split]
        parts += [f"{self.side}px" if self.side else "", "shuffled" if self.shuffled else ""]
        return "_".join(filter(None, parts)) + self.suffix

    def split_of(self, asked: str) -> str:
        """Return the split to open; a name with @train is for OOD sets alone.

        Args:
            asked: The split that is asked for.

        Returns:
            The split.

        Raises:
            DataError: The name asks for another split than the run.
        """
        if self.split and asked != "test":
            raise DataError(
                f"@{self.split} behind {self.target!r} asks for one split: write it for OOD sets, "
                "not for data.id"
            )
        return self.split or asked


def _version(spec: str, target: str) -> tuple[str, str, int, bool]:
    """A target without what is behind it: target, split, side and whether it is shuffled."""
    match = re.fullmatch(r"(.+?)(?:@(train))?(?:@(\d+)px)?(@shuffled)?", target, re.DOTALL)
    assert match is not None  # the target is not empty
    plain, split, side, shuffled = match.groups()
    if side is not None and not SMALLEST <= int(side) <= LARGEST:
        raise DataError(f"dataset {spec!r}: a side is {SMALLEST} to {LARGEST} px, as in dtd@32px")
    return plain, split or "", int(side or 0), shuffled is not None


def expand(specs: Sequence[str]) -> list[str]:
    """Write out names with a corruption but no severity for all five severities.

    Args:
        specs: Names of datasets.

    Returns:
        The names, each with its severity.

    >>> expand(["dtd", "cifar100#fog"])[:3]
    ['dtd', 'cifar100#fog@1', 'cifar100#fog@2']
    """
    expanded = []
    for spec in specs:
        whole = "#" not in spec or "@" in spec.rpartition("#")[2]
        expanded += [spec] if whole else [f"{spec}@{s}" for s in apply.SEVERITIES]
    return expanded
