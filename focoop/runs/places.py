"""Find what relative paths of a run's configuration mean, wherever the run is opened.

`config.toml` keeps paths as the user wrote them. The manifest says which folder they are relative
to; where that folder is no longer there (a project that was moved), the same way from the run
folder is tried, then the current folder.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from focoop.config import RunConfig
from focoop.plugins import is_file

KEY = "paths_relative_to"
# Kinds of data that are named by a path, and of a backbone.
ON_DISK = ("file", "folder", "clients", "csv", "local-dir")


def current_folder(run: Path) -> dict[str, str]:
    """Return the current folder as a run's manifest keeps it.

    Args:
        run: The run folder.

    Returns:
        The folder, absolute and as seen from the run folder.
    """
    current = Path.cwd()
    return {"folder": str(current), "from_run_folder": os.path.relpath(current, run.resolve())}


def base(run: Path, manifest: Mapping[str, Any]) -> Path:
    """Return the folder that relative paths of a run mean.

    Args:
        run: The run folder.
        manifest: Its manifest; one without the key, of an earlier focoop, means the current folder.

    Returns:
        The folder.
    """
    noted = manifest.get(KEY)
    if not isinstance(noted, Mapping):
        return Path.cwd()
    places = [Path(str(noted.get("folder"))), run.resolve() / str(noted.get("from_run_folder"))]
    return next((Path(os.path.normpath(place)) for place in places if place.is_dir()), Path.cwd())


def anchored(config: RunConfig, folder: Path) -> RunConfig:
    """Make every relative path of a configuration absolute, as seen from a folder.

    Args:
        config: The configuration.
        folder: The folder.

    Returns:
        The configuration with absolute paths.
    """
    data = config.data
    data = replace(
        data,
        id=anchored_spec(data.id, folder),
        root=_path(data.root, folder),
        corrupted=tuple(anchored_spec(spec, folder) for spec in data.corrupted),
        ood=tuple(anchored_spec(spec, folder) for spec in data.ood),
        validation_ood=tuple(anchored_spec(spec, folder) for spec in data.validation_ood),
    )
    method = config.method
    if is_file(method.name):
        method = replace(method, name=_path(method.name, folder))
    if is_file(str(getattr(method.settings, "score", ""))):
        score = _path(method.settings.score, folder)
        method = replace(method, settings=replace(method.settings, score=score))
    return replace(
        config,
        data=data,
        method=method,
        backbone=replace(
            config.backbone,
            name=anchored_spec(config.backbone.name, folder),
            weights=_path(config.backbone.weights, folder),
        ),
        negatives=replace(config.negatives, words=_path(config.negatives.words, folder)),
    )


def anchored_spec(spec: str, folder: Path) -> str:
    """Make the path in the name of a dataset or backbone absolute; other names stay as they are.

    Args:
        spec: The name.
        folder: The folder that a relative path means.

    Returns:
        The name.

    >>> anchored_spec("folder:images#fog@2", Path("/data"))
    'folder:/data/images#fog@2'
    """
    kind, colon, target = spec.partition(":")
    if not colon and ".py" in spec:  # a dataset in a user's own file
        return _path(spec, folder)
    return f"{kind}:{_path(target, folder)}" if colon and kind in ON_DISK else spec


def _path(text: str, folder: Path) -> str:
    """An absolute path as text; its end is left alone, since results are named after it."""
    if not text or text.startswith("~") or Path(text).is_absolute():
        return text
    return f"{folder}/{text}"
