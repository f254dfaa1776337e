"""What happened in a federation, one JSON object a line, on the disk before the run goes on."""

import json
from collections.abc import Iterator
from logging import INFO, WARNING
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flwr.common.logger import log

from focoop.caching import SUM, is_intact, parse_json, sealed
from focoop.runs import append, now, plain

END = b', "sum": "'  # what precedes a line's checksum, near its end
LONGEST = 300  # characters of a reason
# Events that somebody may have to look into.
TROUBLE = (
    "refused",
    "left out",
    "held back",
    "contributes nothing",
    "asked again",
    "ignored",
    "failed",
    "damaged",
)


class Journal:
    """Appends events to a file, if there is one, and to Flower's log; a crash loses none."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.read_bytes().endswith(b"\n"):
                append(path, b"\n")  # a torn line stays one line

    def note(self, event: str, **facts: Any) -> None:
        """Write an event down.

        Args:
            event: What happened.
            **facts: Details; people look for `round`, `site` and `reason`.
        """
        facts = {
            key: printable(value) if type(value) is str else value for key, value in facts.items()
        }
        log(WARNING if event in TROUBLE else INFO, sentence({"event": event, **facts}))
        if self.path is not None:
            line = json.dumps(sealed(plain({"time": now(), "event": event, **facts})))
            append(self.path, line.encode() + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        how = "finished" if error is None else "stopped"  # Flower's processes stop by SystemExit
        if isinstance(error, Exception):
            how = str(error) or type(error).__name__
        self.note("ended", reason=how)


def printable(text: str) -> str:
    """Make what another party wrote fit for a terminal and a log.

    Args:
        text: The text.

    Returns:
        A bounded text of one line.

    >>> printable("a" + chr(27) + "[2Jb" + "c" * 1000)[:8]
    'a [2Jbcc'
    """
    plain_text = "".join(
        character if character.isprintable() else " " for character in text[: 2 * LONGEST]
    )
    return plain_text if len(plain_text) <= LONGEST else plain_text[:LONGEST] + "..."


class Tail:
    """Reads a journal as it grows: every call gives the whole lines that have come since."""

    def __init__(self, path: Path) -> None:
        self.path, self.place = path, 0

    def new(self) -> list[dict[str, Any]]:
        """Return events since the last call; all of them at the first."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self.place)
                raw = file.read()
        except FileNotFoundError:
            return []
        whole = raw[: raw.rfind(b"\n") + 1]
        self.place += len(whole)
        return list(parsed(whole))


def events(path: Path) -> Iterator[dict[str, Any]]:
    """Read all whole lines of a journal; none where there is no file yet.

    Args:
        path: The journal.

    Yields:
        Events.
    """
    if not path.is_file():
        return
    yield from parsed(path.read_bytes())


def parsed(content: bytes) -> Iterator[dict[str, Any]]:
    """Read the events of whole lines.

    Args:
        content: Bytes of a journal.

    Yields:
        Events.
    """
    for raw in content.split(b"\n")[:-1]:
        try:
            event = parse_json(raw)
        except ValueError:
            if not raw.endswith(b"}") and END not in raw:  # torn by a crash
                continue
            event = {SUM: ""}
        if isinstance(event, dict) and SUM in event and not is_intact(event):
            yield {"event": "damaged", "reason": "a line of the journal differs from its checksum"}
        elif isinstance(event, dict) and "event" in event:
            yield {key: value for key, value in event.items() if key != SUM}


# Steps of a round as the end of "asked 3 sites ...".
STEPS = {
    "train": "to train",
    "evaluate": "to evaluate",
    "query.sum_keys": "for keys of a secure sum",
    "query.sum_shares": "for shares of a secure sum",
    "query.sum_open": "to open a secure sum",
    "query.sketch": "for sketches of calibration scores",
    "query.keep": "to keep their models",
}
# Events whose names say too little.
WORDS = {
    "no sketch": "adds no scores to the pool that thresholds come from",
    "no model": "has not kept its model",
}
# Facts that are for programs, or part of a sentence of their own.
UNSAID = (
    "event",
    "round",
    "site",
    "reason",
    "time",
    "title",
    "method",
    "rounds",
    "after",
    "client",
    "private",
)


def sentence(event: dict[str, Any]) -> str:
    """Describe an event for people.

    Args:
        event: The event.

    Returns:
        A sentence.

    >>> sentence({"event": "left out", "round": 2, "site": "ghent", "reason": "its node is gone"})
    'round 2: ghent left out: its node is gone'
    >>> sentence({"event": "asked", "round": 1, "step": "train", "sites": ["ghent", "lille"]})
    'round 1: asked 2 sites to train'
    """
    place = f"round {event['round']}: " if "round" in event else ""
    site = f"{event['site']} " if "site" in event else ""
    if event["event"] == "asked" and "sites" in event:
        step = str(event.get("step"))
        return f"{place}asked {len(event['sites'])} sites {STEPS.get(step, step)}"
    if event["event"] == "committed":
        return place + committed(event)
    rest = ", ".join(f"{key} {value}" for key, value in event.items() if key not in UNSAID)
    parts = [str(event[key]) for key in ("reason",) if event.get(key)] + ([rest] if rest else [])
    what = WORDS.get(str(event["event"]), event["event"])
    return f"{place}{site}{what}" + "".join(f": {part}" for part in parts)


def committed(event: dict[str, Any]) -> str:
    """Describe what a round came to.

    Args:
        event: The event.

    Returns:
        A sentence.

    >>> committed({"accepted": ["ghent"], "accuracy": 0.91234, "epsilon": 2.5, "seconds": 12.3})
    'done: 1 updates, accuracy 91.2%, epsilon 2.50, 12.3 s'
    """
    parts = [f"{len(event['accepted'])} updates"] if "accepted" in event else []
    for key, form in (("accuracy", ".1%"), ("epsilon", ".2f")):
        if isinstance(event.get(key), int | float):
            parts.append(f"{key} {event[key]:{form}}")
    if isinstance(event.get("seconds"), int | float):
        parts.append(f"{event['seconds']:.1f} s")
    return "done" + (": " + ", ".join(parts) if parts else "")
