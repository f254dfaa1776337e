"""The configuration of one run: a setting, the tuned preset of its method, and what the user says.

A method's *preset*, `PRESETS/NAME.toml` and, for one setting, `PRESETS/NAME@SETTING.toml`, holds
what was tuned for it. On a backbone of CLIP's geometry, which is every one but `mini`,
`PRESETS/clip/NAME.toml` stands in the place of the former where there is one. In a grid a preset
overrides the setting (`configured`); in a single run the user's file overrides the preset
(`tuned`). A file that sets nothing tunable gives the same run in both.
"""

from collections.abc import Iterable, Mapping, Sequence
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
from focoop.errors import ConfigError, folded, nearest
from focoop.experiments.variants import Variant
from focoop.fields import Typed
from focoop.methods import ELSEWHERE, SPELLINGS, available, lookup, name_method
from focoop.plugins import is_file

Tree = dict[str, Any]
Settings = Path | Mapping[str, Any]  # a file, the name of one that comes with focoop, or values
MINI, CLIP = "mini", "clip"
# What may be tuned for a method; all else belongs to the setting, the same for every method.
TUNABLE = {
    "federation": ("lr", "lr_schedule", "momentum", "weight_decay", "prox"),
    "backbone": ("logit_scale",),
}


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


def without_preset(names: Iterable[str], settings: Sequence[str], presets: Path) -> list[str]:
    """List the methods of a grid that would run with their defaults, beside others that are tuned.

    Args:
        names: Methods or presets by name.
        settings: Names of the settings.
        presets: The folder of tuned presets.

    Returns:
        Those for which the folder holds nothing.
    """
    return [
        name
        for name in dict.fromkeys(names)
        if not any(
            (presets / f"{stem}.toml").is_file()
            for stem in (name, *(f"{name}@{setting}" for setting in settings))
        )
    ]


def preset_files(
    presets: Path | None, name: str, setting_name: str, setting: Mapping[str, Any]
) -> list[Path]:
    """Find the presets of a method for a setting, the general one first.

    Args:
        presets: The folder of tuned presets; None: none is wanted.
        name: The method or preset.
        setting_name: The setting's name.
        setting: Its values, which name the backbone.

    Returns:
        Those that are there.
    """
    if presets is None:
        return []
    folders = [presets] if family_of(setting) == MINI else [presets / CLIP, presets]
    general = [file for at in folders if (file := at / f"{name}.toml").is_file()]
    own = presets / f"{name}@{setting_name}.toml"
    return general[:1] + ([own] if own.is_file() else [])


def family_of(setting: Mapping[str, Any]) -> str:
    """Return whose geometry a setting's backbone has: that of `mini`, or that of `clip`.

    Args:
        setting: The setting's values.

    Returns:
        The name of the family.
    """
    table = setting.get("backbone", {})
    backbone = table.get("name", MINI) if isinstance(table, Mapping) else MINI
    backbone = backbone.raw if isinstance(backbone, Typed) else backbone
    return MINI if backbone == MINI else CLIP


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
    files = preset_files(presets, variant.preset, setting_name, setting)
    layers = [check_preset(path, read_toml(path)) for path in files]
    method = variant.name
    for layer in layers:
        method = layer.get("method", {}).get("name", method)
    if not layers and is_file(method):
        lookup(method)  # refuses what is no method
    elif not layers and method not in available():
        stems = [] if presets is None else [p.stem for p in presets.glob("*.toml")]
        known = dict.fromkeys([*available(), *(name for name in stems if "@" not in name)])
        other = ELSEWHERE.get(folded(method))
        hint = f": {other}" if other else nearest(method, known, spellings=SPELLINGS)
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
    tree, used = tuned_tree(path, overrides, presets)
    config = from_dict(tree)
    plain = from_dict(tuned_tree(path, overrides, None)[0]) if used else config
    return config, used if config != plain else []


def tuned_tree(
    path: Settings | None, overrides: Sequence[Override], presets: Path | None
) -> tuple[Tree, list[Path]]:
    """Return what `tuned` makes a configuration of, as nested values.

    Args:
        path: As for `tuned`.
        overrides: As for `tuned`.
        presets: As for `tuned`.

    Returns:
        Defaults that a preset may change, changed by the presets, the file and the overrides; and
        the files of the presets.
    """
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
    tree = merge(below, {"method": {"name": name}})
    stem = "" if path is None else name_of(path)
    used = preset_files(presets if wanted else None, name_method(name), stem, said)
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
