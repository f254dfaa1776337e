"""What an evaluation reads, brought to a device once for all evaluations of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from focoop.clip import LabelledFeatures

if TYPE_CHECKING:
    from torch import Tensor

    from focoop.federation.evaluation.sets import EvaluationSets, Owned

SHARE = 0.25  # of the device's free memory that images may take
# Cells of all clients' answers: more of these, and clients are evaluated one at a time.
ANSWERS = 2**27


@dataclass(frozen=True, eq=False)
class Resident:
    """What an evaluation reads, on the device: images of all sets as rows (N, ...) of one tensor.

    Attributes:
        rows: the rows of each set: `""` the test images, `calibration`, OOD sets, corrupted ones.
        images: all sets in this order, on the host.
        pooled: (N, D) on the device; None where they do not fit or have patches: then they travel.
        labels: (N,) on the device.
        clients: numbers of the K clients with test images.
        own: (K, n) test images of each client, padded.
        valid: (K, n) which of these are its own.
        aside: (K, m) rows of each client's calibration images, padded; None: there are none.
        calibrated: (K, m) which of these are its own.
        unowned: (N_new,) test images that no client owns.
        others: (K, N_test) True where a test image is not the client's own.
        sides: own and other classes of clients that have a frontier, by their place among the K.
        fronted: (F,) places of these clients.
        unheld: (F, N_test) test images of classes that they do not hold.
        owners: for the test images (`""`) and each corrupted set, of every owned image the place of
            its client and its row; and the number of images by client.
    """

    rows: dict[str, slice]
    images: list[LabelledFeatures]
    pooled: Tensor | None
    labels: Tensor
    clients: list[int]
    own: Tensor
    valid: Tensor
    aside: Tensor | None
    calibrated: Tensor | None
    unowned: Tensor
    others: Tensor
    sides: dict[int, tuple[Tensor, Tensor]]
    fronted: Tensor
    unheld: Tensor
    owners: dict[str, tuple[Tensor, Tensor, list[int]]]

    @classmethod
    def of(
        cls, sets: EvaluationSets, held: Mapping[int, np.ndarray], classes: int, device: Any
    ) -> Resident:
        """Bring sets to a device.

        Args:
            sets: The sets.
            held: Classes of clients that have some and not all.
            classes: Number of classes.
            device: The device.

        Returns:
            What is there now.
        """
        shifted = {"": sets.test}
        shifted |= {f"corrupted/{name}": owned for name, owned in sets.corrupted.items()}
        rows, every = _in_a_row(sets, shifted)
        clients = [client for client, own in enumerate(sets.test.index) if len(own)]
        place = {client: at for at, client in enumerate(clients)}
        own, valid = padded([sets.test.index[client] for client in clients], 0)
        aside = None
        if sets.calibration is not None:
            index = sets.calibration.index
            aside = padded([index[client] for client in clients], rows["calibration"].start)
        others = ~_marked([sets.test.index[client] for client in clients], len(sets.test.images))
        table = _marked(list(held.values()), classes)
        labels = sets.test.images.labels.numpy()

        def there(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values).to(device)

        return cls(
            rows=rows,
            images=every,
            pooled=joined(every, device),
            labels=torch.cat([images.labels for images in every]).to(device),
            clients=clients,
            own=there(own),
            valid=there(valid),
            aside=None if aside is None else there(aside[0]),
            calibrated=None if aside is None else there(aside[1]),
            unowned=there(sets.unowned.astype(np.int64)),
            others=there(others),
            sides={
                place[client]: (there(np.flatnonzero(mine)), there(np.flatnonzero(~mine)))
                for client, mine in zip(held, table, strict=True)
            },
            fronted=there(np.array([place[client] for client in held], dtype=np.int64)),
            unheld=there(~table[:, labels]),
            owners={
                name: owners_of(owned, place, rows[name].start, there)
                for name, owned in shifted.items()
            },
        )

    @property
    def scored(self) -> int:
        """Return the number of rows whose score is read: all but those of corrupted sets."""
        read = [rows for name, rows in self.rows.items() if not name.startswith("corrupted/")]
        return sum(rows.stop - rows.start for rows in read)

    def pieces(self, size: Callable[[LabelledFeatures], int]) -> Iterator[tuple[slice, Any, Any]]:
        """Go through all images.

        Args:
            size: Gives how many images may be answered at a time.

        Yields:
            Rows, pooled features and patches of some images.
        """
        device = self.labels.device
        if self.pooled is not None:
            step = min(size(images) for images in self.images)
            for first in range(0, len(self.pooled), step):
                part = self.pooled[first : first + step]
                yield slice(first, first + len(part)), part, None
            return
        for images, rows in zip(self.images, self.rows.values(), strict=True):
            step = size(images)
            for first in range(0, len(images), step):
                part = images.pooled[first : first + step].to(device)
                patches = images.patches
                patches = None if patches is None else patches[first : first + step].to(device)
                yield slice(rows.start + first, rows.start + first + len(part)), part, patches


def _in_a_row(
    sets: EvaluationSets, shifted: Mapping[str, Owned]
) -> tuple[dict[str, slice], list[LabelledFeatures]]:
    """All sets one behind the other: the rows of each by name, and their images in this order."""
    named: dict[str, LabelledFeatures] = {"": sets.test.images}
    if sets.calibration is not None:
        named["calibration"] = sets.calibration.images
    named |= {f"ood/{name}": images for name, images in sets.ood.items()}
    named |= {name: owned.images for name, owned in shifted.items()}
    rows, first = {}, 0
    for name, images in named.items():
        rows[name] = slice(first, first + len(images))
        first += len(images)
    return rows, list(named.values())


def _marked(index: Sequence[np.ndarray], width: int) -> np.ndarray:
    """(K, width) True at the places that `index` names for each of K clients."""
    marks = np.zeros((len(index), width), dtype=bool)
    for at, places in enumerate(index):
        marks[at, places] = True
    return marks


def padded(index: Sequence[np.ndarray], start: int) -> tuple[np.ndarray, np.ndarray]:
    """Write clients' rows as one array.

    Args:
        index: Rows of each of K clients.
        start: Is added to them.

    Returns:
        Rows (K, n), n of the client that has most and at least 1; and which of them are real.
    """
    shape = len(index), max([1, *map(len, index)])
    rows, real = np.full(shape, start, dtype=np.int64), np.zeros(shape, dtype=bool)
    for at, own in enumerate(index):
        rows[at, : len(own)] += own
        real[at, : len(own)] = True
    return rows, real


def fits(sets: EvaluationSets) -> bool:
    """Say whether the answers of all clients to all images may be held at once.

    Args:
        sets: The sets.

    Returns:
        Whether they may.
    """
    shifted = sum(len(owned.images) for owned in sets.corrupted.values())
    shifted += 0 if sets.calibration is None else len(sets.calibration.images)
    images = len(sets.test.images) + shifted + sum(map(len, sets.ood.values()))
    return len(sets.test.index) * images <= ANSWERS


def joined(images: Sequence[LabelledFeatures], device: torch.device) -> Tensor | None:
    """Bring the pooled features of all sets to a device.

    Args:
        images: The sets.
        device: The device.

    Returns:
        Features (N, D); None where there are patches or too little memory.
    """
    if any(one.patches is not None for one in images):
        return None
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        if sum(one.pooled.nbytes for one in images) > SHARE * free:
            return None
    return torch.cat([one.pooled.to(device) for one in images])


def owners_of(
    owned: Owned, place: Mapping[int, int], start: int, there: Callable[[np.ndarray], Tensor]
) -> tuple[Tensor, Tensor, list[int]]:
    """List the owned images of a set.

    Args:
        owned: The set.
        place: Place of each client that is evaluated.
        start: The set's first row.
        there: Brings an array to the device.

    Returns:
        Place of the client (S,), row (S,), and number of images by place.
    """
    index = {at: owned.index[client] for client, at in place.items()}
    counts = [len(rows) for rows in index.values()]
    whose = np.repeat(np.arange(len(counts)), counts)
    rows = np.concatenate([np.zeros(0, dtype=np.int64), *index.values()]).astype(np.int64)
    return there(whose), there(start + rows), counts
