"""Print how much of each room the tests run: `make coverage`.

    python tools/coverage_by_room.py build/coverage.json --least 5

reads what `pytest --cov --cov-report=json:build/coverage.json` has written. A room is a folder of
`focoop/`; loose files count as one room. Below the table stand the files with the most lines that
no test runs. Lines that run only in child processes (Flower's, a command of the command line) count
as not run.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

LOOSE = "(loose files)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of a coverage report in JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--least", type=int, default=10, help="files to list below the table")
    given = parser.parse_args(arguments)
    files = read_report(given.report)
    rows = [
        *by_room(files),
        ("all", *(sum(column) for column in zip(*files.values(), strict=True))),
    ]
    width = max(len(str(row[0])) for row in rows)
    print(f"{'room':{width}}  lines    run  percent")
    for room, lines, run in rows:
        print(f"{room:{width}}  {lines:5}  {run:5}  {100 * run / max(lines, 1):7.1f}")
    worst = sorted(files, key=lambda path: files[path][1] - files[path][0])[: given.least]
    print("\nmost lines that are not run")
    for path in worst:
        lines, run = files[path]
        print(f"{lines - run:5} of {lines:4}  {path}")
    return 0


def read_report(path: Path) -> dict[str, tuple[int, int]]:
    """Read a report.

    Args:
        path: the JSON file of coverage.py.

    Returns:
        For every file how many lines can be run and how many were.
    """
    files = json.loads(path.read_text(encoding="utf-8"))["files"]
    totals = {name: about["summary"] for name, about in files.items()}
    return {name: (int(t["num_statements"]), int(t["covered_lines"])) for name, t in totals.items()}


def by_room(files: Mapping[str, tuple[int, int]]) -> list[tuple[str, int, int]]:
    """Add up files by room.

    Args:
        files: lines that can be run and lines that were, by path from the checkout.

    Returns:
        Room, lines and lines run, in the order of the alphabet.
    """
    lines, run = Counter[str](), Counter[str]()
    for path, (own_lines, own_run) in files.items():
        inside = PurePosixPath(path).parts[1:]  # below focoop/
        room = inside[0] if len(inside) > 1 else LOOSE
        lines[room] += own_lines
        run[room] += own_run
    return [(room, lines[room], run[room]) for room in sorted(lines)]


if __name__ == "__main__":
    sys.exit(main())
