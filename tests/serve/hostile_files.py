"""Files that strangers send: bombs, lies, halves and other formats."""

import io
import struct
import zlib

from PIL import Image

from tests.serve.fake_model import picture


def png(width: int, height: int, data: bytes, *extra: bytes) -> bytes:
    """A PNG that says what it likes about its size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (chunk(b"IHDR", header), *extra, chunk(b"IDAT", data), chunk(b"IEND", b""))
    )


def chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


def zeros(count: int) -> bytes:
    """Many zeros in few bytes."""
    squeezed = zlib.compressobj(9)
    parts = [squeezed.compress(bytes(2**20)) for _ in range(count // 2**20)]
    return b"".join([*parts, squeezed.flush()])


def jpeg(width: int, height: int) -> bytes:
    """A JPEG whose header has another size."""
    content = bytearray(picture(kind="JPEG"))
    place = content.index(b"\xff\xc0")
    content[place + 5 : place + 9] = struct.pack(">HH", height, width)
    return bytes(content)


def webp(width: int, height: int) -> bytes:
    """The header of an extended WebP and nothing behind it."""
    canvas = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + canvas
    return b"RIFF" + struct.pack("<I", len(body)) + body


def gif(width: int, height: int) -> bytes:
    content = bytearray(picture(kind="GIF"))
    content[6:10] = struct.pack("<HH", width, height)
    return bytes(content)


def tiff(width: int, height: int) -> bytes:
    """A TIFF of one strip that is not there."""
    tags = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1)]
    tags += [(262, 3, 1, 1), (273, 4, 1, 8), (278, 4, 1, height), (279, 4, 1, 2**31)]
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)


def bmp(width: int, height: int) -> bytes:
    return b"BM" + struct.pack(
        "<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0
    )


def scans(count: int) -> bytes:
    """A JPEG that repeats its scan, which keeps a decoder busy."""
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(file, "JPEG", progressive=True)
    content = file.getvalue()
    first = content.index(b"\xff\xda")
    return content[:first] + (content[first:-2]) * count + b"\xff\xd9"


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
DOCTYPE = b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaa">]><svg>&a;</svg>'

# What each gets: 413 too large, 415 no image that is read, 422 damaged, 200 an image after all.
HOSTILE: dict[str, tuple[bytes, int]] = {
    "png of 50,000 x 50,000": (png(50_000, 50_000, zeros(2**22)), 413),
    "png of 30 million pixels": (png(6_000, 5_000, zeros(2**22)), 413),
    "png of 2^31 x 2^31": (png(2**31 - 1, 2**31 - 1, b""), 413),
    "png without pixels": (png(0, 0, b""), 415),
    "png that unpacks to more": (png(8, 8, zeros(2**25)), 200),
    "png with a text bomb": (png(8, 8, zeros(2**20), chunk(b"zTXt", b"a\0\0" + zeros(2**24))), 422),
    "png with a profile bomb": (
        png(8, 8, zeros(2**20), chunk(b"iCCP", b"a\0\0" + zeros(2**24))),
        422,
    ),
    "png cut off": (picture()[:70], 422),
    "jpeg of 65,500 x 65,500": (jpeg(65_500, 65_500), 413),
    "jpeg that lies": (jpeg(400, 300), 200),
    "jpeg of 500 scans": (scans(60), 422),
    "jpeg cut off": (picture(kind="JPEG", size=(300, 200))[:600], 422),
    "webp of 16,000 x 16,000": (webp(16_000, 16_000), 413),
    "webp with nothing in it": (webp(100, 100), 422),
    "gif of 65,000 x 65,000": (gif(65_000, 65_000), 413),
    "tiff of 60,000 x 60,000": (tiff(60_000, 60_000), 413),
    "tiff with a strip that is not there": (tiff(100, 100), 422),
    "bmp of 2^31 lines": (bmp(100, 2**31 - 1), 413),
    "svg": (SVG, 415),
    "xml with entities": (DOCTYPE, 415),
    "html": (b"<html><script>alert(1)</script>", 415),
    "pdf": (b"%PDF-1.7\n" + bytes(100), 415),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 415),
    "zip": (b"PK\x03\x04" + bytes(100), 415),
    "elf": (b"\x7fELF" + bytes(100), 415),
    "dicom": (bytes(128) + b"DICM" + bytes(64), 415),
    "gif that is a script too": (picture(kind="GIF") + b"/*<script>alert(1)</script>*/", 200),
    "jpeg that is a zip too": (picture(kind="JPEG") + b"PK\x03\x04" + bytes(50), 200),
    "svg that begins as a png": (b"\x89PNG\r\n\x1a\n" + SVG, 415),
    "empty": (b"", 422),
    "one byte": (b"\xff", 415),
    "zeros": (bytes(1000), 415),
    "heic with nothing in it": (bytes(4) + b"ftypheic" + bytes(90), 422),
    "avif with nothing in it": (bytes(4) + b"ftypavif" + bytes(90), 415),
}
