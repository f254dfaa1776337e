"""Numbers of runs as tools read them: percent by column, for each setting, method and seed."""

import json
from pathlib import Path
from typing import Any

from focoop.caching import SUM, is_intact
from focoop.errors import RunError
from focoop.experiments.tables import columns

Cells = dict[tuple[str, str, int], dict[str, float]]


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
    keys = ("setting", "method", "seed")
    return {
        (row["setting"], row["method"], row["seed"]): {
            name: value for name, value in row.items() if name not in keys
        }
        for row in json.loads(path.read_text(encoding="utf-8"))
    }
