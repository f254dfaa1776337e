"""Images as features of a frozen backbone: encoded once, stored, and opened by name.

Training and evaluation read features, never images.

May import: errors, caching, progress, assets, data, clip.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.features import demo
    from focoop.features.feature_set import FeatureSet, refuse_same_names
    from focoop.features.lookup import open_features, open_labels, patch_kind_of, write_ready
    from focoop.features.storage import load_split, save_splits

__all__ = [
    "FeatureSet",
    "demo",
    "load_split",
    "open_features",
    "open_labels",
    "patch_kind_of",
    "refuse_same_names",
    "save_splits",
    "write_ready",
]

__getattr__ = lazy_names(__name__, __file__)
