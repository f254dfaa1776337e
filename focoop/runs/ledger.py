"""Keep a run's rounds and the checksums of all its files in `rounds.jsonl`, one line per round.

A line holds what is known of a round (participants, bytes, seconds) and under `sums` the checksums
of the state, of the line of metrics and of each private file that the round made. It ends with its
own checksum, which covers the run's name and the line before it. So a changed, lost, added or
exchanged line is found, and with it every file that is not the one which was written.

A line is appended before its state is put in place: readers that read the state first find its
line, and leave out the lines of later rounds.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from focoop.caching import SUM_BYTES, checksum
from focoop.errors import RunError
from focoop.runs.durable import append, write
from focoop.runs.files import ROUNDS

END = ', "sum": "'  # what precedes a line's own checksum
DIGITS = 2 * SUM_BYTES
Entry = dict[str, Any]


@dataclass(frozen=True)
class Version:
    """A client's private file: the round that made it, and its checksum; empty: not known."""

    round_index: int
    sum: str = ""


@dataclass(frozen=True)
class Sums:
    """Checksums of what a round wrote.

    Attributes:
        state: of `state.safetensors`; empty: not known.
        metrics: of the round's line of metrics; empty: it has none.
        private: of the private files by client.
    """

    state: str = ""
    metrics: str = ""
    private: Mapping[int, str] = field(default_factory=dict)

    def to_json(self) -> Entry:
        """Return plain values; the checksums of many clients are one text, which reads quickly."""
        clients = sorted(self.private)
        return {
            "state": self.state,
            "metrics": self.metrics,
            "clients": clients,
            "private": "".join(self.private[client] for client in clients),
        }

    @classmethod
    def of(cls, entry: Entry) -> "Sums":
        """Read the checksums of a line.

        Args:
            entry: The line.

        Returns:
            Its checksums.
        """
        raw = entry["sums"]
        places = range(0, len(raw["private"]), DIGITS)
        digests = [raw["private"][place : place + DIGITS] for place in places]
        private = dict(zip(raw["clients"], digests, strict=True))
        return cls(raw["state"], raw["metrics"], private)


class Ledger:
    """The lines of a run's rounds: kept on the disk, and in memory only while somebody reads them.

    A line of a thousand participants takes about 100 KB of memory: a run that kept all of them
    would grow with every round.
    """

    def __init__(self, run: Path, name: str, entries: Sequence[Entry] = (), last: str = "") -> None:
        self.path = run / ROUNDS
        self.name = name
        self._entries: list[Entry] | None = list(
            entries
        )  # None: to be read when they are asked for
        self._last = last or checksum(name)  # checksum of the last line

    @property
    def entries(self) -> list[Entry]:
        """Return all lines, read from the disk where they are not in memory.

        Raises:
            RunError: A line is damaged.
        """
        if self._entries is None:
            self._entries = Ledger.read(self.path.parent, self.name).entries
        return self._entries

    @classmethod
    def read(cls, run: Path, name: str, up_to: int | None = None) -> "Ledger":
        """Read the whole lines of a run; a line that a crash has cut short is left out.

        Args:
            run: The run folder.
            name: What the run is known by.
            up_to: The last round to read; None: all.

        Returns:
            The lines.

        Raises:
            RunError: A line is damaged, or is not of this run.
        """
        ledger = cls(run, name)
        try:
            raw = ledger.path.read_bytes()
        except FileNotFoundError:
            return ledger
        except OSError as error:
            raise RunError(f"cannot read {ledger.path}: {error}") from error
        for number, line in enumerate(raw.split(b"\n")[:-1], start=1):
            entry = ledger.parsed(line)
            if entry is None:
                raise DamagedLedger(ledger, number)
            if up_to is not None and entry["round"] > up_to:
                break
            ledger.entries.append(entry)
            ledger._last = entry["sum"]
        return ledger

    def parsed(self, line: bytes) -> Entry | None:
        """Read the line that follows the last one, if its checksum says so.

        Args:
            line: Its bytes.

        Returns:
            Its values; None where the line was changed or does not follow the last one.
        """
        body, mark, _ = line.rpartition(END.encode())
        if line != self._closed(body) or not mark:
            return None
        entry: Entry = json.loads(line)
        return entry

    def add(self, round_index: int, facts: Mapping[str, Any], sums: Sums) -> None:
        """Append a round's line; it counts once the state of that round is in place.

        Args:
            round_index: The round's number.
            facts: What is known of the round, as plain values.
            sums: Checksums of its files.
        """
        line = self._line({"round": round_index, **facts, "sums": sums.to_json()})
        append(self.path, line + b"\n")
        self._entries, self._last = None, _sum_of(line)

    def rewrite(self, entries: Iterable[Entry]) -> None:
        """Replace all lines.

        Args:
            entries: The lines; each gets a new checksum.
        """
        raw, self._last = self.signed(entries)
        self._entries = None
        write(self.path, raw)

    def signed(self, entries: Iterable[Entry]) -> tuple[bytes, str]:
        """Write lines of this run as the bytes of a file, each with a new checksum.

        Args:
            entries: The lines.

        Returns:
            The file's bytes, and the checksum of the last line.
        """
        other = Ledger(self.path.parent, self.name)
        lines = []
        for entry in entries:
            lines.append(other._line({key: value for key, value in entry.items() if key != "sum"}))
            other._last = _sum_of(lines[-1])
        return b"".join(line + b"\n" for line in lines), other._last

    def versions(self, up_to: int | None = None) -> dict[int, Version]:
        """Return the private file of each client that has trained.

        Args:
            up_to: The last round that counts; None: the last one there is.

        Returns:
            Files by client.
        """
        found: dict[int, Version] = {}
        for entry in self.entries:
            if up_to is None or entry["round"] <= up_to:
                made = Sums.of(entry).private
                found |= {c: Version(entry["round"], digest) for c, digest in made.items()}
        return found

    def facts(self) -> list[Entry]:
        """Return what is known of each round, without checksums and times."""
        left_out = ("sums", "sum", "time", "dropped")
        return [{k: v for k, v in entry.items() if k not in left_out} for entry in self.entries]

    def _line(self, entry: Mapping[str, Any]) -> bytes:
        return self._closed(json.dumps(entry, allow_nan=False).encode()[:-1])

    def _closed(self, body: bytes) -> bytes:
        return body + f'{END}{checksum(self._last, body)}"}}'.encode()


def _sum_of(line: bytes) -> str:
    """A line's own checksum, with which it ends."""
    return line[-DIGITS - 2 : -2].decode()


class DamagedLedger(RunError):
    """A line of a run's rounds is not the one that was written.

    Args:
        whole: the lines before it, an attribute too.
        line: the line's number.
    """

    def __init__(self, whole: Ledger, line: int) -> None:
        self.whole = whole
        super().__init__(f"{whole.path}, line {line}, is damaged: its checksum differs")
