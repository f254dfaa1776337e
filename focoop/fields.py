"""Frozen dataclasses as settings: checked on the way in, documented, TOML and flat on the way out.

A settings class is a frozen dataclass whose fields are bool, int, float, str, a Literal of strings
or a tuple of these. A field's metadata holds its `doc` and, where they apply, `choices`, the
bounds `low` and `high`, `above`, a bound that is itself not allowed, `grid`, the values that
`focoop tune` tries, and `group`, the kind of a method's setting. A number that declares no bound
has those of its type (`bounds_of`).
"""

import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass
from functools import cache
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

# Bounds of numbers that declare none: computation is done in float32, where larger numbers and
# their squares overflow, and smaller ones vanish beside 1.
LARGEST, SMALLEST, MOST = 1e9, 1e-12, 1_000_000_000
SHOWN = 200  # characters of a value in a message
LONGEST, MOST_VALUES = 10_000, 10_000  # characters of a text, values of a list
LONGEST_TOML = 100_000  # characters

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
            tree = parse_toml(f"value = {raw}")
        except tomllib.TOMLDecodeError:
            return cls(raw, raw)
        return cls(raw, tree["value"] if set(tree) == {"value"} else raw)


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML of bounded length and depth.

    Args:
        text: The text.

    Returns:
        Nested values.

    Raises:
        TOMLDecodeError: It is no TOML, longer than `LONGEST_TOML` (the parser takes very long for
            some such texts), nested too deeply, or holds a number of too many digits.
    """
    if len(text) > LONGEST_TOML:
        raise tomllib.TOMLDecodeError(f"it has more than {LONGEST_TOML} characters")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise tomllib.TOMLDecodeError("its brackets are nested too deeply") from error
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:
        raise tomllib.TOMLDecodeError("a number has too many digits") from error


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


@dataclass(frozen=True)
class Bounds:
    """What a number may be: `low` to `high`, more than `above`, and 0 or `least` away from it.

    >>> str(Bounds(low=0, high=1.0)), str(Bounds(above=0, high=1e9, least=1e-12))
    ('0 to 1', '1e-12 to 1e+09')
    """

    low: float | None = None
    high: float | None = None
    above: float | None = None
    least: float = 0.0

    def broken_by(self, number: float) -> str:
        """Say which bound a number breaks.

        Args:
            number: The number.

        Returns:
            The rule in words, or nothing where the number is allowed.
        """
        if self.low is not None and number < self.low:
            return f"the least allowed is {_short(self.low)}"
        if self.above is not None and number <= self.above:
            return f"it must be more than {_short(self.above)}"
        if self.high is not None and number > self.high:
            return f"the most allowed is {_short(self.high)}"
        if 0 < abs(number) < self.least:
            return f"it is too close to 0: write {_short(self.least)} or more" + (
                "" if self.above == 0 else ", or 0"
            )
        return ""

    def __str__(self) -> str:
        low = self.least if self.above == 0 and self.least else self.low
        if low is None and self.above is not None:
            return f"more than {_short(self.above)}, at most {_short(self.high or 0)}"
        return f"{_short(low or 0)} to {_short(self.high or 0)}"


def bounds_of(field: Field[Any], kind: Any) -> Bounds | None:
    """Return the bounds of a setting, its own and those of its type.

    Args:
        field: The setting's field.
        kind: Its type, or the type of one of its values.

    Returns:
        The bounds; None where it is no number and no list of numbers.
    """
    inner = typing.get_args(kind)
    kind = inner[0] if typing.get_origin(kind) is tuple else kind
    rules = field.metadata
    if kind not in (int, float) or "choices" in rules:
        return None
    end = MOST if kind is int else LARGEST
    low = rules.get("low", None if "above" in rules else -end)
    least = SMALLEST if kind is float else 0.0
    return Bounds(low, rules.get("high", end), rules.get("above"), least)


def fields_of(cls: Any) -> tuple[tuple[Field[Any], Any], ...]:
    """List the fields of a settings class with their resolved types.

    Args:
        cls: The settings class.

    Returns:
        Each field and its type.
    """
    return _resolved(cls)


@cache  # resolving types takes most of the time in which settings are made
def _resolved(cls: Any) -> tuple[tuple[Field[Any], Any], ...]:
    hints = typing.get_type_hints(cls)
    return tuple((field, hints[field.name]) for field in dataclasses.fields(cls))


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
            shown = brief(given.raw if isinstance(given, Typed) else given)
            keys = [prefix + other for other in (*also, *known)]
            raise ConfigError(
                f"there is no setting {_cut(key)} (given: {shown}){nearest(key[:SHOWN], keys)}"
            )
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
        given = float(given) if abs(given) <= 2 * LARGEST else math.inf * (1 if given > 0 else -1)
    if type(given) is not kind:
        _refuse(key, raw, f"it must be {NAMES.get(kind, kind)}")
    if kind is float and not math.isfinite(given):
        what = "it must be a finite number"
        _refuse(key, raw, f"{what} of at most {LARGEST:g}" if type(raw) is int else what)
    if kind is str:
        try:
            given.encode()
        except UnicodeEncodeError:
            _refuse(key, raw, "it must be valid Unicode")
        if "\0" in given:
            _refuse(key, raw, "it must not hold a zero byte")
        if len(given) > LONGEST:
            _refuse(key, raw, f"it must have at most {LONGEST} characters")
    return given


def check(key: str, value: Any, field: Field[Any]) -> None:
    """Refuse a value outside a field's `choices` or `Bounds`.

    Args:
        key: The setting's name, for messages.
        value: The value.
        field: The field.
    """
    if "choices" in field.metadata:
        _among(key, value, field.metadata["choices"])
    for item in value if isinstance(value, tuple) else (value,):
        bounds = bounds_of(field, type(item))
        if bounds is not None and (rule := bounds.broken_by(item)):
            _refuse(key, value, rule)


def _tuple(key: str, given: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(given, list | tuple):
        _refuse(
            key,
            given,
            'it must be a list, such as ["a", "b"]' if arguments[0] is str else "it must be a list",
        )
    if arguments[-1] is not Ellipsis and len(given) != len(arguments):
        _refuse(key, given, f"it must hold {len(arguments)} values")
    if len(given) > MOST_VALUES:
        _refuse(key, given, f"it must hold at most {MOST_VALUES} values")
    kinds = [arguments[0]] * len(given) if arguments[-1] is Ellipsis else arguments
    return tuple(
        convert(f"{key}[{i}]", item, kind)
        for i, (item, kind) in enumerate(zip(given, kinds, strict=True))
    )


def _among(key: str, given: Any, allowed: tuple[Any, ...]) -> None:
    if given not in allowed:
        hint = nearest(given[:SHOWN], allowed) if isinstance(given, str) else ""
        end = "" if hint.startswith("; there are") else f" (allowed: {', '.join(allowed)})"
        raise ConfigError(f"{key} = {brief(given)} is not allowed{hint}{end}")


def _refuse(key: str, given: Any, rule: str) -> NoReturn:
    raise ConfigError(f"{key} = {brief(given)} is not allowed: {rule}")


def brief(value: Any) -> str:
    """Write a value for a message, however large it is.

    Args:
        value: The value.

    Returns:
        Its `repr`, at most `SHOWN` characters of it.

    >>> brief("a"), brief(10 ** 5000), len(brief("a" * 10 ** 6))
    ("'a'", 'a whole number of 16610 bits', 200)
    """
    if isinstance(value, list | tuple) and len(value) > SHOWN:
        value = value[:SHOWN]
    try:
        return _cut(repr(value))
    except (ValueError, RecursionError):  # too many digits to write, too many brackets
        digits = isinstance(value, int)
        return f"a whole number of {value.bit_length()} bits" if digits else type(value).__name__


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _short(number: float) -> str:
    """A bound in words: whole numbers in full, others with six digits."""
    return str(number) if isinstance(number, int) else f"{number:g}"


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
