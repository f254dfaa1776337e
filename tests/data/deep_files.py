"""Writers of image files with 16 bits per value, byte by byte, as Pillow writes few of them."""

import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

PNG_COLOURS = {1: 0, 2: 4, 3: 2, 4: 6}  # channels -> PNG's number for grey, grey + alpha, ...


def png16(path: Path, values: npt.NDArray[np.uint16], up: bool = False) -> None:
    """A PNG of values (H, W, channels); with `up` every row is stored as its change."""
    height, width, channels = values.shape
    rows = values.astype(">u2").reshape(height, -1).view(np.uint8)
    if up:
        rows = np.diff(rows, axis=0, prepend=np.zeros_like(rows[:1]))
    raw = b"".join((b"\2" if up else b"\0") + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, 16, PNG_COLOURS[channels], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(raw)), (b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts))


def _chunk(name: bytes, content: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + checksum


def tiff(
    path: Path,
    raw: bytes,
    shape: tuple[int, int, int],
    *,
    bits: int = 16,
    order: str = "<",
    photometric: int = 1,
    deflated: bool = False,
) -> None:
    """A TIFF of one strip; `shape` is height, width, channels, `order` that of the bytes."""
    height, width, channels = shape
    strip = zlib.compress(raw) if deflated else raw
    samples = struct.pack(f"{order}{channels}H", *[bits] * channels)
    at = 8 + 2 + 12 * 9 + 4  # behind the header and the nine tags
    tags = [(256, 3, 1, width), (257, 3, 1, height)]
    tags += [(258, 3, channels, at if channels > 2 else bits)]
    tags += [(259, 3, 1, 8 if deflated else 1), (262, 3, 1, photometric)]
    tags += [(273, 4, 1, at + len(samples)), (277, 3, 1, channels), (278, 3, 1, height)]
    tags += [(279, 4, 1, len(strip))]
    packed = b""
    for tag, kind, count, value in tags:
        short = kind == 3 and count <= 2
        packed += struct.pack(f"{order}HHI", tag, kind, count)
        packed += struct.pack(f"{order}HH" if short else f"{order}I", *(value, 0)[: 1 + short])
    start = b"II" if order == "<" else b"MM"
    header = start + struct.pack(f"{order}HIH", 42, 8, len(tags))
    path.write_bytes(header + packed + struct.pack(f"{order}I", 0) + samples + strip)
