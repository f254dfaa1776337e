"""What the coordinator's people see: the journal of a federation, summed up as it grows."""

import threading
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from focoop import __version__
from focoop.flower.journal import TROUBLE, Tail, sentence
from focoop.runs import now

RECENT = 60  # events that are shown
# Event -> what a site is doing from then on.
DOING = {
    "connected": "starting",
    "joined": "waiting",
    "back": "waiting",
    "online": "waiting",
    "answered": "answered",
    "asked again": "asked again",
    "left out": "left out",
    "refused": "refused",
    "not needed": "not needed",
}
STEPS = {"train": "training", "evaluate": "evaluating"}
HERE = ("connected", "joined", "back", "online", "answered")
GONE = ("away", "offline")


@dataclass
class SiteRow:
    """One site: whether it is connected, what it does, and what became of its updates."""

    name: str
    connected: bool = False
    doing: str = "not here yet"
    reason: str = ""
    updates: int = 0
    left_out: int = 0
    refused: int = 0
    accuracy: float | None = None
    heard: str = ""


@dataclass
class Board:
    """A federation as its journal tells of it.

    `state` is one of waiting, running, finished, failed; `round` is under way, `committed` done.
    """

    title: str = ""
    method: str = ""
    rounds: int = 0
    state: str = "waiting"
    reason: str = ""
    round: int = 0
    committed: int = 0
    step: str = ""
    began: str = ""
    updated: str = ""
    accuracy: float | None = None
    loss: float | None = None
    private: bool = False
    epsilon: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float | None = None
    version: str = __version__
    sites: dict[str, SiteRow] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def take(self, event: dict[str, Any]) -> None:
        """Take in an event.

        Args:
            event: The event.
        """
        kind = str(event["event"])
        self.updated = str(event.get("time", self.updated))
        if kind != "answered":
            entry = {"time": event.get("time"), "text": sentence(event)}
            self.events.append({**entry, "trouble": kind in TROUBLE})
        if "round" in event:
            self.round = int(event["round"])
        if kind == "began":
            self._begin(event)
        elif kind == "asked":
            self._ask(event)
        elif kind == "committed":
            self._commit(event)
        elif kind == "ended":
            how = str(event.get("reason", ""))
            self.state = "finished" if how == "finished" else "failed"
            self.reason, self.step = ("" if how == "finished" else how), ""
        if event.get("site"):
            self._site(kind, event)

    def snapshot(self) -> dict[str, Any]:
        """Return everything as plain values, the newest event first."""
        snapshot = asdict(self)
        snapshot["sites"] = [asdict(self.sites[name]) for name in sorted(self.sites)]
        snapshot["events"] = list(self.events)[::-1]
        return {**snapshot, "now": now()}

    def row(self, name: str) -> SiteRow:
        """Return a site's row, made when it is first heard of.

        Args:
            name: The site's name.

        Returns:
            The row.
        """
        return self.sites.setdefault(name, SiteRow(name))

    def _begin(self, event: dict[str, Any]) -> None:
        after = int(event.get("after", 0))
        self.title = str(event.get("title", self.title))
        self.method = str(event.get("method", self.method))
        self.rounds = int(event.get("rounds", self.rounds))
        self.private = bool(event.get("private", False))
        self.state, self.reason, self.step = "running", "", "waiting for sites"
        self.began, self.round, self.committed = str(event.get("time", "")), after, after
        self.history = [entry for entry in self.history if 0 < entry["round"] <= after]
        self.bytes_up = sum(entry["bytes_up"] for entry in self.history)
        self.bytes_down = sum(entry["bytes_down"] for entry in self.history)
        for row in self.sites.values():
            row.connected, row.doing, row.reason = False, "not here yet", ""

    def _ask(self, event: dict[str, Any]) -> None:
        self.step = STEPS.get(str(event.get("step")), "exchanging keys")
        for name in event.get("sites", ()):
            row = self.row(str(name))
            row.doing, row.reason, row.connected = self.step, "", True

    def _commit(self, event: dict[str, Any]) -> None:
        self.committed, self.step = int(event["round"]), ""
        for name in ("accuracy", "loss", "epsilon", "seconds"):
            if event.get(name) is not None:
                setattr(self, name, event[name])
        for name in event.get("accepted", ()):
            self.row(str(name)).updates += 1
        for name, value in (event.get("accuracies") or {}).items():
            self.row(str(name)).accuracy = value
        for row in self.sites.values():
            if row.doing in ("answered", *STEPS.values()):
                row.doing = "waiting"
        wanted = ("round", "accuracy", "loss", "seconds")
        entry: dict[str, Any] = {name: event.get(name) for name in wanted}
        entry["accepted"] = len(event.get("accepted", ()))
        for name in ("bytes_up", "bytes_down"):
            entry[name] = int(event.get(name) or 0)
        self.history.append(entry)
        self.bytes_up += entry["bytes_up"]
        self.bytes_down += entry["bytes_down"]

    def _site(self, kind: str, event: dict[str, Any]) -> None:
        row = self.row(str(event["site"]))
        row.heard = str(event.get("time", ""))
        row.connected = (row.connected or kind in HERE) and kind not in GONE
        if kind in GONE:
            row.doing, row.reason = "away", ""
        elif kind in DOING:
            row.doing, row.reason = DOING[kind], str(event.get("reason", ""))
        row.left_out += kind == "left out"
        row.refused += kind == "refused"


class LiveBoard:
    """A board that reads on in its journal whenever it is looked at, from any thread."""

    def __init__(self, journal: Path, rounds: int = 0, sites: tuple[str, ...] = ()) -> None:
        self._tail, self._lock = Tail(journal), threading.Lock()
        self._board = Board(rounds=rounds, sites={name: SiteRow(name) for name in sites})

    def snapshot(self) -> dict[str, Any]:
        """Return the federation as it is now."""
        with self._lock:
            for event in self._tail.new():
                self._board.take(event)
            return self._board.snapshot()
