"""A federation while it runs: a live table of its sites on a terminal, plain lines elsewhere."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live

from focoop.cli.display import PROSE, Column, Sheet

# Event -> what the site's row says from then on; the reason, if there is one, follows it.
STATES = {
    "connected": "connected",
    "joined": "here",
    "back": "here",
    "online": "here",
    "offline": "away",
    "away": "away",
    "refused": "refused",
    "answered": "answered",
    "asked again": "asked again",
    "left out": "left out",
    "not needed": "not needed",
}
QUIET = ("asked", "answered", "assembled", "began", "ended", "committed")


@dataclass
class Row:
    """What is known of one site."""

    state: str = "not here yet"
    reason: str = ""
    updates: int = 0


@dataclass
class Sites:
    """The journal's events so far, by site; `round` is the one under way or just committed."""

    rounds: int
    rows: dict[str, Row] = field(default_factory=dict)
    round: int = 0
    accuracy: float | None = None

    def take(self, event: dict[str, Any]) -> None:
        """Take in an event.

        Args:
            event: The event.
        """
        kind, site = event["event"], event.get("site")
        if "round" in event:
            self.round = int(event["round"])
        if kind == "asked":
            for name in event.get("sites", ()):
                self._row(name).state, self._row(name).reason = str(event.get("step")), ""
        elif kind == "committed":
            self.accuracy = event.get("accuracy", self.accuracy)
            for name in event.get("accepted", ()):
                self._row(name).updates += 1
        elif kind in STATES and site:
            row = self._row(str(site))
            row.state, row.reason = STATES[kind], str(event.get("reason", ""))

    def table(self) -> Sheet:
        """Return a table with one row per site."""
        shown = "" if self.accuracy is None else f", accuracy {self.accuracy:.1%}"
        return Sheet(
            [
                Column("site"),
                Column("updates", right=True),
                Column("state"),
                Column("why", prose=PROSE),
            ],
            [
                [name, str(row.updates), row.state, row.reason]
                for name, row in sorted(self.rows.items())
            ],
            title=f"round {self.round} of {self.rounds}{shown}",
        )

    def _row(self, name: str) -> Row:
        return self.rows.setdefault(name, Row())


class Watch:
    """Shows events as they come."""

    def __init__(
        self, console: Console, rounds: int, sites: Iterable[str], *, log_json: bool = False
    ) -> None:
        self.console, self.log_json = console, log_json
        self.sites = Sites(rounds, {name: Row() for name in sites})
        live = console.is_terminal and not log_json
        self._live = Live(console=console, auto_refresh=False) if live else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, new: Iterable[dict[str, Any]]) -> None:
        """Take events in; trouble stays on the screen as a line of its own.

        Args:
            new: The events.
        """
        from focoop.flower import TROUBLE, sentence

        for event in new:
            self.sites.take(event)
            if self.log_json:
                print(json.dumps(event), file=self.console.file, flush=True)
            elif event["event"] == "committed":
                self._line(self._committed(event))
            elif event["event"] == "began" and event.get("after"):
                self._line(f"going on after round {event['after']}")
            elif event["event"] not in QUIET and (self._live is None or event["event"] in TROUBLE):
                self._line(sentence(event))
        if self._live is not None:
            self._live.update(self.sites.table(), refresh=True)

    def _committed(self, event: dict[str, Any]) -> str:
        from focoop.flower import committed

        _, _, details = committed(event).partition(": ")
        return f"round {event['round']}/{self.sites.rounds}" + (f", {details}" if details else "")

    def _line(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)
