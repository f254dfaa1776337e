"""Numbers of runs as tools read them: percent by column, for each setting, method and seed."""

import json
import lzma
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from focoop.caching import SUM, is_intact, write_whole
from focoop.errors import RunError
from focoop.experiments.tables import columns

Cells = dict[tuple[str, str, int], dict[str, float]]
SAME = ("setting", "method")
REPEATS = (
    "The three Dirichlet settings were run with `partition.repeats = true`: a client with fewer "
    "than 8 images of a class repeated some (943, 1,508 and 93 of 3,616, 7,000 and 8,000 images)."
)


def read_results(path: Path) -> Cells:
    """Read the finished cells of a grid.

    Args:
        path: `results.json` of `focoop compare`, or what `tools/device_runs.py` wrote.

    Returns:
        Percent by column.

    Raises:
        RunError: The file is damaged.
    """
    try:
        whole: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if SUM in whole and not is_intact(whole):
            raise ValueError("its checksum differs")
    except ValueError as error:
        raise RunError(
            f"{path} is damaged or was edited ({error}): make it again with focoop compare --no-run"
        ) from error
    found: list[dict[str, Any]] = whole["cells"]
    return {
        (cell["setting"], cell["label"], cell["seed"]): columns(cell["summary"])
        for cell in found
        if cell["status"] == "finished"
    }


def read_cells(path: Path) -> Cells:
    """Read `cells.json`.

    Args:
        path: The file.

    Returns:
        Percent by column.
    """
    return {
        (row["setting"], row["method"], row["seed"]): {
            name: value for name, value in row.items() if name not in (*SAME, "seed")
        }
        for row in read_rows(path)
    }


def read_rows(path: Path, same: Sequence[str] = SAME) -> list[dict[str, Any]]:
    """Read the runs of a file that `write_rows` made.

    Args:
        path: The file; one named `.xz` is compressed.
        same: What the runs of a line have in common.

    Returns:
        One entry for each run.
    """
    lines = json.loads(read_packed(path))
    return [
        {name: value if name in same else value[i] for name, value in line.items()}
        for line in lines
        for i in range(len(line["seed"]))
    ]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]], same: Sequence[str] = SAME) -> None:
    """Write runs, those of one setting and method in a line, with a list over seeds by column.

    Args:
        path: The file; one named `.xz` is compressed.
        rows: One entry for each run; with `seed`.
        same: What the runs of a line have in common.
    """
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((*(row[name] for name in same), *sorted(row)), []).append(row)
    lines = []
    for group in groups.values():
        line = {
            name: value if name in same else [row[name] for row in group]
            for name, value in group[0].items()
        }
        lines.append(json.dumps(line, separators=(",", ":")))
    write_packed(path, "[\n" + ",\n".join(lines) + "\n]\n")


def read_packed(path: Path) -> bytes:
    """Read a file that may be compressed.

    Args:
        path: The file; one named `.xz` is compressed.

    Returns:
        What is in it.
    """
    raw = path.read_bytes()
    return lzma.decompress(raw) if path.suffix == ".xz" else raw


def write_packed(path: Path, text: str) -> None:
    """Write a text, compressed where the file is named `.xz`.

    Args:
        path: The file.
        text: What is written.
    """
    raw = text.encode()
    write_whole(path, lzma.compress(raw, preset=9) if path.suffix == ".xz" else raw)
