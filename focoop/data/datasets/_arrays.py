"""Datasets that ship as arrays: CIFAR's pickled batches and the `.npy` files of CIFAR-C."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from focoop.data.image_set import Pixels
from focoop.errors import DataError

# What the official batches are made of; a pickle that asks for anything else is refused.
HARMLESS = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
}


class _Plain(pickle.Unpickler):
    """Reads numbers, text, containers and NumPy arrays, and runs nothing."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in HARMLESS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a pickled dict of plain data and arrays; nothing else is unpickled.

    Args:
        path: The file.

    Returns:
        Values by key; keys become text.

    Raises:
        DataError: The file is missing or damaged.
    """
    try:
        content = _Plain(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        if not isinstance(content, dict):
            raise ValueError("it holds no dict")
    except (OSError, ValueError, EOFError, IndexError, KeyError, pickle.UnpicklingError) as error:
        raise DataError(f"cannot read {path} ({error}): get the dataset again") from error
    return {k.decode() if isinstance(k, bytes) else str(k): v for k, v in content.items()}


def cifar_pixels(batches: list[dict[str, Any]], source: Path) -> Pixels:
    """Join the pixels of CIFAR's batches.

    Args:
        batches: Batches with rows (N, 3072), channel by channel.
        source: Their folder, for messages.

    Returns:
        Images (N, 32, 32, 3).

    Raises:
        DataError: The rows have another length.
    """
    rows = np.concatenate([np.asarray(batch["data"], dtype=np.uint8) for batch in batches])
    if rows.ndim != 2 or rows.shape[1] != 3072:
        raise DataError(f"{source}: rows of shape {rows.shape[1:]} are not 32 x 32 x 3 pixels")
    return Pixels(np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)))


def texts(values: list[Any]) -> list[str]:
    """Return the names of a pickle, which are bytes where Python 2 wrote it.

    Args:
        values: The names.

    Returns:
        The names as text.
    """
    return [value.decode() if isinstance(value, bytes) else str(value) for value in values]


def read_npy(path: Path) -> npt.NDArray[Any]:
    """Open an array file, mapped into memory rather than read.

    Args:
        path: The file.

    Returns:
        The array.

    Raises:
        DataError: The file is missing or damaged.
    """
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"cannot read {path} ({error}): get the dataset again") from error
    return array
