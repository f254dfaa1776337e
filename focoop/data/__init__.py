"""Where images come from: folders of files, corruptions of them, and the packaged demo set."""

from focoop.data._readers import ImageSet, folder_splits, read_folder

__all__ = ["ImageSet", "folder_splits", "read_folder"]
