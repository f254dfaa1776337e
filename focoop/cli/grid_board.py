"""The live table of `focoop compare` and `focoop tune`, and their exit where a run failed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from focoop.cli import interruption
from focoop.cli.display.sheet import joined
from focoop.cli.grid_options import count_jobs
from focoop.cli.screen import messages

if TYPE_CHECKING:
    from focoop.experiments import Cell, Outcome


def jobs_of(given: int | None, cells: "list[Cell]") -> int:
    """Return how many runs are made at a time.

    Args:
        given: How many were asked for; None: as many as the devices bear.
        cells: The runs.

    Returns:
        The number.
    """
    return count_jobs(given, [cell.config.backbone.device for cell in cells])


def leave(outcomes: "Sequence[Outcome]") -> None:
    """Name what failed, and exit with the first failure's code.

    Args:
        outcomes: The outcomes of all runs.

    Raises:
        typer.Exit: A run failed.
    """
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    for outcome in failed:
        messages().print(f"failed: {outcome.cell.folder}\n{outcome.error}")
    if failed:
        raise typer.Exit(failed[0].exit_code or 1)


Draw = Callable[["list[Outcome]"], RenderableType]


@contextmanager
def board(cells: "list[Cell]", draw: Draw) -> Iterator[Callable[["Outcome"], None]]:
    """Show outcomes as they change: a live table on a terminal, lines elsewhere.

    Args:
        cells: The runs.
        draw: Makes the table of all outcomes so far.

    Yields:
        A function that is called with an outcome that has changed.
    """
    from focoop.experiments import Outcome, line

    console = messages()
    current = {cell.folder: Outcome(cell) for cell in cells}
    live = Live(console=console, refresh_per_second=4, transient=True)

    def show(outcome: Outcome) -> None:
        current[outcome.cell.folder] = outcome
        if console.is_terminal:
            live.update(draw(list(current.values())))
        elif outcome.status != "running":
            done = sum(latest.status in ("finished", "failed") for latest in current.values())
            text = f"[{done}/{len(current)}] {line(outcome)}"
            console.print(joined(text.split("  "), console.width))

    try:
        if not console.is_terminal:
            yield show
        else:
            with live:
                yield show
    except KeyboardInterrupt:
        console.print("stopped: the same command goes on where it stopped")
        interruption.mark_announced()
        raise


def progress(outcomes: "list[Outcome]") -> Text:
    """Say how many runs are finished, under way and failed.

    Args:
        outcomes: The outcomes so far.

    Returns:
        The words.
    """
    counts = dict.fromkeys(("finished", "running", "failed"), 0)
    for outcome in outcomes:
        counts[outcome.status] = counts.get(outcome.status, 0) + 1
    shown = [f"{counts['finished']} of {len(outcomes)} runs finished"]
    shown += [f"{counts[name]} {name}" for name in ("running", "failed") if counts[name]]
    return Text(", ".join(shown))


def runs_of(outcomes: "list[Outcome]") -> str:
    """Say how many runs of a line are finished, and the rounds of those under way.

    Args:
        outcomes: The outcomes of the line.

    Returns:
        Such as `1/3 (12/25)`.
    """
    done = sum(outcome.status == "finished" for outcome in outcomes)
    failed = sum(outcome.status == "failed" for outcome in outcomes)
    rounds = [f"{o.round}/{o.cell.rounds}" for o in outcomes if o.status == "running"]
    notes = [*rounds, *([f"{failed} failed"] if failed else [])]
    return f"{done}/{len(outcomes)}" + (f" ({', '.join(notes)})" if notes else "")
