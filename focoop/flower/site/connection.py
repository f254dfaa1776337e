"""Why a site does not reach its coordinator: one look, and the cause in words.

The look is a TLS connection and a request of /health. The chain of certificates is checked as
always, but for the time: a certificate that seems not yet valid, or expired, is mostly a clock that
is off, and the server's own clock (the Date of its answer) tells which of the two it is.
"""

import http.client
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

NO_CHECK_TIME = 0x200000  # OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python does not name
# The server takes signatures that are up to 5 s ahead of its clock and 305 s behind it.
AHEAD, BEHIND = 4.0, 300.0  # seconds
MISMATCH = 62  # OpenSSL's code of a certificate for another host; 64: another address
MISMATCH_ADDRESS = 64


@dataclass(frozen=True)
class Reach:
    """What a look has found.

    `kind` is "" where the server answers and nothing is wrong; else one of name, refused, silent,
    route, tls, authority, host, clock, early, expired. `text` says it in words. `ahead` is by how
    many seconds this machine's clock is ahead of the server's; None where it is not known.
    """

    kind: str
    text: str = ""
    ahead: float | None = None

    @property
    def final(self) -> bool:
        """Return whether waiting cannot help: this is another server, or goes by another name."""
        return self.kind in ("authority", "host")


def look(server: str, certificate: Path, timeout: float = 5.0) -> Reach:
    """Look whether a coordinator answers.

    Args:
        server: HOST:PORT.
        certificate: the federation's authority, `ca.crt`.
        timeout: seconds for each step.

    Returns:
        What was found; this function raises nothing.
    """
    host, _, port = server.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cafile=str(certificate))
    context.verify_flags |= NO_CHECK_TIME
    try:
        with (
            socket.create_connection((host, int(port)), timeout) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            peer = secure.getpeercert() or {}
            date = _date(secure, host)
    except (OSError, ValueError) as error:
        return Reach(*_cause(error, server, host))
    return judge(peer, date, time.time())


def judge(certificate: Mapping[str, object], date: float | None, now: float) -> Reach:
    """What the server's certificate and clock say.

    Args:
        certificate: as `ssl.SSLSocket.getpeercert` gives it.
        date: the server's time in seconds since 1970; None where it told none.
        now: this machine's.

    Returns:
        Nothing wrong, a clock that is off, or a certificate that is not valid by both clocks.
    """
    ahead = None if date is None else now - date
    if ahead is not None and not -BEHIND < ahead < AHEAD:
        way = "ahead of" if ahead > 0 else "behind"
        text = (
            f"this machine's clock is {duration(abs(ahead))} {way} the coordinator's (here "
            f"{clock(now)}, there {clock(now - ahead)}): set it right, as with NTP; until then the "
            "coordinator refuses this site's signatures"
        )
        return Reach("clock", text, ahead)
    first, last = (ssl.cert_time_to_seconds(str(certificate[key])) for key in TIMES)
    if now < first:
        text = (
            f"the server's certificate is not valid before {clock(first)}, in "
            f"{duration(first - now)}: wait, or set this machine's clock if {clock(now)} is wrong"
        )
        return Reach("early", text, ahead)
    if now > last:
        text = (
            f"the server's certificate has expired, {duration(now - last)} ago ({clock(last)}): "
            "the coordinator must renew it (focoop keys --renew)"
        )
        return Reach("expired", text, ahead)
    return Reach("", "", ahead)


TIMES = ("notBefore", "notAfter")


def _date(secure: ssl.SSLSocket, host: str) -> float | None:
    """The server's clock, from its answer to a request; None where it gives no time."""
    secure.sendall(f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    answer = http.client.HTTPResponse(secure)
    try:
        answer.begin()
        header = answer.getheader("Date")
        return parsedate_to_datetime(header).timestamp() + 0.5 if header else None  # whole seconds
    except (http.client.HTTPException, ValueError, TypeError):
        return None
    finally:
        answer.close()


def _cause(error: Exception, server: str, host: str) -> tuple[str, str]:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in (MISMATCH, MISMATCH_ADDRESS):
            return "host", (
                f"the server's certificate is not for {host}: join by a name or address given to "
                "focoop keys --host, or have the certificate renewed for this one"
            )
        return "authority", (
            "the server's certificate is not signed by the authority in this site's ca.crt: this "
            "is another server, or these are keys of another federation"
        )
    if isinstance(error, ssl.SSLError):
        return "tls", f"{server} does not speak TLS: is it a coordinator of focoop?"
    if isinstance(error, socket.gaierror):
        return "name", f"the name {host} is not known here: is it right, is there a network?"
    if isinstance(error, ConnectionRefusedError | ConnectionResetError):
        return "refused", f"{server} is not reachable yet: nothing listens there"
    if isinstance(error, TimeoutError):
        return "silent", f"{server} does not answer: it is off, or a firewall is in between"
    return "route", f"{server} is not reachable ({error})"


def duration(seconds: float) -> str:
    """Write a stretch of time in its two largest units.

    Args:
        seconds: The time.

    Returns:
        Words.

    >>> duration(7530), duration(59), duration(86400 * 3)
    ('2 h 5 min', '59 s', '3 days')
    """
    parts = []
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min"), (1, "s")):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{int(count)} {unit}")
    return " ".join(parts[:2]) or "less than a second"


def clock(seconds: float) -> str:
    """Write a moment as people do, in UTC.

    Args:
        seconds: Seconds since 1970.

    Returns:
        Words.

    >>> clock(0)
    '1970-01-01 00:00:00 UTC'
    """
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
