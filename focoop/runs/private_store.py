"""Keep the private tensors of clients on disk, one file per client and round."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open

from focoop.errors import RunError
from focoop.runs.durable import DRAFT, remove, write

if TYPE_CHECKING:
    from torch import Tensor

Params = dict[str, "Tensor"]


class PrivateStore:
    """Private tensors on disk, one file per client and round; nothing is held in memory."""

    def __init__(self, root: Path, limit: int | None) -> None:
        self.root = root
        self.limit = limit

    def load(self, client: int) -> Params | None:
        """Read a client's newest private tensors.

        Args:
            client: The client's number.

        Returns:
            Tensors by name, or None where it has not trained yet.
        """
        paths = [
            path
            for index, path in self._versions(client)
            if self.limit is None or index <= self.limit
        ]
        return read(paths[-1])[0] if paths else None

    def save(self, client: int, round_index: int, params: Params) -> None:
        """Keep a client's private tensors of a round that is not committed yet.

        Args:
            client: The client's number.
            round_index: The round's number.
            params: Tensors by name.
        """
        write(self._folder(client) / f"round-{round_index:04d}.safetensors", dump(params, {}))

    def settle(self, round_index: int) -> None:
        """Keep of each client the newest version up to a round and nothing else.

        Args:
            round_index: The round's number.
        """
        for client in self.clients():
            versions = self._versions(client)
            latest = [path for index, path in versions if index <= round_index][-1:]
            for _, path in versions:
                if path not in latest:
                    remove(path)
            for draft in self._folder(client).glob(f"*{DRAFT}"):
                remove(draft)

    def clients(self) -> list[int]:
        """Return the numbers of clients with private tensors."""
        if not self.root.is_dir():
            return []
        return sorted(int(path.name) for path in self.root.iterdir() if path.name.isdecimal())

    def _folder(self, client: int) -> Path:
        return self.root / f"{client:04d}"

    def _versions(self, client: int) -> list[tuple[int, Path]]:
        paths = self._folder(client).glob("round-*.safetensors")
        return sorted((int(path.stem.removeprefix("round-")), path) for path in paths)


def dump(params: Mapping[str, Tensor], metadata: dict[str, str]) -> bytes:
    """Write tensors as safetensors; equal values give equal bytes.

    Args:
        params: Tensors by name.
        metadata: Texts by name.

    Returns:
        The bytes of the file.
    """
    from safetensors.torch import save  # loads torch, which a list of runs does without

    tensors = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in sorted(params.items())
    }
    return save(tensors, metadata or None)


def read(path: Path) -> tuple[Params, dict[str, str]]:
    """Read all tensors of a file, on the CPU, and its metadata.

    Args:
        path: The file.

    Returns:
        Tensors by name, and texts by name.

    Raises:
        RunError: The file is missing or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} cannot be read ({error}): start the run again") from error


def round_of(path: Path) -> int:
    """Read the round noted in a file, without reading its tensors.

    Args:
        path: The file.

    Returns:
        The round's number.

    Raises:
        RunError: The file is damaged.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            return int((file.metadata() or {})["round"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}): start the run again") from error
