"""The one rule for which files are images, by their names and, without a suffix, by their content.

`folder:` and `clients:` look for files by this rule, `csv:` names its files; all three read the
same formats (`focoop/data/decoding.py`).
"""

import os
import stat
from pathlib import Path

# What Pillow reads and photographs, scans and figures are kept in.
_PILLOW = (
    ".jpg .jpeg .jpe .jfif .png .bmp .webp .gif .avif .tif .tiff .jp2 .j2k .ppm .pgm .pbm .pnm"
)
PILLOW_SUFFIXES = frozenset(_PILLOW.split())
HEIF_SUFFIXES = frozenset({".heic", ".heif", ".hif"})
DICOM_SUFFIXES = frozenset({".dcm", ".dicom", ".ima"})
SUFFIXES = PILLOW_SUFFIXES | HEIF_SUFFIXES | DICOM_SUFFIXES
# Names of the readers of Pillow that may look into a file, whatever the file is called.
PILLOW_FORMATS = ("JPEG", "MPO", "PNG", "BMP", "WEBP", "GIF", "AVIF", "TIFF", "JPEG2000", "PPM")
# Pictures and films that are not read: a user may take them for images of the set.
_UNREAD = (
    ".cr2 .cr3 .nef .arw .dng .raf .orf .rw2 .raw .psd .xcf .ai .eps .pdf .svg .jxl .exr .hdr .ico "
    ".tga .nii .nii.gz .mha .mhd .nrrd .npy .npz .h5 .hdf5 .tfrecord .parquet .svs .czi .lif .nd2 "
    ".mp4 .mov .avi .mkv .webm"
)
UNREAD_SUFFIXES = frozenset(_UNREAD.split())
ARCHIVE_SUFFIXES = frozenset({".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar"})
SYSTEM_FILES = frozenset({"thumbs.db", "desktop.ini", "ehthumbs.db", "dicomdir"})
SYSTEM_FOLDERS = frozenset({"__macosx", "@eadir", "$recycle.bin", "system volume information"})

HIDDEN = "hidden files and folders"
SYSTEM = "files of the system (Thumbs.db and the like)"
UNREAD = "pictures or films of a format that is not read"
ARCHIVE = "archives: unpack them where they hold images"
OTHER = "no images by their suffix"
BARE = "no suffix, and no image inside"
# The first bytes of images, where the format has some of its own.
_STARTS = (
    *(b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"II*\0", b"MM\0*"),
    *(b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51"),  # JPEG 2000
)
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_AVIF_BRANDS = (b"avif", b"avis")
HEAD = 132  # bytes: DICOM has its four letters behind 128 others


def suffix(name: str) -> str:
    """Return the suffix of a file's name in lower case; empty where there is none.

    A last part of digits is none: DICOM files are often called by numbers with dots.

    Args:
        name: The file's name.

    Returns:
        The suffix, with its dot.

    >>> suffix("Photo.JPG"), suffix("1.2.840.113619.2"), suffix("IM0001")
    ('.jpg', '', '')
    """
    ending = os.path.splitext(name)[1].lower()
    if ending == ".gz" and name.lower().endswith(".nii.gz"):
        return ".nii.gz"
    return "" if ending[1:].isdigit() else ending


def why_not(folder: str | Path, name: str) -> str:
    """Why a file is not taken for an image; empty where it is.

    Args:
        folder: the folder the file is in.
        name: its name. The file is opened only where the name has no suffix.

    Returns:
        The reason; empty where it is taken for an image.
    """
    if name.startswith("."):
        return HIDDEN
    if name.lower() in SYSTEM_FILES:
        return SYSTEM
    ending = suffix(name)
    if ending in SUFFIXES:
        return ""
    if not ending:
        return "" if looks_like_image(Path(folder, name)) else BARE
    if ending in UNREAD_SUFFIXES:
        return UNREAD
    return ARCHIVE if ending in ARCHIVE_SUFFIXES else OTHER


def looks_like_image(path: Path) -> bool:
    """Say whether a regular file begins as an image of a known format does.

    Args:
        path: The file.

    Returns:
        Whether it does.
    """
    try:
        start = head(path)
    except OSError:
        return False
    webp = start[:4] == b"RIFF" and start[8:12] == b"WEBP"
    return webp or start.startswith(_STARTS) or is_dicom(start) or is_heif(start) or is_avif(start)


def head(path: Path) -> bytes:
    """Read the first bytes of a file; of a pipe or a device none, as that could last for ever.

    Args:
        path: The file.

    Returns:
        The bytes.

    Raises:
        NotAFile: The path leads to no regular file.
        OSError: It cannot be opened.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise NotAFile(path)
    with open(path, "rb") as file:
        return file.read(HEAD)


class NotAFile(OSError):
    """A pipe, a socket, a device or a folder where a file was expected."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is not a regular file")


def is_dicom(start: bytes) -> bool:
    """Say whether a file is DICOM.

    Args:
        start: Its first bytes.

    Returns:
        Whether it is.
    """
    return start[128:132] == b"DICM"


def is_heif(start: bytes) -> bool:
    """Say whether a file is HEIC or HEIF.

    Args:
        start: Its first bytes.

    Returns:
        Whether it is.
    """
    return start[4:8] == b"ftyp" and start[8:12] in _HEIF_BRANDS


def is_avif(start: bytes) -> bool:
    """Say whether a file is AVIF.

    Args:
        start: Its first bytes.

    Returns:
        Whether it is.
    """
    return start[4:8] == b"ftyp" and start[8:12] in _AVIF_BRANDS
