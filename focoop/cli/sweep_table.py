"""What `focoop compare --sweep` shows at its end: one table of all points, and the files."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.text import Text

from focoop.cli.display import Column, Sheet, dataset_of
from focoop.cli.screen import out

if TYPE_CHECKING:
    from focoop.experiments import Outcome

PICTURES = (".svg", ".png", ".pdf")
FEW = 6  # pictures that are named one by one


def print_sweep(outcomes: "Sequence[Outcome]") -> bool:
    """Print one table of all points of a sweep: markdown in a pipe, as it fits on a terminal.

    Args:
        outcomes: The runs.

    Returns:
        Whether there was something to print: a swept setting and a finished run.
    """
    from focoop.experiments import sweep_table

    found = sweep_table(outcomes)
    if found is None:
        return False
    console = out()
    if not console.is_terminal:
        typer.echo(found.markdown())
        return True
    names = [Column(name) for name in found.heads[: found.left]]
    numbers = [
        Column(name, right=True, group=dataset_of(name)) for name in found.heads[found.left :]
    ]
    cells = [[_styled(cell) for cell in line] for line in found.cells]
    console.print(Sheet([*names, *numbers], cells))
    console.print(f"\n{found.note}")
    return True


def _styled(cell: str) -> Text:
    """A cell whose Markdown is shown as a terminal can."""
    return Text(cell.strip("*"), style="bold" if cell.startswith("**") else "")


def listed(paths: Sequence[Path]) -> str:
    """Return the names of files, many pictures as a number.

    Args:
        paths: The files.

    Returns:
        One line.
    """
    pictures = [path for path in paths if path.suffix in PICTURES]
    if len(pictures) <= FEW:
        return ", ".join(map(str, paths))
    texts = ", ".join(str(path) for path in paths if path.suffix not in PICTURES)
    kinds = ", ".join(dict.fromkeys(path.suffix.removeprefix(".") for path in pictures))
    return f"{texts}, and {len(pictures)} pictures beside them ({kinds})"
