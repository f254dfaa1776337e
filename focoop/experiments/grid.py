"""The cells of a grid: methods x settings x seeds, each a whole configuration with its folder.

A *setting* is a configuration file that says what is compared on: data, partition, rounds. A
configuration is the setting, changed by the method's presets (`presets.py`), the variant's own
settings (`focoop:bos=false`), `--set` and the seed, in this order. Its run is in
OUT/SETTING/LABEL/seedN.
"""

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focoop.config import Override, RunConfig, from_dict, merge, override_tree
from focoop.errors import ConfigError
from focoop.experiments.presets import (
    Settings,
    Tree,
    configured,
    name_of,
    read_settings,
    tuned_tree,
)
from focoop.experiments.variants import parse_methods, variants_for
from focoop.methods import lookup


@dataclass(frozen=True)
class Point:
    """A point of a sweep: settings and their values, as text."""

    values: tuple[tuple[str, str], ...] = ()

    def named(self, setting: str) -> str:
        """Return a setting's name with this point, such as `cifar100 shots=2`.

        Args:
            setting: The name without it.

        Returns:
            The name.
        """
        short = [f"{key.rpartition('.')[2]}={value}" for key, value in self.values]
        return " ".join([setting, *short])

    @property
    def overrides(self) -> tuple[str, ...]:
        """Return the point as settings that go above all others."""
        return tuple(f"{key}={value}" for key, value in self.values)


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    setting: str
    label: str
    config: RunConfig
    folder: Path
    # What is tried on the trained model, values by dotted key: `focoop tune` alone asks for it.
    answers: tuple[dict[str, Any], ...] = ()
    base: str = ""  # the setting's name without the point of a sweep
    point: tuple[tuple[str, str], ...] = ()  # the swept settings and their values
    notes: tuple[str, ...] = ()  # what the user was told of it, for its log

    @property
    def rounds(self) -> int:
        """Return the rounds until it is finished."""
        return self.config.federation.rounds if lookup(self.config.method.name).trains else 0


def seeds_of(given: int | str | Sequence[int]) -> tuple[int, ...]:
    """Return the seeds that a user asks for: a lone number says how many, a list says which.

    Args:
        given: How many seeds, 0 to n - 1, as in `3` or `"3"`; or which ones, as in `[0, 4]` or
            `"0,4"`. One seed is named by `[4]` or `"4,"`.

    Returns:
        The seeds.

    Raises:
        ConfigError: It is less than one seed, names one twice or cannot be read.

    >>> seeds_of(3), seeds_of("3"), seeds_of([0, 4]), seeds_of("0,4"), seeds_of("4,")
    ((0, 1, 2), (0, 1, 2), (0, 4), (0, 4), (4,))
    """
    if isinstance(given, str):
        return seeds_of(_numbers(given))
    if isinstance(given, int):
        if given < 1:
            raise ConfigError(
                f"seeds = {given} asks for no run: a lone number says how many seeds, 1 or more; "
                "a list says which, as in 0,4 or, for seed 0 alone, '0,' (in Python [0])"
            )
        return tuple(range(given))
    seeds = tuple(int(seed) for seed in given)
    if not seeds or len(set(seeds)) != len(seeds):
        wrong = "names a seed twice" if seeds else "names no seed"
        raise ConfigError(f"seeds = {list(seeds)} {wrong}")
    return seeds


def _numbers(text: str) -> int | list[int]:
    """Numbers with commas or spaces between them; one without a comma is no list."""
    try:
        numbers = [int(word) for word in text.replace(",", " ").split()]
    except ValueError:
        numbers = []
    if not numbers:
        raise ConfigError(
            f"cannot read seeds {text!r}: write how many, 3, or which, 0,4 ('4,': seed 4 alone)"
        )
    return numbers[0] if len(numbers) == 1 and "," not in text else numbers


def describe_seeds(seeds: Sequence[int]) -> str:
    """Name seeds in a few words.

    Args:
        seeds: The seeds.

    Returns:
        Such as `seed 4`, `seeds 0, 1, 2` or, of many in a row, `seeds 0 to 41`.

    >>> describe_seeds((4,)), describe_seeds((0, 1, 2)), describe_seeds(range(42))
    ('seed 4', 'seeds 0, 1, 2', 'seeds 0 to 41')
    """
    if len(seeds) > 5 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"seeds {seeds[0]} to {seeds[-1]}"
    return f"seed{'s'[: len(seeds) > 1]} {', '.join(map(str, seeds))}"


def plan(
    files: Sequence[Settings],
    methods: str | None,
    seeds: Sequence[int],
    out: Path,
    *,
    presets: Path | None = None,
    overrides: Sequence[Override] = (),
    points: Sequence[Point] = (Point(),),
) -> list[Cell]:
    """Plan all runs of a grid, those of a setting together, so that workers share its features.

    Without `methods` every file is a run of its own, as `focoop run` makes it, and a row of one
    table, `runs`.

    Args:
        files: The settings.
        methods: The methods, as `parse_methods` reads them.
        seeds: The seeds.
        out: The folder of all runs.
        presets: A folder of tuned presets; None: those that came with focoop.
        overrides: Settings over all others.
        points: Points of a sweep; each makes a setting of its own out of every setting.

    Returns:
        The cells.

    Raises:
        ConfigError: Settings cannot be used, or two runs would have one folder.
    """
    if not files:
        raise ConfigError("name at least one settings file, as settings/cifar100")
    trees: list[tuple[str, str, Tree]] = []
    for given in files:
        stem = name_of(given)
        if methods is None:
            trees.append(("runs", stem, tuned_tree(given, overrides, presets)[0]))
            continue
        setting = read_settings(given)
        for over in overrides:  # the backbone that is run decides about the preset
            setting = merge(setting, {"backbone": override_tree(over).get("backbone", {})})
        for variant in variants_for(parse_methods(methods), setting):
            tree = configured(setting, stem, variant, presets)
            trees.append((stem, variant.label, tree))
    cells = []
    for base in dict.fromkeys(name for name, _, _ in trees):
        for point, seed in itertools.product(points, seeds):
            for name, label, tree in trees:
                if name == base:
                    for over in (*overrides, *point.overrides, {"seed": seed}):
                        tree = merge(tree, override_tree(over))
                    setting_name = point.named(base)
                    folder = out / safe(setting_name) / safe(label) / f"seed{seed}"
                    config = from_dict(tree)
                    run = Cell(setting_name, label, config, folder, base=base, point=point.values)
                    cells.append(run)
    _distinct(cells)
    return cells


def safe(label: str) -> str:
    """Return a label as a folder's name.

    Args:
        label: The label.

    Returns:
        The name.

    >>> safe("focoop:bos=false,goc=false")
    'focoop-bos=false-goc=false'
    """
    name = re.sub(r"[^\w.=@+-]+", "-", label).strip("-.") or "unnamed"
    if len(name) > 120:
        name = f"{name[:100]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
    return name


def _distinct(cells: Sequence[Cell]) -> None:
    seen: dict[Path, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.folder, cell)
        if other is not cell:
            raise ConfigError(
                f"{cell.setting} {cell.label!r} and {other.setting} {other.label!r} would share "
                f"the folder {cell.folder}: name each setting, method and seed once"
            )
