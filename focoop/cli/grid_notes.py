"""What a person should know of many runs before they begin: seeds, untuned methods, odd data."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from focoop.cli.run import say
from focoop.cli.screen import messages
from focoop.errors import FocoopError

if TYPE_CHECKING:
    from focoop.experiments import Cell, Study


def note_seeds(given: str, cells: "Sequence[Cell] | None" = None) -> None:
    """Say which seeds will run, and in how many runs.

    Args:
        given: What the user wrote behind `--seeds`.
        cells: The runs; None: how many there are is not known yet.
    """
    from focoop.experiments import describe_seeds, seeds_of

    text = describe_seeds(seeds_of(given))
    if cells is not None:
        text = f"{len(cells)} run{'s'[: len(cells) != 1]} with {text}"
    messages().print(text, markup=False)


def note_presets(cells: "list[Cell]", presets: Path | None) -> None:
    """Say which methods are not tuned beside others that are.

    Args:
        cells: The runs.
        presets: The folder of tuned settings; None: the one that comes with focoop.
    """
    from focoop.config import shipped
    from focoop.experiments import without_preset

    folder = presets or shipped("methods")
    names = [cell.label.partition(":")[0] for cell in cells]
    settings = list(dict.fromkeys(cell.base for cell in cells))
    if lacking := without_preset(names, settings, folder):
        say(
            f"no tuned settings for {', '.join(lacking)} in {folder}: defaults are used. To choose "
            f"some: focoop tune SETTING --methods {','.join(lacking)} --write DIR"
        )


def note_data(cells: "list[Cell]") -> None:
    """Say once what runs of a setting do with their data; runs tell what fails.

    Args:
        cells: The runs.
    """
    from focoop.scenario import remarks

    notes: list[str] = []
    for cell in {cell.setting: cell for cell in cells}.values():
        with suppress(FocoopError):
            notes += remarks(cell.config, measured=not cell.notes)
    for note in dict.fromkeys(notes):
        say(note)


def note_answers(studies: "Sequence[Study]") -> None:
    """Say how many images validate, and which methods of a user's own are tried less.

    Args:
        studies: What is tuned.
    """
    from focoop.plugins import origin

    counts = {cell.setting: cell.config.data.validation for cell in studies[0].trials[0]}
    told = ", ".join(f"{count} of {name}" for name, count in counts.items())
    shown = told if len(counts) > 1 else str(*counts.values())
    say(f"{shown} training images of each class validate (--validation)")
    for study in studies:
        first = study.cells[0]
        if not first.answers and origin("method", first.config.method.name) is not None:
            say(
                f"{study.label} is tried with its own score alone. focoop's methods are tried with "
                "three scores and six priors after training; so is yours if it derives from "
                "focoop.Answering"
            )
