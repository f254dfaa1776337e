"""Unpack archives of datasets: whole or not at all, and no larger than the dataset can be."""

import lzma
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from focoop.data.dataset import Dataset
from focoop.errors import DataError

# Images are compressed already; lists and arrays shrink by some factor.
LARGEST_RATIO, SMALL = 10, 100_000_000
FEW = 50_000  # files beside the images


@dataclass(frozen=True)
class Limits:
    """The most that an archive may hold."""

    bytes: int
    files: int


def limits(dataset: Dataset, size: int) -> Limits:
    """Return the most that an archive of a dataset may hold.

    Args:
        dataset: The dataset, whose number of images is known.
        size: Bytes of the archive.

    Returns:
        The limits.
    """
    images = sum(dataset.counts.values()) * max(1, 5 * len(dataset.types))
    return Limits(LARGEST_RATIO * size + SMALL, 4 * images + FEW if images else 2_000_000)


def unpack(archive: Path, folder: Path, most: Limits | None = None) -> None:
    """Unpack a tar or zip archive beside its place first, then move its content there.

    Args:
        archive: The archive.
        folder: Where its content goes.
        most: What it may hold; None: ten times its size, and two million files.

    Raises:
        DataError: It is damaged, encrypted or far too large, or would write outside the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".unpack-", dir=folder))
    most = most or Limits(LARGEST_RATIO * archive.stat().st_size + SMALL, 2_000_000)
    counter = _Counter(archive, most)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                for entry in zipped.infolist():
                    counter.add(entry.file_size)
                zipped.extractall(draft)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(draft, filter=counter.filter)
        _merge(draft, folder)
    except (
        OSError,
        tarfile.TarError,
        zipfile.BadZipFile,
        EOFError,
        zlib.error,
        lzma.LZMAError,
        ValueError,
    ) as error:
        raise DataError(
            f"cannot unpack {archive} ({error}): make room, or remove it and fetch it again"
        ) from error
    except (RuntimeError, NotImplementedError) as error:  # a password, or an unknown compression
        raise DataError(
            f"cannot unpack {archive} ({error}): unpack it yourself into {folder}"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


class _Counter:
    """Counts what an archive holds and refuses too much."""

    def __init__(self, archive: Path, most: Limits) -> None:
        self.archive, self.most = archive, most
        self.bytes = self.files = 0

    def add(self, size: int) -> None:
        """Count one file."""
        self.bytes, self.files = self.bytes + size, self.files + 1
        if self.bytes > self.most.bytes or self.files > self.most.files:
            raise DataError(
                f"{self.archive} holds more than this dataset can have ({self.most.files:,} files, "
                f"{self.most.bytes / 1e9:,.1f} GB): it is not unpacked; remove it and get it again"
            )

    def filter(self, member: tarfile.TarInfo, place: str) -> tarfile.TarInfo | None:
        """Count a member of a tar archive, and refuse what leads outside its folder."""
        self.add(member.size)
        return tarfile.data_filter(member, place)


def _merge(source: Path, target: Path) -> None:
    """Move everything of one folder into another; folders that are there are filled up."""
    for entry in sorted(source.iterdir()):
        place = target / entry.name
        if entry.is_dir() and place.is_dir():
            _merge(entry, place)
        else:
            os.replace(entry, place)
