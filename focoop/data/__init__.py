"""Where images come from: public datasets, a user's own files, and corruptions of both.

One file of `datasets/` is one public dataset. Nothing here knows of backbones or features.

May import: errors, caching, progress, seeds, threads, plugins, assets.
"""

from typing import TYPE_CHECKING

from focoop.lazy import lazy_names

if TYPE_CHECKING:
    from focoop.data import download, ready_features, registry, sources
    from focoop.data.check_report import Report, Row, inspect
    from focoop.data.class_names import plain
    from focoop.data.client_folders import clients_of
    from focoop.data.completeness import on_disk, refuse_incomplete, refuse_incomplete_of
    from focoop.data.content_hash import data_hash
    from focoop.data.corruptions.apply import CORRUPTIONS, SEVERITIES, check
    from focoop.data.dataset import Dataset, Download
    from focoop.data.dataset_spec import NAMED, Source, expand
    from focoop.data.decoding import UnreadableImageError, as_rgb, read_rgb
    from focoop.data.download import fetch
    from focoop.data.folder_tree import image_files
    from focoop.data.folders import folder_splits, read_folder
    from focoop.data.image_bytes import OPEN_FORMATS, RefusedImage, rgb_from_bytes
    from focoop.data.image_set import ImageSet
    from focoop.data.image_versions import rendered
    from focoop.data.labels import code_warnings
    from focoop.data.listing import Listing, read_lines, spaced
    from focoop.data.prefetch import read_ahead
    from focoop.data.ready_features import use
    from focoop.data.registry import available, data_root, lookup, read_corrupted
    from focoop.data.sources import OWN, advice, domains_note, held_out_note, open_images
    from focoop.data.views import RECIPE, altered

__all__ = [
    "CORRUPTIONS",
    "NAMED",
    "OPEN_FORMATS",
    "OWN",
    "RECIPE",
    "SEVERITIES",
    "Dataset",
    "Download",
    "ImageSet",
    "Listing",
    "RefusedImage",
    "Report",
    "Row",
    "Source",
    "UnreadableImageError",
    "advice",
    "altered",
    "as_rgb",
    "available",
    "check",
    "clients_of",
    "code_warnings",
    "data_hash",
    "data_root",
    "domains_note",
    "download",
    "expand",
    "fetch",
    "folder_splits",
    "held_out_note",
    "image_files",
    "inspect",
    "lookup",
    "on_disk",
    "open_images",
    "plain",
    "read_ahead",
    "read_corrupted",
    "read_folder",
    "read_lines",
    "read_rgb",
    "ready_features",
    "refuse_incomplete",
    "refuse_incomplete_of",
    "registry",
    "rendered",
    "rgb_from_bytes",
    "sources",
    "spaced",
    "use",
]

__getattr__ = lazy_names(__name__, __file__)
