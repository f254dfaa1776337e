"""One run on disk: made, opened, and committed round by round."""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from focoop.caching import checksum, sealed
from focoop.config import RunConfig, to_toml
from focoop.errors import RunError
from focoop.runs.convert import converted
from focoop.runs.durable import DRAFT, append, keep_copy, locked, remove, write
from focoop.runs.files import (
    BEFORE,
    CLIENTS,
    CONFIG,
    FORMAT,
    LOCK,
    LOG,
    MANIFEST,
    METRICS,
    NAMES,
    RESTORE,
    STATE,
    SUMS,
    read_config,
    read_manifest,
)
from focoop.runs.ledger import Sums, Version
from focoop.runs.manifest import code, now, plain
from focoop.runs.names import Names, run_name
from focoop.runs.places import KEY, current_folder
from focoop.runs.private_store import PrivateStore, dump
from focoop.runs.reading import REVISION, Committed, RunReader
from focoop.runs.snapshot import Snapshot, advice, round_before

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Committed", "RunFolder"]

KEPT_ROUNDS = 2  # whose private files are there: the last, and the one before for `--round-before`


class RunFolder(RunReader):
    """A run on disk. Use it as a context manager while writing: an error then sets the status."""

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
        own_facts = {"format": FORMAT, "run": run_name(config)}
        folder = cls(path, config, {KEY: current_folder(path), **manifest, **own_facts})
        with folder._writing():
            if (path / CONFIG).exists():  # another process was quicker
                raise RunError(f"{path} already holds a run: choose another folder with --out")
            folder.keep_file(CONFIG, to_toml(config).encode())
        return folder

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        writable: bool = False,
        from_round_before: bool = False,
        convert: bool = True,
    ) -> Self:
        """Open a run that exists.

        Args:
            path: The run folder.
            writable: Resume the run: what was not committed is undone.
            from_round_before: Undo the last committed round too.
            convert: Give a folder of an earlier focoop its checksums, where it can be written.

        Returns:
            The run.

        Raises:
            RunError: The folder is no run, or a file of it is damaged.
        """
        path = Path(path)
        folder = cls(path, read_config(path), read_manifest(path))
        if writable:
            folder.require_models()
            with folder._writing():
                if from_round_before:
                    folder._go_back()
                if not folder._name:
                    folder._convert()
                folder._roll_back()
        elif folder._name or not convert:
            folder._look()
        else:
            folder._gain_sums()
        return folder

    def commit(
        self,
        round_index: int,
        shared: Mapping[str, Tensor],
        metrics: Mapping[str, Any] | None = None,
        traffic: Mapping[str, Any] | None = None,
        memory: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Commit a round; a run that is stopped after this call goes on with the next round.

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
        self.private.sync()
        line = b""
        if metrics is not None:
            values = plain({"round": round_index, **metrics})
            line = json.dumps(values, allow_nan=False).encode()
            append(self.path / METRICS, line + b"\n")
        tensors = {f"shared/{name}": tensor for name, tensor in shared.items()}
        tensors |= {f"memory/{name}": tensor for name, tensor in (memory or {}).items()}
        state = dump(tensors, {"round": str(round_index)})
        ledger, facts = self._seen.ledger, plain(traffic or {})
        sums = Sums(
            checksum(state), checksum(line) if line else "", self.private.made_in(round_index)
        )
        self.manifest["updated"] = now()
        ledger.add(round_index, {**facts, "time": self.manifest["updated"]}, sums)
        if self.last_round() >= 0:
            keep_copy(self.path / STATE, self.path / BEFORE)
        write(self.path / STATE, state)
        self._seen = Snapshot(round_index, ledger, sums.state)
        self.private.settle(round_index, KEPT_ROUNDS)

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

    def pin_revision(self, method: str, revision: int) -> None:
        """Note which revision of its method makes this run, or refuse to go on with another.

        Args:
            method: The method's name.
            revision: `Method.revision`.
        """
        self.agree_revision(method, revision)
        self.pin(REVISION, revision)

    def keep_names(self, names: Names) -> None:
        """Write the names of a run that has none yet; refuse names that have changed.

        Args:
            names: Classes, clients and words.
        """
        self.agree_names(names)
        if self.names is None:
            self.keep_file(NAMES, names.to_json().encode())

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
        ledger = self._seen.ledger
        dropped = {"dropped": True}  # stopped before the line is gone, it is passed over
        ledger.rewrite(
            {**entry, **dropped, SUMS: replace(Sums.of(entry), metrics="").to_json()}
            if entry["round"] == round_index
            else entry
            for entry in ledger.entries
        )
        write(self.path / METRICS, b"".join(raw + b"\n" for raw in lines))

    def replace_config(self, config: RunConfig) -> None:
        """Give the run another configuration.

        Args:
            config: The configuration.
        """
        self.keep_file(CONFIG, to_toml(config).encode())
        self.config = config

    def keep_file(self, name: str, content: bytes) -> None:
        """Write a file of the run, with its checksum in the manifest.

        Args:
            name: Its name in the folder.
            content: All of its bytes.
        """
        self._require_writable()
        sums = self.manifest.setdefault(SUMS, {})
        digest = checksum(content)
        there = [*sums.get(name, []), digest] if (self.path / name).exists() else [digest]
        sums[name] = there  # until the new file is in place, the old one counts too
        self._write_manifest()
        write(self.path / name, content)
        if there != [digest]:
            sums[name] = [digest]
            self._write_manifest()

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
        """Release the folder, keep its status, and put the facts of all rounds into `manifest`."""
        if self._writable and self._name:
            with contextlib.suppress(RunError):  # whoever opens the run is told
                self.manifest["rounds"] = self._seen.ledger.facts()
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
        """Undo what was not committed, and check all that the run goes on from."""
        self._look()
        _ = self.names  # refused here where they are damaged
        last, ledger = self._seen.last, self._seen.ledger
        newest, earlier = ledger.versions(last), ledger.versions(last - 1)
        known = {c: sorted({v, earlier.get(c, v)}, key=_round_of) for c, v in newest.items()}
        self.private = PrivateStore(self.path / CLIENTS, None, known, advice=RESTORE)
        try:
            self.private.verify()
        except RunError as error:
            problem = str(error).removesuffix(RESTORE)
            raise RunError(problem + advice(self.path, self._name)) from error
        if (self.path / METRICS).exists():
            write(self.path / METRICS, b"".join(raw + b"\n" for _, raw in self._committed_lines()))
        self.private.sweep()
        for draft in self.path.glob(f"*{DRAFT}"):
            remove(draft)
        ledger.rewrite(ledger.entries)
        self.manifest.pop("rounds", None)  # a run that trains does not keep them in memory
        resumed = self.manifest.setdefault("resumed", [])
        resumed.append({"round": last, "time": now(), "code": code()})
        self.manifest["status"] = "running"
        self._write_manifest()

    def _go_back(self) -> None:
        """Put the state of the round before in the place of the last one."""
        found = round_before(self.path, self._name)
        if found is None:
            raise RunError(f"{self.path} has no round before the last one that is whole: {RESTORE}")
        write(self.path / STATE, found[1])

    def _convert(self) -> None:
        self.manifest = converted(self.path, self.config, self.manifest)
        self._write_manifest()

    def _gain_sums(self) -> None:
        """Give a folder of an earlier focoop its checksums, and say so."""
        said = "what it holds now was taken as right, and has checksums from now on"
        try:
            with locked(self.path / LOCK):
                self._convert()
        except (RunError, OSError) as error:
            said = f"it was read unchecked ({error})"
        self._look()
        warnings.warn(
            f"{self.path} has no checksums (an earlier focoop made it): {said}", stacklevel=4
        )

    def _write_manifest(self) -> None:
        kept = {key: value for key, value in self.manifest.items() if key != "rounds"}
        text = json.dumps(sealed(json.loads(json.dumps(kept))), indent=1)
        write(self.path / MANIFEST, text.encode() + b"\n")


def _round_of(version: Version) -> int:
    return version.round_index
