"""What a dataset file declares: names, layout on disk, official numbers, sources, a reader.

Every reader takes the dataset's folder (`base`) and returns a `Listing` of all its splits. A reader
of corrupted images takes the folder, the corruption (`kind`) and its `severity`, and returns an
`ImageSet`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from focoop.data.image_set import ImageSet
from focoop.data.listing import Listing

Reader = Callable[[Path], Listing]


@dataclass(frozen=True)
class Download:
    """One file to fetch.

    Attributes:
        url: where it is.
        file: its name below the dataset's folder, or below the root where it is unpacked.
        checksum: `md5:...` or `sha256:...` as published; empty where none is.
        size: bytes; 0 where they are only known when asked.
        unpack: where an archive is unpacked, relative to the data root; None: it is kept.
        gives: a path below the dataset's folder that shows that it was unpacked before; empty:
            the dataset's marks show it.
        inner: an archive inside it that is unpacked too, relative to the data root.
    """

    url: str
    file: str
    checksum: str = ""
    size: int = 0
    unpack: str | None = None
    gives: str = ""
    inner: str = ""


@dataclass(frozen=True)
class Dataset:
    """A public dataset in its official layout.

    Attributes:
        title: its name in papers.
        folder: where it lies below the data root.
        marks: paths below `folder` that must be there.
        layout: the layout in words, for messages.
        classes: official number of classes; 0 where labels have no meaning here.
        counts: official number of images per split.
        licence: terms of use, as its authors put them.
        page: its home page.
        read: folder -> listing.
        official: reader of the authors' split where `read` uses CoOp's (`NAME/official`).
        coop: reader of CoOp's split where `read` uses the authors' (`NAME/coop`).
        others: further folder names in use.
        role: `id`, `ood` or `corrupted`.
        downloads: what `focoop data fetch` gets; empty where it must be got by hand.
        by_hand: how to get what cannot be fetched.
        corrupted: name of the dataset with its official corrupted test images.
        corrupt: (folder, type, severity) -> images, for role `corrupted`.
        types: corruption types, for role `corrupted`.
        ready: another name that files of ready features have; empty: that of the dataset alone.
        no_classes: folders of some copies that are no classes; ready features are read without.
        domains: domain names that ready features may have -> as this dataset is read.
    """

    title: str
    folder: str
    marks: tuple[str, ...]
    layout: str
    classes: int
    counts: Mapping[str, int]
    licence: str
    page: str
    read: Reader | None = None
    official: Reader | None = None
    coop: Reader | None = None
    others: tuple[str, ...] = ()
    role: str = "id"
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""
    corrupted: str = ""
    corrupt: Callable[[Path, str, int], ImageSet] | None = None
    types: tuple[str, ...] = ()
    ready: str = ""
    no_classes: tuple[str, ...] = ()
    domains: Mapping[str, str] = field(default_factory=dict)

    def find(self, root: Path) -> Path | None:
        """Find the folder of this dataset.

        Args:
            root: The data root, or the folder itself.

        Returns:
            The folder, or None where it is not there.
        """
        names = (self.folder, *self.others)
        bases = [root / name for name in names]
        if root.name in {Path(name).name for name in names}:  # the dataset's own folder was given
            bases.append(root)
        marked = (b for b in bases if all((b / mark).exists() for mark in self.marks))
        return next(marked, None)

    @property
    def size(self) -> int:
        """Return the bytes to fetch; 0 where a part is not known beforehand."""
        sizes = [download.size for download in self.downloads]
        return sum(sizes) if all(sizes) else 0

    @property
    def known_size(self) -> int:
        """Return the bytes to fetch of the parts whose size is known."""
        return sum(download.size for download in self.downloads)

    @property
    def fetched(self) -> bool:
        """Return whether `focoop data fetch` gets all of it."""
        return bool(self.downloads) and not self.by_hand

    @property
    def told_size(self) -> str:
        """Return how much there is to fetch, in words; a part of unknown size is named."""
        unknown = [download.file for download in self.downloads if not download.size]
        if not self.known_size:
            return "size not known before the download"
        return f"{self.known_size / 1e6:.0f} MB" + (f" and {', '.join(unknown)}" if unknown else "")


def drive(identifier: str) -> str:
    """Return the direct address of a file on Google Drive.

    Args:
        identifier: The file's identifier.

    Returns:
        The address.
    """
    return f"https://drive.google.com/uc?export=download&confirm=t&id={identifier}"
