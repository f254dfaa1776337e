"""The fields of a settings class: how they are declared, bounded, grouped and listed."""

import dataclasses
import typing
from collections.abc import Sequence
from dataclasses import Field, dataclass
from functools import cache
from typing import Any

from focoop.errors import ConfigError, nearest

# Bounds of numbers that declare none: computation is done in float32, where larger numbers and
# their squares overflow, and smaller ones vanish beside 1.
LARGEST, SMALLEST, MOST = 1e9, 1e-12, 1_000_000_000
# What a method's settings are for, by the name of their group.
GROUPS = {
    "paper": "quantities of the method's paper",
    "engineering": "how the method is run, and guards",
    "ablation": "parts to switch off or to replace, to see what they do",
}


def setting(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    choices: Sequence[str] = (),
    grid: Sequence[Any] = (),
    group: str = "",
) -> Any:
    """Declare a documented field of a settings class, such as a method's `Config`.

    Args:
        default: The field's default value.
        doc: What the setting does, in words for users.
        low: The least number that is allowed.
        high: The largest number that is allowed.
        above: The number must be larger than this one.
        choices: The texts that are allowed; a field of the type `Literal[...]` needs none.
        grid: Values that `focoop tune` tries, the default among them; empty: it stays as it is.
        group: What it is for: `paper`, `engineering` or `ablation`.

    Returns:
        A dataclass field.

    Raises:
        ConfigError: There is no such group.

    Example:
        ```python
        class Mine(focoop.Method):
            @dataclass(frozen=True)
            class Config:
                radius: float = focoop.setting(0.1, "size of a step", above=0, grid=(0.1, 0.3))
        ```
    """
    if group and group not in GROUPS:
        raise ConfigError(f"there is no group {group!r} of settings{nearest(group, GROUPS)}")
    bounds = {"low": low, "high": high, "above": above}
    others = {"choices": choices, "grid": grid, "group": group}
    rules: dict[str, Any] = {name: rule for name, rule in bounds.items() if rule is not None}
    rules |= {name: rule for name, rule in others.items() if rule}
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
