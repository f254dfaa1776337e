"""One run on disk: opened, committed round by round, and checked against its data."""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from focoop.caching import checksum, sealed
from focoop.config import RunConfig, to_toml
from focoop.errors import RunError
from focoop.runs.convert import converted
from focoop.runs.durable import DRAFT, Lock, append, keep_copy, locked, remove, write
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
    metric_lines,
    read_config,
    read_manifest,
)
from focoop.runs.ledger import Ledger, Sums, Version
from focoop.runs.manifest import code, now, plain
from focoop.runs.names import Names, changed, listed, read_names, run_name
from focoop.runs.places import KEY, base, here
from focoop.runs.private_store import Params, PrivateStore, Vanished, dump, parse
from focoop.runs.snapshot import (
    ATTEMPTS,
    Snapshot,
    advice,
    look,
    moved_on,
    round_before,
    state_bytes,
)

if TYPE_CHECKING:
    from torch import Tensor

ADVICE = "restore it, or start a new run with another --out"
LOOK_AGAIN = "the run has moved on, or the file was removed; open the run again, or restore it"
KEPT_ROUNDS = 2  # whose private files are there: the last, and the one before for `--round-before`


@dataclass(frozen=True)
class Committed:
    """The last committed round: its number, the shared tensors and the server's memory."""

    round_index: int
    shared: Params
    memory: Params


class RunFolder:
    """A run on disk. Use it as a context manager while writing: an error then sets the status.

    A folder that is open for reading shows one round, the last that was committed when it was
    opened; open it again to see later ones.
    """

    def __init__(self, path: Path, config: RunConfig, manifest: dict[str, Any]) -> None:
        self.path = path
        self.config = config
        self.manifest = manifest
        self.log = logging.Logger("focoop.run", logging.INFO)  # silent until `run_log` opens a file
        self._lock = Lock(path / LOCK)
        self._writable = False
        self.note = ""  # what a person should know of a run that was lengthened
        self._seen = Snapshot(-1, Ledger(path, self._name))
        self.private = PrivateStore(path / CLIENTS, -1, {})

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
        folder = cls(path, config, {KEY: here(path), **manifest, **own_facts})
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
        found = read_names(self.path / NAMES, self.manifest)
        if found is None and NAMES in self.manifest.get(SUMS, {}) and self.last_round() >= 0:
            raise RunError(f"{self.path / NAMES} is gone: {RESTORE}")
        return found

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
        return self._seen.last

    def resume_point(self) -> Committed | None:
        """Return the state to go on from, or None at the very start.

        Raises:
            RunError: The state is damaged.
        """
        for _ in range(ATTEMPTS):
            raw = state_bytes(self.path)
            if raw is None and self._seen.last < 0:
                return None
            if raw is not None and checksum(raw) == self._seen.sum:
                return _committed(self.path, raw)
            self._look()  # of a run that has moved on; a damaged state is told here
        raise moved_on(self.path)

    def snapshot(self) -> tuple[Committed | None, PrivateStore]:
        """Return the state and the private tensors of one round.

        Of a run that trains meanwhile the private tensors are held in memory, since it removes its
        earlier files.

        Returns:
            The state, or None at the very start, and the clients' private tensors.

        Raises:
            RunError: A file is damaged, or the run moves on too quickly to be read.
        """
        for _ in range(ATTEMPTS):
            point = self.resume_point()
            if self._writable or self._lock.free:
                return point, self.private
            try:
                return point, self.private.held()
            except Vanished:
                seen = self._seen.sum
                self._look()
                if seen == self._seen.sum:
                    raise
        raise moved_on(self.path)

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
        ledger.add(round_index, {**facts, "time": now()}, sums)
        if self.last_round() >= 0:
            keep_copy(self.path / STATE, self.path / BEFORE)
        write(self.path / STATE, state)
        self._seen = Snapshot(round_index, ledger, sums.state)
        self.manifest.setdefault("rounds", []).append({"round": round_index, **facts})
        self.private.settle(round_index, KEPT_ROUNDS)

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of every committed evaluated round, in order.

        Raises:
            RunError: A line is damaged or lost.
        """
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
            self.keep_file(NAMES, names.to_json().encode())

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

    @property
    def _name(self) -> str:
        """What the run is known by in its checksums; empty in a folder of an earlier focoop."""
        return str(self.manifest.get("run", "")) if self.manifest.get("format") != 1 else ""

    def _look(self) -> None:
        """See what is committed now."""
        self._seen = look(self.path, self._name)
        last, ledger, root = self._seen.last, self._seen.ledger, self.path / CLIENTS
        if self._name:
            self.manifest["rounds"] = ledger.facts()
            known = {client: [version] for client, version in ledger.versions(last).items()}
            self.private = PrivateStore(root, last, known, advice=LOOK_AGAIN)
        else:
            listed_files = PrivateStore(root, last).listed()
            self.private = PrivateStore(root, last, listed_files, advice=LOOK_AGAIN)

    def _roll_back(self) -> None:
        """Undo what was not committed, and check all that the run goes on from."""
        self._look()
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
        resumed = self.manifest.setdefault("resumed", [])
        resumed.append({"round": last, "time": now(), "code": code()})
        self.manifest["status"] = "running"
        self._write_manifest()

    def _go_back(self) -> None:
        """Put the state of the round before in the place of the last one."""
        found = round_before(self.path, self._name)
        if found is None:
            raise RunError(
                f"{self.path} has no round before the last one that is whole: {RESTORE}"
            )
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

    def _committed_lines(self) -> list[tuple[dict[str, Any], bytes]]:
        path, last = self.path / METRICS, self.last_round()
        lines = metric_lines(path, last)
        if not self._name:
            finished = self.manifest.get("status") == "finished"
            if finished and lines and lines[-1][0]["round"] != last:
                raise RunError(f"{path} has lost the line of round {last}, the last: {RESTORE}")
            return lines
        entries = self._seen.ledger.entries
        expected = {entry["round"]: Sums.of(entry).metrics for entry in entries}
        dropped = {entry["round"] for entry in entries if entry.get("dropped")}
        lines = [pair for pair in lines if pair[0]["round"] not in dropped]
        found = {line["round"]: checksum(raw) for line, raw in lines}
        for index, digest in expected.items():
            if digest and index not in found:
                raise RunError(f"{path} has lost the line of round {index}: {self._mend(index)}")
            if found.get(index, "") != digest:
                raise RunError(
                    f"{path} is damaged (round {index}: the checksum differs); {self._mend(index)}"
                )
        if len(lines) != len(found) or set(found) - set(expected):
            raise RunError(f"{path} is damaged: it has lines that the run did not write; {RESTORE}")
        return lines

    def _mend(self, round_index: int) -> str:
        """What to do about a lost line of metrics."""
        if round_index == self.last_round():
            return advice(self.path, self._name)
        return f"{RESTORE}; its last state is whole: focoop evaluate {self.path}"


def _committed(run: Path, raw: bytes) -> Committed:
    tensors, metadata = parse(run / STATE, raw)
    return Committed(
        int(metadata["round"]),
        {n.removeprefix("shared/"): t for n, t in tensors.items() if n.startswith("shared/")},
        {n.removeprefix("memory/"): t for n, t in tensors.items() if n.startswith("memory/")},
    )


def _round_of(version: Version) -> int:
    return version.round_index
