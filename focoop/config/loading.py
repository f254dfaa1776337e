"""Make the checked configuration of a run from settings files, overrides and plain values.

Lowest first: defaults, a TOML file and all that it extends (`files.py`), then `key=value` overrides
(`layers.py`).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from focoop.config.files import locate, read_toml
from focoop.config.layers import Tree, as_written, merge, parse_override
from focoop.config.schema import (
    AUTO_SETS,
    AUTO_SHOTS,
    OWN_DATA,
    SCALARS,
    SECTIONS,
    MethodConfig,
    RunConfig,
)
from focoop.config.writing import describe
from focoop.errors import ConfigError, nearest
from focoop.fields import Typed, brief, build, convert
from focoop.methods import lookup


def load(
    path: Path | None = None, overrides: Sequence[str] = (), *, own: bool = False
) -> RunConfig:
    """Load a configuration: defaults, changed by a TOML file and all it extends, then by overrides.

    Args:
        path: The TOML file, or a bare name such as `cifar100-vitb16`, which stands for that file of
            a folder `configs`: one in the current folder, else the one that comes with focoop.
            None: the defaults.
        overrides: Texts such as `federation.rounds=3`; later ones win.
        own: Sites bring images of their own whatever `data.id` says, so that settings that depend
            on the data have the values for those.

    Returns:
        The checked configuration.
    """
    tree = {} if path is None else read_toml(locate(path))
    for text in overrides:
        tree = merge(tree, parse_override(text))
    return from_dict(_for_own_data(tree) if own else tree)


def _for_own_data(tree: Tree) -> Tree:
    """The settings with `auto` and -1, given or not, replaced by what suits a user's own data."""
    for (section, name), value in OWN_DATA.items():
        table = tree.get(section, {})
        given = _value(table.get(name)) if isinstance(table, dict) else value
        if given is None or given in (list(AUTO_SETS), AUTO_SHOTS):
            tree = merge(tree, {section: {name: list(value) if value == () else value}})
    return tree


def from_dict(tree: Mapping[str, Any]) -> RunConfig:
    """Make a configuration from plain nested values.

    Args:
        tree: Nested values; what is absent has its default.

    Returns:
        The checked configuration.

    Raises:
        ConfigError: A key is unknown, or a value is of the wrong type or out of range.
    """
    values: Tree = {}
    for name, given in tree.items():
        if name in SECTIONS:
            if not isinstance(given, dict):
                raise ConfigError(
                    f"{name} = {brief(as_written(given))} is not allowed: it is a table"
                )
            values[name] = (
                _method(given) if name == "method" else build(SECTIONS[name], given, f"{name}.")
            )
        elif name in SCALARS:
            values[name] = given
        else:
            raise ConfigError(f"there is no setting {brief(name)}{_elsewhere(name)}")
    return RunConfig(**values)


def from_flat(flat: Mapping[str, bool | int | float | str]) -> RunConfig:
    """Make a configuration from the scalars of `to_flat`.

    Args:
        flat: Values by dotted key with dashes.

    Returns:
        The checked configuration.
    """
    tree: Tree = {}
    for dotted, value in flat.items():
        section, dot, name = dotted.replace("-", "_").partition(".")
        parsed: Any = value
        if isinstance(value, str) and isinstance(Typed.parse(value).value, list):
            parsed = Typed.parse(value)  # a list, unless its setting is a string
        if dot:  # not merged: Flower gives keys in any order, a method's settings before its name
            tree.setdefault(section, {})[name] = parsed
        else:
            tree[section] = parsed
    return from_dict(tree)


def _method(given: Mapping[str, Any]) -> MethodConfig:
    settings = dict(given)
    name = convert("method.name", settings.pop("name", MethodConfig.name), str)
    return MethodConfig(name, build(lookup(name).Config, settings, "method.", also=("name",)))


def _elsewhere(name: str) -> str:
    """A hint for a key given without its section, such as `rounds` for `federation.rounds`."""
    keys = [key for key, _, _ in describe(RunConfig())]
    inside = [key for key in keys if key.rpartition(".")[2] == name]
    return f"; nearest is {inside[0]!r}" if inside else nearest(name, [*SCALARS, *SECTIONS])


def _value(given: Any) -> Any:
    return given.value if isinstance(given, Typed) else given
