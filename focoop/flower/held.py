"""An answer that has nothing to give is held back until there may be something.

Flower's processes ask again and again whether there is a message or a task for them, and sleep in
between. Here the server holds an empty answer until another request has brought something, or a
while is over. Whoever asked then asks again at once. So nobody sleeps while there is work, and an
idle federation asks seldom. A message itself is never held: it leaves with the answer to a fresh
request, so that none is lost on a connection that was cut meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

SETTLED = 0.01  # seconds without a request in flight after which what they brought is complete
WAIT = "flwr-focoop-wait"  # header: hold the answer at most this many seconds
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Event, Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class Hold:
    """A path whose empty answers are held.

    Args:
        seconds: How long at most.
        until: Paths of the requests that bring what is asked for.
        asked: Hold only what asks for it by the header `WAIT`.
    """

    seconds: float
    until: Collection[str] = ()
    asked: bool = False


class Held:
    """An ASGI app around another one that holds empty answers of some paths.

    Args:
        app: The app that answers.
        holds: What is held, by path. A name that is no path only says what `brought` tells of.
        brought: Told the path, from the server's thread, when what it waits for has been brought.
    """

    def __init__(
        self, app: App, holds: Mapping[str, Hold], brought: Callable[[str], None] | None = None
    ) -> None:
        self.app, self.holds, self.brought = app, holds, brought
        self.rings: dict[str, set[str]] = {}
        for path, hold in holds.items():
            for source in hold.until:
                self.rings.setdefault(source, set()).add(path)
        self.waiting: dict[str, set[asyncio.Event]] = {path: set() for path in holds}
        self.flying: dict[str, int] = dict.fromkeys(holds, 0)
        self.loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path = scope.get("path", "") if scope["type"] == "http" else ""
        self.loop = asyncio.get_running_loop()
        hold = self.holds.get(path)
        if path in self.rings:
            await self._bring(self.rings[path], scope, receive, send)
        elif hold is not None and (seconds := _seconds(hold, scope)) > 0:
            await self._hold(path, seconds, scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def ring(self, path: str) -> None:
        """Let go what is held for a path; may be called from any thread.

        Args:
            path: The path.
        """
        loop = self.loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._ring, path)

    def _ring(self, path: str) -> None:
        for event in self.waiting[path]:
            event.set()

    async def _bring(self, paths: set[str], scope: Event, receive: Receive, send: Send) -> None:
        """Answer a request that brings something; ring when no other one is under way."""
        for path in paths:
            self.flying[path] += 1
        try:
            await self.app(scope, receive, send)
        finally:
            for path in paths:
                self.flying[path] -= 1
                asyncio.get_running_loop().call_later(SETTLED, self._settle, path)

    def _settle(self, path: str) -> None:
        if not self.flying[path]:
            self._ring(path)
            if self.brought is not None:
                self.brought(path)

    async def _hold(
        self, path: str, seconds: float, scope: Event, receive: Receive, send: Send
    ) -> None:
        """Answer a request; an empty answer waits for a ring, the time or the asker's end."""
        bell = asyncio.Event()  # before the app looks, so that no ring is missed
        self.waiting[path].add(bell)
        events: list[Event] = []

        async def keep(event: Event) -> None:
            events.append(event)

        try:
            await self.app(scope, receive, keep)
            if _empty(events) and not await _waited(bell, seconds, receive):
                return
        finally:
            self.waiting[path].discard(bell)
        for event in events:
            await send(event)


def _seconds(hold: Hold, scope: Event) -> float:
    """How long an answer may be held."""
    if not hold.asked:
        return hold.seconds
    header = dict(scope["headers"]).get(WAIT.encode(), b"0")
    try:
        return min(hold.seconds, float(header))
    except ValueError:
        return 0.0


def _empty(events: list[Event]) -> bool:
    """Whether an answer is a success without a body."""
    return (
        bool(events) and events[0].get("status") == 200 and not any(e.get("body") for e in events)
    )


async def _waited(bell: asyncio.Event, seconds: float, receive: Receive) -> bool:
    """Wait for the bell, the time or the asker's end; whether there is somebody to answer."""
    rung, left = asyncio.ensure_future(bell.wait()), asyncio.ensure_future(_end(receive))
    try:
        await asyncio.wait({rung, left}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return not left.done()
    finally:
        rung.cancel()
        left.cancel()


async def _end(receive: Receive) -> None:
    """Return when the connection is closed."""
    while (await receive())["type"] != "http.disconnect":
        pass
