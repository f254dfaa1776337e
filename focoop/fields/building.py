"""Settings made from plain values: converted, checked, and refused with the reason."""

import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import Field
from typing import Any, Literal, NoReturn, TypeVar

from focoop.errors import ConfigError, nearest
from focoop.fields.declaring import LARGEST, bounds_of, fields_of
from focoop.fields.toml import Typed

Settings = TypeVar("Settings")
Tree = Mapping[str, Any]
NAMES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
}
SHOWN = 200  # characters of a value in a message
LONGEST, MOST_VALUES = 10_000, 10_000  # characters of a text, values of a list


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
