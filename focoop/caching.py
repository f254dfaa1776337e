"""Checksums, and caches: files written whole, tensors on disk, objects kept in one process.

Run folders use `runs.durable` instead: one writer, and on the disk when a call returns.
"""

import hashlib
import json
import os
import uuid
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


SUM = "sum"  # the key of a table's own checksum
SUM_BYTES = 16  # of a checksum: no accident and no mix-up gives the same one twice


def checksum(*parts: bytes | memoryview | str) -> str:
    """Return a checksum of some texts and bytes; where one ends and the next begins counts too.

    blake2b is quick on every processor; sha256 only where the processor has instructions for it.

    Args:
        *parts: The parts.

    Returns:
        32 hexadecimal digits.

    >>> checksum("a", "b") == checksum("ab"), checksum("a") == checksum(b"a")
    (False, True)
    """
    hasher = hashlib.blake2b(digest_size=SUM_BYTES)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        hasher.update(memoryview(raw).nbytes.to_bytes(8, "little"))
        hasher.update(raw)
    return hasher.hexdigest()


def tensor_sum(name: str, tensor: "Tensor") -> str:
    """Return a checksum of a tensor's name, type, shape and values.

    Args:
        name: Its name.
        tensor: The tensor, on the CPU.

    Returns:
        Hexadecimal digits.
    """
    import torch

    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)  # bfloat16 has no numpy type
    return checksum(name, f"{tensor.dtype} {tuple(tensor.shape)}", flat.numpy().data)


def parse_json(text: str | bytes) -> Any:
    """Read JSON that may be damaged.

    Args:
        text: The text.

    Returns:
        Its value.

    Raises:
        ValueError: It is no JSON, or its brackets are nested too deeply to be read.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON table with a checksum of all its other entries under the key `sum`.

    Args:
        content: The table.

    Returns:
        The table to be written.
    """
    plain = {key: value for key, value in content.items() if key != SUM}
    return {**plain, SUM: checksum(json.dumps(plain, sort_keys=True))}


def is_intact(content: Any) -> bool:
    """Say whether a table that `sealed` made is as it was written.

    Args:
        content: The table as it was read.

    Returns:
        Whether its checksum agrees; False where it has none, or is no table.
    """
    return isinstance(content, dict) and SUM in content and sealed(content)[SUM] == content[SUM]


def cache_folder(given: Path | None = None, name: str = "") -> Path:
    """Return the folder of a cache.

    Args:
        given: A folder that the user chose; it is returned as it is.
        name: The cache's name, a folder below the common one.

    Returns:
        `given`, or else `$FOCOOP_CACHE/name`, or else `~/.cache/focoop/name`.
    """
    if given is not None:
        return given
    chosen = os.environ.get("FOCOOP_CACHE")
    return (Path(chosen) if chosen else Path.home() / ".cache" / "focoop") / name


def make_private(folder: Path) -> None:
    """Make a folder that only this account may look into, or take others' rights to it away.

    Args:
        folder: The folder. One that belongs to another account stays as it is.

    Raises:
        OSError: It cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        folder.chmod(0o700)


def write_whole(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file in one step, so that a reader never sees a part of it.

    Several processes may write the same file at once; the last one wins.

    Args:
        path: The file. Its folder is made where it is missing.
        content: All of the file's bytes.
        private: Only this account may read the file, and look into its folder.

    Raises:
        OSError: The disk is full, or the folder cannot be written. No draft is left behind.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    if private:
        make_private(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with os.fdopen(os.open(draft, flags, 0o600 if private else 0o666), "wb") as file:
            file.write(content)
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise


def cached_tensor(path: Path, shape: tuple[int, ...], build: Callable[[], "Tensor"]) -> "Tensor":
    """Read a tensor from disk, or compute it and keep it there.

    Args:
        path: The file. Its name must hold a hash of all that the tensor depends on, so that it is
            never out of date.
        shape: The shape the tensor must have; a file with another shape is made again.
        build: Computes the tensor.

    Returns:
        The tensor. A file that is missing or damaged is written anew; where that fails, a warning
        says so.
    """
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save

    try:
        with safe_open(path, framework="pt") as file:
            values: Tensor = file.get_tensor("values")
            told = file.metadata() or {}
        same = told.get("sha256") == _checksum(values) and tuple(values.shape) == shape
        if same and told.get("name", path.name) == path.name:
            return values
        warnings.warn(f"{path} is damaged: it is made again", stacklevel=2)
    except FileNotFoundError:
        pass
    except (OSError, SafetensorError) as error:
        warnings.warn(f"{path} cannot be read ({error}): it is made again", stacklevel=2)
    values = build()
    about = {"sha256": _checksum(values), "name": path.name}
    content = save({"values": values.contiguous()}, about)
    try:
        write_whole(path, content)
    except OSError as error:
        warnings.warn(f"{path.name} could not be kept for later: {error}", stacklevel=2)
    return values


def _checksum(values: "Tensor") -> str:
    return hashlib.sha256(values.contiguous().numpy().tobytes()).hexdigest()


class ProcessCache:
    """Objects by key, kept in this process up to a total size; the least recently used go first.

    A limit of 0 keeps nothing, which is the default: only a process that makes many runs raises it.

    >>> cache = ProcessCache(limit=10)
    >>> [cache.get("a", lambda: "made", size=4), cache.get("a", lambda: "made again", size=4)]
    ['made', 'made']
    """

    def __init__(self, limit: int = 0) -> None:
        self.limit = limit
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Any], size: int | Callable[[Any], int]) -> Any:
        """Return the object of a key, made now if it is not in the cache.

        Args:
            key: What the object depends on.
            make: Makes the object.
            size: The object's size, or a function of the object that gives it.

        Returns:
            The object.
        """
        if self.limit <= 0:
            return make()
        if key not in self._entries:
            made = make()
            self._entries[key] = made, size(made) if callable(size) else size
        self._entries.move_to_end(key)
        value = self._entries[key][0]
        while len(self._entries) > 1 and sum(s for _, s in self._entries.values()) > self.limit:
            self._entries.popitem(last=False)
        return value

    def clear(self) -> None:
        """Forget all objects."""
        self._entries.clear()


FEATURES = ProcessCache()  # sizes in bytes
BACKBONES = ProcessCache()  # sizes in backbones
