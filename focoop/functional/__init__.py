"""Pure functions of numbers: OOD scores, metrics, the own-other frontier, paired tests, transport.

Nothing here knows of files, models or settings. A higher score always means more OOD.

May import: errors, seeds, plugins.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.functional import client_metrics, frontier, metrics, paired, scores, transport


__all__ = ["client_metrics", "frontier", "metrics", "paired", "scores", "transport"]

__getattr__ = lazy_names(__name__, __file__)
