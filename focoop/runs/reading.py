"""What is committed of a run: its state, private tensors, metrics and names, checked as read."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from focoop.caching import checksum
from focoop.config import RunConfig
from focoop.errors import RunError
from focoop.runs.durable import Lock
from focoop.runs.files import (
    CLIENTS,
    LOCK,
    METRICS,
    NAMES,
    RESTORE,
    ROUNDS,
    SLIM,
    STATE,
    SUMS,
    metric_lines,
    raw_lines,
    round_of_line,
)
from focoop.runs.ledger import Ledger, Sums
from focoop.runs.manifest import plain
from focoop.runs.names import Names, changed, listed, read_names
from focoop.runs.places import base
from focoop.runs.private_store import Params, PrivateStore, Vanished, parse
from focoop.runs.snapshot import ATTEMPTS, Snapshot, advice, look, moved_on, state_bytes

ADVICE = "restore it, or start a new run with another --out"
LOOK_AGAIN = "the run has moved on, or the file was removed; open the run again, or restore it"
REVISION = "method_revision"  # key of the manifest
GO_BACK = "restore it from a copy, or go on from the round before with --resume --round-before"


@dataclass(frozen=True)
class Committed:
    """The last committed round: its number, the shared tensors and the server's memory."""

    round_index: int
    shared: Params
    memory: Params


class RunReader:
    """A run on disk: what is committed at the moment of a call.

    Every call reads files of one round. A run that trains meanwhile may be a round further at the
    next call; `snapshot` gives all tensors of one round.

    The clients' private tensors are `private`; `log` is silent until `run_log` opens a file.

    Args:
        path: the run folder.
        config: its configuration.
        manifest: its origin, status, and under `rounds` what is known of each round; not while it
            is open for writing.
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
        self._stamp: tuple[int, ...] | None = None  # of the state when it was looked at
        self.private = PrivateStore(path / CLIENTS, -1, {})

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

    def look_for_weights(self, weights: str | Path | None) -> Self:
        """Take the backbone's weights from elsewhere, for this reader alone.

        Args:
            weights: Their file or folder; None: where the run has them.

        Returns:
            The run itself; weights of another fingerprint are refused when they are loaded.
        """
        if weights is not None:
            there = replace(self.config.backbone, weights=str(Path(weights).absolute()))
            self.config = replace(self.config, backbone=there)
        return self

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what the run told when it began, such as what it leaves out."""
        return tuple(self.manifest.get("notes", ()))

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
        if not self._writable and self._stamp != _stamp(self.path):
            self._look()
        return self._seen.last

    def models_sum(self) -> str:
        """Return a checksum of the tensors of all models of the last committed round.

        A file that was computed from these models holds this checksum, so that it is not used with
        the models of another run or round. Equal runs have the same one.
        """
        self.last_round()
        private = sorted(self._seen.ledger.versions().items())
        made = [f"{client} {version.sum}" for client, version in private]
        return checksum(self._name, self._seen.sum, *made)

    def resume_point(self) -> Committed | None:
        """Return the state to go on from.

        Returns:
            The state, or None at the very start.

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

    def require_models(self) -> None:
        """Refuse a copy that was packed without its models.

        Raises:
            RunError: It has no tensors of models.
        """
        if self.manifest.get(SLIM):
            raise RunError(
                f"{self.path} is a copy without models, for tables and reports: name the folder "
                "that it was packed from"
            )

    def snapshot(self) -> tuple[Committed | None, PrivateStore]:
        """Return the state and the private tensors of one round.

        Of a run that trains meanwhile the private tensors are held in memory, since it removes its
        earlier files.

        Returns:
            The state, or None at the very start, and the clients' private tensors.

        Raises:
            RunError: A file is damaged, or the run moves on too quickly to be read.
        """
        self.require_models()
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

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of every committed evaluated round, in order.

        Returns:
            A line per round.

        Raises:
            RunError: A line is damaged or lost.
        """
        return [line for line, _ in self._committed_lines()]

    def committed_rounds(self) -> list[dict[str, Any]]:
        """Return what is known of each committed round, also while the run is written.

        Returns:
            A table per round: participants, bytes, seconds, loss, and its `time` as ISO 8601 in
            UTC; folders of an earlier focoop know less.
        """
        if not self._name:
            return list(self.manifest.get("rounds", []))
        entries = self._seen.ledger.entries
        return [{k: v for k, v in one.items() if k not in ("sums", "sum")} for one in entries]

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

    def agree_revision(self, method: str, revision: int) -> None:
        """Refuse a run whose tensors its method would read otherwise by now.

        Args:
            method: The method's name.
            revision: `Method.revision` as it is now. A run that noted none was made by the first.

        Raises:
            RunError: The run was made by another revision.
        """
        noted = self.manifest.get(REVISION, 1 if self.last_round() >= 0 else revision)
        if noted != revision:
            raise RunError(
                f"{self.path} was made by revision {noted} of the method {method}, and this focoop "
                f"has revision {revision}, which computes something else from the same tensors: "
                f"run it again with another --out, or use the focoop that made it"
            )

    def agree_tensors(self, shared: Params, first: Params) -> None:
        """Refuse to go on with tensors that a method would not begin with by now.

        Args:
            shared: The shared tensors of the last round.
            first: Those that a new run begins with.

        Raises:
            RunError: Others than these, or of another shape.
        """
        noted, wanted = ({n: tuple(v.shape) for n, v in one.items()} for one in (shared, first))
        if noted != wanted:
            differ = ", ".join(sorted({n for n, _ in noted.items() ^ wanted.items()}))
            raise RunError(
                f"{self.path} was begun by a focoop whose clients send other tensors ({differ}): "
                "run it again with another --out, or go on with the focoop that began it"
            )

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

    @property
    def _name(self) -> str:
        """What the run is known by in its checksums; empty in a folder of an earlier focoop."""
        return str(self.manifest.get("run", "")) if self.manifest.get("format") != 1 else ""

    def _look(self) -> None:
        """See what is committed now."""
        self._stamp = _stamp(self.path)
        self._seen = look(self.path, self._name)
        finished = self.manifest.get("status") == "finished"
        if self._name and finished and self._seen.last < 0 and (self.path / ROUNDS).exists():
            raise RunError(f"{self.path / STATE} is gone: {RESTORE}")
        last, ledger, root = self._seen.last, self._seen.ledger, self.path / CLIENTS
        if self._name:
            self.manifest["rounds"] = ledger.facts()
            if ledger.entries and "time" in ledger.entries[-1]:
                self.manifest["updated"] = ledger.entries[-1]["time"]
            known = {client: [version] for client, version in ledger.versions(last).items()}
            self.private = PrivateStore(root, last, known, advice=GO_BACK, gone=LOOK_AGAIN)
        else:
            listed_files = PrivateStore(root, last).listed()
            self.private = PrivateStore(root, last, listed_files, advice=LOOK_AGAIN)

    def _committed_lines(self) -> list[tuple[dict[str, Any], bytes]]:
        path, last = self.path / METRICS, self.last_round()
        if not self._name:
            return metric_lines(path, last, self.manifest)
        return self._written_lines(path)

    def _written_lines(self, path: Path) -> list[tuple[dict[str, Any], bytes]]:
        """The lines that the ledger names, each as it was written."""
        last, entries = self._seen.last, self._seen.ledger.entries
        there = {checksum(raw): raw for raw in raw_lines(path)}
        lines = []
        for entry in entries:
            digest, index = Sums.of(entry).metrics, entry["round"]
            if digest and digest not in there:
                raise RunError(
                    f"{path} is damaged: it has lost the line of round {index}, or the line's "
                    f"checksum differs; {self._mend(index)}"
                )
            if digest:
                raw = there.pop(digest)
                lines.append((json.loads(raw), raw))
        dropped = {entry["round"] for entry in entries if entry.get("dropped")}
        for raw in there.values():  # of a round that is not committed, or of one that was dropped
            index = round_of_line(raw)
            if index is None or (index <= last and index not in dropped):
                raise RunError(
                    f"{path} is damaged: it has a line that the run did not write; {RESTORE}"
                )
        return lines

    def _mend(self, round_index: int) -> str:
        """What to do about a lost line of metrics."""
        if round_index == self._seen.last:
            return advice(self.path, self._name)
        return f"{RESTORE}; its last state is whole: focoop evaluate {self.path}"


def _committed(run: Path, raw: bytes) -> Committed:
    tensors, metadata = parse(run / STATE, raw)
    return Committed(
        int(metadata["round"]),
        {n.removeprefix("shared/"): t for n, t in tensors.items() if n.startswith("shared/")},
        {n.removeprefix("memory/"): t for n, t in tensors.items() if n.startswith("memory/")},
    )


def _stamp(run: Path) -> tuple[int, ...] | None:
    """What changes when a round is committed; None where nothing is."""
    try:
        status = (run / STATE).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size
