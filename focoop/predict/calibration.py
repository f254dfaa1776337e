"""Thresholds of a model's clients from images that took no part in training or tests."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from focoop.caching import SUM, is_intact, parse_json, sealed
from focoop.errors import RunError, newer_format
from focoop.predict.conformal import Sketch, least_images

GLOBAL = "global"  # the name of the model without a client
FORMAT = 2  # 1 had no checksum
# Whose images a threshold comes from.
FROM_OWN, FROM_POOL = "own", "pool"


@dataclass(frozen=True)
class SiteCalibration:
    """The calibration of one client's model, or of the global one.

    Attributes:
        images: The client's own calibration images.
        source: `own`: thresholds come from these; `pool`: from all clients', as these are too few.
        threshold: An image is `unknown` above this score; None where even the pool is too small.
        class_threshold: A class is in the class set up to this; None as above.
        scores: OOD scores of the images that the threshold comes from.
        class_scores: 1 - probability of the right class, of the same images.
        measured: What the thresholds do to test images: `images`, `kept`, `covered`, `set_size`.
    """

    images: int
    source: str
    threshold: float | None
    class_threshold: float | None
    scores: Sketch
    class_scores: Sketch
    measured: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, images: int, source: str, scores: Sketch, class_scores: Sketch, keep: float
    ) -> SiteCalibration:
        """Find the thresholds.

        Args:
            images: The client's own calibration images.
            source: `own` or `pool`.
            scores: OOD scores of the images.
            class_scores: 1 - probability of their classes.
            keep: Share of ID images to keep, and coverage of class sets.

        Returns:
            The calibration.
        """
        found = [part.threshold(keep) for part in (scores, class_scores)]
        above, beyond = (value if math.isfinite(value) else None for value in found)
        return cls(images, source, above, beyond, scores, class_scores)


@dataclass(frozen=True)
class Calibration:
    """The calibration of a run's models.

    Attributes:
        keep: Share of ID images that are kept, and coverage of class sets.
        round_index: The committed round of the run that was calibrated.
        sites: By the number of a client as text, and `global`.
        models: Checksum of the models that were calibrated, where they are a run's; it ties the
            file to its run.
    """

    keep: float
    round_index: int
    sites: Mapping[str, SiteCalibration]
    models: str = ""

    def at(self, client: int | None) -> SiteCalibration | None:
        """Return a client's calibration.

        Args:
            client: Its number; None: the global model.

        Returns:
            The calibration; None where there is none.
        """
        return self.sites.get(GLOBAL if client is None else str(client))

    def never_unknown(self, client: int | None) -> str:
        """Say why a client's model never answers unknown although it is calibrated.

        Args:
            client: Its number; None: the global model.

        Returns:
            A sentence; empty where it can answer unknown, or is not calibrated.
        """
        site = self.at(client)
        if site is None or site.threshold is not None:
            return ""
        count = site.scores.count
        most = math.floor(100 * count / (count + 1)) / 100
        return (
            f"{count} calibration images are too few to keep {self.keep:g} of known images "
            f"({least_images(self.keep)} are needed; {count} can keep {most:g}), so that no image "
            "is unknown"
        )

    def to_json(self) -> str:
        """Return the text of `calibration.json`, which holds a checksum of itself."""
        tree = {
            "format": FORMAT,
            "keep": self.keep,
            "round": self.round_index,
            "models": self.models,
            "sites": {
                name: {
                    "images": site.images,
                    "source": site.source,
                    "threshold": site.threshold,
                    "class_threshold": site.class_threshold,
                    "scores": site.scores.to_dict(),
                    "class_scores": site.class_scores.to_dict(),
                    "measured": dict(site.measured),
                }
                for name, site in self.sites.items()
            },
        }
        return json.dumps(sealed(tree), allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str = "the calibration") -> Calibration:
        """Read what `to_json` gave.

        A text of an earlier focoop has no checksum: a warning says so.

        Args:
            text: The text.
            where: What the text is, for messages.

        Returns:
            The calibration.

        Raises:
            RunError: The text is damaged, or of a newer focoop.
        """
        try:
            tree: Mapping[str, Any] = parse_json(text)
            _check(tree, where)
            sites = {
                str(name): SiteCalibration(
                    int(site["images"]),
                    str(site["source"]),
                    _number(site["threshold"]),
                    _number(site["class_threshold"]),
                    Sketch.from_dict(site["scores"]),
                    Sketch.from_dict(site["class_scores"]),
                    {str(key): float(value) for key, value in site["measured"].items()},
                )
                for name, site in tree["sites"].items()
            }
            models = str(tree.get("models", ""))
            return cls(float(tree["keep"]), int(tree["round"]), sites, models)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{where} is damaged ({error}): run focoop calibrate again") from error


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _check(tree: Mapping[str, Any], where: str) -> None:
    """Refuse a changed text; the checksum comes first, as a changed bit may be in the format."""
    if SUM in tree:
        if not is_intact(tree):
            raise ValueError("its checksum differs")
        if tree["format"] > FORMAT:
            raise RunError(newer_format(where, tree["format"], FORMAT))
    elif tree["format"] != 1:
        raise ValueError("it has no checksum")
    else:
        warnings.warn(
            f"{where} has no checksum, as an earlier focoop made it: what it holds is taken as "
            "right, and focoop calibrate writes one",
            stacklevel=3,
        )
