"""Where images come from: public datasets, a user's own files, corruptions, the packaged demo."""

from focoop.data._readers import folder_splits, read_folder
from focoop.data.imageset import ImageSet

__all__ = ["ImageSet", "folder_splits", "read_folder"]
