"""Options of the commands that make many runs: `compare`, `tune` and `paper`."""

from pathlib import Path
from typing import Annotated

import typer

from focoop.cli import completion

Jobs = Annotated[
    int | None,
    typer.Option(
        help="Runs at the same time; default: one per core, 4 on a GPU. 0: in this process."
    ),
]
Methods = Annotated[
    str | None,
    typer.Option(
        help="Names, presets, files of yours (./mine.py) or variants, such as "
        "promptfl,focoop:bos=false; or all.",
        autocompletion=completion.method_list,
    ),
]
Seeds = Annotated[
    str,
    typer.Option(
        help="How many: 3 are the seeds 0, 1 and 2. Or which: 0,4 are two; with a comma, '4,', one."
    ),
]
Presets = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder of tuned settings, NAME.toml and NAME@SETTING.toml; default: "
        "configs/methods, else ours.",
    ),
]
NoRun = Annotated[
    bool, typer.Option("--no-run", help="Run nothing; only write the tables of finished runs.")
]


def count_jobs(given: int | None, devices: list[str]) -> int:
    """Return how many runs go on at a time.

    Args:
        given: What the user said; None: nothing.
        devices: Devices of the runs.

    Returns:
        Their number.
    """
    from focoop.experiments import default_jobs

    return default_jobs(devices) if given is None else given
