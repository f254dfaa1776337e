"""Choose methods' settings on validation images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from focoop.api.comparing import (
    OnChange,
    Settings,
    as_settings,
    joined,
    refuse_registered,
    refuse_registered_trackers,
)
from focoop.api.frames import pandas
from focoop.api.settings import Overrides, on_device
from focoop.experiments import (
    OBJECTIVE,
    Choice,
    GridSettings,
    Study,
    parse_objective,
    studies,
    write_choice,
)
from focoop.experiments import tune as run_trials
from focoop.tracking import OnRound

if TYPE_CHECKING:
    from pandas import DataFrame

OUT = Path("runs/tune")


@dataclass(frozen=True)
class Tuning:
    """What a tuning found.

    Attributes:
        choices: One per method: its trials, best first, and the preset made of the best.
        weights: The objective, measure -> weight.
    """

    choices: Sequence[Choice]
    weights: dict[str, float]

    def __repr__(self) -> str:
        best = [
            f"{choice.study.label} {choice.best.value:.4f}"
            for choice in self.choices
            if choice.best is not None and choice.best.value is not None
        ]
        return f"Tuning(best objective of {', '.join(best) or 'no trial'}; see rows, presets)"

    @property
    def presets(self) -> dict[str, str]:
        """Return each method's chosen settings as TOML, by where they belong: `NAME`, `clip/NAME`.

        Methods whose trials all failed are left out.
        """
        return {name: text for choice in self.choices for name, text in choice.presets.items()}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return one row per trial, best first within a method.

        Objective, status, folder, its point.
        """
        return [
            {
                "method": choice.study.label,
                "trial": trial.number,
                "objective": trial.value,
                "status": trial.status,
                "folder": ", ".join(str(outcome.cell.folder) for outcome in trial.outcomes),
                **dict(zip(choice.study.settings, trial.values, strict=False)),
                **trial.point,
            }
            for choice in self.choices
            for trial in choice.trials
        ]

    def frame(self) -> "DataFrame":
        """Return the trials as a pandas DataFrame.

        Returns:
            The DataFrame.

        Raises:
            MissingExtra: pandas is not installed.
        """
        return pandas().DataFrame(self.rows)

    def save(
        self, out: str | Path, presets: str | Path | None = None, suffix: str = ""
    ) -> list[Path]:
        """Write every method's trials (OUT/NAME.md, NAME.csv) and its preset (NAME.toml).

        Args:
            out: The folder.
            presets: A folder that gets the presets too.
            suffix: Goes behind the names there, such as `@cifar100` for presets of one setting.

        Returns:
            The files written.
        """
        also = None if presets is None else Path(presets)
        return [
            path
            for choice in self.choices
            for path in write_choice(choice, self.weights, Path(out), also, suffix)
        ]


def tune(
    setting: Settings | Sequence[Settings],
    methods: str | Sequence[str],
    *,
    budget: int = 12,
    objective: str = OBJECTIVE,
    ood: Sequence[str] = (),
    validation: int | None = None,
    seed: int = 0,
    overrides: Overrides = None,
    out: str | Path = OUT,
    jobs: int = 0,
    device: str | None = None,
    on_change: OnChange | None = None,
    on_round: OnRound = None,
) -> Tuning:
    """Choose methods' settings on validation images, the same number of trials for each.

    The test split is not opened. Trials are kept below `out`; the same call again runs only what
    is not finished.

    Args:
        setting: A settings file, the name of one that comes with focoop, or a mapping; or several:
            then a trial is run on each, and counts by its mean over them.
        methods: Names or variants, or `"all"`.
        budget: Trials of each method; the first is its defaults.
        objective: Weights of `own_alone`, `all`, `area`, `auroc` and others, such as
            `"own=1,alarm=-1"`.
        ood: Validation OOD sets; by default the setting's `data.validation_ood`.
        validation: Validation images per class; by default the setting's, else 30, or half of the
            smallest class where that is less.
        seed: The seed of the runs and of the sample of trials.
        overrides: Settings that are fixed, as in `run`.
        out: The folder of the trials and the evidence.
        jobs: As in `compare`.
        device: A torch device, such as `"cuda"`; by default the settings'.
        on_change: Called whenever a run starts, commits a round, finishes or fails.
        on_round: Hooks of every trial, as in `compare`.

    Returns:
        The trials and the chosen presets.

    Raises:
        ConfigError: A setting, method or weight cannot be read, or settings would be chosen on test
            data.
        DataError: Images or features are missing.
    """
    planned = plan_tuning(
        setting,
        methods,
        budget=budget,
        out=out,
        ood=ood,
        validation=validation,
        seed=seed,
        overrides=overrides,
        device=device,
    )
    tuning = run_tuning(planned, objective, jobs=jobs, on_change=on_change, on_round=on_round)
    tuning.save(out)
    return tuning


def plan_tuning(
    setting: Settings | Sequence[Settings],
    methods: str | Sequence[str],
    *,
    budget: int = 12,
    out: str | Path = OUT,
    ood: Sequence[str] = (),
    validation: int | None = None,
    seed: int = 0,
    overrides: Overrides = None,
    device: str | None = None,
) -> list[Study]:
    """Say which trials `tune` would make; the arguments are its own.

    Args:
        setting: As in `tune`.
        methods: As in `tune`.
        budget: As in `tune`.
        out: As in `tune`.
        ood: As in `tune`.
        validation: As in `tune`.
        seed: As in `tune`.
        overrides: As in `tune`.
        device: As in `tune`.

    Returns:
        One study per method, with a cell per trial.

    Raises:
        ConfigError: A setting or method cannot be read.
    """
    return studies(
        as_list(setting),
        joined(methods) or "all",
        budget,
        Path(out),
        validation=validation,
        ood=ood,
        overrides=on_device(overrides, device),
        seed=seed,
    )


def as_list(given: Settings | Sequence[Settings]) -> list[GridSettings]:
    """Return one setting or several as a list.

    Args:
        given: A setting, or several.

    Returns:
        Files and values.
    """
    if isinstance(given, str | Path | Mapping):
        return [as_settings(given)]
    return [as_settings(setting) for setting in given]


def run_tuning(
    planned: Sequence[Study],
    objective: str = OBJECTIVE,
    *,
    jobs: int = 0,
    on_change: OnChange | None = None,
    on_round: OnRound = None,
) -> Tuning:
    """Run all trials of a plan in one pool, then choose.

    Args:
        planned: What `plan_tuning` returned.
        objective: As in `tune`.
        jobs: As in `compare`.
        on_change: As in `tune`.
        on_round: As in `tune`.

    Returns:
        The trials and the chosen presets.

    Raises:
        ConfigError: A weight cannot be read.
        DataError: Images or features are missing.
    """
    weights = parse_objective(objective)
    refuse_registered([cell for study in planned for cell in study.cells], jobs)
    refuse_registered_trackers(on_round, jobs)
    watch = on_change or (lambda outcome: None)
    found = run_trials(planned, weights, jobs=jobs, watch=watch, on_round=on_round)
    return Tuning(found, weights)
