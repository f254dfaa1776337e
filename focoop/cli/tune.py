"""`focoop tune`: choose methods' settings on validation images."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType

from focoop.cli import completion
from focoop.cli.display import PROSE, Column, Sheet
from focoop.cli.fetch import Features
from focoop.cli.grid_board import Draw, board, jobs_of, leave, progress, runs_of
from focoop.cli.grid_notes import note_answers
from focoop.cli.grid_options import Jobs
from focoop.cli.screen import (
    AsJson,
    Device,
    Overrides,
    Track,
    Weights,
    messages,
    out,
    print_json,
    with_weights,
)
from focoop.errors import ConfigError

if TYPE_CHECKING:
    from focoop.experiments import Choice, Outcome, Study


def tune(
    methods: Annotated[
        str,
        typer.Option(
            help="Names or variants, such as promptfl,./mine.py; or all.",
            autocompletion=completion.method_list,
        ),
    ],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="SETTING...",
            help="The setting to tune on, such as settings/cifar100 or a file of yours; of several "
            "a trial is run on each, and counts by its mean.",
            autocompletion=completion.configuration,
        ),
    ],
    budget: Annotated[int, typer.Option(help="Trials of each method.")] = 12,
    folder: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of the trials and their tables.")
    ] = Path("runs/tune"),
    write: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write the presets here.")
    ] = None,
    only: Annotated[
        bool, typer.Option("--only", help="Write presets for this setting alone: NAME@SETTING.")
    ] = False,
    objective: Annotated[
        str,
        typer.Option(
            help="Weights of own_alone, all, area, auroc, own, all_open, fpr95, fpr95_oodpos, "
            "alarm, harmonic."
        ),
    ] = "own_alone=1,all=1,area=1,auroc=1",
    ood: Annotated[
        list[str] | None,
        typer.Option(help="A validation OOD set; default: the setting's data.validation_ood."),
    ] = None,
    validation: Annotated[
        int | None, typer.Option(help="Validation images per class; default 30, or what fits.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the runs and of the sample.")] = 0,
    jobs: Jobs = None,
    features: Features = None,
    device: Device = None,
    overrides: Overrides = None,
    weights: Weights = None,
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Choose methods' settings on validation images, the same number of trials for each.

    Example: focoop tune settings/cifar100 --methods promptfl,./mine.py --write presets
    """
    from focoop.api import plan_tuning, run_tuning
    from focoop.experiments import objective_text, parse_objective

    if only and len(files) > 1:
        raise ConfigError("--only writes presets for one setting, and there are several")
    parts = parse_objective(objective)
    studies = plan_tuning(
        files,
        methods,
        budget=budget,
        out=folder,
        validation=validation,
        ood=ood or [],
        overrides=with_weights(overrides, weights),
        device=device,
        seed=seed,
    )
    note_answers(studies)
    cells = [cell for study in studies for cell in study.cells]
    with board(cells, live_tuning(studies, parts)) as watch:
        many = jobs_of(jobs, cells)
        tuning = run_tuning(studies, objective, jobs=many, on_change=watch, on_round=track)
    choices = tuning.choices
    paths = tuning.save(folder, write, f"@{files[0].stem}" if only else "")
    if as_json:
        print_json([_as_json(choice) for choice in choices])
    else:
        out().print(_choices_table(choices))
        out().print(f"{objective_text(parts)}, in percent of validation images and sets")
        messages().print(f"written: {', '.join(map(str, paths))}")
    leave([outcome for choice in choices for outcome in choice.outcomes])


def live_tuning(studies: "list[Study]", weights: dict[str, float]) -> Draw:
    """Draw one row per method: trials, and the objective of the defaults and of the best so far.

    Args:
        studies: The studies.
        weights: The objective.

    Returns:
        A function that draws the outcomes so far.
    """
    from focoop.experiments import choose

    def draw(outcomes: "list[Outcome]") -> RenderableType:
        by_folder = {outcome.cell.folder: outcome for outcome in outcomes}
        current = [
            choose(study, [by_folder[cell.folder] for cell in study.cells], weights)
            for study in studies
        ]
        return Group(progress(outcomes), _choices_table(current))

    return draw


def _choices_table(choices: "Sequence[Choice]") -> Sheet:
    rows = []
    for choice in choices:
        default = next(trial for trial in choice.trials if trial.number == 0)
        best = choice.best
        values = (default.value, None if best is None else best.value)
        point = {} if best is None else best.point
        rows.append(
            [
                choice.study.label,
                runs_of(choice.outcomes),
                *("-" if value is None else f"{100 * value:.2f}" for value in values),
                ", ".join(f"{key.split('.')[1]}={value}" for key, value in point.items()),
            ]
        )
    columns = [Column("method"), Column("trials"), Column("defaults", True), Column("best", True)]
    return Sheet([*columns, Column("chosen settings", prose=PROSE)], rows)


def _as_json(choice: "Choice") -> dict[str, Any]:
    trials = [
        {
            "trial": trial.number,
            "value": trial.value,
            "point": trial.point,
            "status": trial.status,
            "folders": [str(outcome.cell.folder) for outcome in trial.outcomes],
        }
        for trial in choice.trials
    ]
    return {"label": choice.study.label, "points": choice.study.size, "trials": trials}
