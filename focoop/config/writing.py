"""Write a configuration: as TOML, as plain values, as a hash, and as lists of its settings."""

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from focoop.config.layers import Tree
from focoop.config.schema import AUTOMATIC, SCALARS, SECTIONS, MethodConfig, RunConfig, automatic
from focoop.fields import GROUPS, grouped, plain, toml_value


def to_dict(config: RunConfig) -> Tree:
    """Return a configuration as plain nested values; method settings stand beside `method.name`.

    Args:
        config: The configuration.

    Returns:
        Nested values.
    """
    tree: Tree = {name: getattr(config, name) for name in SCALARS}
    for name in SECTIONS:
        tree[name] = plain(getattr(config, name)) if name != "method" else {}
    tree["method"] = {"name": config.method.name, **plain(config.method.settings)}
    return tree


def to_toml(config: RunConfig, *, docs: bool = False) -> str:
    """Write a whole configuration as TOML, the same text for the same values.

    Args:
        config: The configuration.
        docs: Make a file to edit: with comments, and with `auto` and -1 where the value is the one
            that they stand for, so that another `data.id` gets its own.

    Returns:
        TOML text.
    """
    meanings = {key: doc for key, _, doc in describe(config)} if docs else {}
    lines = []
    tree = to_dict(config)
    if docs:
        tree, chosen = _automatic(config)
        meanings |= {
            key: f"{meanings[key]} (here: {toml_value(value)})" for key, value in chosen.items()
        }
    for name, value in tree.items():
        if not isinstance(value, dict):
            lines.append(_line(name, value, meanings.get(name)))
            continue
        lines += ["", f"[{name}]"]
        shown = {
            key: _line(key, item, meanings.get(f"{name}.{key}")) for key, item in value.items()
        }
        lines += _by_group(shown, config) if docs and name == "method" else shown.values()
    return "\n".join(lines) + "\n"


def _by_group(shown: Mapping[str, str], config: RunConfig) -> list[str]:
    """Put the lines of a method's settings below a comment for each group of them."""
    lines = [shown["name"]]
    for group, members in grouped(type(config.method.settings)).items():
        lines += [f"# {group}: {GROUPS[group]}"] if group else []
        lines += [shown[field.name] for field in members if field.name in shown]
    return lines


def to_flat(config: RunConfig) -> dict[str, bool | int | float | str]:
    """Return a configuration as scalars, for Flower's run configuration.

    Args:
        config: The configuration.

    Returns:
        Values by dotted key with dashes; lists become TOML text.
    """
    flat: dict[str, bool | int | float | str] = {}
    for name, value in to_dict(config).items():
        items = value.items() if isinstance(value, dict) else [("", value)]
        for key, item in items:
            dotted = f"{name}.{key}" if key else name
            flat[dotted.replace("_", "-")] = toml_value(item) if isinstance(item, list) else item
    return flat


def config_hash(config: RunConfig) -> str:
    """Return a short name of a configuration's values, equal exactly for equal configurations.

    Args:
        config: The configuration.

    Returns:
        Hexadecimal digits.
    """
    return hashlib.sha256(to_toml(config).encode()).hexdigest()[:16]


def differences(old: RunConfig, new: RunConfig) -> list[str]:
    """Say in which settings two configurations differ.

    Args:
        old: The one configuration.
        new: The other.

    Returns:
        One line per setting, written as `--set` takes it.
    """
    before, after = _dotted(old), _dotted(new)
    return [
        f"{key}: {before.get(key, 'absent')} -> {after.get(key, 'absent')}"
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key)
    ]


def _dotted(config: RunConfig) -> dict[str, str]:
    """Every setting as a user writes it: `section.name` -> the value, lists as TOML."""
    settings: dict[str, str] = {}
    for name, value in to_dict(config).items():
        for key, item in value.items() if isinstance(value, dict) else [("", value)]:
            shown = toml_value(item) if isinstance(item, list) else repr(item)
            settings[f"{name}.{key}" if key else name] = shown
    return settings


def describe(config: RunConfig) -> list[tuple[str, Any, str]]:
    """List every setting of a configuration, those of the method included.

    Args:
        config: The configuration.

    Returns:
        Key, value and documentation of each setting.
    """
    rows = [(n, getattr(config, n), _doc(RunConfig, n)) for n in SCALARS]
    for section in SECTIONS:
        holder = getattr(config, section)
        if section == "method":
            rows.append(("method.name", holder.name, _doc(MethodConfig, "name")))
            holder = holder.settings
        for field in fields(holder):
            rows.append(
                (
                    f"{section}.{field.name}",
                    getattr(holder, field.name),
                    _doc(type(holder), field.name),
                )
            )
    return rows


def _doc(cls: type[Any], name: str) -> str:
    metadata = next(field.metadata for field in fields(cls) if field.name == name)
    doc = str(metadata.get("doc", ""))
    return f"{doc}: {', '.join(metadata['choices'])}" if "choices" in metadata else doc


def _line(key: str, value: Any, doc: str | None) -> str:
    text = f"{key} = {toml_value(value)}"
    return f"{text}  # {doc}" if doc else text


def _automatic(config: RunConfig) -> tuple[Tree, Tree]:
    """Plain nested values with `auto` and -1 where they mean the same, and what they stand for."""
    tree, meant = to_dict(config), automatic(config.data.id, config.backbone.name)
    chosen = {}
    for (section, name), auto in AUTOMATIC.items():
        if getattr(getattr(config, section), name) == meant[section, name]:
            chosen[f"{section}.{name}"] = tree[section][name]
            tree[section][name] = list(auto) if isinstance(auto, tuple) else auto
    return tree, chosen
