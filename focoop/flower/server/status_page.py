"""The coordinator's status page: a web page, JSON and Prometheus metrics, on this machine alone.

`/` is one HTML file without any outside resource that asks for `/status.json` every two seconds;
`/metrics` is for Prometheus. The server listens on 127.0.0.1 only and answers only requests for
this machine's own names, so that a web page of somebody else's cannot read it through a browser.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from focoop.errors import FederationError

HOST = "127.0.0.1"
OWN_NAMES = ("127.0.0.1", "localhost")
STATES = ("waiting", "running", "finished", "failed")
Snapshot = Callable[[], dict[str, Any]]


@contextmanager
def status_page(snapshot: Snapshot, port: int) -> Iterator[str]:
    """Serve the page as long as the context lasts.

    Args:
        snapshot: gives `Board.snapshot()`.
        port: to listen on, at 127.0.0.1.

    Yields:
        The page's address.

    Raises:
        FederationError: where the port cannot be used.
    """
    try:
        server = ThreadingHTTPServer((HOST, port), handler(snapshot))
    except (OSError, OverflowError) as error:
        raise FederationError(
            f"no status page at port {port} ({error}): choose another with --status-port, or 0 for "
            "none"
        ) from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="status page", daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def handler(snapshot: Snapshot) -> type[BaseHTTPRequestHandler]:
    """Make the class that answers requests for the page.

    Args:
        snapshot: Gives the federation as it is now.

    Returns:
        The class.
    """
    page, rules = page_and_rules()

    class Handler(BaseHTTPRequestHandler):
        """GET of three paths, by this machine's own names."""

        server_version, sys_version = "focoop", ""
        timeout = 10

        def do_GET(self) -> None:
            """Answer a request."""
            if self.headers.get("Host", "").rpartition(":")[0] not in OWN_NAMES:
                return self._send(403, "text/plain", b"ask for 127.0.0.1 or localhost\n")
            path = self.path.partition("?")[0]
            if path == "/":
                return self._send(200, "text/html; charset=utf-8", page)
            if path == "/status.json":
                content = json.dumps(snapshot()).encode()
                return self._send(200, "application/json", content)
            if path == "/metrics":
                return self._send(200, CONTENT_TYPE_LATEST, metrics(snapshot()))
            return self._send(404, "text/plain", b"there are /, /status.json and /metrics\n")

        def _send(self, code: int, kind: str, content: bytes) -> None:
            self.send_response(code)
            headers = {
                "Content-Type": kind,
                "Content-Length": str(len(content)),
                "Cache-Control": "no-store",
                "Content-Security-Policy": rules,
                "X-Content-Type-Options": "nosniff",
                "Referrer-Policy": "no-referrer",
            }
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not worth a line on the coordinator's screen."""

    return Handler


def page_and_rules() -> tuple[bytes, str]:
    """Return the page, and the rules that let a browser run its own script and style alone."""
    text = (files("focoop") / "assets" / "status_page.html").read_text(encoding="utf-8")
    hashes = {}
    for tag in ("script", "style"):
        (inner,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        hashes[tag] = f"{tag}-src 'sha256-{digest}'"
    rules = ["default-src 'none'", *hashes.values(), "connect-src 'self'", "img-src data:"]
    return text.encode(), "; ".join([*rules, "base-uri 'none'", "frame-ancestors 'none'"])


def metrics(snapshot: dict[str, Any]) -> bytes:
    """Write a snapshot in Prometheus's text format.

    Args:
        snapshot: The snapshot.

    Returns:
        The text.
    """

    class Once(Collector):
        """The one snapshot."""

        def collect(self) -> Iterator[Metric]:
            """Its metrics."""
            yield from families(snapshot)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    return generate_latest(registry)


def families(snapshot: dict[str, Any]) -> Iterator[Metric]:
    """Go through the metrics of a snapshot; those without a value are left out.

    Args:
        snapshot: The snapshot.

    Yields:
        Metrics.
    """
    about = GaugeMetricFamily(
        "focoop_info", "the run", labels=["title", "method", "version"], value=None
    )
    about.add_metric([snapshot["title"], snapshot["method"], snapshot["version"]], 1)
    yield about
    state = GaugeMetricFamily("focoop_state", "1 for the state the run is in", labels=["state"])
    for name in STATES:
        state.add_metric([name], float(snapshot["state"] == name))
    yield state
    single = {
        "round": "round under way",
        "committed": "last round that is committed",
        "rounds": "rounds of the run",
        "accuracy": "accuracy on the sites' own classes",
        "loss": "mean training loss of the last round",
        "epsilon": "epsilon spent so far by the site that was asked most often",
        "seconds": "seconds of the last round",
    }
    for name, text in single.items():
        if isinstance(snapshot[name], int | float):
            yield GaugeMetricFamily(f"focoop_{name}", text, value=snapshot[name])
    sent = CounterMetricFamily("focoop_bytes", "bytes of tensors sent", labels=["direction"])
    for way in ("up", "down"):
        sent.add_metric([way], snapshot[f"bytes_{way}"])
    yield sent
    yield from _of_sites(snapshot["sites"])


def _of_sites(sites: list[dict[str, Any]]) -> Iterator[Metric]:
    gauges = {
        "connected": "1 where the site is connected",
        "accuracy": "accuracy on the site's own classes",
    }
    for name, text in gauges.items():
        gauge = GaugeMetricFamily(f"focoop_site_{name}", text, labels=["site"])
        for site in sites:
            if site[name] is not None:
                gauge.add_metric([site["name"]], float(site[name]))
        yield gauge
    counters = {
        "updates": "updates of the site that counted",
        "left_out": "times the site was left out of a round",
        "refused": "times the site refused, or was refused",
    }
    for name, text in counters.items():
        counter = CounterMetricFamily(f"focoop_site_{name}", text, labels=["site"])
        for site in sites:
            counter.add_metric([site["name"]], float(site[name]))
        yield counter
