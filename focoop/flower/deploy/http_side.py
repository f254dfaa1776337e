"""One end of an HTTP connection: events of h11 over asyncio streams, with limits on time."""

import asyncio
import errno
import os
import socket
import time
from dataclasses import dataclass, field
from typing import Any

import h11

from focoop.errors import FederationError

FAREWELL = 2.0  # seconds a peer has to take the end of an answer
PIECE = 2**16  # bytes read at a time
REMEDIES = {
    errno.EADDRINUSE: "end the program that has it (ss -ltnp 'sport = :{port}' shows it), or use "
    "--port",
    errno.EACCES: "ports below 1024 are for root: use --port with a higher one",
}


@dataclass
class Side:
    """One end of a connection and its protocol's state; a peer that takes nothing is dropped."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    http: h11.Connection
    pause: float  # seconds in which the other party must take what is sent
    used: float = field(default_factory=time.monotonic)

    async def event(self, pause: float, until: float) -> Any:
        """Wait for the next event of the other party.

        Args:
            pause: seconds between two pieces of the event.
            until: time of `time.monotonic` at which the whole event must be there.

        Returns:
            An event of h11, such as a request or a piece of its body.

        Raises:
            TimeoutError: nothing came for `pause` seconds, or it is later than `until`.
        """
        while (event := self.http.next_event()) is h11.NEED_DATA:
            left = min(pause, until - time.monotonic())
            async with asyncio.timeout(max(0.0, left)):
                self.http.receive_data(await self.reader.read(PIECE))
        return event

    async def send(self, event: Any) -> None:
        """Send an event and wait until the other party keeps up.

        Args:
            event: The event.
        """
        data = self.http.send(event)
        if data:
            self.writer.write(data)
            async with asyncio.timeout(self.pause):
                await self.writer.drain()


async def close(sides: list[Side]) -> None:
    """Close connections; a peer that does not answer in time is dropped.

    Args:
        sides: The connections.
    """
    for side in sides:
        side.writer.close()  # all of them, before anything can interrupt us
    try:
        waits = [asyncio.ensure_future(side.writer.wait_closed()) for side in sides]
        if waits:
            await asyncio.wait(waits, timeout=FAREWELL)
        for wait in waits:
            if not wait.cancel():
                wait.exception()  # how the peer left is nobody's concern
    finally:
        for side in sides:
            side.writer.transport.abort()


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address.

    Args:
        host: The address.
        port: The port.

    Returns:
        The socket.

    Raises:
        FederationError: It cannot be had; the message says what to do.
    """
    plain = host.strip("[]")
    family = socket.AF_INET6 if ":" in plain else socket.AF_INET
    try:
        return socket.create_server((plain, port), family=family, backlog=256)
    except OSError as error:
        known = error.errno or 0
        said = os.strerror(known) if known > 0 else str(error)
        what = REMEDIES.get(known, "name an address of this machine, or 0.0.0.0 for all of them")
        text = f"cannot listen on {host}:{port} ({said}): {what.format(port=port)}"
        raise FederationError(text) from error
