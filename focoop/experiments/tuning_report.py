"""What tuning found: trials by their objective, the evidence as tables, and the chosen preset."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focoop.config import RunConfig, from_dict, to_dict
from focoop.errors import ConfigError, nearest
from focoop.experiments.comparison import Outcome, failure
from focoop.experiments.grid import TUNABLE, Cell, safe
from focoop.fields import toml_value
from focoop.runs import write

OBJECTIVE = "own=1,auroc=1"
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


@dataclass(frozen=True)
class Trial:
    """A point and what it reached; `value` is None where the run failed or lacks a measure."""

    number: int
    point: Point
    outcome: Outcome
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
    """Read an objective such as `own=1,auroc=1`.

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
            raise ConfigError(f"--objective: {part!r} is no weight; write own=1,auroc=1") from None
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
    trials = []
    for number, outcome in enumerate(outcomes):
        done = outcome.status == "finished" and outcome.summary is not None
        value = objective(outcome.summary or {}, weights) if done else None
        trials.append(Trial(number, point_of(outcome.cell.config, study.keys), outcome, value))
    ranked = sorted(
        trials, key=lambda trial: (trial.value is None, -(trial.value or 0.0), trial.number)
    )
    best = ranked[0]
    preset = "" if best.value is None else preset_text(study, trials, best, weights)
    return Choice(study, ranked, preset)


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
    config = best.outcome.cell.config
    tree, defaults = to_dict(config), to_dict(from_dict({"method": {"name": config.method.name}}))
    data = ", ".join([config.data.id, *config.data.validation_ood])
    default = "failed" if trials[0].value is None else f"{100 * trials[0].value:.2f}"
    lines = [
        f"# Chosen by `focoop tune` on {config.data.validation} validation images per class, never "
        "trained on.",
        f"# Setting {best.outcome.cell.setting} ({data}), seed {config.seed}.",
        f"# {len(trials)} trials of {study.size} points; {told(weights)}: "
        f"{100 * (best.value or 0.0):.2f} (defaults: {default}).",
    ]
    for section in ("backbone", "federation", "method"):
        settings = {}
        for name, value in tree[section].items():
            allowed = section == "method" or name in TUNABLE[section]
            # Settings fixed by --set or by the setting are part of the choice where they differ.
            if allowed and (
                f"{section}.{name}" in study.keys or value != defaults[section].get(name)
            ):
                settings[name] = value
        if section == "method":
            settings = {"name": config.method.name, **settings}
        if settings:
            lines += ["", f"[{section}]"]
            lines += [f"{name} = {toml_value(value)}" for name, value in settings.items()]
    return "\n".join(lines) + "\n"


def told(weights: Mapping[str, float]) -> str:
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
        f"Percent of validation images and sets; {told(weights)}. Trial 0: the defaults.",
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
    rows: list[list[Any]] = [["trial", "objective", *MEASURES, *choice.study.keys]]
    for trial in choice.trials:
        summary = trial.outcome.summary if trial.outcome.status == "finished" else None
        values = [trial.value, *(f(summary) if summary else None for f in MEASURES.values())]
        shown = ["-" if value is None else f"{100 * value:.2f}" for value in values]
        rows.append([trial.number, *shown, *trial.point.values()])
    return rows


def _over_sets(summary: Mapping[str, Any], metric: str) -> float | None:
    values = [metrics[metric] for metrics in summary["ood"].values() if metrics[metric] is not None]
    return math.fsum(values) / len(values) if values else None
