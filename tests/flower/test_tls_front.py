"""The front passes on what a site has signed and uses; strangers reach nothing behind it."""

import contextlib
import datetime
import json
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from focoop.errors import FederationError
from focoop.flower.deploy.gate import FLEET
from focoop.flower.deploy.keys import make_keys
from focoop.flower.deploy.tls_front import Front, Limits, open_front

PULL = "/v1/fleet/pull-messages"


@dataclass
class Link:
    """A SuperLink that remembers all requests it gets and answers each with `answer`."""

    folder: Path
    answer: bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nserver: x\r\nflwr-a: b\r\n\r\nok"
    seen: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(self.folder / "server.pem", self.folder / "server.key")
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(0.1)
        self.port = self.listener.getsockname()[1]
        self.open = True
        self.thread = threading.Thread(target=self._accept)
        self.thread.start()

    def _accept(self) -> None:
        served: list[threading.Thread] = []
        while self.open:
            try:
                sock = self.listener.accept()[0]
            except TimeoutError:
                continue
            served.append(threading.Thread(target=self._serve, args=(sock,)))
            served[-1].start()
        for one in served:
            one.join()

    def _serve(self, plain: socket.socket) -> None:
        plain.settimeout(5)
        with contextlib.suppress(OSError), self.tls.wrap_socket(plain, server_side=True) as sock:
            data = b""
            while True:
                while b"\r\n\r\n" not in data:
                    data += (piece := sock.recv(65536))
                    if not piece:
                        return
                head, _, rest = data.partition(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                while len(rest) < length:
                    rest += (piece := sock.recv(65536))
                    if not piece:
                        return
                self.seen.append(head + b"\r\n\r\n" + rest[:length])
                data = rest[length:]
                sock.sendall(self.answer)

    def close(self) -> None:
        self.open = False
        self.thread.join(10)
        self.listener.close()


@dataclass
class Port:
    """A front before such a SuperLink, and what it said."""

    link: Link
    front: Front
    keys: Path
    said: list[str]

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.front.listener.getsockname()[:2]
        return str(host), int(port)

    def connect(self, *, known: bool = True) -> ssl.SSLSocket:
        """A TLS connection, with the federation's `ca.crt` or without."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if known:
            context.load_verify_locations(self.keys / "ca.crt")
        else:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context.wrap_socket(
            socket.create_connection(self.address, timeout=5), server_hostname="127.0.0.1"
        )

    def send(self, data: bytes, *, known: bool = True) -> bytes:
        """All that comes back for these bytes until the front closes or is silent."""
        with self.connect(known=known) as sock:
            sock.sendall(data)
            sock.settimeout(0.4)
            found = b""
            try:
                while piece := sock.recv(65536):
                    found += piece
            except OSError:
                pass
            return found

    def signed(
        self, site: str = "a", age: float = 0.0, path: str = PULL, body: bytes = b""
    ) -> bytes:
        """A request as Flower's node makes it."""
        return request(self.keys / "sites" / site, age, path, body)


def request(folder: Path, age: float, path: str, body: bytes, *more: str) -> bytes:
    private = load_ssh_private_key((folder / "key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)
    stamp = at.isoformat()
    lines = [
        f"POST {path} HTTP/1.1",
        "host: 127.0.0.1",
        f"content-length: {len(body)}",
        "content-type: application/x-protobuf",
        "authorization: Bearer x",
        "cookie: y",
        f"flwr-public-key: {b64encode(public_key_to_bytes(private.public_key())).decode()}",
        f"flwr-timestamp: {stamp}",
        f"flwr-signature: {b64encode(sign_message(private, stamp.encode())).decode()}",
        *more,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("front")
    make_keys(folder / "keys", ["127.0.0.1"], ["a", "b"])
    make_keys(folder / "others", ["127.0.0.1"], ["a"])
    return folder


@pytest.fixture
def port(keys: Path) -> Iterator[Port]:
    found = keys / "keys"
    link, said = Link(found), []
    known = {}
    for name in ("a", "b"):
        private = load_ssh_private_key((found / "sites" / name / "key").read_bytes(), None)
        known[public_key_to_bytes(private.public_key())] = name  # type: ignore[arg-type]
    files = str(found / "ca.crt"), str(found / "server.pem"), str(found / "server.key")

    def enrol(body: bytes) -> tuple[int, dict[str, object]]:
        return 200, {"length": len(body)}

    front = open_front("127.0.0.1", 0, files, link.port, known.get, enrol, said.append)
    front.start()
    yield Port(link, front, found, said)
    front.stop()
    link.close()


def answered(sock: ssl.SSLSocket) -> bool:
    """Whether the next answer is the SuperLink's."""
    found = b""
    while not found.endswith(b"ok"):
        found += (piece := sock.recv(1000))
        if not piece:
            return False
    return b" 200 " in found


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def test_a_sites_request_arrives_whole_and_without_what_flower_must_not_see(port: Port) -> None:
    body = bytes(range(256)) * 2000
    answer = port.send(port.signed(body=body))
    assert status(answer) == 200 and answer.endswith(b"\r\n\r\nok")
    assert b"flwr-a: b" in answer and b"server:" not in answer and b"date: " in answer
    (seen,) = port.link.seen
    head, _, rest = seen.partition(b"\r\n\r\n")
    assert rest == body and head.startswith(b"POST /v1/fleet/pull-messages HTTP/1.1\r\n")
    names = {line.split(b":")[0].lower() for line in head.split(b"\r\n")[1:]}
    assert names == {b"host", b"content-length", b"content-type"} | {
        b"flwr-public-key",
        b"flwr-timestamp",
        b"flwr-signature",
    }


def test_requests_of_one_connection_come_one_by_one_with_their_own_answers(port: Port) -> None:
    port.link.answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    one, two = port.signed(body=b"first"), port.signed("b", body=b"second")
    answer = port.send(one + two)
    assert answer.count(b"HTTP/1.1 200") == 2 and answer.count(b"3\r\nabc\r\n0\r\n\r\n") == 2
    assert [seen[-6:] for seen in port.link.seen] == [b"\nfirst", b"second"]


FORBIDDEN = [
    "/v1/control/list-runs",
    "/v1/control/start-run",
    "/v1/runtime/acquire-task",
    "/v1/fleet/register-node",
    "/v1/fleet/unregister-node",
    "/v1/fleet/../control/start-run",
    "/v1/fleet/%2e%2e/control/start-run",
    "/v1/fleet/pull-messages/../../control/start-run",
    "//v1/fleet/pull-messages",
    "/v1/fleet/pull-messages?x=1",
    "/v1/fleet/pull-messages#",
    "/V1/fleet/pull-messages",
    "https://127.0.0.1/v1/control/start-run",
    "https://127.0.0.1/v1/fleet/pull-messages",
    "*",
    "/docs",
    "/openapi.json",
    "/",
]


@pytest.mark.parametrize("path", FORBIDDEN)
def test_even_a_site_reaches_nothing_else(port: Port, path: str) -> None:
    assert status(port.send(port.signed(path=path))) == 404
    assert not port.link.seen and "nothing that sites use" in port.said[0]


@pytest.mark.parametrize("known", [True, False])
def test_a_stranger_reaches_nothing_with_or_without_the_authority(port: Port, known: bool) -> None:
    for k, path in enumerate((*sorted(FLEET), *(path.encode() for path in FORBIDDEN))):
        method = (b"POST", b"GET", b"PUT")[k % 3] if path not in FLEET else b"POST"
        line = b"%s %s HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n" % (method, path)
        answer = port.send(line, known=known)
        assert status(answer) == 404 and answer.endswith(b"{}"), (line, answer)
    stranger = request(port.keys.parent / "others/sites/a", 0, PULL, b"")
    answer = port.send(stranger, known=known)
    assert status(answer) == 412 and json.loads(answer.split(b"\r\n\r\n")[1])["code"] == 2004
    assert not port.link.seen


def test_a_sites_mistakes_are_told_to_it(port: Port) -> None:
    for age, words in ((400.0, "400 s behind"), (-60.0, "60 s ahead of")):
        answer = port.send(port.signed(age=age))
        told = json.loads(answer.split(b"\r\n\r\n")[1])
        assert status(answer) == 412 and f"the clock of a is {words} the server's" in told["detail"]
    good = port.signed()
    start = good.index(b"flwr-signature: ") + 16
    forged = good[:start] + port.signed("b")[start:]
    assert b"the signature is not that of a" in port.send(forged)
    for header in (b"flwr-public-key", b"flwr-timestamp", b"flwr-signature"):
        assert status(port.send(good.replace(header, b"x" + header))) == 404
    assert status(port.send(good.replace(b"flwr-timestamp: 2", b"flwr-timestamp: x"))) == 412
    assert not port.link.seen


@pytest.mark.parametrize(
    ("more", "status_code"),
    [
        (("transfer-encoding: chunked",), 411),
        (("content-length: 5",), 400),
        (("content-length: 0, 5",), 400),
        (("Content-Length : 5",), 400),
        ((" folded: yes",), None),
        (("x" * 20_000 + ": y",), None),
        (("transfer-encoding: identity",), None),
    ],
)
def test_a_request_that_two_programs_could_read_differently_is_not_passed_on(
    port: Port, more: tuple[str, ...], status_code: int | None
) -> None:
    hidden = b"POST /v1/control/start-run HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"
    data = request(port.keys / "sites" / "a", 0, PULL, b"", *more) + hidden
    answer = port.send(data)
    assert b"HTTP/1.1 200" not in answer or not any(b"control" in one for one in port.link.seen)
    assert not any(b"control" in one for one in port.link.seen)
    if status_code is not None:
        assert status(answer) in (0, status_code) and not port.link.seen


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
@example(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n" * 3)
@given(
    st.binary(max_size=300)
    | st.text(max_size=100).map(lambda t: f"POST {t} HTTP/1.1\r\n\r\n".encode())
)
def test_no_bytes_of_a_stranger_reach_the_superlink(port: Port, data: bytes) -> None:
    with port.connect() as sock:
        sock.sendall(data)
    assert not port.link.seen


def test_health_and_enrolment_need_no_key(port: Port) -> None:
    assert status(port.send(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n", known=False)) == 200
    assert (
        status(port.send(b"HEAD /health HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n")) == 404
    )
    head = b"POST /v1/focoop/enrol HTTP/1.1\r\nhost: a\r\ncontent-length: "
    answer = port.send(head + b"5\r\n\r\nhello")
    assert status(answer) == 200 and json.loads(answer.split(b"\r\n\r\n")[1]) == {"length": 5}
    assert status(port.send(head + b"9000\r\n\r\n")) == 413
    assert not port.link.seen


def test_a_body_must_not_be_too_long_or_stop_in_the_middle(port: Port) -> None:
    port.front.limits = Limits(body_bytes=100, body_pause=0.2)
    assert status(port.send(port.signed(body=b"x" * 101))) == 413
    cut = port.signed(body=b"x" * 100)[:-1]
    assert port.send(cut) == b"" and not port.link.seen


def test_slow_strangers_are_cut_off_and_too_many_are_not_let_in(port: Port) -> None:
    port.front.limits = Limits(strangers_each=3)
    site = port.connect()
    site.sendall(port.signed())
    assert answered(site)  # a site that is known counts among the strangers no more
    slow = [port.connect() for _ in range(3)]
    with pytest.raises(OSError):
        port.connect()
    assert any("too many connections" in text for text in port.said)
    site.sendall(port.signed())
    assert answered(site)
    for one in (site, *slow):
        one.close()
    until = time.monotonic() + 5
    while port.front.strangers and time.monotonic() < until:
        time.sleep(0.02)
    assert not port.front.strangers
    port.front.limits = Limits(first_lines=0.3)
    with port.connect() as sock:
        began = time.monotonic()
        try:
            while time.monotonic() < began + 5:
                sock.sendall(b"P")  # a byte now and then does not buy more time
                time.sleep(0.05)
                sock.setblocking(False)
                if sock.recv(10) == b"":
                    break
        except (ssl.SSLWantReadError, OSError):
            pass
        sock.settimeout(3)
        with pytest.raises((AssertionError, OSError)):
            assert sock.recv(10) != b""
        assert time.monotonic() - began < 3


def test_a_superlink_that_is_away_is_told_as_such(port: Port, keys: Path) -> None:
    port.front.link = (1, port.front.link[1])
    answer = port.send(port.signed())
    assert status(answer) == 503 and b"away" in answer


def test_a_port_that_is_taken_is_an_error(port: Port) -> None:
    files = tuple(str(port.keys / name) for name in ("ca.crt", "server.pem", "server.key"))
    no_one: dict[bytes, str] = {}
    with pytest.raises(FederationError, match=r"ss -ltnp .* or use --port"):
        open_front(
            "127.0.0.1", port.address[1], files, 1, no_one.get, lambda body: (200, {}), print
        )  # type: ignore[arg-type]
