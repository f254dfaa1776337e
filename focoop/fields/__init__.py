"""Frozen dataclasses as settings: checked on the way in, documented, TOML and flat on the way out.

A settings class is a frozen dataclass whose fields are bool, int, float, str, a Literal of strings
or a tuple of these. A field's metadata holds its `doc` and, where they apply, `choices`, the
bounds `low` and `high`, `above`, a bound that is itself not allowed, `grid`, the values that
`focoop tune` tries, and `group`, the kind of a method's setting. A number that declares no bound
has those of its type (`bounds_of`).

May import: errors.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.fields.building import brief, build, check, convert
    from focoop.fields.declaring import (
        GROUPS,
        Bounds,
        bounds_of,
        fields_of,
        grids,
        grouped,
        plain,
        setting,
    )
    from focoop.fields.toml import LONGEST_TOML, Typed, parse_toml, toml_value

__all__ = [
    "GROUPS",
    "LONGEST_TOML",
    "Bounds",
    "Typed",
    "bounds_of",
    "brief",
    "build",
    "check",
    "convert",
    "fields_of",
    "grids",
    "grouped",
    "parse_toml",
    "plain",
    "setting",
    "toml_value",
]

__getattr__ = lazy_names(__name__, __file__)
