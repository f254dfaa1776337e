"""Call the hooks of a run; a hook that raises is a warning, never the end of the run.

How far each tracker named by text was told stands in the run's manifest (`tracked`). So a resumed
run goes on with the next round, and rounds that a tracker has missed are told from the run folder:
those of a process that was killed, of a tracker that failed, or from before it was asked for.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from focoop.caching import checksum
from focoop.config import to_flat
from focoop.methods import lookup
from focoop.runs import RunFolder
from focoop.tracking.event import RoundEvent, Tracker
from focoop.tracking.metrics import flat_metrics

KEY = "tracked"  # in the manifest: the last round told, by the tracker's text
PATIENCE = 3  # failures in a row after which a hook is left alone


@dataclass
class Listener:
    """A hook of a run and how it fares.

    Attributes:
        tracker: What is called.
        key: The text that named it; empty: an object of this process, told of what happens now.
        failures: How often it has failed in a row.
        warned: Whether the user was told of a failure.
        begun: Whether it has begun to track the run; of objects, which may see several, not used.
    """

    tracker: Tracker
    key: str = ""
    failures: int = 0
    warned: bool = False
    begun: bool = False

    def tell(self, event: RoundEvent) -> bool:
        """Call the hook.

        Args:
            event: What it is told.

        Returns:
            Whether it took it. A failure is a warning the first time.
        """
        given_up = event.moment == "round" and self.failures >= PATIENCE
        if given_up or (self.key and event.moment != "begin" and not self.begun):
            return False
        try:
            getattr(self.tracker, event.moment)(event)
        except Exception as error:  # a user's code, or a tracker's: whatever it raises
            self.failures += 1
            self._warn(event, error)
            return False
        self.failures, self.begun = 0, event.moment != "end"
        return True

    def _warn(self, event: RoundEvent, error: Exception) -> None:
        if self.warned:
            return
        self.warned = True
        name = self.key or self.tracker.target or type(self.tracker).__name__
        when = f"after round {event.round}" if event.moment == "round" else f"at the {event.moment}"
        later = "" if event.moment != "begin" else " without it"
        missed = "; --resume tells it what it missed" if self.key else ""
        warnings.warn(
            f"the hook {name} failed {when} of {event.name} ({type(error).__name__}: {error}): the "
            f"run goes on{later}{missed}",
            stacklevel=2,
        )


class Hooks:
    """The hooks of one run, called at its begin, after each committed round and at its end.

    Use it as a context around the run folder's own: the end is told when the folder is closed.

    Args:
        folder: The run folder, open for writing.
        listeners: What is called.
        name: The run's name for people; by default that of its folder.
    """

    def __init__(
        self, folder: RunFolder, listeners: Sequence[Listener] = (), name: str = ""
    ) -> None:
        self._folder, self._listeners = folder, listeners
        self._told: dict[str, int] = dict(folder.manifest.get(KEY, {}))
        self._clients: tuple[str, ...] = ()
        self._last = -1  # the last committed round
        config, started = folder.config, str(folder.manifest.get("started", ""))
        trains = lookup(config.method.name).trains
        self._run = RoundEvent(
            moment="begin",
            name=name or folder.path.resolve().name,
            id=checksum(str(folder.manifest.get("run", "")), started)[:16],
            path=folder.path,
            settings={key.replace("-", "_"): value for key, value in to_flat(config).items()},
            rounds=config.federation.rounds if trains else 0,
            round=-1,
        )

    def begin(self) -> None:
        """Tell that the run begins, then the committed rounds that trackers have missed."""
        names = self._folder.names
        self._clients = () if names is None else tuple(client.name for client in names.clients)
        for listener in self._listeners:
            last = self._told.get(listener.key, -1)
            listener.tell(replace(self._run, round=last, time=_seconds()))
        self._last = self._folder.last_round()
        self._catch_up(self._last)

    def committed(
        self, round_index: int, facts: Mapping[str, Any], line: Mapping[str, Any] | None
    ) -> None:
        """Tell of a round that was committed just now.

        Args:
            round_index: The round's number.
            facts: What its line in `rounds.jsonl` says: loss, bytes, seconds, participants.
            line: Its evaluation; None: it was not evaluated.
        """
        self._last = round_index
        if not self._listeners:
            return
        event = self._event(round_index, facts, line, str(self._folder.manifest["updated"]))
        self._catch_up(round_index - 1)
        try:
            for listener in self._listeners:
                if not listener.key or self._told.get(listener.key, -1) == round_index - 1:
                    self._tell(listener, event)
        finally:  # a hook may stop the run
            self._remember()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stopped = kind is not None and issubclass(kind, KeyboardInterrupt | SystemExit)
        status = "finished" if kind is None else "stopped" if stopped else "failed"
        end = replace(self._run, moment="end", status=status, round=self._last, time=_seconds())
        for listener in self._listeners:
            listener.tell(end)

    def _catch_up(self, last: int) -> None:
        """Tell trackers the committed rounds up to `last` that they have missed."""
        behind = [one for one in self._listeners if one.key and self._told.get(one.key, -1) < last]
        behind = [one for one in behind if one.begun and one.failures < PATIENCE]
        if not behind:
            return
        for event in self._committed_events(last):
            for listener in list(behind):
                missed = self._told.get(listener.key, -1) < event.round
                if missed and not self._tell(listener, event):
                    behind.remove(listener)
        self._remember()

    def _committed_events(self, last: int) -> Iterator[RoundEvent]:
        lines = {line["round"]: line for line in self._folder.metrics()}
        for facts in self._folder.committed_rounds():
            number = facts["round"]
            if number <= last:
                yield self._event(number, facts, lines.get(number), str(facts.get("time", "")))

    def _tell(self, listener: Listener, event: RoundEvent) -> bool:
        taken = listener.tell(event)
        if taken and listener.key:
            self._told[listener.key] = event.round
        return taken

    def _remember(self) -> None:
        if self._told != self._folder.manifest.get(KEY, {}):
            self._folder.remember(**{KEY: dict(self._told)})

    def _event(
        self,
        round_index: int,
        facts: Mapping[str, Any],
        line: Mapping[str, Any] | None,
        when: str,
    ) -> RoundEvent:
        return replace(
            self._run,
            moment="round",
            round=round_index,
            metrics=flat_metrics(line, facts, self._clients),
            seconds=float(facts.get("seconds", 0.0)),
            bytes_up=int(facts.get("bytes_up", 0)),
            bytes_down=int(facts.get("bytes_down", 0)),
            time=_seconds(when),
            evaluation=None if line is None else {"round": round_index, **line},
        )


def _seconds(when: str = "") -> float:
    """An ISO time as seconds since 1970; the empty text is now."""
    return (datetime.fromisoformat(when) if when else datetime.now(UTC)).timestamp()
