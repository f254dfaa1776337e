"""The cells of a grid: methods x settings x seeds, each a whole configuration with its folder.

A *setting* is a configuration file that says what is compared on: data, partition, rounds. A
method's *preset*, `PRESETS/NAME.toml` and, for one setting, `PRESETS/NAME@SETTING.toml`, holds what
was tuned for it. A configuration is the setting, changed by the presets, the variant's own settings
(`focoop:bos=false`), `--set` and the seed, in this order. Its run is in OUT/SETTING/LABEL/seedN.

A run of its own (`tuned`) has the same preset, below what the user's file says: a file without a
word about what is tunable gives the same run here and there.
"""

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focoop.config import (
    TUNED,
    MethodConfig,
    Override,
    RunConfig,
    from_dict,
    locate,
    merge,
    override_tree,
    parse_override,
    read_layers,
    read_toml,
    tree_of,
)
from focoop.errors import ConfigError, nearest
from focoop.fields import Typed
from focoop.methods import SPELLINGS, available, lookup
from focoop.plugins import is_file

Tree = dict[str, Any]
Settings = Path | Mapping[str, Any]  # a file, the name of one that comes with focoop, or values
# What may be tuned for a method; all else belongs to the setting, the same for every method.
TUNABLE = {
    "federation": ("lr", "lr_schedule", "momentum", "weight_decay", "prox"),
    "backbone": ("logit_scale",),
}
NAME = re.compile(r"\s*([\w./~+-]+)\s*(?::(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Variant:
    """A row of the table: a method or preset by name, and settings of this variant alone."""

    label: str
    name: str
    overrides: tuple[str, ...] = ()


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

    @property
    def rounds(self) -> int:
        """Return the rounds until it is finished."""
        return self.config.federation.rounds if lookup(self.config.method.name).trains else 0


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read seeds such as `0,1,2`.

    Args:
        text: The text.

    Returns:
        The seeds.

    Raises:
        ConfigError: A part is no number.
    """
    try:
        seeds = tuple(int(part) for part in re.split(r"[,\s]+", text.strip()))
    except ValueError:
        raise ConfigError(f"cannot read --seeds {text!r}: write 0,1,2") from None
    if len(set(seeds)) != len(seeds):
        raise ConfigError(f"--seeds {text!r} names a seed twice")
    return seeds


def parse_methods(text: str) -> list[Variant] | None:
    """Read methods such as `promptfl,focoop:bos=false,goc=false`, which are two variants.

    Args:
        text: The text.

    Returns:
        The variants; None for `all`.

    Raises:
        ConfigError: A method is unknown, or one is named twice.
    """
    if text.strip() == "all":
        return None
    groups: list[list[str]] = []
    for part in split_list(text):
        name, colon, _ = part.partition(":")
        if groups and "=" in part and not (colon and "=" not in name):
            groups[-1].append(part)  # one more setting of the variant before it
        else:
            groups.append([part])
    variants = []
    for parts in groups:
        match = NAME.fullmatch(parts[0])
        if match is None:
            raise ConfigError(
                f"cannot read --methods {','.join(parts)!r}: write promptfl,focoop:bos=false"
            )
        name, first = match.groups()
        settings = [setting.strip() for setting in (first, *parts[1:]) if setting]
        overrides = tuple(s if "." in s.partition("=")[0] else f"method.{s}" for s in settings)
        label = f"{name}:{','.join(settings)}" if settings else name
        variants.append(Variant(label, name, overrides))
    return variants


def variants_for(given: list[Variant] | None, setting: Mapping[str, Any]) -> list[Variant]:
    """Return the variants asked for; `all` leaves out methods whose patch features a setting lacks.

    Args:
        given: The variants; None: all.
        setting: The setting's values.

    Returns:
        The variants.
    """
    if given is not None:
        return given
    patches = setting.get("data", {}).get("with_patches", False)
    kinds = available().items()
    return [Variant(name, name) for name, kind in kinds if patches or not kind.patch_kind]


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
            trees.append(("runs", stem, _tuned_tree(given, overrides, presets)[0]))
            continue
        setting = read_settings(given)
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


def read_settings(given: Settings) -> Tree:
    """Return the values of a settings file, or those given in Python.

    Args:
        given: The file or the values.

    Returns:
        Nested values.
    """
    return tree_of(given) if isinstance(given, Mapping) else read_toml(locate(given))


def name_of(given: Settings) -> str:
    """Return what a setting is called in tables and folders: its file, or its setting `name`.

    Args:
        given: The file or the values.

    Returns:
        The name.
    """
    if isinstance(given, Mapping):
        return str(given.get("name") or "settings")
    return locate(given).stem


def configured(
    setting: Mapping[str, Any], setting_name: str, variant: Variant, presets: Path | None
) -> Tree:
    """Change a setting by a variant's presets and its own settings.

    Args:
        setting: The setting's values.
        setting_name: Its name.
        variant: The method and its settings.
        presets: A folder of tuned presets.

    Returns:
        Nested values.

    Raises:
        ConfigError: A preset cannot be used.
    """
    layers = []
    for name in (variant.name, f"{variant.name}@{setting_name}"):
        path = None if presets is None else presets / f"{name}.toml"
        if path is not None and path.is_file():
            layers.append(check_preset(path, read_toml(path)))
    method = variant.name
    for layer in layers:
        method = layer.get("method", {}).get("name", method)
    if not layers and is_file(method):
        lookup(method)  # refuses what is no method
    elif not layers and method not in available():
        there = [] if presets is None else [p.stem for p in presets.glob("*.toml")]
        known = dict.fromkeys([*available(), *(name for name in there if "@" not in name)])
        hint = nearest(method, known, spellings=SPELLINGS)
        raise ConfigError(f"there is no method or preset {method!r}{hint}")
    # A setting's own method, if it has one, is no part of what is compared on.
    tree = merge({**setting, "method": {}}, {"method": {"name": method}})
    for layer in (*layers, *(parse_override(text) for text in variant.overrides)):
        tree = merge(tree, layer)
    return tree


def tuned(
    path: Settings | None, overrides: Sequence[Override], presets: Path | None
) -> tuple[RunConfig, list[Path]]:
    """The configuration of one run, with the preset of its method below all that the user says.

    Args:
        path: the user's file or values, or None; one with `tuned = false` has no preset.
        overrides: `key=value` or values in Python, above the file.
        presets: the folder of presets; None: none is applied.

    Returns:
        The configuration, and the presets that changed it.
    """
    tree, used = _tuned_tree(path, overrides, presets)
    config = from_dict(tree)
    plain = from_dict(_tuned_tree(path, overrides, None)[0]) if used else config
    return config, used if config != plain else []


def _tuned_tree(
    path: Settings | None, overrides: Sequence[Override], presets: Path | None
) -> tuple[Tree, list[Path]]:
    """Defaults that a preset may change, the presets, the file, `--set`; and the presets' files."""
    layers = [] if path is None else _layers(path)
    wanted = next((layer[TUNED] for layer in reversed(layers) if TUNED in layer), True)
    layers = [{k: v for k, v in layer.items() if k != TUNED} for layer in layers]
    below: Tree = {}
    if len(layers) > 1 and _all_defaults(layers[0]):
        below, layers = layers[0], layers[1:]  # configs/base.toml says nothing of its own
    said: Tree = {}
    for layer in (*layers, *(override_tree(over) for over in overrides)):
        said = merge(said, layer)
    method = said.get("method", {})
    name = method.get("name", MethodConfig.name) if isinstance(method, dict) else ""
    name = name.raw if isinstance(name, Typed) else str(name)
    used = []
    tree = merge(below, {"method": {"name": name}})
    if presets is not None and wanted:
        stem = "" if path is None else name_of(path)
        used = [presets / f"{preset}.toml" for preset in (name, f"{name}@{stem}")]
        used = [file for file in used if file.is_file()]
    for file in used:
        layer = check_preset(file, read_toml(file))
        if layer.get("method", {}).get("name", name) == name:
            tree = merge(tree, layer)
    return merge(tree, said), used


def _layers(given: Settings) -> list[Tree]:
    return [tree_of(given)] if isinstance(given, Mapping) else read_layers(locate(given))


def _all_defaults(layer: Tree) -> bool:
    """Whether a layer spells out every default and nothing else."""
    tables = {name: table for name, table in layer.items() if isinstance(table, dict)}
    stated = {(name, key) for name, table in tables.items() for key in table}
    tunable = {(section, key) for section, keys in TUNABLE.items() for key in keys}
    return tunable <= stated and from_dict(layer) == RunConfig()


def check_preset(path: Path, tree: Tree) -> Tree:
    """Refuse a preset that changes what methods are compared on.

    Args:
        path: The preset's file.
        tree: Its values.

    Returns:
        The values.

    Raises:
        ConfigError: It does.
    """
    for section, values in tree.items():
        if section == "method":
            continue
        for key in values if isinstance(values, dict) else [""]:
            if key not in TUNABLE.get(section, ()):
                name = f"{section}.{key}".rstrip(".")
                allowed = [f"{s}.{k}" for s, keys in TUNABLE.items() for k in keys]
                raise ConfigError(
                    f"the preset {path} sets {name}, which belongs to the setting; a preset may "
                    f"set [method] and {', '.join(allowed)}"
                )
    return tree


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


def split_list(text: str) -> list[str]:
    """Return the parts between commas, except commas within brackets or quotes.

    Args:
        text: The text.

    Returns:
        The parts that hold something.
    """
    parts = re.findall(r"(?:\[[^\]]*\]|\"[^\"]*\"|[^,\[\"])+", text)
    return [part for part in parts if part.strip()]


def _distinct(cells: Sequence[Cell]) -> None:
    seen: dict[Path, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.folder, cell)
        if other is not cell:
            raise ConfigError(
                f"{cell.setting} {cell.label!r} and {other.setting} {other.label!r} would share "
                f"the folder {cell.folder}: name each setting, method and seed once"
            )
