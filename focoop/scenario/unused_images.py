"""Say which clients, classes and images a run leaves out, and why."""

from collections.abc import Sequence

import numpy as np

from focoop.config import RunConfig
from focoop.methods import lookup
from focoop.scenario.split import Split

NAMED = 5  # clients that a note names


def left_out(config: RunConfig, split: Split, names: Sequence[str]) -> list[str]:
    """Say what of a run's training images its method does not use.

    Args:
        config: The run's settings.
        split: Its images, divided among the clients.
        names: The clients' names.

    Returns:
        A sentence for each reason; none where everything is used.
    """
    kind, settings = lookup(config.method.name), config.method.settings
    if kind.pools_data or not kind.trains:
        return []
    counts, notes = _different(split), []
    empty = counts.sum(axis=1) == 0
    if empty.any():
        notes.append(f"no training images at {_clients(empty, names)}: they take no part")
    least = int(getattr(settings, "least_images", 1))
    if least > 1:
        freedom = int(getattr(settings, "least_freedom", 0))
        notes += _withheld(config.method.name, counts, (least, freedom), names)
    return notes


def _withheld(
    name: str, counts: np.ndarray, least: tuple[int, int], names: Sequence[str]
) -> list[str]:
    """What closed forms do not send where a least number of images is asked for."""
    notes, held, (images, freedom) = [], counts > 0, least
    few = held & (counts < images)
    told = held & ~few
    tells = told.sum(axis=1) > 0
    silent = (held.sum(axis=1) > 0) & ~tells
    if few.any():
        notes.append(
            f"{name} sends nothing of a class with fewer than {images} different images: "
            f"{few.sum()} of {held.sum()} classes of clients, {counts[few].sum()} of "
            f"{counts.sum()} images"
            + (f"; nothing at all of {_clients(silent, names)}" if silent.any() else "")
            + ". To send them: method.least_images=1"
        )
    free = (counts * told).sum(axis=1) - told.sum(axis=1)
    quiet = tells & (free < freedom)
    if quiet.any():
        notes.append(
            f"{name} does not send how images vary at {_clients(quiet, names)}: fewer than "
            f"{freedom} images beyond one of each class (method.least_freedom)"
        )
    return notes


def _different(split: Split) -> np.ndarray:
    """(K, C) different images of each class at each client: neither views nor repeats count."""
    labels = split.train.labels.numpy()
    rows = [index[: len(index) // (1 + split.views)] for index in split.train_index]
    found = [np.bincount(labels[np.unique(own)], minlength=len(split.classes)) for own in rows]
    return np.stack(found)


def _clients(chosen: np.ndarray, names: Sequence[str]) -> str:
    """How many clients, and the names of the first of them."""
    those = [names[client] for client in np.flatnonzero(chosen).tolist()]
    more = f" and {len(those) - NAMED} more" if len(those) > NAMED else ""
    return f"{len(those)} of {len(names)} clients ({', '.join(those[:NAMED])}{more})"
