"""Labelled images: which there are, of which class, split and domain."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from focoop.data.decoding import read_rgb
from focoop.data.depth import Whites
from focoop.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image


class Store(Protocol):
    """Images that are not one file each: an array, an archive, a dataset of a hub."""

    def image(self, row: int) -> "Image":
        """Read one image.

        Args:
            row: Its number.

        Returns:
            The image as RGB.
        """

    def digest(self) -> str:
        """Return a hash of the content of all rows in their order."""

    def __len__(self) -> int:
        """Number of rows."""


@dataclass(frozen=True)
class ImageSet:
    """Labelled images.

    Attributes:
        root: the folder all files are under.
        files: paths relative to `root`, with forward slashes; names of the rows of a store.
        labels: for each file its index into `classes`.
        classes: class names.
        split: which split this is.
        domains: for each file its index into `domain_names`; empty without domains.
        domain_names: names of the domains, or of the clients where those were asked for.
        store: where the pixels are when they are not in `root / file`.
        whites: which values of deep images become white, for each domain, or one for all; empty
            where each file is scaled by its own values.
        splits: for each file its split, empty for a file without one; nothing where not known.
        turned: files are turned upright by their EXIF tags. Public datasets are read as they are
            stored, as everybody reads them.
    """

    root: Path
    files: tuple[str, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    split: str
    domains: tuple[int, ...] = ()
    domain_names: tuple[str, ...] = ()
    store: Store | None = None
    whites: tuple[Whites, ...] = ()
    splits: tuple[str, ...] = ()
    turned: bool = True

    def __len__(self) -> int:
        return len(self.files)

    def image(self, row: int) -> "Image":
        """Read one image; a file that is no sound image is refused by name.

        Args:
            row: Its number.

        Returns:
            The image as RGB.
        """
        if self.store:
            return self.store.image(row)
        whites = self.whites[self.domains[row] if self.domains else 0] if self.whites else None
        return read_rgb(self.root / self.files[row], whites=whites, turned=self.turned)

    def take(self, rows: Sequence[int]) -> "ImageSet":
        """Take some of the images; classes stay as they are.

        Args:
            rows: Their numbers.

        Returns:
            The images.
        """
        return replace(
            self,
            files=tuple(self.files[row] for row in rows),
            labels=tuple(self.labels[row] for row in rows),
            domains=tuple(self.domains[row] for row in rows) if self.domains else (),
            splits=tuple(self.splits[row] for row in rows) if self.splits else (),
            store=None if self.store is None else Rows(self.store, tuple(rows)),
        )

    def without_classes(self, names: Sequence[str]) -> "ImageSet":
        """Leave out classes and their images; the others are renumbered in their order.

        Args:
            names: Names of the classes.

        Returns:
            The other images.

        Raises:
            DataError: A name is no class of the set.
        """
        from focoop.errors import nearest

        for name in names:
            if name not in self.classes:
                raise DataError(
                    f"cannot drop class {name!r} of {self.root}{nearest(name, self.classes)}"
                )
        if not names:
            return self
        remaining = [name for name in self.classes if name not in names]
        place = {self.classes.index(name): i for i, name in enumerate(remaining)}
        chosen = self.take([row for row, label in enumerate(self.labels) if label in place])
        labels = tuple(place[label] for label in chosen.labels)
        return replace(chosen, labels=labels, classes=tuple(remaining))


@dataclass(frozen=True)
class Rows:
    """Some rows of a store."""

    store: Store
    rows: tuple[int, ...]

    def image(self, row: int) -> "Image":
        """Read one image.

        Args:
            row: Its number.

        Returns:
            The image as RGB.
        """
        return self.store.image(self.rows[row])

    def digest(self) -> str:
        """Return a hash of the store's content and of which rows are meant."""
        return hashlib.sha256(f"{self.store.digest()} {self.rows}".encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Joined:
    """Stores one after another."""

    parts: tuple[Store, ...]

    def image(self, row: int) -> "Image":
        """Read one image.

        Args:
            row: Its number.

        Returns:
            The image as RGB.

        Raises:
            IndexError: There is no such row.
        """
        for part in self.parts:
            if row < len(part):
                return part.image(row)
            row -= len(part)
        raise IndexError(row)

    def digest(self) -> str:
        """Return a hash of all parts; of the part itself where there is one."""
        digests = [part.digest() for part in self.parts]
        whole = hashlib.sha256(repr(digests).encode()).hexdigest()
        return digests[0] if len(digests) == 1 else whole

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)


@dataclass(frozen=True, eq=False)
class Pixels:
    """Images of one size in an array (N, H, W, 3) uint8, in memory or mapped from a file."""

    array: npt.NDArray[np.uint8]

    def image(self, row: int) -> "Image":
        """Read one image.

        Args:
            row: Its number.

        Returns:
            The image as RGB.
        """
        from PIL import Image

        return Image.fromarray(np.ascontiguousarray(self.array[row]))

    def digest(self) -> str:
        """Return a hash of all pixels, taken a thousand images at a time."""
        whole = hashlib.sha256(str(self.array.shape).encode())
        for first in range(0, len(self.array), 1000):
            whole.update(np.ascontiguousarray(self.array[first : first + 1000]).tobytes())
        return whole.hexdigest()

    def __len__(self) -> int:
        return len(self.array)
