"""Tensors kept on disk between runs, one per file, checked on reading and written atomically."""

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from focoop import atomic


def cache_folder(given: Path | None, name: str) -> Path:
    """`given`, or else `$FOCOOP_CACHE/name`, or else `~/.cache/focoop/name`."""
    return given if given is not None else atomic.default_cache() / name


def stored(path: Path, shape: tuple[int, ...], build: Callable[[], Tensor]) -> Tensor:
    """The tensor kept at `path`; built and kept there if it is absent or damaged.

    `path` must hold the content hash of all the tensor depends on, so that it is never stale.
    """
    try:
        with safe_open(path, framework="pt") as file:
            values: Tensor = file.get_tensor("values")
            told = (file.metadata() or {}).get("sha256")
        if told == _checksum(values) and tuple(values.shape) == shape:
            return values
    except (OSError, SafetensorError):
        pass
    values = build()
    content = save({"values": values.contiguous()}, {"sha256": _checksum(values)})
    try:
        atomic.replace(path, content)
    except OSError as error:
        warnings.warn(f"{path.name} could not be kept for later: {error}", stacklevel=2)
    return values


def _checksum(values: Tensor) -> str:
    return hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest()
