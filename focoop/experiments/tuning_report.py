"""What tuning found: trials by their objective, the evidence as tables, and the chosen preset."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from focoop.config import RunConfig, from_dict, to_dict
from focoop.errors import ConfigError, nearest
from focoop.experiments.comparison import Outcome, failure
from focoop.experiments.grid import Cell, safe
from focoop.experiments.presets import CLIP, MINI, TUNABLE
from focoop.fields import toml_value
from focoop.plugins import is_file
from focoop.runs import write

# A quarter each: what clients answer of their own classes and of all, so that a method that forgets
# other classes pays for it, the trade between the two, and how well strange images are told.
OBJECTIVE = "own_alone=1,all=1,area=1,auroc=1"
MEASURES: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
    "own": lambda summary: summary["accuracy_own"],
    "all": lambda summary: summary["accuracy_all"],
    "own_alone": lambda summary: summary.get("accuracy_own_alone"),
    "all_open": lambda summary: summary.get("accuracy_all_open"),
    "alarm": lambda summary: summary["cross_alarm"],
    "area": lambda summary: (summary.get("frontier") or {}).get("ausuc"),
    "harmonic": lambda summary: (summary.get("frontier") or {}).get("harmonic"),
    "auroc": lambda summary: _over_sets(summary, "auroc"),
    "fpr95": lambda summary: _over_sets(summary, "fpr95"),
    "fpr95_oodpos": lambda summary: _over_sets(summary, "fpr95_oodpos"),
}

Point = dict[str, Any]  # dotted key -> value


@dataclass(frozen=True)
class Study:
    """A method's trials: the keys that vary, the size of their product, a run for each setting."""

    label: str
    keys: tuple[str, ...]
    size: int
    trials: tuple[tuple[Cell, ...], ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Return all runs, trial by trial."""
        return tuple(cell for cells in self.trials for cell in cells)

    @property
    def settings(self) -> tuple[str, ...]:
        """Return the names of the settings."""
        return tuple(cell.setting for cell in self.trials[0])

    @property
    def answers(self) -> tuple[Point, ...]:
        """Return the scores and priors that every trial is measured under; its own come first."""
        return ({}, *self.cells[0].answers)

    @property
    def answer_keys(self) -> tuple[str, ...]:
        """Return the keys that vary after training."""
        return tuple(dict.fromkeys(key for point in self.answers for key in point))


@dataclass(frozen=True)
class Trial:
    """A point and what it reached under its best answer.

    Attributes:
        number: Its place among the trials.
        configs: On each setting, the trial's configuration with the best answer.
        point: The values of what varies in them; a learning rate is the first setting's.
        outcomes: The run on each setting.
        summaries: What was measured under the best answer; empty where a run failed.
        values: The objective on each setting under that answer.
        value: Their mean; None where a run failed or lacks a measure.
    """

    number: int
    configs: tuple[RunConfig, ...]
    point: Point
    outcomes: tuple[Outcome, ...]
    summaries: tuple[Mapping[str, Any], ...] = ()
    values: tuple[float, ...] = ()
    value: float | None = None

    @property
    def first_failure(self) -> Outcome | None:
        """Return the first run that failed."""
        return next((one for one in self.outcomes if one.status == "failed"), None)

    @property
    def status(self) -> str:
        """Return `failed` where a run failed, `finished` where all are, else the first's."""
        states = [outcome.status for outcome in self.outcomes]
        return next((state for state in states if state != "finished"), "finished")


@dataclass(frozen=True)
class Choice:
    """A tuned method: its trials, best first, and presets made of the best by family of backbones.

    A preset's key is where it belongs in a folder of presets: `NAME` or `clip/NAME`.
    """

    study: Study
    trials: list[Trial]
    presets: Mapping[str, str]

    @property
    def outcomes(self) -> list[Outcome]:
        """Return the runs of all trials, those of the best first."""
        return [outcome for trial in self.trials for outcome in trial.outcomes]

    @property
    def best(self) -> Trial | None:
        """Return the trial with the largest value, the earliest of equals."""
        return self.trials[0] if self.trials and self.trials[0].value is not None else None


def parse_objective(text: str) -> dict[str, float]:
    """Read an objective such as `own=1,all=1,auroc=1`.

    Args:
        text: The text.

    Returns:
        Weights by measure.

    Raises:
        ConfigError: A measure is unknown, or a weight is no number.

    >>> parse_objective("own=1, alarm=-0.5")
    {'own': 1.0, 'alarm': -0.5}
    """
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in MEASURES:
            raise ConfigError(f"--objective: there is no measure {name!r}{nearest(name, MEASURES)}")
        try:
            weights[name] = float(value or 1)
        except ValueError:
            raise ConfigError(
                f"--objective: {part!r} is no weight; write own=1,all=1,auroc=1"
            ) from None
    if not all(map(math.isfinite, weights.values())) or not any(weights.values()):
        raise ConfigError(f"--objective {text!r} needs finite weights, one of them not 0")
    return weights


def objective(summary: Mapping[str, Any], weights: Mapping[str, float]) -> float | None:
    """Return the weighted mean of measures, sum_i w_i v_i / sum_i |w_i|.

    Args:
        summary: The summary of an evaluation.
        weights: Weights by measure.

    Returns:
        The mean; None where a measure is missing.
    """
    values = {name: MEASURES[name](summary) for name in weights}
    if any(value is None or not math.isfinite(value) for value in values.values()):
        return None
    total = math.fsum(weights[name] * value for name, value in values.items() if value is not None)
    return total / math.fsum(map(abs, weights.values()))


def choose(study: Study, outcomes: Sequence[Outcome], weights: Mapping[str, float]) -> Choice:
    """Sort trials by value and make presets of the best.

    Args:
        study: The study.
        outcomes: Its runs, in the order of `study.cells`.
        weights: The objective.

    Returns:
        The choice.
    """
    many = len(study.settings)
    rows = [tuple(outcomes[first : first + many]) for first in range(0, len(outcomes), many)]
    trials = [_trial(study, number, row, weights) for number, row in enumerate(rows)]
    ranked = sorted(
        trials, key=lambda trial: (trial.value is None, -(trial.value or 0.0), trial.number)
    )
    best = ranked[0]
    presets: dict[str, str] = {}
    for config in best.configs if best.value is not None else ():
        family = "" if config.backbone.name == MINI else f"{CLIP}/"
        presets.setdefault(
            f"{family}{safe(study.label)}", preset_text(study, trials, best, config, weights)
        )
    return Choice(study, ranked, presets)


def _trial(
    study: Study, number: int, outcomes: tuple[Outcome, ...], weights: Mapping[str, float]
) -> Trial:
    """A trial under the answer that suits the objective best, the earliest of equals."""
    configs, keys = [one.cell.config for one in outcomes], (*study.keys, *study.answer_keys)
    tables = _values_by_answer(outcomes, weights)
    means = [_mean(values) for values in zip(*tables, strict=True)]
    if not means or all(mean is None for mean in means):
        return Trial(number, tuple(configs), point_of(configs[0], keys), outcomes)
    best = max(range(len(means)), key=lambda i: -math.inf if means[i] is None else means[i] or 0)
    if study.answers[best]:
        settings = {key.removeprefix("method."): v for key, v in study.answers[best].items()}
        trees = [to_dict(config) for config in configs]
        configs = [from_dict({**tree, "method": {**tree["method"], **settings}}) for tree in trees]
    return Trial(
        number,
        tuple(configs),
        point_of(configs[0], keys),
        outcomes,
        tuple(_summaries(outcome)[best] for outcome in outcomes),
        tuple(values[best] or 0.0 for values in tables),
        means[best],
    )


def _summaries(outcome: Outcome) -> list[Mapping[str, Any]]:
    """What was measured under each answer, the run's own first."""
    assert outcome.summary is not None
    return [outcome.summary, *outcome.summary.get("answers", ())]


def _values_by_answer(
    outcomes: Sequence[Outcome], weights: Mapping[str, float]
) -> list[list[float | None]]:
    """The objective of each setting under each answer; nothing where a run is not finished."""
    if any(one.status != "finished" or one.summary is None for one in outcomes):
        return []
    return [[objective(one, weights) for one in _summaries(outcome)] for outcome in outcomes]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if len(known) == len(values) and known else None


def left_out(choice: Choice) -> dict[str, float]:
    """Say what a choice loses on a setting that had no say in it.

    Args:
        choice: The tuned method.

    Returns:
        For each setting the value of the trial that is best there, less that of the trial that is
        best on the others in the mean; nothing for a single setting.
    """
    trials, settings = [t for t in choice.trials if t.value is not None], choice.study.settings
    if len(settings) < 2 or not trials:
        return {}
    losses = {}
    for place, name in enumerate(settings):
        elsewhere = max(trials, key=lambda t: math.fsum(t.values) - t.values[place])
        losses[name] = max(t.values[place] for t in trials) - elsewhere.values[place]
    return losses


def point_of(config: RunConfig, keys: Sequence[str]) -> Point:
    """Return the values of some keys in a configuration.

    Args:
        config: The configuration.
        keys: Dotted keys.

    Returns:
        Values by key.
    """
    tree = to_dict(config)
    return {key: tree[key.partition(".")[0]][key.partition(".")[2]] for key in keys}


def preset_text(
    study: Study,
    trials: Sequence[Trial],
    best: Trial,
    config: RunConfig,
    weights: Mapping[str, float],
) -> str:
    """Write the chosen settings as a preset; its head says how they were chosen.

    Args:
        study: The study.
        trials: All trials.
        best: The chosen one.
        config: The configuration of one setting of the backbones' family.
        weights: The objective.

    Returns:
        TOML text.
    """
    tree, defaults = to_dict(config), to_dict(from_dict({"method": {"name": config.method.name}}))
    default = "failed" if trials[0].value is None else f"{100 * trials[0].value:.2f}"
    answers = f", each under {len(study.answers)} answers (score and prior)"
    validated = {one.data.validation for one in best.configs}
    lines = [
        f"# Chosen on {datetime.now(UTC):%Y-%m-%d} by `focoop tune`: {len(trials)} trials of "
        f"{study.size} points{answers if study.answer_keys else ''}; {objective_text(weights)}: "
        f"{100 * (best.value or 0.0):.2f} (first trial: {default}); "
        f"{' '.join(study.settings)}, {'/'.join(map(str, sorted(validated)))} validation images "
        f"per class, seed {config.seed}."
    ]
    varied = {*study.keys, *study.answer_keys}
    for section in ("backbone", "federation", "method"):
        settings = {}
        for name, value in tree[section].items():
            allowed = section == "method" or name in TUNABLE[section]
            # Settings fixed by --set or by the setting are part of the choice where they differ.
            if allowed and (f"{section}.{name}" in varied or value != defaults[section].get(name)):
                settings[name] = value
        if section == "method" and not is_file(config.method.name):  # whose path says who names it
            settings = {"name": config.method.name, **settings}
        if settings:
            lines += ["", f"[{section}]"]
            lines += [f"{name} = {toml_value(value)}" for name, value in settings.items()]
    return "\n".join(lines) + "\n"


def objective_text(weights: Mapping[str, float]) -> str:
    """Describe the objective in words.

    Args:
        weights: Weights by measure.

    Returns:
        Words.
    """
    return "objective " + ", ".join(f"{name}={weight:g}" for name, weight in weights.items())


def write_choice(
    choice: Choice, weights: Mapping[str, float], out: Path, presets: Path | None, suffix: str = ""
) -> list[Path]:
    """Write OUT/NAME.md, NAME.csv and NAME.toml.

    Args:
        choice: The choice.
        weights: The objective.
        out: The folder.
        presets: A folder where the preset goes too.
        suffix: What stands behind the names.

    Returns:
        The files written.
    """
    name = safe(choice.study.label)
    texts = {
        out / f"{name}.md": evidence(choice, weights),
        out / f"{name}.csv": evidence_csv(choice),
    }
    for place, text in choice.presets.items():
        texts[out / f"{place}.toml"] = text
        if presets is not None:
            texts[presets / f"{place}{suffix}.toml"] = text
    for path, text in texts.items():
        write(path, text.encode())
    return list(texts)


def evidence(choice: Choice, weights: Mapping[str, float]) -> str:
    """Write all trials as a markdown table, best first, and what failed.

    Args:
        choice: The choice.
        weights: The objective.

    Returns:
        Markdown.
    """
    rows = [list(map(str, row)) for row in _rows(choice)]
    rows.insert(1, ["---:"] * len(rows[0]))
    lines = [
        f"# {choice.study.label}: {len(choice.trials)} trials of {choice.study.size} points",
        "",
        f"Percent of validation images and sets; {objective_text(weights)}. Trial 0: the defaults."
        + (
            f" Every trial was measured under {len(choice.study.answers)} answers (score and prior)"
            " after training; the row is of its best."
            if choice.study.answer_keys
            else ""
        ),
        "",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    if losses := left_out(choice):
        shown = [f"{name} {100 * loss:.2f}" for name, loss in losses.items()]
        mean = 100 * math.fsum(losses.values()) / len(losses)
        lines += ["", "Lost where a setting had no say in the choice, against the trial that is "
                  f"best there: {', '.join(shown)}; mean {mean:.2f}."]  # fmt: skip
    failed = [trial.first_failure for trial in choice.trials if trial.first_failure is not None]
    lines += ["", *(f"- {failure(outcome)}" for outcome in failed)] if failed else []
    return "\n".join(lines) + "\n"


def evidence_csv(choice: Choice) -> str:
    """Write all trials as CSV, best first.

    Args:
        choice: The choice.

    Returns:
        CSV text.
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(_rows(choice))
    return text.getvalue()


def _rows(choice: Choice) -> list[list[Any]]:
    """Header, then a row per trial: number, objective, its parts on several settings, the point."""
    study = choice.study
    keys, several = (*study.keys, *study.answer_keys), len(study.settings) > 1
    rows: list[list[Any]] = [
        ["trial", "objective", *(study.settings if several else ()), *MEASURES, *keys]
    ]
    for trial in choice.trials:
        values: list[float | None] = [trial.value]
        if several:
            values += trial.values or [None] * len(study.settings)
        values += [_mean([f(one) for one in trial.summaries]) for f in MEASURES.values()]
        shown = ["-" if value is None else f"{100 * value:.2f}" for value in values]
        rows.append([trial.number, *shown, *trial.point.values()])
    return rows


def _over_sets(summary: Mapping[str, Any], metric: str) -> float | None:
    values = [metrics[metric] for metrics in summary["ood"].values() if metrics[metric] is not None]
    return math.fsum(values) / len(values) if values else None
