"""What a server needs of a model, and what it tells of one."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from focoop.errors import ConfigError, nearest
from focoop.serve.drift import DriftCounter

if TYPE_CHECKING:
    from torch import Tensor

    from focoop.clip import ImageFeatures

BARS = 24  # of the histogram of calibration scores


class Answer(Protocol):
    """The answer to one image, such as `focoop.predict.Prediction`."""

    @property
    def verdict(self) -> str:
        """Return `own`, `other`, `known` or `unknown`."""

    @property
    def score(self) -> float:
        """Return how foreign the image looks."""

    @property
    def p_value(self) -> float | None:
        """Return the share of calibration images that look at least as foreign."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""


class ServedModel(Protocol):
    """A model that answers images, such as `focoop.predict.Model`."""

    @property
    def classes(self) -> Sequence[str]:
        """Return all class names."""

    @property
    def sides(self) -> Mapping[str, int | None]:
        """Return whom it can answer for: numbers of clients by name; None: the global model."""

    @property
    def usual(self) -> str:
        """Return the side that answers where a request names none."""

    @property
    def calibration(self) -> Any:
        """Return thresholds and calibration scores; None without calibration."""

    @property
    def open_share(self) -> float | None:
        """Return the model's own setting of the dial; None where it has none."""

    @property
    def explains(self) -> bool:
        """Return whether it gives heat maps."""

    def own_classes(self, client: int | None) -> Sequence[str]:
        """Return a client's class names.

        Args:
            client: Its number; None: the global model.

        Returns:
            The names; none for the global model.
        """

    def prepare(self, image: Any) -> "Tensor":
        """Make an image as small as the backbone takes it.

        Args:
            image: A PIL image in RGB.

        Returns:
            Its pixels, for `encode`.
        """

    def encode(self, prepared: "Sequence[Tensor]") -> "ImageFeatures":
        """Encode images.

        Args:
            prepared: What `prepare` gave for each.

        Returns:
            Features of all, in order.
        """

    def decide(
        self, features: "ImageFeatures", *, client: int | None, open_share: float | None, top: int
    ) -> Sequence[Answer]:
        """Answer images.

        Args:
            features: Rows of what `encode` gave.
            client: For whom; None: the global model.
            open_share: Probability of classes that the client does not hold; None: the model's.
            top: How many classes are listed.

        Returns:
            An answer for each image.
        """

    def heat_map(self, image: Any, label: str, client: int | None) -> NDArray[np.float32]:
        """Say where in an image a class is.

        Args:
            image: A PIL image.
            label: The class.
            client: Whose prompts are asked; None: the global ones.

        Returns:
            Similarities (h, w).
        """


class Served:
    """A model under a name, with the drift of each of its clients.

    Args:
        name: What requests call it.
        model: The model.
    """

    def __init__(self, name: str, model: ServedModel) -> None:
        self.name, self.model = name, model
        self.sides = dict(model.sides)
        self.own_classes = {side: tuple(model.own_classes(k)) for side, k in self.sides.items()}
        self._drift = {client: self._counter(client) for client in self.sides.values()}

    def client_number(self, asked: str) -> int | None:
        """Find a client by name or number.

        Args:
            asked: A name, a number, or `global`; empty: the model's usual one.

        Returns:
            Its number; None for the global model.

        Raises:
            ConfigError: The model does not answer for such a client.
        """
        asked = asked[:100] or self.model.usual
        if asked in self.sides:
            return self.sides[asked]
        if asked.isascii() and asked.isdigit() and int(asked) in self.sides.values():
            return int(asked)
        raise ConfigError(
            f"model {self.name!r} does not answer for {asked!r}{nearest(asked, self.sides)}"
        )

    def client_name(self, client: int | None) -> str:
        """Return the name of a client.

        Args:
            client: Its number; None: the global model.

        Returns:
            The name.
        """
        return next(name for name, number in self.sides.items() if number == client)

    def count(self, client: int | None, answers: Sequence[Answer]) -> None:
        """Count answers towards the drift of a client's stream.

        Args:
            client: Its number; None: the global model.
            answers: The answers.
        """
        for answer in answers:
            self._drift[client].count(answer.verdict == "unknown")

    def drifts(self) -> Mapping[str, DriftCounter]:
        """Return the counters by client name."""
        return {name: self._drift[client] for name, client in self.sides.items()}

    def describe(self) -> dict[str, Any]:
        """Return what `/v1/models` tells of the model."""
        return {
            "name": self.name,
            "classes": list(self.model.classes),
            "keep": getattr(self.model.calibration, "keep", None),
            "open_share": self.model.open_share,
            "explains": self.model.explains,
            "usual": self.model.usual,
            "clients": [self._client(name, client) for name, client in self.sides.items()],
        }

    def _client(self, name: str, client: int | None) -> dict[str, Any]:
        site = self._site(client)
        return {
            "name": name,
            "is_global": client is None,
            "own_classes": list(self.own_classes[name]),
            "threshold": None if site is None else site.threshold,
            "calibrated_on": 0 if site is None else site.scores.count,
            "calibrated_by": None if site is None else site.source,
            "histogram": None if site is None else histogram(site.scores, site.threshold),
            "drift": asdict(self._drift[client].look()),
        }

    def _site(self, client: int | None) -> Any:
        calibration = self.model.calibration
        return None if calibration is None else calibration.at(client)

    def _counter(self, client: int | None) -> DriftCounter:
        site = self._site(client)
        if site is None or site.threshold is None:
            return DriftCounter(None)
        return DriftCounter(flagged_share(site.scores, site.threshold), site.scores.count)


def flagged_share(scores: Any, threshold: float) -> float:
    """Return the share of images like those of the calibration that lie above the threshold.

    With n calibration images of which k lie above, a new one does with probability (k + 1) /
    (n + 1). Few images make that less than what was asked for: 2.6% of 38, where 5% may be lost.

    Args:
        scores: A sketch, as in `histogram`.
        threshold: The calibrated threshold.

    Returns:
        The share.
    """
    above = np.asarray(scores.weights)[np.asarray(scores.values) > threshold].sum()
    return (float(above) + 1.0) / (float(scores.count) + 1.0)


def histogram(scores: Any, threshold: float | None) -> dict[str, Any] | None:
    """Count calibration scores in bars of equal width.

    Args:
        scores: A sketch: ascending `values`, each of which stands for `weights` images.
        threshold: Score above which an image is unknown; the axis reaches past it.

    Returns:
        `low` and `high`, the ends of the axis, and `counts` of the bars; None without scores.
    """
    values = np.asarray(scores.values, dtype=np.float64)
    if not len(values):
        return None
    ends = [float(values[0]), float(values[-1]), *([] if threshold is None else [threshold])]
    low, high = min(ends), max(ends)
    margin = 0.05 * (high - low) or 0.5
    low, high = low - margin, high + margin
    counts, _ = np.histogram(values, BARS, (low, high), weights=np.asarray(scores.weights))
    return {"low": low, "high": high, "counts": [int(count) for count in counts]}
