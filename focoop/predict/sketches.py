"""Sketches of scores that sites tell, and thresholds that a coordinator makes of them.

A coordinator has no images. After the last round every site may tell how its calibration images
score, as sketches, and which classes it holds. `sketches.json` in the coordinator's run folder
keeps what was told; `focoop calibrate` pools it as the simulator pools its clients' sketches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from focoop.caching import SUM, is_intact, parse_json, sealed
from focoop.clip import LabelledFeatures
from focoop.errors import RunError
from focoop.predict.calibrating import scored
from focoop.predict.calibration import (
    FROM_OWN,
    FROM_POOL,
    GLOBAL,
    Calibration,
    SiteCalibration,
)
from focoop.predict.conformal import Sketch, least_images, pooled
from focoop.predict.model import Model

SKETCHES = "sketches.json"  # beside the other files of a coordinator's run
FORMAT = 1
Pair = tuple[Sketch, Sketch]  # of OOD scores, and of 1 - probability of the right class


@dataclass(frozen=True)
class SiteSketches:
    """What a site tells of its calibration images.

    Attributes:
        images: Their number.
        own: Sketches under the site's own model; None where it tells none.
        everybody: Sketches under the global model; None where there is no such model.
    """

    images: int
    own: Pair | None = None
    everybody: Pair | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the sketches as plain values."""
        pairs = {"own": self.own, "global": self.everybody}
        told = {name: [part.to_dict() for part in pair] for name, pair in pairs.items() if pair}
        return {"images": self.images, **told}

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> SiteSketches:
        """Read what `to_dict` gave.

        Args:
            tree: The plain values.

        Returns:
            The sketches.
        """
        return cls(int(tree["images"]), _pair(tree.get("own")), _pair(tree.get("global")))


@dataclass(frozen=True)
class FederationSketches:
    """What all sites told after a round, and why others told nothing.

    Attributes:
        round_index: The round.
        sites: Sketches by the site's number.
        held: Training images by class, of the sites that let their classes be named.
        left_out: Why a site told nothing, by its name; `all sites` where none was asked.
    """

    round_index: int
    sites: Mapping[int, SiteSketches] = field(default_factory=dict)
    held: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def pool(self) -> SiteSketches:
        """Return the sketches of all sites together."""
        told = list(self.sites.values())
        return SiteSketches(
            sum(site.images for site in told),
            _pooled([site.own for site in told]),
            _pooled([site.everybody for site in told]),
        )

    def to_json(self) -> str:
        """Return the text of `sketches.json`."""
        tree = {
            "format": FORMAT,
            "round": self.round_index,
            "sites": {str(k): site.to_dict() for k, site in self.sites.items()},
            "held": {str(k): dict(held) for k, held in self.held.items()},
            "left_out": dict(self.left_out),
        }
        return json.dumps(sealed(tree), allow_nan=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> FederationSketches | None:
        """Read the sketches of a coordinator's run.

        Args:
            path: The file.

        Returns:
            The sketches; None where there is no such file.

        Raises:
            RunError: The file is damaged.
        """
        try:
            tree = parse_json(path.read_text(encoding="utf-8"))
            if not isinstance(tree, dict) or SUM not in tree or not is_intact(tree):
                raise ValueError("it differs from its checksum")
            return cls(
                int(tree["round"]),
                {int(k): SiteSketches.from_dict(site) for k, site in tree["sites"].items()},
                {int(k): dict(held) for k, held in tree["held"].items()},
                dict(tree["left_out"]),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(
                f"{path} is damaged ({error}): restore it from a copy; or remove it, and calibrate "
                "on images of your own (--images folder:PATH --client K)"
            ) from error


def sketched(model: Model, client: int, images: LabelledFeatures) -> SiteSketches:
    """Make the sketches that a site may tell, as the simulator's clients do.

    Args:
        model: The site's model, and the global one where the method has it.
        client: The site's number.
        images: Its calibration images.

    Returns:
        Sketches of at most 64 numbers each; none where there are no images.
    """
    if not len(images):
        return SiteSketches(0)
    pairs: list[Pair | None] = []
    for key in (client, None):
        found = scored(model, key, images) if key in model.keys else None
        pairs.append(
            None if found is None else (Sketch.of(found.scores), Sketch.of(found.class_scores))
        )
    return SiteSketches(len(images), *pairs)


def from_sketches(
    told: FederationSketches, keep: float, clients: Sequence[int | None]
) -> Calibration:
    """Find thresholds from what sites told, as `calibrate` does from images.

    Thresholds of a site with enough images are those of its images where it has up to 640 (for
    0.95); with more they come from a sketch and are no smaller.

    Args:
        told: What sites told.
        keep: Share of ID images to keep, and coverage of class sets.
        clients: The clients to calibrate, None for the global model.

    Returns:
        The calibration; clients without any threshold are left out.
    """
    least, pool = least_images(keep), told.pool
    sites: dict[str, SiteCalibration] = {}
    for client in clients:
        if client is None:
            if pool.everybody is not None:
                count = pool.everybody[0].count
                sites[GLOBAL] = SiteCalibration.of(count, FROM_POOL, *pool.everybody, keep)
            continue
        own = told.sites.get(client, SiteSketches(0))
        if own.own is not None and own.images >= least:
            sites[str(client)] = SiteCalibration.of(own.images, FROM_OWN, *own.own, keep)
        elif pool.own is not None:
            sites[str(client)] = SiteCalibration.of(own.images, FROM_POOL, *pool.own, keep)
    return Calibration(keep, told.round_index, sites)


def _pooled(pairs: Sequence[Pair | None]) -> Pair | None:
    told = [pair for pair in pairs if pair is not None]
    if not told:
        return None
    return pooled(pair[0] for pair in told), pooled(pair[1] for pair in told)


def _pair(tree: Any) -> Pair | None:
    if tree is None:
        return None
    first, second = tree
    return Sketch.from_dict(first), Sketch.from_dict(second)
