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
from focoop.experiments.presets import TUNABLE
from focoop.fields import toml_value
from focoop.plugins import is_file
from focoop.runs import write

# A third each: what clients answer of their own classes and of all, so that a method that forgets
# other classes pays for it, and how well strange images are told.
OBJECTIVE = "own=1,all=1,auroc=1"
MEASURES: dict[str, Callable[[Mapping[str, Any]], float | None]] = {
    "own": lambda summary: summary["accuracy_own"],
    "all": lambda summary: summary["accuracy_all"],
    "alarm": lambda summary: summary["cross_alarm"],
    "ausuc": lambda summary: (summary.get("frontier") or {}).get("ausuc"),
    "harmonic": lambda summary: (summary.get("frontier") or {}).get("harmonic"),
    "auroc": lambda summary: _over_sets(summary, "auroc"),
    "fpr95": lambda summary: _over_sets(summary, "fpr95"),
    "fpr95_oodpos": lambda summary: _over_sets(summary, "fpr95_oodpos"),
}

Point = dict[str, Any]  # dotted key -> value


@dataclass(frozen=True)
class Study:
    """A method's trials: the keys that vary, the size of their product, one cell per point."""

    label: str
    keys: tuple[str, ...]
    size: int
    cells: tuple[Cell, ...]

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
        config: The trial's settings with those of the best answer.
        point: The values of what varies in them.
        outcome: The run.
        summary: What was measured under the best answer; None where the run failed.
        value: The objective; None where the run failed or lacks a measure.
    """

    number: int
    config: RunConfig
    point: Point
    outcome: Outcome
    summary: Mapping[str, Any] | None
    value: float | None


@dataclass(frozen=True)
class Choice:
    """A tuned method: its trials, best first, and the preset made of the best."""

    study: Study
    trials: list[Trial]
    preset: str

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
    """Sort trials by value and make the preset of the best.

    Args:
        study: The study.
        outcomes: Its runs.
        weights: The objective.

    Returns:
        The choice.
    """
    trials = [_trial(study, number, outcome, weights) for number, outcome in enumerate(outcomes)]
    ranked = sorted(
        trials, key=lambda trial: (trial.value is None, -(trial.value or 0.0), trial.number)
    )
    best = ranked[0]
    preset = "" if best.value is None else preset_text(study, trials, best, weights)
    return Choice(study, ranked, preset)


def _trial(study: Study, number: int, outcome: Outcome, weights: Mapping[str, float]) -> Trial:
    """A run under the answer that suits the objective best, the earliest of equals."""
    config, keys = outcome.cell.config, (*study.keys, *study.answer_keys)
    if outcome.status != "finished" or outcome.summary is None:
        return Trial(number, config, point_of(config, keys), outcome, None, None)
    summaries = [outcome.summary, *outcome.summary.get("answers", ())]
    values = [objective(summary, weights) for summary in summaries]
    best = max(range(len(values)), key=lambda i: -math.inf if values[i] is None else values[i] or 0)
    if values[best] is not None and study.answers[best]:
        tree = to_dict(config)
        settings = {key.removeprefix("method."): v for key, v in study.answers[best].items()}
        config = from_dict({**tree, "method": {**tree["method"], **settings}})
    point = point_of(config, keys)
    return Trial(number, config, point, outcome, summaries[best], values[best])


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
    study: Study, trials: Sequence[Trial], best: Trial, weights: Mapping[str, float]
) -> str:
    """Write the chosen settings as a preset; its head says how they were chosen.

    Args:
        study: The study.
        trials: All trials.
        best: The chosen one.
        weights: The objective.

    Returns:
        TOML text.
    """
    config = best.config
    tree, defaults = to_dict(config), to_dict(from_dict({"method": {"name": config.method.name}}))
    data = ", ".join([config.data.id, *config.data.validation_ood])
    default = "failed" if trials[0].value is None else f"{100 * trials[0].value:.2f}"
    answers = f", each under {len(study.answers)} answers (score and prior)"
    lines = [
        f"# Chosen on {datetime.now(UTC):%Y-%m-%d} by `focoop tune`: {len(trials)} trials of "
        f"{study.size} points{answers if study.answer_keys else ''}; {objective_text(weights)}: "
        f"{100 * (best.value or 0.0):.2f} (first trial: {default}); setting "
        f"{best.outcome.cell.setting}, {config.data.validation} validation images per class "
        f"({data}), seed {config.seed}."
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
    if choice.preset:
        texts[out / f"{name}.toml"] = choice.preset
        if presets is not None:
            texts[presets / f"{name}{suffix}.toml"] = choice.preset
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
    failed = [trial for trial in choice.trials if trial.outcome.status == "failed"]
    lines += ["", *(f"- {failure(trial.outcome)}" for trial in failed)] if failed else []
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
    """Header, then one row per trial: number, objective, measures in percent, the point."""
    keys = (*choice.study.keys, *choice.study.answer_keys)
    rows: list[list[Any]] = [["trial", "objective", *MEASURES, *keys]]
    for trial in choice.trials:
        summary = trial.summary
        values = [trial.value, *(f(summary) if summary else None for f in MEASURES.values())]
        shown = ["-" if value is None else f"{100 * value:.2f}" for value in values]
        rows.append([trial.number, *shown, *trial.point.values()])
    return rows


def _over_sets(summary: Mapping[str, Any], metric: str) -> float | None:
    values = [metrics[metric] for metrics in summary["ood"].values() if metrics[metric] is not None]
    return math.fsum(values) / len(values) if values else None
