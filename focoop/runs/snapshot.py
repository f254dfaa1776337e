"""Read what a run has committed as of one round, also while another process trains it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from focoop.caching import checksum
from focoop.errors import RunError
from focoop.runs.files import BEFORE, CLIENTS, RESTORE, STATE
from focoop.runs.ledger import DamagedLedger, Ledger, Sums
from focoop.runs.private_store import PrivateStore, texts

ATTEMPTS = 8  # readings of a run that goes on meanwhile


@dataclass(frozen=True)
class Snapshot:
    """What is committed.

    Attributes:
        last: the committed round; -1: none.
        ledger: the rounds up to it; empty in folders of an earlier focoop.
        sum: checksum of the state; empty where there is none.
    """

    last: int
    ledger: Ledger
    sum: str = ""


def look(run: Path, name: str) -> Snapshot:
    """Read how far a run is, and check its state and its rounds.

    Args:
        run: The run folder.
        name: What the run is known by; empty in folders of an earlier focoop, which have no
            checksums.

    Returns:
        What is committed.

    Raises:
        RunError: The state or a round's line is not the one that was written; where the round
            before is whole, the message says how to go on from it.
    """
    for _ in range(ATTEMPTS):
        raw = state_bytes(run)
        if raw is None:
            return _uncommitted(run, name)
        problem = ""
        try:
            last = round_in(raw)
            ledger = _rounds(run, name, last) if name else Ledger(run, "")
        except ValueError as error:
            problem = f"{run / STATE} is damaged ({error})"
        except DamagedLedger as error:
            problem = str(error)
        else:
            if not name:
                return Snapshot(last, ledger, checksum(raw))
            if not ledger.entries or ledger.entries[-1]["round"] != last:
                problem = f"{ledger.path} or {run / STATE} is damaged: round {last} has no line"
            elif Sums.of(ledger.entries[-1]).state != checksum(raw):
                problem = f"{run / STATE} is damaged: its checksum differs"
            else:
                return Snapshot(last, ledger, checksum(raw))
        if state_bytes(run) == raw:
            raise RunError(f"{problem}; {advice(run, name)}")
    raise moved_on(run)


def _uncommitted(run: Path, name: str) -> Snapshot:
    """Nothing is committed: a run without a state has no line, or one that waits for its state."""
    if name and state_bytes(run) is None:
        ledger = Ledger.read(run, name)
        if len(ledger.entries) > 1 or (run / BEFORE).exists():
            raise RunError(f"{run / STATE} is gone: {advice(run, name)}")
    return Snapshot(-1, Ledger(run, name))


def moved_on(run: Path) -> RunError:
    """Make the error for a run that commits rounds more quickly than they can be read.

    Args:
        run: The run folder.

    Returns:
        The error, to be raised.
    """
    return RunError(
        f"{run} moved on from round to round while it was read, {ATTEMPTS} times: wait until the "
        "run ends, or read a copy of the folder"
    )


def state_bytes(run: Path, file: str = STATE) -> bytes | None:
    """Read the state of a run.

    Args:
        run: The run folder.
        file: The name of the file.

    Returns:
        Its bytes; None where nothing is committed.

    Raises:
        RunError: It cannot be read.
    """
    try:
        return (run / file).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"cannot read {run / file}: {error}") from error


def round_in(raw: bytes) -> int:
    """Return the round noted in a state.

    Args:
        raw: The bytes of the file.

    Returns:
        The round's number.

    Raises:
        ValueError: They are no state.
    """
    noted = texts(raw).get("round", "")
    if not noted.isdecimal():
        raise ValueError("it names no round")
    return int(noted)


def round_before(run: Path, name: str) -> tuple[int, bytes] | None:
    """Find the round before the last one, where all of its files are whole.

    Args:
        run: The run folder.
        name: What the run is known by.

    Returns:
        Its number and its state; None where a file of it is missing or damaged.
    """
    raw = state_bytes(run, BEFORE) if name else None
    if raw is None:
        return None
    try:
        before = round_in(raw)
        ledger = _rounds(run, name, before)
        private = ledger.versions(before)
        PrivateStore(run / CLIENTS, before, {c: [v] for c, v in private.items()}).verify()
    except (RunError, ValueError):
        return None
    whole = ledger.entries and ledger.entries[-1]["round"] == before
    if not whole or Sums.of(ledger.entries[-1]).state != checksum(raw):
        return None
    now = state_bytes(run)
    return None if now is not None and checksum(now) == checksum(raw) else (before, raw)


def advice(run: Path, name: str) -> str:
    """Say what to do about a run whose last round is damaged.

    Args:
        run: The run folder.
        name: What the run is known by.

    Returns:
        The end of a message.
    """
    found = round_before(run, name)
    if found is None:
        return RESTORE
    return (
        f"round {found[0]} is whole: go on from it with --resume --round-before, which ends with "
        "the same bits"
    )


def _rounds(run: Path, name: str, last: int) -> Ledger:
    """The lines up to a round; what is damaged behind them was never committed."""
    try:
        return Ledger.read(run, name, up_to=last)
    except DamagedLedger as error:
        if error.whole.entries and error.whole.entries[-1]["round"] == last:
            return error.whole
        raise
