"""Frozen dataclasses as settings: checked on the way in, documented, TOML and flat on the way out.

A settings class is a frozen dataclass whose fields are bool, int, float, str, a Literal of strings
or a tuple of these. A field's metadata holds its `doc` and, where they apply, `choices`, the
bounds `low` and `high`, `above`, a bound that is itself not allowed, `grid`, the values that
`focoop tune` tries, and `group`, the kind of a method's setting.
"""

import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import Field, dataclass
from typing import Any, Literal, NoReturn, TypeVar

from focoop.errors import ConfigError, nearest

Settings = TypeVar("Settings")
Tree = Mapping[str, Any]
NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
}

# What a method's settings are for, by the name of their group.
GROUPS = {
    "paper": "quantities of the method's paper",
    "engineering": "how the method is run, and guards",
    "ablation": "parts to switch off or to replace, to see what they do",
}


@dataclass(frozen=True)
class Typed:
    """A value typed on a command line: `raw` is its text, `value` what the text means as TOML."""

    raw: str
    value: Any

    @classmethod
    def parse(cls, raw: str) -> "Typed":
        """Read a value typed on a command line as TOML, or as a bare word where it is not TOML.

        Args:
            raw: The text.

        Returns:
            The value.

        >>> Typed.parse("[1, 2]").value, Typed.parse("cosine").value
        ([1, 2], 'cosine')
        """
        try:
            tree = tomllib.loads(f"value = {raw}")
        except tomllib.TOMLDecodeError:
            return cls(raw, raw)
        return cls(raw, tree["value"] if set(tree) == {"value"} else raw)


def setting(default: Any, doc: str, **rules: Any) -> Any:
    """Declare a documented field of a settings class.

    Args:
        default: The field's default value.
        doc: What the setting does, in words for users.
        **rules: Rules for its values: `choices`, `low`, `high`, `above` and `grid`; and `group`,
            one of `GROUPS`.

    Returns:
        A dataclass field.

    Raises:
        ConfigError: There is no such group.
    """
    group = rules.get("group", "")
    if group and group not in GROUPS:
        raise ConfigError(f"there is no group {group!r} of settings{nearest(group, GROUPS)}")
    return dataclasses.field(default=default, metadata={"doc": doc, **rules})


def fields_of(cls: Any) -> Iterator[tuple[Field[Any], Any]]:
    """List the fields of a settings class with their resolved types.

    Args:
        cls: The settings class.

    Yields:
        Each field and its type.
    """
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        yield field, hints[field.name]


def grouped(cls: Any) -> dict[str, list[Field[Any]]]:
    """Sort the fields of a settings class by their group.

    Args:
        cls: The settings class.

    Returns:
        The fields of each group in the order of `GROUPS`; fields without a group under the empty
        name, first. Groups without fields are left out.
    """
    fields = dataclasses.fields(cls)
    by_group = {
        name: [field for field in fields if field.metadata.get("group", "") == name]
        for name in ("", *GROUPS)
    }
    return {name: members for name, members in by_group.items() if members}


def grids(cls: Any) -> dict[str, tuple[Any, ...]]:
    """Return the values that `focoop tune` tries, for every field that declares some.

    Args:
        cls: The settings class.

    Returns:
        Values by field name.
    """
    all_grids = {
        field.name: tuple(field.metadata.get("grid", ())) for field in dataclasses.fields(cls)
    }
    return {name: grid for name, grid in all_grids.items() if grid}


def build(cls: type[Settings], tree: Tree, prefix: str, also: Sequence[str] = ()) -> Settings:
    """Make settings from plain values.

    Args:
        cls: The settings class.
        tree: Values by field name.
        prefix: What comes before a field's name in messages, such as `method.`.
        also: Names that are valid beside the fields, for messages that name the nearest one.

    Returns:
        The settings.

    Raises:
        ConfigError: A key is unknown, or a value is of the wrong type or out of range.
    """
    known = {field.name: (field, kind) for field, kind in fields_of(cls)}
    values = {}
    for name, given in tree.items():
        key = prefix + name
        if name not in known:
            shown = given.raw if isinstance(given, Typed) else given
            keys = [prefix + other for other in (*also, *known)]
            raise ConfigError(f"there is no setting {key} (given: {shown!r}){nearest(key, keys)}")
        field, kind = known[name]
        values[name] = convert(key, given, kind)
        check(key, values[name], field)
    try:
        return cls(**values)
    except ConfigError as error:
        where = prefix.rstrip(".")
        message = str(error)
        raise ConfigError(
            message if not where or where in message else f"{where}: {message}"
        ) from (error)


def convert(key: str, given: Any, kind: Any) -> Any:
    """Convert a value to a field's type; only whole numbers may stand for another type, numbers.

    Args:
        key: The setting's name, for messages.
        given: The value.
        kind: The field's type.

    Returns:
        The value in the field's type.
    """
    raw = given
    if isinstance(given, Typed):
        given = given.raw if kind is str and not isinstance(given.value, str) else given.value
        raw = given
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        _among(key, given, arguments)
        return given
    if origin is tuple:
        return _tuple(key, given, arguments)
    if origin in (types.UnionType, typing.Union):
        inner = [member for member in arguments if member is not type(None)]
        return None if given is None else convert(key, given, inner[0])
    if kind is float and type(given) is int:
        given = float(given)
    if type(given) is not kind:
        _refuse(key, raw, f"it must be {NAMES.get(kind, kind)}")
    if kind is float and not math.isfinite(given):
        _refuse(key, raw, "it must be a finite number")
    if kind is str:
        try:
            given.encode()
        except UnicodeEncodeError:
            _refuse(key, raw, "it must be valid Unicode")
    return given


def check(key: str, value: Any, field: Field[Any]) -> None:
    """Refuse a value outside a field's `choices`, `low`, `high` or `above`.

    Args:
        key: The setting's name, for messages.
        value: The value.
        field: The field.
    """
    rules = field.metadata
    if "choices" in rules:
        _among(key, value, rules["choices"])
    for item in value if isinstance(value, tuple) else (value,):
        if "low" in rules and item < rules["low"]:
            _refuse(key, value, f"the least allowed is {rules['low']}")
        if "above" in rules and item <= rules["above"]:
            _refuse(key, value, f"it must be more than {rules['above']}")
        if "high" in rules and item > rules["high"]:
            _refuse(key, value, f"the most allowed is {rules['high']}")


def _tuple(key: str, given: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(given, list | tuple):
        _refuse(
            key,
            given,
            'it must be a list, such as ["a", "b"]' if arguments[0] is str else "it must be a list",
        )
    if arguments[-1] is not Ellipsis and len(given) != len(arguments):
        _refuse(key, given, f"it must hold {len(arguments)} values")
    kinds = [arguments[0]] * len(given) if arguments[-1] is Ellipsis else arguments
    return tuple(
        convert(f"{key}[{i}]", item, kind)
        for i, (item, kind) in enumerate(zip(given, kinds, strict=True))
    )


def _among(key: str, given: Any, allowed: tuple[Any, ...]) -> None:
    if given not in allowed:
        hint = nearest(given, allowed) if isinstance(given, str) else ""
        end = "" if hint.startswith("; there are") else f" (allowed: {', '.join(allowed)})"
        raise ConfigError(f"{key} = {given!r} is not allowed{hint}{end}")


def _refuse(key: str, given: Any, rule: str) -> NoReturn:
    raise ConfigError(f"{key} = {given!r} is not allowed: {rule}")


def plain(config: Any) -> dict[str, Any]:
    """Return settings as a plain dict, with tuples as lists and without values that are None.

    Args:
        config: The settings.

    Returns:
        Values by field name.
    """
    values = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value is not None:
            values[field.name] = list(value) if isinstance(value, tuple) else value
    return values


def toml_value(value: Any) -> str:
    """Write one scalar or list as TOML; equal values give equal text.

    Args:
        value: The value.

    Returns:
        TOML text.

    Raises:
        TypeError: The value has no form in TOML.

    >>> toml_value(["a", 1, 2.0, True])
    '["a", 1, 2.0, true]'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return '"' + "".join(_escaped(character) for character in value) + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    raise TypeError(f"settings hold no {type(value).__name__}")


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    code = ord(character)
    return f"\\u{code:04X}" if code < 0x20 or code == 0x7F else character
