"""Why a coordinator is not reached: each cause is named, and no other."""

import datetime
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import focoop.flower.deploy.keys
from focoop.flower.deploy.keys import make_keys
from focoop.flower.site.connection import clock, duration, judge, look
from tests.flower.processes import free_ports

HOUR = 3600.0


class Answers(BaseHTTPRequestHandler):
    """A server whose clock is `ahead` seconds ahead."""

    ahead = 0.0

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ok")

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate(time.time() + self.ahead, usegmt=True)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reach")
    make_keys(folder / "keys", ["127.0.0.1"], ["ghent"])
    make_keys(folder / "others", ["127.0.0.1"], ["ghent"])
    return folder


@pytest.fixture(params=[True], ids=["tls"])
def server(keys: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Its address."""
    with serving(keys / "keys" if request.param else None) as address:
        yield address


@contextmanager
def serving(keys: Path | None) -> Iterator[str]:
    """A server with the certificate of `keys`, or without TLS."""
    found = HTTPServer(("127.0.0.1", 0), Answers)
    found.handle_error = lambda *_: None  # type: ignore[method-assign]
    if keys is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keys / "server.pem", keys / "server.key")
        found.socket = context.wrap_socket(found.socket, server_side=True)
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"127.0.0.1:{found.server_address[1]}"
    found.shutdown()
    thread.join(10)
    found.server_close()


def test_a_server_that_answers_is_all_right(server: str, keys: Path) -> None:
    found = look(server, keys / "keys" / "ca.crt")
    assert found.kind == found.text == "" and found.ahead is not None and abs(found.ahead) < 3


@pytest.mark.parametrize(
    ("ahead", "words"),
    [(2 * HOUR + 300, "2 h 5 min behind"), (-3 * HOUR, "ahead of"), (-9, "ahead of"), (200, "")],
)
def test_a_clock_that_is_off_is_told_by_how_much(
    server: str, keys: Path, monkeypatch: pytest.MonkeyPatch, ahead: float, words: str
) -> None:
    """Flower takes signatures up to 5 s ahead of its own clock and 305 s behind it."""
    monkeypatch.setattr(Answers, "ahead", ahead + 1)
    found = look(server, keys / "keys" / "ca.crt")
    assert found.kind == ("clock" if words else "")
    assert words in found.text
    assert found.ahead == pytest.approx(-ahead, abs=3)


def test_another_authority_and_another_name(server: str, keys: Path) -> None:
    found = look(server, keys / "others" / "ca.crt")
    assert found.kind == "authority" and found.final and "not signed by" in found.text
    found = look(server.replace("127.0.0.1", "localhost"), keys / "keys" / "ca.crt")
    assert found.kind == "host" and found.final and "not for localhost" in found.text


@pytest.mark.parametrize("server", [False], indirect=True, ids=["plain"])
def test_a_server_without_tls(server: str, keys: Path) -> None:
    found = look(server, keys / "keys" / "ca.crt")
    assert found.kind == "tls" and "does not speak TLS" in found.text and not found.final


def test_nobody_listens_or_the_name_is_unknown(keys: Path) -> None:
    (port,) = free_ports(1)
    found = look(f"127.0.0.1:{port}", keys / "keys" / "ca.crt")
    assert found.kind == "refused" and "not reachable yet" in found.text and not found.final
    found = look("no-such-host.invalid:8000", keys / "keys" / "ca.crt")
    assert found.kind == "name" and "no-such-host.invalid" in found.text
    assert look("nothing", keys / "keys" / "ca.crt").kind


def stamp(moment: float) -> str:
    return time.strftime("%b %d %H:%M:%S %Y GMT", time.gmtime(moment))


def test_a_certificate_out_of_its_time_or_a_clock() -> None:
    now = 1_800_000_000.0
    told = {"notBefore": stamp(now), "notAfter": stamp(now + 24 * HOUR)}
    assert judge(told, now + HOUR, now + HOUR).kind == ""
    early = judge(told, now - HOUR, now - HOUR)  # both clocks say so
    assert early.kind == "early" and "in 1 h" in early.text and clock(now) in early.text
    late = judge(told, now + 27 * HOUR, now + 27 * HOUR)
    assert late.kind == "expired" and "3 h ago" in late.text and "--renew" in late.text
    # The server's clock is within the certificate's time: this one is wrong.
    for here in (now - 5 * HOUR, now + 40 * HOUR):
        assert judge(told, now + HOUR, here).kind == "clock"
    assert judge(told, None, now - HOUR).kind == "early"  # a server that tells no time
    assert judge(told, None, now + HOUR).ahead is None


@pytest.mark.parametrize(
    ("shift", "kind", "words"),
    # Some hours beside the days: the seconds that the test takes are not told then.
    [(-400.125, "expired", "35 days 3 h ago"), (2, "early", "not valid before")],
)
def test_a_certificate_made_by_a_clock_that_was_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift: float, kind: str, words: str
) -> None:
    """OpenSSL itself would call both a failed verification; the look tells them apart."""

    class Then(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> "Then":
            moment = datetime.datetime.now(tz) + datetime.timedelta(days=shift)
            return cls.fromtimestamp(moment.timestamp(), tz)

    fake = SimpleNamespace(datetime=Then, timedelta=datetime.timedelta, UTC=datetime.UTC)
    monkeypatch.setattr(focoop.flower.deploy.keys, "datetime", fake)
    make_keys(tmp_path / "keys", ["127.0.0.1"], ["ghent"])
    with serving(tmp_path / "keys") as address:
        found = look(address, tmp_path / "keys" / "ca.crt")
    assert found.kind == kind and words in found.text and not found.final
    assert found.ahead is not None and abs(found.ahead) < 3


def test_durations_are_short() -> None:
    assert [duration(s) for s in (0.2, 61, 86400 * 400 + 3600)] == [
        "less than a second",
        "1 min 1 s",
        "400 days 1 h",
    ]
