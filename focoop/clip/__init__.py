"""Frozen vision-language backbones behind one interface, and the prompt text engine.

`mini` is packaged; `openclip:MODEL:TAG` is any model of open_clip. `text/` runs learnable prompts
through a frozen text tower.

May import: errors, caching, processor, progress, assets.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.clip import weights
    from focoop.clip.base import Backbone
    from focoop.clip.image_features import ImageFeatures, LabelledFeatures
    from focoop.clip.loading import load_backbone
    from focoop.clip.openclip import config_of, resolve_tag
    from focoop.clip.text import fused
    from focoop.clip.text.names import Names
    from focoop.clip.text.tower import TextTower
    from focoop.clip.text_only import load_light

__all__ = [
    "Backbone",
    "ImageFeatures",
    "LabelledFeatures",
    "Names",
    "TextTower",
    "config_of",
    "fused",
    "load_backbone",
    "load_light",
    "resolve_tag",
    "weights",
]

__getattr__ = lazy_names(__name__, __file__)
