"""Calibrate a model's clients: each on its own images, or on sketches pooled from all clients."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from focoop.clip import LabelledFeatures
from focoop.federation import Owned
from focoop.predict.calibration import (
    FROM_OWN,
    FROM_POOL,
    GLOBAL,
    Calibration,
    SiteCalibration,
)
from focoop.predict.conformal import Sketch, least_images, pooled
from focoop.predict.deciding import probabilities
from focoop.predict.model import Model
from focoop.predict.side import evidence
from focoop.seeds import numpy_generator

# Scores that a client's own calibration keeps: so many of the largest, and so many blocks.
OWN_SIZE = 256


@dataclass(frozen=True)
class Scored:
    """What a client's model finds in images of known classes.

    Attributes:
        scores: (n,) OOD scores.
        class_scores: (n,) 1 - probability of the right class.
        every: (n, C) 1 - probability of every class.
    """

    scores: np.ndarray
    class_scores: np.ndarray
    every: np.ndarray


def scored(model: Model, client: int | None, images: LabelledFeatures) -> Scored:
    """Score images of known classes with a client's model, under its own prior.

    Args:
        model: The model.
        client: The client's number; None: the global model.
        images: The images with their classes.

    Returns:
        The scores; in a real federation they are made and stay at the client.
    """
    side = model.side(GLOBAL if client is None else client)
    scale = model.method.answer_scale(model.task)
    scores, every, device = [np.zeros(0)], [np.zeros((0, len(model.classes)))], model.task.device
    size = model.chunk(images, side)
    for first in range(0, len(images), size):
        rows = torch.arange(first, min(first + size, len(images)))
        part = images.rows(rows, device)
        found = evidence(model.method, model.task, side, part.pooled, part.patches)
        scores.append(found.score.cpu().numpy())
        every.append(1.0 - probabilities(found.shifted, scale).cpu().numpy())
    beyond = np.concatenate(every)
    right = beyond[np.arange(len(images)), images.labels.cpu().numpy()]
    return Scored(np.concatenate(scores), right, beyond)


def calibrate(
    model: Model,
    images: Owned,
    keep: float = 0.95,
    *,
    clients: Sequence[int | None] | None = None,
    test: Owned | None = None,
    before: Calibration | None = None,
) -> Calibration:
    """Find thresholds of clients' models from images that took no part in training or tests.

    A client with too few images for its own guarantee gets the threshold of the pool: every client
    sends a sketch of its scores (`Sketch`, at most 64 numbers each), none an image. The pool's
    guarantee holds on average over clients. The global model is calibrated on the pool.

    Args:
        model: The model.
        images: Calibration images, and which are whose.
        keep: Share of ID images to keep, and coverage of class sets.
        clients: The clients to calibrate, None for the global model; by default all.
        test: Test images, and which are whose: what the thresholds do there is noted.
        before: An earlier calibration of the same model: a client with too few images adds them to
            the pool that its thresholds came from.

    Returns:
        The calibration. A warning names the clients that use the pool.
    """
    least = least_images(keep)
    wanted = list(model.keys) if clients is None else list(clients)
    own = {k: images.images.rows(torch.from_numpy(rows)) for k, rows in enumerate(images.index)}
    sites: dict[str, SiteCalibration] = {}
    small = [k for k in wanted if k is not None and len(own.get(k, ())) < least]
    found = {
        k: scored(model, k, own[k])
        for k in own
        if k in model.keys and len(own[k]) and (k in wanted or small)
    }
    everyone = _pool(found, before, small) if small else None
    for client in wanted:
        if client is None:
            by_global = {k: scored(model, None, part) for k, part in own.items() if len(part)}
            scores, beyond = _pool(by_global)
            site = SiteCalibration.of(scores.count, FROM_POOL, scores, beyond, keep)
        elif client in small:
            assert everyone is not None
            site = SiteCalibration.of(len(own.get(client, ())), FROM_POOL, *everyone, keep)
        else:
            site = own_calibration(found[client], keep)
        if test is not None:
            site = replace(site, measured=measured(model, client, site, test))
        sites[GLOBAL if client is None else str(client)] = site
    _tell_small(model, small, sites, keep, least)
    return Calibration(keep, int(model.facts.origin.get("round", 0)), sites)


def halves(test: Owned, seed: int) -> tuple[Owned, Owned]:
    """Divide every client's test images into calibration and test images.

    Args:
        test: Test images, and which are whose.
        seed: The run's seed.

    Returns:
        Calibration images and test images; the former are the fewer where there is an odd one.
    """
    aside, rest = [], []
    for client, rows in enumerate(test.index):
        order = numpy_generator(seed, "calibration from test", client).permutation(rows)
        aside.append(np.sort(order[: len(rows) // 2]))
        rest.append(np.sort(order[len(rows) // 2 :]))
    return Owned(test.images, aside), Owned(test.images, rest)


def own_calibration(found: Scored, keep: float) -> SiteCalibration:
    """Find a client's thresholds from its own images.

    Args:
        found: Scores of its calibration images.
        keep: Share of ID images to keep, and coverage of class sets.

    Returns:
        The calibration; without thresholds where there are too few images.
    """
    scores, beyond = (
        Sketch.of(part, exact=OWN_SIZE, blocks=OWN_SIZE)
        for part in (found.scores, found.class_scores)
    )
    return SiteCalibration.of(len(found.scores), FROM_OWN, scores, beyond, keep)


def _pool(
    found: Mapping[int, Scored], before: Calibration | None = None, small: Sequence[int] = ()
) -> tuple[Sketch, Sketch]:
    """What a server makes of the sketches that clients send, beside those of an earlier pool."""
    earlier = None if before is None or len(small) != 1 else before.at(small[0])
    known = [] if earlier is None or earlier.source != FROM_POOL else [earlier]
    return (
        pooled([*(p.scores for p in known), *(Sketch.of(p.scores) for p in found.values())]),
        pooled(
            [*(p.class_scores for p in known), *(Sketch.of(p.class_scores) for p in found.values())]
        ),
    )


def measured(
    model: Model, client: int | None, site: SiteCalibration, test: Owned
) -> dict[str, float]:
    """Apply thresholds to a client's test images, or to all of them for the global model.

    Args:
        model: The model.
        client: The client's number; None: the global model.
        site: Its thresholds.
        test: Test images, and which are whose.

    Returns:
        `images`, `kept` (share not flagged), `covered` (share whose class set holds the right
        class) and `set_size`; nothing where there are no images or no thresholds.
    """
    rows = np.concatenate([*test.index]) if client is None else test.index[client]
    if not len(rows) or site.threshold is None or site.class_threshold is None:
        return {}
    found = scored(model, client, test.images.rows(torch.from_numpy(np.unique(rows))))
    inside = found.every <= site.class_threshold
    best = found.every.argmin(axis=1)
    inside[np.arange(len(best)), best] = True  # a set is never empty
    right = test.images.labels.numpy()[np.unique(rows)]
    return {
        "images": len(right),
        "kept": float(np.mean(found.scores <= site.threshold)),
        "covered": float(inside[np.arange(len(right)), right].mean()),
        "set_size": float(inside.sum(axis=1).mean()),
    }


def _tell_small(
    model: Model,
    small: Sequence[int],
    sites: Mapping[str, SiteCalibration],
    keep: float,
    least: int,
) -> None:
    """Say which clients cannot give the guarantee alone, and what they got instead."""
    if not small:
        return
    names = ", ".join(f"{model.clients[k]} ({sites[str(k)].images})" for k in small[:8])
    more = ", ..." if len(small) > 8 else ""
    pool, one = sites[str(small[0])], len(small) == 1
    if pool.threshold is None:
        outcome = (
            f"all clients together have {pool.scores.count}, which is too few as well: "
            f"{'it never answers' if one else 'these clients never answer'} unknown"
        )
    else:
        outcome = (
            f"{'it uses' if one else 'they use'} the threshold of all {pool.scores.count} images "
            "of the federation, which keeps its promise on average over clients, not for each"
        )
    fewer = "1 client has" if one else f"{len(small)} clients have"
    warnings.warn(
        f"keeping {keep:g} needs {least} calibration images, and {fewer} fewer: "
        f"{names}{more}; {outcome}",
        stacklevel=3,
    )
