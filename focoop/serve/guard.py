"""What every request passes before any of it is believed: host, origin, key, size, time, room.

Plain ASGI, around the app. All answers get headers that let a browser load nothing from elsewhere
and show the page in no other page.
"""

import asyncio
import ipaddress
import json
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from focoop.serve.keys import KeyFile
from focoop.serve.limits import Limits
from focoop.serve.refusals import Refusal, busy

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Without a key: the page's files, which hold no data, and what a process manager asks for.
OPEN_PATHS = ("/", "/health", "/ready")
OPEN_FOLDER = "/page/"
WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        "connect-src 'self'; media-src 'self' blob:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def is_loopback(host: str) -> bool:
    """Say whether an address can be reached from this machine alone.

    Args:
        host: A name or an address, without a port.

    Returns:
        Whether it can.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "10.0.0.1")]
    [True, True, True, False, False]
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass
class Guard:
    """Wraps an app.

    Attributes:
        app: The app.
        limits: Bounds.
        keys: Keys that are asked for; None: everybody is let in.
        local_only: Answer requests alone that call this machine `localhost` or by its loopback
            address: no page of another name that resolves to it (DNS rebinding).
        on_answer: Told path, status and seconds of every request.
        on_refusal: Told why a request was refused before the app saw it.
    """

    app: App
    limits: Limits
    keys: KeyFile | None = None
    local_only: bool = True
    on_answer: Callable[[str, int, float], None] = field(default=lambda path, status, seconds: None)
    on_refusal: Callable[[str], None] = field(default=lambda kind: None)
    active: int = field(default=0, init=False)
    held: int = field(default=0, init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = {
            name.decode("latin-1"): text.decode("latin-1") for name, text in scope["headers"]
        }
        answer, began = _Answer(send), time.perf_counter()
        self.active += 1
        length = 0
        try:
            self._admit(scope, headers)
            length = self._length(scope["method"], headers)
            self.held += length
            body = _Body(receive, length, self.limits.seconds)
            await self.app(scope, body, answer.send)
        except Refusal as refusal:
            self.on_refusal(refusal.kind)
            await answer.refuse(refusal)
        finally:
            self.active -= 1
            self.held -= length
            route = getattr(scope.get("route"), "path", "other")
            self.on_answer(route, answer.status, time.perf_counter() - began)

    def _admit(self, scope: Scope, headers: dict[str, str]) -> None:
        if self.active > self.limits.connections:
            raise busy("too many requests at once: try again soon")
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
        if self.local_only and not is_loopback(host):
            raise Refusal(403, "host", "this server answers at localhost alone")
        self._check_origin(scope["method"], headers)
        path = scope["path"]
        if self.keys is None or path in OPEN_PATHS or path.startswith(OPEN_FOLDER):
            return
        if self.keys.owner(_key(headers)) is None:
            raise Refusal(
                401, "key", "a valid API key is needed: send the header 'Authorization: Bearer KEY'"
            )

    def _check_origin(self, method: str, headers: dict[str, str]) -> None:
        """Pages of other sites may not use a browser that can reach this server."""
        site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
        foreign = site not in ("same-origin", "none")
        if origin is not None and method in WITH_BODY:
            foreign |= urlsplit(origin).netloc != headers.get("host", "")
        if foreign and (method in WITH_BODY or headers.get("sec-fetch-mode") != "navigate"):
            raise Refusal(403, "origin", "requests from pages of other sites are not answered")

    def _length(self, method: str, headers: dict[str, str]) -> int:
        """The bytes of the body that is announced."""
        if method not in WITH_BODY and "transfer-encoding" not in headers:
            given = headers.get("content-length", "0")
        elif "content-length" not in headers:
            raise Refusal(
                411, "length", "send the header Content-Length: bodies in chunks are refused"
            )
        else:
            given = headers["content-length"]
        if not (given.isascii() and given.isdigit()):
            raise Refusal(400, "length", "the header Content-Length is no number")
        length = int(given[:20])
        if length > self.limits.request_bytes:
            raise Refusal(
                413, "bytes", f"a request may have {self.limits.request_bytes} bytes, not {length}"
            )
        if self.held + length > self.limits.held_bytes:
            raise busy()
        return length


def _key(headers: dict[str, str]) -> str:
    """The key of a request; empty without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


class _Body:
    """The body as it comes in: not longer than announced, and not slower than allowed."""

    def __init__(self, receive: Receive, length: int, seconds: float) -> None:
        self.receive, self.left = receive, length
        self.until, self.complete = time.monotonic() + seconds, False

    async def __call__(self) -> Message:
        if self.complete:  # what comes now is the end of the connection
            return await self.receive()
        try:
            async with asyncio.timeout(max(0.0, self.until - time.monotonic())):
                message = await self.receive()
        except TimeoutError as error:
            raise Refusal(408, "slow", "the request came in too slowly") from error
        self.left -= len(message.get("body", b""))
        if self.left < 0:
            raise Refusal(413, "bytes", "the request is longer than its Content-Length")
        self.complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message


class _Answer:
    """An answer under way: its status, and headers that every answer has."""

    def __init__(self, send: Send) -> None:
        self._send, self.status = send, 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = {name.lower() for name, _ in message.get("headers", ())}
            message["headers"] = [
                *message.get("headers", ()),
                *_raw((k, v) for k, v in SECURITY_HEADERS.items() if k.encode() not in given),
            ]
        await self._send(message)

    async def refuse(self, refusal: Refusal) -> None:
        if self.status:  # it has begun: all that is left is to end it
            return
        body = json.dumps(refusal.body()).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        headers |= refusal.headers()
        await self.send(
            {
                "type": "http.response.start",
                "status": refusal.status,
                "headers": _raw(headers.items()),
            }
        )
        await self.send({"type": "http.response.body", "body": body})


def _raw(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), text.encode("latin-1")) for name, text in headers]
