"""Set calibration images aside: training images that neither training nor tests use."""

from collections.abc import Sequence

import numpy as np

from focoop.config import AUTO_CALIBRATION
from focoop.scenario.partition import Index
from focoop.seeds import numpy_generator

SPARE = 0.5  # largest share of a class that is set aside of images left over


def set_aside(
    drawn: Sequence[Index], held: Sequence[Index], labels: Index, share: float, seed: int
) -> tuple[list[Index], list[Index]]:
    """Draw calibration images of each client and class.

    Images that training leaves over come first, so that what is trained on stays the same where
    there are enough of them. A draw depends on the seed, the client and the class alone.

    Args:
        drawn: Training images of each client, some perhaps several times.
        held: All images of each client.
        labels: Class of each image (N,).
        share: Share of a client's images of a class, or `AUTO_CALIBRATION`: up to `SPARE` of them,
            of images left over alone; 0: none.
        seed: Seed of the draw.

    Returns:
        Training images and calibration images of each client, sorted. Images are taken from the
        training images only where a share was asked for; one of each class stays.

    >>> kept, aside = set_aside([[0, 1]], [[0, 1, 2, 3]], np.zeros(4, int), 0.75, seed=0)
    >>> len(kept[0]), len(aside[0]), sorted(map(int, {*kept[0], *aside[0]}))
    (1, 3, [0, 1, 2, 3])
    """
    automatic = share == AUTO_CALIBRATION
    wanted_share = SPARE if automatic else share
    training, aside = [], []
    for client, (chosen, own) in enumerate(zip(drawn, held, strict=True)):
        used, every = np.asarray(chosen, np.int64), np.asarray(own, np.int64)
        taken: list[Index] = []
        for label in np.unique(labels[every]).tolist() if wanted_share else []:
            members = every[labels[every] == label]
            trained = np.isin(members, used)
            generator = numpy_generator(seed, "calibration", client, int(label))
            spare, needed = generator.permutation(members[~trained]), members[trained]
            wanted = round(wanted_share * len(members))
            taken.append(spare[:wanted])
            lacking = 0 if automatic else min(wanted - len(taken[-1]), len(needed) - 1)
            if lacking > 0:
                taken.append(generator.permutation(needed)[:lacking])
        rows = np.sort(np.concatenate([np.zeros(0, np.int64), *taken]))
        training.append(used[~np.isin(used, rows)])
        aside.append(rows)
    return training, aside
