"""What a site's people see: the journal of its app and its connection, as lines and as one file.

`STATE/journal.jsonl` is written by the app, message by message. `STATE/status.json` is written by
`focoop site join` alone, whole or not at all, whenever something has changed and every few seconds;
`focoop site status` reads it.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from focoop.caching import SUM, is_intact, parse_json, sealed, write_whole
from focoop.errors import FederationError, RunError
from focoop.flower.journal import Tail
from focoop.flower.site.connection import Reach, look
from focoop.flower.site.status_words import line_of
from focoop.runs import now

FILE, JOURNAL = "status.json", "journal.jsonl"
KEPT = 20  # refusals, rounds left out and errors that the status names
TOLD = ("time", "round", "reason")  # what it says of each
SILENT = 30.0  # seconds without a write after which the process is not there any more
STEPS = {
    "train": "training",
    "evaluate": "evaluating",
    "query.hello": "introducing itself",
    "query.sketch": "scoring calibration images",
    "query.keep": "keeping its model",
}
AFTERWARDS = ("query.sketch", "query.keep")  # asked when all rounds are done


@dataclass(frozen=True)
class Pauses:
    """Seconds that a site's command lets pass.

    Attributes:
        beat: between two writes of an unchanged status.
        look_every: between two looks at a server that answered.
        first: after the first look at a server that did not; each later pause is longer.
        longest: between two looks at such a server, at most.
    """

    beat: float = 5.0
    look_every: float = 20.0
    first: float = 2.0
    longest: float = 20.0


PAUSES = Pauses()


@dataclass
class SiteStatus:
    """Where a site stands.

    `state` is one of starting, waiting (for the server), connected, cut off, stopped, failed.
    """

    site: str
    server: str
    state: str = "starting"
    reason: str = ""
    since: str = field(default_factory=now)
    updated: str = ""
    pid: int = 0
    clock_ahead: float | None = None
    round: int | None = None
    rounds: int | None = None
    doing: str = ""
    finished: bool = False
    model: str = ""
    model_note: str = ""
    run_failed: str = ""
    held_back: str = ""
    updates_sent: int = 0
    updates_counted: int = 0
    bytes_sent: int = 0
    last_sent: dict[str, Any] | None = None
    refused: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)

    def take(self, event: dict[str, Any]) -> None:
        """Take in an event of the journal.

        Args:
            event: The event.
        """
        kind = event["event"]
        if kind == "asked":
            self.doing = STEPS.get(str(event.get("step")), str(event.get("step")))
            self.round = event.get("round", self.round)
            self.rounds = event.get("rounds") or self.rounds
            if event.get("step") not in AFTERWARDS:
                self.finished = False
            self.run_failed = ""
            self.held_back = "" if event.get("step") == "train" else self.held_back
        elif kind == "held back":
            self.held_back = str(event.get("reason", ""))
        elif kind == "run failed":
            self.doing, self.run_failed = "", str(event.get("reason", ""))
        elif kind == "sent":
            self.doing = ""
            self.bytes_sent += int(event.get("bytes", 0))
            self.updates_sent += event.get("step") == "train"
            wanted = ("time", "round", "step", "bytes", "tensors")
            if event.get("step") != "query.keep":  # an empty answer
                self.last_sent = {key: event.get(key) for key in wanted}
        elif kind == "accepted":
            self.updates_counted += 1
        elif kind == "finished":
            self.finished = True
        elif kind == "model kept":
            self.model = str(event.get("path", ""))
            self.model_note = str(event.get("reason", ""))
        lists = {"refused": self.refused, "left out": self.left_out, "failed": self.errors}
        if kind in lists:
            self.doing = "" if kind != "left out" else self.doing
            entry = {key: value for key, value in event.items() if key in TOLD}
            lists[kind][:] = [*lists[kind][1 - KEPT :], entry]


class SiteWatch:
    """Follows a site's node for the people of the site: says what happens, and keeps the status."""

    def __init__(
        self,
        name: str,
        server: str,
        certificate: Path,
        state: Path,
        say: Callable[[dict[str, Any], str], None],
        looking: Callable[[str, Path], Reach] = look,
        pauses: Pauses = PAUSES,
    ) -> None:
        self.pauses = pauses
        self.server, self.certificate, self.folder = server, certificate, state
        self._say, self._looking = say, looking
        self.tail = Tail(state / JOURNAL)
        self.status = SiteStatus(name, server, pid=os.getpid())
        for event in self.tail.new():
            self.status.take(event)
        self.known = False  # whether the server has answered before
        self._left = False  # whether it has gone since, after a run that is over
        self._written, self._looked, self._last = 0.0, 0.0, ""
        self._unwritten = ""  # why the status could not be written last time
        self._write()

    def say(self, text: str) -> None:
        """Say something that is no event of the journal.

        Args:
            text: The text.
        """
        self._say({"time": now(), "event": "message", "reason": text}, text)

    def await_server(self) -> None:
        """Wait until the coordinator answers; each new cause of waiting is said once.

        Raises:
            FederationError: where waiting cannot help, as the certificate is another server's.
        """
        pause, reason = self.pauses.first, ""
        while True:
            reach = self._look()
            if not reach.kind:
                return
            if reach.final and not self.known:
                self._set("failed", reach.text)
                raise FederationError(reach.text)
            if reach.text != reason:
                reason = reach.text
                self._set("waiting", reason)
                self.say(f"{reason}; trying again")
            until = time.monotonic() + pause
            while time.monotonic() < until:
                time.sleep(0.5)
                self._write()
            pause = min(self.pauses.longest, 1.5 * pause)

    def connected(self) -> None:
        """The node is connected."""
        self.known, self._left = True, False
        self._set("connected", "")
        self.say("connected")

    def tick(self) -> None:
        """Take in what has happened since; from time to time look at the server."""
        for event in self.tail.new():
            self.status.take(event)
            text = line_of(event)
            if text and text != self._last:  # the coordinator asks again who has refused
                self._say(event, text)
                self._last = text
            self._written = 0.0
        away = self.status.state == "cut off" or self._left
        if (
            away or self.status.state == "connected"
        ) and time.monotonic() > self._looked + self.pauses.look_every:
            reach = self._look()
            if reach.kind and reach.kind != "clock" and self.status.state == "connected":
                self._gone(reach.text.replace("not reachable yet", "not reachable any more"))
            elif not reach.kind and away:
                self._left = False
                self._set("connected", "")
                self.say("connected again")
        self._write()

    def _gone(self, text: str) -> None:
        """The server does not answer any more: as it has told before, or for no known reason."""
        if self.status.run_failed or self.status.finished:
            ended = self.status.run_failed or "all rounds are done"
            how = "failed" if self.status.run_failed else "is finished"
            text = f"the run {how} and the coordinator has left ({ended})"
            self._left = True
            self._set("waiting", text)
            waits = "waiting for it to start again"
            over = "Ctrl-C ends this command, and nothing is lost; until then it waits for more"
            self.say(f"{text}; {waits if self.status.run_failed else over}")
        else:
            self._set("cut off", text)
            self.say(f"cut off: {text}; trying again")

    def ended(self, reason: str) -> str:
        """Say why the node ended: what the node said, or the clock where that is the cause.

        Args:
            reason: What the node said.

        Returns:
            The reason.
        """
        reach = self._look()
        reason = reach.text if reach.kind in ("clock", "expired", "early") else reason
        self._set("waiting", reason)
        return reason

    def stopped(self, state: str = "stopped", reason: str = "") -> None:
        """Note that nothing more will happen.

        Args:
            state: The last state.
            reason: Why it ended.
        """
        self.tick_journal()
        self._set(state, reason)

    def tick_journal(self) -> None:
        """Take in the last events."""
        for event in self.tail.new():
            self.status.take(event)

    def _look(self) -> Reach:
        reach = self._looking(self.server, self.certificate)
        self._looked = time.monotonic()
        self.status.clock_ahead = None if reach.ahead is None else round(reach.ahead, 1)
        return reach

    def _set(self, state: str, reason: str) -> None:
        if (self.status.state, self.status.reason) != (state, reason):
            self.status.state, self.status.reason, self.status.since = state, reason, now()
            self._written = 0.0
        self._write()

    def _write(self) -> None:
        """Write the status; the state folder is its owner's alone, and a full disk ends nothing."""
        if time.monotonic() < self._written + self.pauses.beat and self._written:
            return
        self.status.updated = now()
        text = json.dumps(sealed(asdict(self.status)), indent=1) + "\n"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self.folder / FILE, text.encode())
            self._unwritten = ""
        except OSError as error:
            if str(error) != self._unwritten:  # a full disk is told once
                self._unwritten = str(error)
                self.say(f"no status file: {error}")
        self._written = time.monotonic()


def read_status(folder: Path, silent: float = SILENT) -> dict[str, Any]:
    """The last status that `focoop site join` wrote into a state folder.

    Args:
        folder: the site's state folder (`--state`).
        silent: seconds after the last write from which the process counts as gone.

    Returns:
        The fields of `SiteStatus`, and `running`: whether the process that wrote it still does.

    Raises:
        RunError: where no site has ever joined with this folder, or the file is damaged.
    """
    try:
        status = parse_json((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunError(
            f"{folder} has no status: no site has joined with it (focoop site join --state), or "
            "another folder is meant"
        ) from error
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / FILE} cannot be read ({error})") from error
    if not isinstance(status, dict) or "state" not in status:
        raise RunError(f"{folder / FILE} is no status of a site")
    unknown = set(status) - {SUM, *(one.name for one in fields(SiteStatus))}
    if unknown or (SUM in status and not is_intact(status)):
        raise RunError(
            f"{folder / FILE} is damaged: its checksum differs; a running site writes it anew "
            "within seconds"
        )
    status.pop(SUM, None)
    age = time.time() - (folder / FILE).stat().st_mtime
    ended = status["state"] in ("stopped", "failed")
    return {**status, "running": not ended and age < silent, "age": round(age, 1)}
