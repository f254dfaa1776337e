"""Files that come with the package: weights, features and word lists, with pinned checksums.

After a change of a file, `tests/test_assets.py` says which checksum to write here.

May import: errors, caching.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.assets.packaged import ASSETS, SUMS, asset, asset_path

__all__ = ["ASSETS", "SUMS", "asset", "asset_path"]

__getattr__ = lazy_names(__name__, __file__)
