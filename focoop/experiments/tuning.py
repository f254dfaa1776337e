"""Choose a method's settings on validation images: the same number of trials for every method.

A method's space is the product of the learning rates and of the grids its own settings declare,
`setting(default, doc, grid=(...))`. The first trial is the default point, the others a seeded
sample of the space without repetition. A trial is one run on each setting, in which images cut from
the training split stand in for the test images; the test split is not opened. It counts by its mean
over the settings, so that a choice on several does not suit one alone.

The logit scale is that of the backbone's family. A gradient grows with it, and so does what a step
changes in the logits: a rate is stated for a scale of 10, and divided by (scale / 10)^2 elsewhere.

Which score detects and what prior a client has is chosen after training: every trial is measured
under the same scores and priors (`answering.py`), and counts by the best of them.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from focoop.config import (
    Override,
    RunConfig,
    config_hash,
    from_dict,
    merge,
    override_tree,
)
from focoop.errors import ConfigError, DataError
from focoop.experiments.answering import answers_of
from focoop.experiments.comparison import Watch, run
from focoop.experiments.grid import Cell, safe
from focoop.experiments.presets import (
    CLIP,
    MINI,
    Settings,
    configured,
    family_of,
    name_of,
    read_settings,
)
from focoop.experiments.tuning_report import Choice, Point, Study, choose
from focoop.experiments.variants import Variant, parse_methods, variants_for
from focoop.fields import grids
from focoop.methods import lookup
from focoop.scenario import TooManyValidationImages, leave_out_absent, make_split
from focoop.seeds import numpy_generator
from focoop.tracking import OnRound

LR_GRID = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
LOGIT_SCALES = {MINI: 10.0, CLIP: 100.0}
RATE, SCALE = "federation.lr", "backbone.logit_scale"
RATE_SCALE = 10.0  # the logit scale that the rates of the grid are for
VALIDATION = 30  # images per class


def space(config: RunConfig, fixed: Sequence[str] = ()) -> dict[str, tuple[Any, ...]]:
    """Return what varies for a configuration's method.

    Args:
        config: The configuration.
        fixed: Keys that do not vary.

    Returns:
        Values to try by dotted key.
    """
    kind = lookup(config.method.name)
    candidates: dict[str, tuple[Any, ...]] = {}
    if kind.trains and not kind.closed_form:
        candidates[RATE] = tuple(getattr(kind, "lr_grid", ()) or LR_GRID)
    candidates |= {f"method.{name}": grid for name, grid in grids(kind.Config).items()}
    return {key: grid for key, grid in candidates.items() if key not in fixed}


def studies(
    given: Settings | Sequence[Settings],
    methods: str,
    budget: int,
    out: Path,
    *,
    validation: int | None = None,
    ood: Sequence[str] = (),
    overrides: Sequence[Override] = (),
    seed: int = 0,
    presets: Path | None = None,
) -> list[Study]:
    """Plan the trials of every method on one setting or several.

    Args:
        given: The setting, or several on which every trial is run.
        methods: The methods, as `parse_methods` reads them.
        budget: Trials of each method.
        out: The folder of all trials.
        validation: Validation images per class; None: as the setting says, else `VALIDATION`, or
            half of the smallest class where that is less.
        ood: OOD sets to validate on.
        overrides: Settings over all others.
        seed: Seed of the draw of trials.
        presets: A folder of presets that trials start from; None: the methods' defaults.

    Returns:
        One study per method.

    Raises:
        ConfigError: Test images or test OOD sets would be looked at.
    """
    if budget < 1:
        raise ConfigError(f"--budget {budget} is not allowed: the least is 1")
    settings = given if isinstance(given, Sequence) else [given]
    trees = {name_of(one): read_settings(one) for one in settings}
    if not trees or len(trees) != len(settings):
        raise ConfigError("name one setting or several, each once")
    asked = _Asked(validation, ood, overrides, seed, presets)
    planned = []
    for variant in variants_for(parse_methods(methods), next(iter(trees.values()))):
        bases = {name: asked.base(name, tree, variant) for name, tree in trees.items()}
        planned.append(_study(variant, bases, overrides, budget, out, seed, asked.notes))
    if len({study.label for study in planned}) != len(planned):
        raise ConfigError(f"--methods {methods!r} names a method twice")
    for name, note in asked.notes.items():
        if note:
            warnings.warn(f"{name}: {note}", stacklevel=2)
    return planned


@dataclass(frozen=True)
class _Asked:
    """What a tuning was asked for, what it leaves out and how many images validate by setting."""

    validation: int | None
    ood: Sequence[str]
    overrides: Sequence[Override]
    seed: int
    presets: Path | None
    notes: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def base(self, name: str, tree: dict[str, Any], variant: Variant) -> dict[str, Any]:
        """The configuration of a method's first trial on a setting, as nested values."""
        setting = validated(tree, name, self.validation, self.ood)
        base = configured(setting, name, variant, self.presets)
        if not base.get("backbone", {}).get("logit_scale"):
            scale = LOGIT_SCALES[family_of(setting)]
            base = merge(base, {"backbone": {"logit_scale": scale}})
        for over in (*self.overrides, {"seed": self.seed}):
            base = merge(base, override_tree(over))
        if name not in self.counts:
            said = self.validation or tree.get("data", {}).get("validation")
            said = said or any("data.validation" in _keys(over) for over in self.overrides)
            self.counts[name] = _validation(from_dict(base), bool(said))
        base = merge(base, {"data": {"validation": self.counts[name]}})
        kept, self.notes[name] = leave_out_absent(from_dict(base))
        return merge(base, {"data": {"validation_ood": list(kept.data.validation_ood)}})


def _validation(config: RunConfig, asked: bool) -> int:
    """How many images of each class validate: as said, or where nobody asked, as many as fit."""
    try:
        make_split(config)
    except TooManyValidationImages as error:
        if asked or not error.most:
            raise
        return (error.most + 1) // 2
    except DataError:  # said with what all trials lack, before the first of them
        pass
    return config.data.validation


def validated(
    tree: dict[str, Any], path: str, validation: int | None, ood: Sequence[str]
) -> dict[str, Any]:
    """Return a setting with validation images and OOD sets in the place of those of the test.

    Args:
        tree: The setting's values.
        path: Its name, for messages.
        validation: Validation images per class.
        ood: OOD sets to validate on.

    Returns:
        Nested values.

    Raises:
        ConfigError: There is nothing to validate on.
    """
    data = from_dict(tree).data
    # A file that is about validation images itself names no test sets.
    sets = tuple(ood) or data.validation_ood or (data.ood if data.validation else ())
    if not sets:
        raise ConfigError(
            f"{path} names no validation OOD sets, and test sets must not choose settings: add "
            "data.validation_ood to it, or name some with --ood"
        )
    if not data.validation and (taken := [name for name in sets if name in data.ood]):
        raise ConfigError(f"{taken[0]} is a test OOD set of {path}: choose settings on another")
    count = validation if validation is not None else data.validation or VALIDATION
    changes = {"validation": count, "validation_ood": list(sets), "ood": [], "corrupted": []}
    return merge(merge(tree, {"data": changes}), {"federation": {"evaluate_every": 0}})


def _study(
    variant: Variant,
    bases: Mapping[str, dict[str, Any]],
    overrides: Sequence[Override],
    budget: int,
    out: Path,
    seed: int,
    notes: Mapping[str, str],
) -> Study:
    defaults = {name: from_dict(base) for name, base in bases.items()}
    fixed = [key for over in (*overrides, *variant.overrides) for key in _keys(over)]
    first = next(iter(defaults.values()))
    grid = space(first, fixed)
    size = math.prod(map(len, grid.values()))
    draw = numpy_generator(seed, "tune", variant.label)
    start = {} if RATE not in grid else {RATE: first.federation.lr}
    trials, seen = [_configs_at(bases, start)], set[int]()
    while len(trials) < budget and len(seen) < size:
        index = int(draw.integers(size))
        if index in seen:
            continue
        seen.add(index)
        try:
            configs = _configs_at(bases, decode(index, grid))
        except ConfigError:  # grids are given one by one; a method may refuse a combination
            continue
        if configs not in trials:
            trials.append(configs)
    for config in trials[0]:
        _refuse_test_data(config)
    answers = tuple(answers_of(first, fixed))
    # Folders are named by content: a larger budget or a changed grid reuses what is there.
    cells = tuple(
        tuple(
            Cell(
                name,
                variant.label,
                config,
                out / safe(variant.label) / config_hash(config),
                answers,
                notes=(notes[name],) if notes[name] else (),
            )
            for name, config in zip(bases, configs, strict=True)
        )
        for configs in trials
    )
    return Study(variant.label, tuple(grid), size, cells)


def _configs_at(bases: Mapping[str, dict[str, Any]], point: Point) -> list[RunConfig]:
    """The configurations of a trial, one for each setting; a rate suits the setting's scale."""
    configs = []
    for base in bases.values():
        scale = from_dict(base).backbone.logit_scale or RATE_SCALE
        rates = {RATE: point[RATE] * RATE_SCALE**2 / scale**2} if RATE in point else {}
        configs.append(from_dict(placed(base, {**point, **rates})))
    return configs


def _keys(over: Override) -> list[str]:
    """The dotted keys that an override sets."""
    tree = override_tree(over)
    tables = {name: table for name, table in tree.items() if isinstance(table, dict)}
    dotted = [f"{name}.{key}" for name, table in tables.items() for key in table]
    return [*dotted, *(name for name in tree if name not in tables)]


def decode(index: int, grid: Mapping[str, Sequence[Any]]) -> Point:
    """Return a point of a product of grids, the last key varying fastest.

    Args:
        index: The point's number.
        grid: Values by key.

    Returns:
        A value by key.
    """
    point = {}
    for key in reversed(list(grid)):
        index, place = divmod(index, len(grid[key]))
        point[key] = grid[key][place]
    return {key: point[key] for key in grid}


def placed(base: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """Return a configuration tree at a point.

    Args:
        base: The tree.
        point: Values by dotted key.

    Returns:
        The changed tree.
    """
    tree = dict(base)
    for key, value in point.items():
        section, _, name = key.partition(".")
        tree = merge(tree, {section: {name: list(value) if isinstance(value, tuple) else value}})
    return tree


def _refuse_test_data(config: RunConfig) -> None:
    data = config.data
    if data.validation <= 0:
        raise ConfigError("data.validation must be > 0: settings are not chosen on test images")
    if data.corrupted or data.ood or not data.validation_ood:
        raise ConfigError(
            "settings are not chosen on test sets: data.corrupted and data.ood must be [] here, "
            "and data.validation_ood must name a set"
        )


def tune(
    planned: Sequence[Study],
    weights: Mapping[str, float],
    *,
    jobs: int,
    watch: Watch,
    on_round: OnRound = None,
) -> list[Choice]:
    """Run all trials of all methods in one pool, then choose.

    Args:
        planned: The studies.
        weights: The objective.
        jobs: Runs at a time.
        watch: Is told of every change.
        on_round: Hooks of every trial.

    Returns:
        One choice per study.
    """
    cells = [cell for study in planned for cell in study.cells]
    outcomes = run(cells, watch, jobs=jobs, on_round=on_round)
    by_cell = {outcome.cell.folder: outcome for outcome in outcomes}
    return [
        choose(study, [by_cell[cell.folder] for cell in study.cells], weights) for study in planned
    ]
