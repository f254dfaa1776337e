"""The settings of a run: what they are, their checks, and TOML files that hold them.

May import: errors, fields, plugins, data, methods, federation.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.config.files import TUNED, locate, read_layers, read_toml, shipped
    from focoop.config.layers import Override, merge, override_tree, parse_override, tree_of
    from focoop.config.loading import from_dict, from_flat, load
    from focoop.config.schema import (
        AUTO_CALIBRATION,
        AUTO_CLIENTS,
        PAPER_CLIENTS,
        DataConfig,
        MethodConfig,
        NegativesConfig,
        RunConfig,
    )
    from focoop.config.writing import config_hash, differences, to_dict, to_flat, to_toml

__all__ = [
    "AUTO_CALIBRATION",
    "AUTO_CLIENTS",
    "PAPER_CLIENTS",
    "TUNED",
    "DataConfig",
    "MethodConfig",
    "NegativesConfig",
    "Override",
    "RunConfig",
    "config_hash",
    "differences",
    "from_dict",
    "from_flat",
    "load",
    "locate",
    "merge",
    "override_tree",
    "parse_override",
    "read_layers",
    "read_toml",
    "shipped",
    "to_dict",
    "to_flat",
    "to_toml",
    "tree_of",
]

__getattr__ = lazy_names(__name__, __file__)
