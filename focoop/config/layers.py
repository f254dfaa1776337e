"""Settings as nested values: put one layer over another, read overrides as layers.

A layer that changes `method.name` drops the settings that lower layers gave to the other method.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from focoop.errors import ConfigError
from focoop.fields import Typed, brief

Tree = dict[str, Any]
Override = str | Mapping[str, Any]  # `key=value`, or settings by (dotted) key


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """Put one tree of settings on top of another, table by table.

    Args:
        base: The lower tree.
        over: The upper tree, whose values win.

    Returns:
        A new tree.
    """
    merged = dict(base)
    for name, value in over.items():
        below = merged.get(name)
        if isinstance(value, dict) and isinstance(below, dict):
            before = as_written(below.get("name"))
            after = as_written(value.get("name", below.get("name")))
            changed = name == "method" and after != before
            merged[name] = dict(value) if changed else {**below, **value}
        else:
            merged[name] = value
    return merged


def parse_override(text: str) -> Tree:
    """Read an override such as `federation.rounds=3` as a tree of one value.

    Args:
        text: The override; the value is TOML, and a bare word is a string.

    Returns:
        Nested values.

    Raises:
        ConfigError: The text has no `=`, or no key.
    """
    key, equals, raw = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(
            f"cannot read --set {brief(text)}: write KEY=VALUE, as federation.rounds=3"
        )
    section, dot, name = key.partition(".")
    value = Typed.parse(raw.strip())
    return {section: {name: value}} if dot else {key: value}


def tree_of(values: Mapping[str, Any]) -> Tree:
    """Nested plain values of settings that are given in Python.

    Args:
        values: settings by section (`{"method": {"name": "focoop"}}`), by dotted key
            (`{"method.name": "focoop"}`), or both; later entries win.

    Returns:
        A tree for `merge` and `from_dict`; paths have become text and tuples lists.

    >>> tree_of({"federation.rounds": 3, "method": {"name": "promptfl"}})
    {'federation': {'rounds': 3}, 'method': {'name': 'promptfl'}}
    """
    tree: Tree = {}
    for key, value in values.items():
        section, dot, name = str(key).partition(".")
        if dot:
            tree = merge(tree, {section: {name: _plain(value)}})
        elif isinstance(value, Mapping):
            table = {str(inner): _plain(item) for inner, item in value.items()}
            tree = merge(tree, {section: table})
        else:
            tree[section] = _plain(value)
    return tree


def _plain(value: Any) -> Any:
    """A value as TOML would give it."""
    if isinstance(value, Path):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def override_tree(given: Override) -> Tree:
    """Return an override as a tree of settings.

    Args:
        given: The text `key=value`, or settings in Python.

    Returns:
        Nested values.
    """
    return parse_override(given) if isinstance(given, str) else tree_of(given)


def as_written(value: Any) -> Any:
    """Return a value of a layer, or the text of one that stems from `key=value`.

    Args:
        value: The value.

    Returns:
        The value or the text.
    """
    return value.raw if isinstance(value, Typed) else value
