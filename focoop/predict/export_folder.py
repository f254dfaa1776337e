"""The files of an exported model, and `SHA256SUMS` with their checksums for `sha256sum -c`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from pathlib import Path

from focoop.caching import write_whole
from focoop.errors import RunError

FILE, CARD, CONFIG, ONNX = "model.safetensors", "README.md", "config.json", "model.onnx"
ONNX_DATA = f"{ONNX}.data"  # the weights of a large graph
SUMS = "SHA256SUMS"
ALWAYS = (CARD, CONFIG, FILE)
FILES = (*ALWAYS, ONNX, ONNX_DATA)
EDITED = (CARD,)  # people fill in its licence
LINE = re.compile(r"([0-9a-f]{64})  (\S+)")
AGAIN = "export it again, or get it again from where it came"


def write_sums(folder: Path, changed: Collection[str] = FILES) -> None:
    """Write the checksums of a folder's files.

    Args:
        folder: The exported model.
        changed: The files that were written; the others keep the checksums they have.

    Raises:
        OSError: A file cannot be read or written.
        RunError: The checksums that are there are damaged.
    """
    sums = {} if set(changed) == set(FILES) else _read(folder / SUMS)
    for name in changed:
        sums.pop(name, None)
        if (folder / name).is_file():
            sums[name] = _sha256(folder / name)
    lines = [f"{digest}  {name}\n" for name, digest in sorted(sums.items())]
    write_whole(folder / SUMS, "".join(lines).encode())


def forget_onnx(folder: Path) -> None:
    """Remove the graph of a model that is about to be replaced.

    Args:
        folder: The exported model.
    """
    for name in (ONNX, ONNX_DATA):
        (folder / name).unlink(missing_ok=True)


def check_sums(folder: Path) -> list[str]:
    """Compare all files of an exported model with their checksums.

    Args:
        folder: The exported model.

    Returns:
        Names of the files that are as they were written; a card that was edited is not among them.

    Raises:
        RunError: A file is damaged or gone, or there are no checksums.
    """
    if not (folder / FILE).is_file():
        raise RunError(
            f"{folder} holds no exported model; focoop export RUN --out MODEL writes one"
        )
    known = _read(folder / SUMS)
    found = {name: _sha256(folder / name) for name in FILES if (folder / name).is_file()}
    problems = [f"{name} is gone" for name in {*known, *ALWAYS} - set(found)]
    problems += [f"{name} is not in {SUMS}" for name in set(found) - set(known)]
    problems += [
        f"{name} is damaged: its checksum differs"
        for name in set(found) & set(known) - set(EDITED)
        if found[name] != known[name]
    ]
    if problems:
        raise RunError(f"{folder}: {'; '.join(sorted(problems))}; {AGAIN}")
    return [name for name in found if found[name] == known[name]]


def _read(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except FileNotFoundError as error:
        raise RunError(
            f"{path.parent} has no {SUMS}, as an earlier focoop made it or the file was left "
            "behind: export it again to have checksums"
        ) from error
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}); {AGAIN}") from error
    found = [LINE.fullmatch(line) for line in lines]
    if not all(found):
        raise RunError(f"{path} is damaged; {AGAIN}")
    return {match[2]: match[1] for match in found if match}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
