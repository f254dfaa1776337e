"""Numbers of a server for Prometheus: requests, images, batches, queue and drift."""

from collections.abc import Callable, Iterator
from typing import Any

from focoop.serve.drift import Drift
from focoop.serve.engine import Engine

STATES = {"more foreign": 1, "fewer foreign": -1}
P_VALUES = (0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Numbers:
    """Counts what a server does; each server has counts of its own.

    Args:
        engine: Told of for queue and drift whenever the numbers are read.
    """

    def __init__(self, engine: Engine) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self.registry = CollectorRegistry()
        self.engine = engine

        def made(kind: Any, name: str, text: str, labels: tuple[str, ...] = (), **more: Any) -> Any:
            return kind(f"focoop_{name}", text, labels, registry=self.registry, **more)

        self._requests = made(
            Counter, "requests", "Requests by route and status.", ("route", "status")
        )
        self._seconds = made(
            Histogram, "request_seconds", "Time of a request.", ("route",), buckets=SECONDS
        )
        self._images = made(Counter, "images", "Answered images.", ("model", "client", "verdict"))
        self._refused = made(Counter, "refusals", "Refused requests.", ("kind",))
        self._p_values = made(
            Histogram,
            "p_value",
            "p-values of answered images: uniform on images like those of the calibration.",
            ("model", "client"),
            buckets=P_VALUES,
        )
        self._batches = made(
            Histogram, "batch_images", "Images encoded together.", (), buckets=SIZES
        )
        engine.on_batch = self._batches.observe
        self.registry.register(_Gauges(engine))

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a request.

        Args:
            route: The path as the API calls it.
            status: HTTP status.
            seconds: How long it took.
        """
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def refusal(self, kind: str) -> None:
        """Count a refused request.

        Args:
            kind: Why.
        """
        self._refused.labels(kind).inc()

    def image(self, model: str, client: str, verdict: str, p_value: float | None) -> None:
        """Count an answered image.

        Args:
            model: The model's name.
            client: The client's name.
            verdict: The verdict.
            p_value: Its p-value, or None.
        """
        self._images.labels(model, client, verdict).inc()
        if p_value is not None:
            self._p_values.labels(model, client).observe(p_value)

    def text(self) -> bytes:
        """Return all numbers in the format of Prometheus."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)


class _Gauges:
    """What is looked up when the numbers are read."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        yield GaugeMetricFamily(
            "focoop_images_inside", "Images decoded or waiting now.", value=self.engine.inside
        )
        facts: dict[str, tuple[str, Callable[[Drift], float | None]]] = {
            "drift": ("1: more foreign images than calibrated, -1: fewer, 0: neither.", _state),
            "drift_images": ("Images in the window.", lambda found: found.images),
            "drift_flagged": ("Images in the window taken for foreign.", lambda f: f.flagged),
            "drift_low": ("Fewest that are as calibrated.", lambda found: found.low),
            "drift_high": ("Most that are as calibrated.", lambda found: found.high),
            "drift_expected": ("Share that calibration expects.", lambda f: f.expected),
        }
        looks = [
            (served.name, client, counter.look())
            for served in self.engine.served.values()
            for client, counter in served.drifts().items()
        ]
        for name, (text, value) in facts.items():
            family = GaugeMetricFamily(f"focoop_{name}", text, labels=("model", "client"))
            for model, client, found in looks:
                if found.expected is not None:
                    family.add_metric((model, client), float(value(found) or 0))
            yield family


def _state(found: Drift) -> float:
    return float(STATES.get(found.state, 0))
