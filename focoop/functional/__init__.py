"""Pure functions of tensors: OOD scores, metrics, and optimal transport.

Nothing here knows of files, models or settings. A higher score always means more OOD.

May import: errors, seeds.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.functional import metrics, scores, transport


__all__ = ["metrics", "scores", "transport"]

__getattr__ = lazy_names(__name__, __file__)
