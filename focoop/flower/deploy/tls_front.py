"""The only port of a federation: TLS in front of Flower's SuperLink, which listens on loopback.

It passes on what sites ask for (`gate.py`), signed by a site of this federation, and answers all
else itself: Flower never sees a byte of a stranger. Connections of strangers are few and short, so
that they cannot keep sites out: each must finish its handshake and its first lines in seconds.
"""

import asyncio
import contextlib
import json
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

import h11

from focoop.flower.deploy.gate import ENROL, FLEET, HEALTH, Names, Refused, site_of
from focoop.flower.deploy.http_side import PIECE, Side, close, listen
from focoop.flower.deploy.processes import KEEP_ALIVE, LOOPBACK

PASSED = (b"content-type", b"content-length", b"content-encoding", b"accept", b"accept-encoding")
OURS = b"flwr-"
SAY_AGAIN = 60.0  # seconds before the same refusal is told again
Enrol = Callable[[bytes], tuple[int, dict[str, Any]]]


@dataclass(frozen=True)
class Limits:
    """How long the front waits, and how much it takes.

    Attributes:
        handshake: seconds for TLS, with a peer or with the SuperLink.
        first_lines: seconds in which a stranger must have sent a whole request without a body.
        idle: seconds between two requests of a site.
        body_pause: seconds between two pieces of a body.
        body_time: seconds for a whole body.
        answer: seconds the SuperLink has to answer.
        head_bytes: longest head of a request.
        enrol_bytes: longest body of a first request.
        body_bytes: longest body of a site's request; Flower cuts what is larger than 5 MB.
        connections: open connections of all peers.
        strangers: open connections of peers that have signed nothing yet.
        strangers_each: those of one address.
    """

    handshake: float = 10.0
    first_lines: float = 10.0
    idle: float = 60.0
    body_pause: float = 30.0
    body_time: float = 900.0
    answer: float = 300.0
    head_bytes: int = 16_384
    enrol_bytes: int = 8_192
    body_bytes: int = 64 * 2**20
    connections: int = 2048
    strangers: int = 256
    strangers_each: int = 32


@dataclass
class Front:
    """Serves `listener` until `stop`.

    Args:
        listener: A socket that is bound and listens.
        tls: The server's certificate and key.
        link: Port of the SuperLink on loopback, and the authority to check it by.
        names: The site's name for a public key (PEM), None for a key of nobody.
        enrol: Answers a site's first request, its body -> (status, document).
        say: Told what a person should know.
        limits: How long it waits, and how much it takes.
    """

    listener: socket.socket
    tls: ssl.SSLContext
    link: tuple[int, ssl.SSLContext]
    names: Names
    enrol: Enrol
    say: Callable[[str], None]
    limits: Limits = Limits()
    strangers: Counter[str] = field(default_factory=Counter)
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    told: dict[tuple[str, str], float] = field(default_factory=dict)

    def start(self) -> None:
        """Serve from a thread of its own."""
        self.listener.setblocking(False)
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_unless_stopping)
        self.pool = ThreadPoolExecutor(1)
        self.thread = threading.Thread(target=self._run, name="front", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Close the port and all connections."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.main.cancel)
        self.thread.join(10)
        self.listener.close()
        self.pool.shutdown(wait=False)

    @property
    def alive(self) -> bool:
        """Return whether it still serves."""
        return self.thread.is_alive()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.main = self.loop.create_task(self._accept())
        with contextlib.suppress(asyncio.CancelledError):
            self.loop.run_until_complete(self.main)
        for task in self.tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*self.tasks, return_exceptions=True))
        self.loop.run_until_complete(
            asyncio.sleep(0.01)
        )  # transports close in the loop's next steps
        self.loop.close()

    async def _accept(self) -> None:
        while True:
            try:
                sock, address = await self.loop.sock_accept(self.listener)
            except OSError:  # no more files, or a peer that went away at once
                await asyncio.sleep(0.2)
                continue
            peer = str(address[0])
            limits, strangers = self.limits, self.strangers.total()
            full = strangers >= limits.strangers or len(self.tasks) >= limits.connections
            if full or self.strangers[peer] >= limits.strangers_each:
                self._tell(peer, "it opens too many connections")
                sock.close()
                continue
            self.strangers[peer] += 1
            task = self.loop.create_task(self._serve(sock, peer))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _serve(self, sock: socket.socket, peer: str) -> None:
        visit = Visit(self, peer)
        try:
            sides = await self._handshake(sock)
            if sides is not None:
                await visit.requests(sides)
        except (OSError, TimeoutError, h11.RemoteProtocolError, h11.LocalProtocolError):
            pass  # the peer is gone, slow or talks nonsense: the connection ends
        finally:
            visit.known()
            await close(visit.sides)

    async def _handshake(self, sock: socket.socket) -> Side | None:
        reader = asyncio.StreamReader(limit=PIECE, loop=self.loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=self.loop)
        try:
            transport, _ = await self.loop.connect_accepted_socket(
                lambda: protocol, sock, ssl=self.tls, ssl_handshake_timeout=self.limits.handshake
            )
        except (OSError, ssl.SSLError, TimeoutError):
            sock.close()
            return None
        writer = asyncio.StreamWriter(transport, protocol, reader, self.loop)
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=self.limits.head_bytes)
        return Side(reader, writer, http, self.limits.body_pause)

    def _tell(self, peer: str, why: str) -> None:
        now = time.monotonic()
        if now - self.told.get((peer, why), -SAY_AGAIN) < SAY_AGAIN:
            return
        if len(self.told) > 1000:
            self.told.clear()
        self.told[peer, why] = now
        self.say(f"refused {peer}: {why}")


class Visit:
    """One connection: the peer's requests, one by one, and our own way to the SuperLink."""

    def __init__(self, front: Front, peer: str) -> None:
        self.front, self.peer, self.limits = front, peer, front.limits
        self.sides: list[Side] = []
        self.stranger, self.bodiless = True, False

    def known(self) -> None:
        """Count this connection among the strangers' no more."""
        if self.stranger:
            self.stranger = False
            self.front.strangers[self.peer] -= 1
            if not self.front.strangers[self.peer]:
                del self.front.strangers[self.peer]

    async def requests(self, side: Side) -> None:
        """Answer requests until the peer closes or must be cut off.

        Args:
            side: The peer's connection.
        """
        self.sides.append(side)
        while True:
            wait = self.limits.first_lines if self.stranger else self.limits.idle
            request = await side.event(wait, time.monotonic() + wait)
            if not isinstance(request, h11.Request):
                return
            self.bodiless = request.method == b"HEAD"
            try:
                await self._answer(side, request)
            except Refused as refused:
                line = f"{request.method.decode()} {request.target[:80].decode(errors='replace')}"
                shown = "".join(c if c.isprintable() else "?" for c in f"{line}: {refused.reason}")
                self.front._tell(self.peer, shown)
                return await self._reply(side, refused.status, _told(refused), last=True)
            if side.http.our_state is not h11.DONE or side.http.their_state is not h11.DONE:
                return
            side.http.start_next_cycle()

    async def _answer(self, side: Side, request: h11.Request) -> None:
        what = bytes(request.method), bytes(request.target)
        headers = dict(request.headers)
        if what == HEALTH:
            wait = self.limits.first_lines
            await side.event(wait, time.monotonic() + wait)  # the end of the request
            return await self._reply(side, 200, {})
        length = _length(
            headers, self.limits.enrol_bytes if what == ENROL else self.limits.body_bytes
        )
        if what == ENROL:
            status, document = await self._enrol(side, length)
            return await self._reply(side, status, document, last=True)
        if what[0] != b"POST" or what[1] not in FLEET:
            raise Refused(404, "nothing that sites use")
        site_of(headers, self.front.names)
        self.known()
        return await self._forward(side, request, what[1])

    async def _enrol(self, side: Side, length: int) -> tuple[int, dict[str, Any]]:
        wait = self.limits.first_lines
        body, until = b"", time.monotonic() + wait
        while len(body) < length:
            event = await side.event(wait, until)
            if not isinstance(event, h11.Data):
                raise Refused(400, "its request is cut off")
            body += bytes(event.data)
        await side.event(wait, until)
        return await self.front.loop.run_in_executor(self.front.pool, self.front.enrol, body)

    async def _forward(self, side: Side, request: h11.Request, path: bytes) -> None:
        until, pause = time.monotonic() + self.limits.body_time, self.limits.body_pause
        try:
            link = await self._link()
            await link.send(h11.Request(method="POST", target=path, headers=_passed(request)))
        except (OSError, TimeoutError):
            return await self._reply(side, 503, {"detail": "the SuperLink is away"}, last=True)
        while not isinstance(event := await side.event(pause, until), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                return None
            await link.send(h11.Data(data=event.data))
        await link.send(h11.EndOfMessage())
        until = time.monotonic() + self.limits.answer
        while True:
            event = await link.event(self.limits.answer, until)
            if isinstance(event, h11.Response):
                headers = [*_kept(event.headers), (b"date", formatdate(usegmt=True).encode())]
                event = h11.Response(status_code=event.status_code, headers=headers)
            elif isinstance(event, h11.InformationalResponse):
                continue
            elif not isinstance(event, h11.Data | h11.EndOfMessage):
                return None
            await side.send(event)
            if isinstance(event, h11.EndOfMessage):
                break
        if link.http.our_state is h11.DONE and link.http.their_state is h11.DONE:
            link.http.start_next_cycle()
            link.used = time.monotonic()
        else:
            self.sides.remove(link)
            await close([link])
        return None

    async def _link(self) -> Side:
        """Our own connection to the SuperLink; one that it may be closing is not used again."""
        if len(self.sides) > 1:
            link = self.sides[1]
            fresh = time.monotonic() - link.used < KEEP_ALIVE / 2
            if fresh and link.http.our_state is h11.IDLE and not link.reader.at_eof():
                return link
            self.sides.remove(link)
            await close([link])
        port, tls = self.front.link
        async with asyncio.timeout(self.limits.handshake):
            reader, writer = await asyncio.open_connection(
                LOOPBACK, port, ssl=tls, server_hostname=LOOPBACK
            )
        link = Side(reader, writer, h11.Connection(h11.CLIENT), self.limits.body_pause)
        self.sides.append(link)
        return link

    async def _reply(
        self, side: Side, status: int, document: dict[str, Any], *, last: bool = False
    ) -> None:
        body = json.dumps(document).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"date", formatdate(usegmt=True).encode()),
        ]
        headers += [(b"connection", b"close")] if last else []
        await side.send(h11.Response(status_code=status, headers=headers))
        if not self.bodiless:
            await side.send(h11.Data(data=body))
        await side.send(h11.EndOfMessage())


def _told(refused: Refused) -> dict[str, Any]:
    """What the peer learns: a stranger nothing, a site its mistake, in the form Flower reads."""
    return {"code": refused.code, "detail": refused.reason} if refused.code else {}


def _length(headers: dict[bytes, bytes], most: int) -> int:
    """The announced length of a body, which must be announced."""
    text = headers.get(b"content-length", b"")
    if b"transfer-encoding" in headers or not text.isdigit() or len(text) > 12:
        raise Refused(411, "it does not say how long its body is")
    if int(text) > most:
        raise Refused(413, f"its body of {int(text)} bytes is too long")
    return int(text)


def _passed(request: h11.Request) -> list[tuple[bytes, bytes]]:
    """The headers that Flower's node needs, once each, for the SuperLink."""
    headers = {name: value for name, value in request.headers if name in PASSED or _flower(name)}
    return [(b"host", LOOPBACK.encode()), *headers.items()]


def _kept(headers: Any) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name in PASSED or _flower(name)]


def _flower(name: bytes) -> bool:
    return name.startswith(OURS)


def open_front(
    host: str,
    port: int,
    certificate: tuple[str, str, str],
    link: int,
    names: Names,
    enrol: Enrol,
    say: Callable[[str], None],
) -> Front:
    """Bind the port and make the front.

    Args:
        host: Address to listen on.
        port: Port to listen on.
        certificate: Files of authority, certificate and key.
        link: The SuperLink's port on loopback.
        names: Gives the site of a public key.
        enrol: Takes the keys of invited sites.
        say: Told what a person should know.

    Returns:
        The front.
    """
    authority, chain, key = certificate
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.load_cert_chain(chain, key)
    tls.set_alpn_protocols(["http/1.1"])
    inner = ssl.create_default_context(cafile=authority)
    return Front(listen(host, port), tls, (link, inner), names, enrol, say)


def _unless_stopping(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Tell of errors as usual, but not of a connection that came while the port was closed."""
    if not isinstance(context.get("exception"), asyncio.InvalidStateError):
        loop.default_exception_handler(context)
