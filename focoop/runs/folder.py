"""One run on disk: opened, committed round by round, and checked against its data."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from focoop.config import RunConfig, to_toml
from focoop.errors import RunError
from focoop.runs.durable import DRAFT, Lock, append, write
from focoop.runs.files import (
    CLIENTS,
    CONFIG,
    LOCK,
    LOG,
    MANIFEST,
    METRICS,
    NAMES,
    STATE,
    metric_lines,
    read_config,
    read_manifest,
)
from focoop.runs.manifest import code, now, plain
from focoop.runs.names import Names, changed, listed, read_names
from focoop.runs.places import KEY, base, here
from focoop.runs.private_store import Params, PrivateStore, dump, read, round_of

if TYPE_CHECKING:
    from torch import Tensor

ADVICE = "restore it, or start a new run with another --out"


@dataclass(frozen=True)
class Committed:
    """The last committed round: its number, the shared tensors and the server's memory."""

    round_index: int
    shared: Params
    memory: Params


class RunFolder:
    """A run on disk. Use it as a context manager while writing: an error then sets the status."""

    def __init__(self, path: Path, config: RunConfig, manifest: dict[str, Any]) -> None:
        self.path = path
        self.config = config
        self.manifest = manifest
        self.log = logging.Logger("focoop.run", logging.INFO)  # silent until `run_log` opens a file
        self._lock = Lock(path / LOCK)
        self._writable = False
        self.note = ""  # what a person should know of a run that was lengthened
        self.private = PrivateStore(path / CLIENTS, self.last_round())

    @classmethod
    def create(cls, path: Path | str, config: RunConfig, manifest: Mapping[str, Any]) -> Self:
        """Make a new run in an absent or empty folder, open for writing.

        Args:
            path: The run folder.
            config: The run's configuration.
            manifest: What is known of the run's origin.

        Returns:
            The run.

        Raises:
            RunError: The folder is not empty, or cannot be written.
        """
        path = Path(path)
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file: choose another folder with --out")
        # A run killed while it was being created leaves a manifest without a configuration; the log
        # of a run that never began stays.
        own = {LOCK, LOG, MANIFEST, MANIFEST + DRAFT, CONFIG + DRAFT}
        if path.is_dir() and {entry.name for entry in path.iterdir()} - own:
            what = "already holds a run" if (path / CONFIG).exists() else "is not empty"
            raise RunError(f"{path} {what}: choose another folder with --out, or remove it")
        folder = cls(path, config, {KEY: here(path), **manifest})
        with folder._writing():
            folder._write_manifest()
            write(path / CONFIG, to_toml(config).encode())
        return folder

    @classmethod
    def open(cls, path: Path | str, *, writable: bool = False) -> Self:
        """Open a run that exists.

        Args:
            path: The run folder.
            writable: Resume the run: what was not committed is undone.

        Returns:
            The run.
        """
        path = Path(path)
        folder = cls(path, read_config(path), read_manifest(path))
        if writable:
            with folder._writing():
                folder._roll_back()
        return folder

    @property
    def status(self) -> str:
        """Return `finished`, `failed`, `interrupted`, `running` or, of a dead process, `killed`."""
        status = str(self.manifest.get("status", "running"))
        return (
            "killed" if status == "running" and not self._writable and self._lock.free else status
        )

    @property
    def base(self) -> Path:
        """Return the folder that relative paths of the configuration mean."""
        return base(self.path, self.manifest)

    @property
    def names(self) -> Names | None:
        """Return classes, clients and words.

        None in a folder of an earlier focoop, which has none.
        """
        return read_names(self.path / NAMES)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the class names, in the order of the labels."""
        return self._named().classes

    @property
    def client_names(self) -> tuple[str, ...]:
        """Return the names of the clients, in the order of their numbers."""
        return tuple(client.name for client in self._named().clients)

    @property
    def negative_words(self) -> tuple[str, ...]:
        """Return the mined words of the OOD prompts; empty for methods that use none."""
        return self._named().words

    def _named(self) -> Names:
        names = self.names
        if names is None:
            raise RunError(
                f"{self.path} has no {NAMES}: an earlier focoop made it; run it again to have one"
            )
        return names

    def last_round(self) -> int:
        """Return the committed round, or -1 where nothing is committed."""
        path = self.path / STATE
        return round_of(path) if path.is_file() else -1

    def resume_point(self) -> Committed | None:
        """Return the state to go on from, or None at the very start."""
        path = self.path / STATE
        if not path.is_file():
            return None
        tensors, metadata = read(path)
        return Committed(
            int(metadata["round"]),
            {n.removeprefix("shared/"): t for n, t in tensors.items() if n.startswith("shared/")},
            {n.removeprefix("memory/"): t for n, t in tensors.items() if n.startswith("memory/")},
        )

    def commit(
        self,
        round_index: int,
        shared: Mapping[str, Tensor],
        metrics: Mapping[str, Any] | None = None,
        traffic: Mapping[str, Any] | None = None,
        memory: Mapping[str, Tensor] | None = None,
    ) -> None:
        """End a round: after this it is never repeated, before this it never happened.

        Args:
            round_index: The round's number.
            shared: The shared tensors after it.
            metrics: The round's line in `metrics.jsonl`; None: it was not evaluated.
            traffic: Bytes and times, for the manifest.
            memory: The server's memory.

        Raises:
            RunError: The round is not the next one, or it cannot be written.
        """
        self._require_writable()
        if round_index <= self.last_round():
            raise RunError(f"round {round_index} of {self.path} is committed already")
        if metrics is not None:
            line = json.dumps(plain({"round": round_index, **metrics}), allow_nan=False)
            append(self.path / METRICS, line.encode() + b"\n")
        if traffic is not None:
            rounds = self.manifest.setdefault("rounds", [])
            rounds.append(plain({"round": round_index, **traffic}))
        self.manifest["updated"] = now()
        self._write_manifest()
        tensors = {f"shared/{name}": tensor for name, tensor in shared.items()}
        tensors |= {f"memory/{name}": tensor for name, tensor in (memory or {}).items()}
        write(self.path / STATE, dump(tensors, {"round": str(round_index)}))
        self.private.settle(round_index)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of every committed evaluated round, in order."""
        return [line for line, _ in self._committed_lines()]

    def pin(self, key: str, value: Any) -> None:
        """Note a fact the results depend on, or refuse to go on where it has changed.

        Args:
            key: Its name in the manifest.
            value: What it is now.
        """
        self.agree(key, value)
        if key not in self.manifest:
            self._require_writable()
            self.manifest[key] = plain(value)
            self._write_manifest()

    def agree(self, key: str, value: Any, hint: str = "") -> None:
        """Refuse a fact that is not the one noted; one that was never noted is accepted.

        Args:
            key: Its name in the manifest.
            value: What it is now.
            hint: What else the user may do about it.

        Raises:
            RunError: The fact has changed.
        """
        value = plain(value)
        noted = self.manifest.get(key, value)
        if noted == value:
            return
        difference = changed(noted, value)
        raise RunError(
            f"{key} is not what {self.path} was started with ({difference}): {ADVICE}{hint}"
        )

    def keep_names(self, names: Names) -> None:
        """Write the names of a run that has none yet; refuse names that have changed.

        Args:
            names: Classes, clients and words.
        """
        self.agree_names(names)
        if self.names is None:
            self._require_writable()
            write(self.path / NAMES, names.to_json().encode())

    def agree_names(
        self, names: Names, *, of: tuple[str, ...] = ("train", "test"), hint: str = ""
    ) -> None:
        """Refuse data that is named or divided otherwise than the run's, and say how.

        Args:
            names: The names of the data as it is found.
            of: The images whose counts are compared; `("test",)` without training images.
            hint: What else the user may do where nothing but training images differ.

        Raises:
            RunError: The data is not the run's.
        """
        known = self.names
        lines = [] if known is None else known.differences(names, of=of)
        if known is not None and lines:
            hint = "" if known.differences(names, of=("test",)) else hint
            raise RunError(
                f"the data is not what {self.path} was started with (then -> now):{listed(lines)}\n"
                f"{ADVICE}{hint}"
            )

    def remember(self, **facts: Any) -> None:
        """Put facts into the manifest, over those of the same name.

        Args:
            **facts: The facts by name.
        """
        self._require_writable()
        self.manifest |= plain(facts)
        self._write_manifest()

    def drop_metrics(self, round_index: int) -> None:
        """Remove a round's line of metrics.

        Args:
            round_index: The round's number.
        """
        self._require_writable()
        lines = [raw for line, raw in self._committed_lines() if line["round"] != round_index]
        write(self.path / METRICS, b"".join(raw + b"\n" for raw in lines))

    def replace_config(self, config: RunConfig) -> None:
        """Give the run another configuration.

        Args:
            config: The configuration.
        """
        self._require_writable()
        write(self.path / CONFIG, to_toml(config).encode())
        self.config = config

    def finish(self, status: str, **notes: Any) -> None:
        """Set the final status, add notes to the manifest and release the folder.

        Args:
            status: `finished`, `failed` or `interrupted`.
            **notes: Notes by name.
        """
        self._require_writable()
        self.manifest |= {"status": status, "ended": now(), **plain(notes)}
        try:
            self._write_manifest()
        finally:
            self.close()

    def close(self) -> None:
        """Release the folder; the status stays."""
        self._writable = False
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._writable:
            return
        ended_early = kind is None or issubclass(kind, KeyboardInterrupt | SystemExit)
        # The error under way matters more than a disk too full to note it.
        with contextlib.suppress(RunError):
            self.finish("interrupted" if ended_early else "failed", reason=str(error or ""))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Take the lock and keep it, unless the block fails."""
        self._lock.take()
        self._writable = True
        self.private.limit = None
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _require_writable(self) -> None:
        if not self._writable:
            raise RunError(f"{self.path} is open for reading only")

    def _roll_back(self) -> None:
        last = self.last_round()
        if (self.path / METRICS).exists():
            write(self.path / METRICS, b"".join(raw + b"\n" for _, raw in self._committed_lines()))
        self.private.settle(last)
        rounds = self.manifest.get("rounds", [])
        self.manifest["rounds"] = [entry for entry in rounds if entry["round"] <= last]
        resumed = self.manifest.setdefault("resumed", [])
        resumed.append({"round": last, "time": now(), "code": code()})
        self.manifest["status"] = "running"
        self._write_manifest()

    def _write_manifest(self) -> None:
        write(self.path / MANIFEST, json.dumps(self.manifest, indent=1).encode() + b"\n")

    def _committed_lines(self) -> list[tuple[dict[str, Any], bytes]]:
        return metric_lines(self.path / METRICS, self.last_round())
