"""Keep the private tensors of clients on disk, one file per client and round."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open

from focoop.caching import checksum, is_intact, parse_json, sealed
from focoop.errors import RunError
from focoop.runs.durable import DRAFT, remove, sync, write
from focoop.runs.ledger import Version

if TYPE_CHECKING:
    from torch import Tensor

Params = dict[str, "Tensor"]
Versions = dict[int, list[Version]]  # of each client, the oldest first
BOOK = "versions.json"
HELD = 2**30  # bytes of private tensors that a reader may hold in memory


class Vanished(RunError):
    """A private file that must be there is not."""


class PrivateStore:
    """Private tensors on disk, one file per client and round; nothing is held in memory.

    Which files there must be is known from the run's ledger (`known`) or, on a site, from a book
    beside the files (`with_book`). A file that is missing or not the one that was written is
    refused: its client is never taken for one that has not trained. Without either, the files that
    lie there count.

    Args:
        root: the folder.
        limit: the last round whose files are loaded; None: no limit.
        known: the versions that a run's ledger names, by client.
        with_book: whether a book beside the files says which there must be.
        advice: what a user can do about a damaged file.
        gone: what a user can do about a file that is not there; empty: the same.
    """

    def __init__(
        self,
        root: Path,
        limit: int | None,
        known: Mapping[int, list[Version]] | None = None,
        *,
        with_book: bool = False,
        advice: str = "restore it from a copy, or start the run again",
        gone: str = "",
    ) -> None:
        self.root = root
        self.limit = limit
        self.advice = advice
        self.gone = gone or advice
        self._book = with_book
        self._known: Versions | None = None
        if known is not None:
            self._known = {client: list(versions) for client, versions in known.items()}
        self._held: dict[Path, bytes] = {}
        self._written: list[Path] = []  # without waiting for the disk

    def load(self, client: int) -> Params | None:
        """Read a client's newest private tensors.

        Args:
            client: The client's number.

        Returns:
            Tensors by name, or None where it has not trained yet.
        """
        version = self._newest(client)
        if version is None:
            return None
        return parse(self._path(client, version), self._content(client, version))[0]

    def save(self, client: int, round_index: int, params: Params) -> None:
        """Keep a client's private tensors of a round that is not committed yet.

        Without a book the file may reach the disk later: `sync` waits for it.

        Args:
            client: The client's number.
            round_index: The round's number.
            params: Tensors by name.
        """
        raw = dump(params, {})
        version = Version(round_index, checksum(raw))
        others = [v for v in self._of(client) if v.round_index != round_index]
        replaced = [v for v in self._of(client) if v.round_index == round_index]
        if replaced:  # until the new file is there, either counts
            self._note(client, [*others, *replaced, version])
        path = self._path(client, version)
        write(path, raw, wait=self._book)
        if not self._book:
            self._written.append(path)
        self._note(client, [*others, version])

    def sync(self) -> None:
        """Wait until all files of `save` are on the disk; a round is committed after this."""
        if self._written:
            folders = {path.parent for path in self._written}
            sync([*self._written, *sorted(folders), self.root])
            self._written.clear()

    def made_in(self, round_index: int) -> dict[int, str]:
        """Return the checksums of the files of a round.

        Args:
            round_index: The round's number.

        Returns:
            Checksums by client.
        """
        newest = {client: versions[-1] for client, versions in self._all().items() if versions}
        return {c: v.sum for c, v in newest.items() if v.round_index == round_index}

    def settle(self, round_index: int, rounds: int = 1) -> None:
        """Remove all files but those that were a client's newest after one of the last few rounds.

        Args:
            round_index: The last of these rounds.
            rounds: How many rounds these are.
        """
        for client, versions in self._all().items():
            if len(versions) < 2 and versions and versions[0].round_index <= round_index:
                continue
            kept = _kept(versions, round_index, rounds)
            if kept != versions:
                self._note(client, kept)
                for version in versions:
                    if version.round_index not in {k.round_index for k in kept}:
                        remove(self._path(client, version))

    def sweep(self) -> None:
        """Remove drafts, and files that are not known."""
        for client in self.clients():
            known = {self._path(client, version).name for version in self._of(client)}
            for path in self._folder(client).iterdir():
                if path.name.endswith(DRAFT) or path.name not in {*known, BOOK}:
                    remove(path)

    def verify(self) -> None:
        """Read every file that `load` would read, to find out whether all are whole.

        Raises:
            RunError: A file is missing or damaged.
        """
        for client in self._all():
            if (version := self._newest(client)) is not None:
                self._content(client, version)

    def held(self) -> PrivateStore:
        """Return the same files in memory, so that they outlive what another process removes.

        Returns:
            The store; itself where the files are too large for that.
        """
        versions = {client: self._newest(client) for client in self._all()}
        found = {client: [version] for client, version in versions.items() if version is not None}
        store = PrivateStore(self.root, self.limit, found, advice=self.advice, gone=self.gone)
        size = 0
        for client, (version,) in found.items():
            raw = self._content(client, version)
            store._held[self._path(client, version)] = raw
            size += len(raw)
            if size > HELD:
                return self
        return store

    def clients(self) -> list[int]:
        """Return the numbers of clients with private tensors."""
        if not self.root.is_dir():
            return []
        return sorted(int(path.name) for path in self.root.iterdir() if path.name.isdecimal())

    def listed(self) -> Versions:
        """Return the files that lie in the folder, without their checksums."""
        return {client: self._on_disk(client) for client in self.clients()}

    def _content(self, client: int, version: Version) -> bytes:
        """The bytes of a file, as they were written."""
        path = self._path(client, version)
        if path in self._held:
            return self._held[path]
        try:
            raw = path.read_bytes()
        except FileNotFoundError as error:
            raise Vanished(
                f"{path} is gone, and client {client} has trained: {self.gone}"
            ) from error
        except OSError as error:
            raise RunError(f"cannot read {path}: {error}") from error
        same = [v for v in self._of(client) if v.round_index == version.round_index]
        if version.sum and checksum(raw) not in {v.sum for v in same}:
            raise RunError(f"{path} is damaged: its checksum differs; {self.advice}")
        return raw

    def _newest(self, client: int) -> Version | None:
        versions = self._of(client)
        within = [v for v in versions if self.limit is None or v.round_index <= self.limit]
        return within[-1] if within else None

    def _all(self) -> Versions:
        if self._known is None:
            self._known = {client: self._read(client) for client in self.clients()}
        return self._known

    def _of(self, client: int) -> list[Version]:
        return self._all().get(client, [])

    def _note(self, client: int, versions: list[Version]) -> None:
        self._all()[client] = sorted(versions, key=lambda version: version.round_index)
        if self._book:
            rows = [[version.round_index, version.sum] for version in self._of(client)]
            book = sealed({"client": client, "versions": rows})
            write(self._folder(client) / BOOK, json.dumps(book).encode())

    def _read(self, client: int) -> list[Version]:
        """The files of a client by its book; where it has none, those that lie there."""
        path = self._folder(client) / BOOK
        if not self._book or not path.is_file():
            return self._on_disk(client)
        try:
            book = parse_json(path.read_text(encoding="utf-8"))
            intact = is_intact(book) and book["client"] == client
        except (OSError, ValueError, TypeError, KeyError):
            intact = False
        if not intact:
            raise RunError(f"{path} is damaged: its checksum differs; {self.advice}")
        return [Version(index, digest) for index, digest in book["versions"]]

    def _on_disk(self, client: int) -> list[Version]:
        paths = self._folder(client).glob("round-*.safetensors")
        found = [path.stem.removeprefix("round-") for path in paths]
        return [Version(number) for number in sorted(int(n) for n in found if n.isdecimal())]

    def _folder(self, client: int) -> Path:
        return self.root / f"{client:04d}"

    def _path(self, client: int, version: Version) -> Path:
        return self._folder(client) / f"round-{version.round_index:04d}.safetensors"


def _kept(versions: list[Version], round_index: int, rounds: int) -> list[Version]:
    """Those of a client's files that were its newest after one of the last rounds."""
    newest = []
    for index in range(round_index - rounds + 1, round_index + 1):
        within = [version for version in versions if version.round_index <= index]
        newest += within[-1:]
    return [version for version in versions if version in newest]


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


def parse(path: Path, raw: bytes) -> tuple[Params, dict[str, str]]:
    """Read all tensors of a file's bytes, and its metadata.

    Args:
        path: The file, for messages.
        raw: Its bytes.

    Returns:
        Tensors by name, and texts by name.

    Raises:
        RunError: The bytes are no such file.
    """
    from safetensors.torch import load

    try:
        return load(raw), texts(raw)
    except (SafetensorError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}): start the run again") from error


def texts(raw: bytes) -> dict[str, str]:
    """Return the metadata of a safetensors file.

    Args:
        raw: Its bytes, or the beginning of them.

    Returns:
        Texts by name.

    Raises:
        ValueError: The bytes are no such file.
    """
    header = parse_json(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return dict(header.get("__metadata__", {}))
