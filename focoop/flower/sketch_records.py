"""Sketches of calibration scores as Flower records, read back with suspicion on either side.

After the last round the coordinator asks for sketches (`SKETCH`), pools them, and sends every site
the pool with the final tensors (`KEEP`), of which the site makes a model of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, MessageType, MetricRecord, RecordDict

from focoop.errors import FederationError
from focoop.flower.records import METRICS, STATS, reading, to_arrays, to_tensor
from focoop.predict import BLOCKS, EXACT, SiteSketches, Sketch

SKETCH_STEP, KEEP_STEP = "sketch", "keep"
SKETCH, KEEP = f"{MessageType.QUERY}.{SKETCH_STEP}", f"{MessageType.QUERY}.{KEEP_STEP}"
SCORES, POOL, HELD = "sketches", "pool", "held"
COUNTS = "class-counts"
MOST_IMAGES = 10**9
PARTS = ("scores", "class")  # of a pair of sketches
WHOSE = ("own", "global")  # models that a site scores its images with
FIELDS = ("values", "weights")


def sketch_content(
    told: SiteSketches, held: torch.Tensor | None, client: int, round_index: int
) -> RecordDict:
    """Return a site's answer to the question for its sketches.

    Args:
        told: The sketches.
        held: (C,) its training images by class; None: it does not let its classes be named.
        client: The site's number.
        round_index: The last round.

    Returns:
        A message's content.
    """
    numbers = MetricRecord({"client": client, "round": round_index, "images": told.images})
    content = RecordDict({SCORES: sketch_arrays(told), METRICS: numbers})
    if held is not None:
        content[STATS] = to_arrays({COUNTS: held.to(torch.int64)})
    return content


def sketch_arrays(told: SiteSketches) -> ArrayRecord:
    """Return sketches as a record, to the bit.

    Args:
        told: The sketches.

    Returns:
        Arrays by names such as `own/scores/values`.
    """
    tensors = {}
    for whose, pair in zip(WHOSE, (told.own, told.everybody), strict=True):
        for part, sketch in zip(PARTS, pair or (), strict=False):
            for name, value in zip(FIELDS, (sketch.values, sketch.weights), strict=True):
                tensors[f"{whose}/{part}/{name}"] = torch.from_numpy(value.copy())
    return to_arrays(tensors)


@reading("its sketches")
def read_sketches(
    content: RecordDict, client: int, round_index: int, num_classes: int
) -> tuple[SiteSketches, torch.Tensor | None]:
    """Read a site's sketches; nothing is taken but what `Sketch.of` makes of so many scores.

    Args:
        content: The reply's content.
        client: The site's number.
        round_index: The last round.
        num_classes: Number of classes.

    Returns:
        The sketches, and (C,) the site's training images by class where it tells them.

    Raises:
        FederationError: It is refused; the message says why.
    """
    if not {SCORES, METRICS} <= set(content) <= {SCORES, METRICS, STATS}:
        raise FederationError("its sketches hold other records than sketches do")
    arrays, numbers = content[SCORES], content[METRICS]
    if not isinstance(arrays, ArrayRecord) or not isinstance(numbers, MetricRecord):
        raise FederationError("its sketches are not arrays and numbers")
    wanted = {"client": client, "round": round_index}
    if set(numbers) != {*wanted, "images"} or any(numbers[n] != v for n, v in wanted.items()):
        raise FederationError("its sketches are another client's, or of another round")
    images = numbers["images"]
    if type(images) is not int or not 0 <= images <= MOST_IMAGES:
        raise FederationError("its sketches are of no number of images")
    told = read_arrays(arrays, most=EXACT + BLOCKS, images=images)
    if (told.own is None) != (images == 0):
        raise FederationError("it counts images and tells nothing of them, or the reverse")
    held = None
    if STATS in content:
        record = content[STATS]
        if not isinstance(record, ArrayRecord) or set(record) != {COUNTS}:
            raise FederationError("its class counts are not arrays")
        like = torch.empty(num_classes, dtype=torch.int64)
        held = to_tensor(COUNTS, record[COUNTS], like)
        if bool((held < 0).any()) or bool((held > MOST_IMAGES).any()):
            raise FederationError("it counts a negative number of images, or too many")
    return told, held


def read_arrays(record: object, most: int, images: int | None = None) -> SiteSketches:
    """Read sketches of a site, or the pool of all.

    Args:
        record: The record.
        most: How many scores a sketch may have.
        images: Number of images that each sketch must be of, in the blocks that `Sketch.of` makes;
            None: any, as in a pool.

    Returns:
        The sketches.

    Raises:
        FederationError: They are no sketches.
    """
    if not isinstance(record, ArrayRecord):
        raise FederationError("the sketches are not arrays")
    pairs: list[tuple[Sketch, Sketch] | None] = []
    left = set(record)
    for whose in WHOSE:
        names = {f"{whose}/{part}/{field}" for part in PARTS for field in FIELDS}
        if not names & left:
            pairs.append(None)
            continue
        if not names <= left:
            raise FederationError("the sketches are not whole")
        left -= names
        first, second = (_sketch(record, f"{whose}/{part}", most, images) for part in PARTS)
        if first.count != second.count or second.values[0] < 0 or second.values[-1] > 1:
            raise FederationError("the sketches of one model do not belong together")
        pairs.append((first, second))
    if left:
        raise FederationError("there are other arrays among the sketches")
    count = max((pair[0].count for pair in pairs if pair), default=0)
    return SiteSketches(count if images is None else images, *pairs)


def _sketch(record: ArrayRecord, name: str, most: int, images: int | None) -> Sketch:
    values, weights = (to_tensor(f"{name}/{f}", record[f"{name}/{f}"]).numpy() for f in FIELDS)
    if values.dtype != np.float64 or weights.dtype != np.int64:
        raise FederationError(f"{name} is of other types than a sketch")
    if values.ndim != 1 or values.shape != weights.shape or not 1 <= len(values) <= most:
        raise FederationError(f"{name} has other shapes than a sketch")
    if not np.isfinite(values).all() or (np.diff(values) < 0).any():
        raise FederationError(f"{name} is not in ascending order")
    if (weights < 1).any() or (weights > MOST_IMAGES).any():
        raise FederationError(f"{name} counts images that cannot be")
    if images is not None and not np.array_equal(weights, weights_of(images)):
        raise FederationError(f"{name} is no sketch of {images} images")
    return Sketch(values, weights)


def weights_of(images: int) -> np.ndarray:
    """Return the weights of a sketch of so many images, without their scores.

    Args:
        images: Their number.

    Returns:
        As `Sketch.of(scores).weights`, at most 64 numbers.
    """
    if images <= EXACT + BLOCKS:
        return np.ones(images, np.int64)
    share, more = divmod(images - EXACT, BLOCKS)
    blocks = share + (np.arange(BLOCKS) < more)
    return np.concatenate([blocks, np.ones(EXACT)]).astype(np.int64)


def pool_content(
    pool: SiteSketches, held: Mapping[int, tuple[str, Sequence[int]]]
) -> dict[str, ArrayRecord | ConfigRecord]:
    """Return what every site is sent beside the final tensors.

    Args:
        pool: Sketches of all sites together.
        held: Of the sites that allow it: name, and numbers of the classes that it holds.

    Returns:
        Records by name.
    """
    record = ConfigRecord()
    for client, (name, classes) in held.items():
        if classes:
            record[f"name/{client}"], record[f"held/{client}"] = name, list(classes)
    return {POOL: sketch_arrays(pool), HELD: record}


@reading("the pool of all sites")
def read_pool(
    content: RecordDict, clients: int, num_classes: int
) -> tuple[SiteSketches, dict[int, tuple[str, tuple[int, ...]]]]:
    """Read what the coordinator sends with the final tensors.

    Args:
        content: The message's content.
        clients: Number of clients.
        num_classes: Number of classes.

    Returns:
        The pool; and of some sites name and numbers of classes.

    Raises:
        FederationError: It cannot be used.
    """
    pool = read_arrays(content.get(POOL), most=(EXACT + BLOCKS) * clients)
    record, held = content.get(HELD), {}
    if not isinstance(record, ConfigRecord):
        raise FederationError("it does not say who holds what")
    for client in range(clients):
        name, classes = record.get(f"name/{client}"), record.get(f"held/{client}")
        if name is None and classes is None:
            continue
        if not isinstance(name, str) or not name.isprintable() or len(name) > 200:
            raise FederationError("the name of a site cannot be read")
        if not isinstance(classes, list) or any(type(place) is not int for place in classes):
            raise FederationError("what it says of who holds what cannot be read")
        places = sorted({place for place in classes if isinstance(place, int)})
        if places and not 0 <= places[0] <= places[-1] < num_classes:
            raise FederationError("it tells of classes that there are not")
        held[client] = name, tuple(places)
    return pool, held
