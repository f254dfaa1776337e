"""Methods, datasets, scores and trackers from outside: a user's file, or an installed package.

A room that offers things by name (methods, data, functional, tracking) asks here for names it does
not know. What a file or an entry point holds is looked at by that room.

May import: errors.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.plugins.finding import (
        GROUPS,
        class_of,
        is_file,
        line_of,
        looking_in,
        names,
        only_installed,
        origin,
        plugged,
        put,
    )

__all__ = [
    "GROUPS",
    "class_of",
    "is_file",
    "line_of",
    "looking_in",
    "names",
    "only_installed",
    "origin",
    "plugged",
    "put",
]

__getattr__ = lazy_names(__name__, __file__)
