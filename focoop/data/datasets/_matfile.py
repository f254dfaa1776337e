"""MATLAB 5 files without SciPy: numbers, text, cells and structs, as datasets ship them.

The format is documented by MathWorks ("MAT-File Format"): 128 header bytes, then tagged elements,
each possibly deflated. Numeric arrays become NumPy arrays, text becomes `str`, a struct array a
list of dicts and a cell array a list.
"""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from focoop.errors import DataError

NUMBERS = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8",
}  # fmt: skip
TEXTS = {16: "utf-8", 17: "utf-16", 18: "utf-32"}
MATRIX, COMPRESSED = 14, 15
CELL, STRUCT, OBJECT, CHAR, SPARSE = 1, 2, 3, 4, 5


def read_mat(path: Path) -> dict[str, Any]:
    """Read the variables of a MATLAB 5 file.

    Args:
        path: The file.

    Returns:
        Values by name.

    Raises:
        DataError: The file is missing or damaged.
    """
    try:
        raw = path.read_bytes()
        if len(raw) < 128 or raw[126:128] not in (b"IM", b"MI"):
            raise ValueError("it is no MATLAB 5 file")
        order = "<" if raw[126:128] == b"IM" else ">"
        variables: dict[str, Any] = {}
        for kind, body in _elements(raw[128:], order):
            if kind == COMPRESSED:
                (kind, body), *_ = _elements(zlib.decompress(body), order)
            if kind == MATRIX:
                name, value = _matrix(body, order)
                variables[name] = value
        return variables
    except (OSError, ValueError, struct.error, zlib.error, IndexError) as error:
        raise DataError(f"cannot read {path} ({error}): get the dataset again") from error


def _elements(raw: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """(type, body) of the elements in `raw`; short ones hold their body in the tag."""
    at = 0
    while at + 8 <= len(raw):
        kind, size = struct.unpack(order + "II", raw[at : at + 8])
        if kind >> 16:
            kind, size = kind & 0xFFFF, kind >> 16
            yield kind, raw[at + 4 : at + 4 + size]
            at += 8
            continue
        if at + 8 + size > len(raw):
            raise ValueError("it ends too early")
        yield kind, raw[at + 8 : at + 8 + size]
        # Deflated elements are not padded.
        at += 8 + (size if kind == COMPRESSED else -(-size // 8) * 8)


def _matrix(body: bytes, order: str) -> tuple[str, Any]:
    """Name and value of one array element."""
    parts = list(_elements(body, order))
    if not parts:
        return "", np.zeros((0, 0))
    kind = struct.unpack(order + "I", parts[0][1][:4])[0] & 0xFF
    shape = tuple(int(n) for n in _numbers(*parts[1], order))
    name = parts[2][1].decode("latin-1")
    count = int(np.prod(shape))
    if kind == CELL:
        return name, [_matrix(cell, order)[1] for _, cell in parts[3 : 3 + count]]
    if kind == STRUCT:
        width = int(_numbers(*parts[3], order)[0])
        fields = [
            parts[4][1][at : at + width].split(b"\0")[0].decode("latin-1")
            for at in range(0, len(parts[4][1]), width)
        ]
        values = [_matrix(cell, order)[1] for _, cell in parts[5:]]
        rows = [values[at : at + len(fields)] for at in range(0, len(values), len(fields))]
        return name, [dict(zip(fields, row, strict=True)) for row in rows[:count]]
    if kind == CHAR:
        return name, _text(*parts[3], order)
    if kind in (OBJECT, SPARSE):
        raise ValueError(f"variable {name!r} is of a kind that is not read here")
    return name, _numbers(*parts[3], order).reshape(shape, order="F")


def _numbers(kind: int, body: bytes, order: str) -> Any:
    if kind not in NUMBERS:
        raise ValueError(f"element type {kind} where numbers are due")
    return np.frombuffer(body, dtype=order + NUMBERS[kind])


def _text(kind: int, body: bytes, order: str) -> str:
    """One row of text; MATLAB writes characters as bytes, as UTF, or as 16-bit numbers."""
    if kind in TEXTS:
        ending = "" if kind == 16 else ("-le" if order == "<" else "-be")
        return body.decode(TEXTS[kind] + ending)
    return "".join(chr(int(code)) for code in _numbers(kind, body, order))
