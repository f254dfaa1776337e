"""Divide images among clients: a class-by-client matrix of shares, applied alike to every split.

Train, test and corrupted test are cut by the same matrix, so a client is tested on the label mix it
was trained on. Largest-remainder rounding gives every image of a held class to exactly one client,
whatever the class sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from focoop.errors import ConfigError, DataError
from focoop.seeds import numpy_generator

Floats = NDArray[np.float64]
Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Partition:
    """Shares of each class given to each client; a column sums to 1, or to 0 if nobody holds it.

    >>> partition = Partition(np.array([[1.0, 0.5], [0.0, 0.5]]))
    >>> [part.tolist() for part in partition.assign([0, 0, 1, 1], seed=0)]
    [[0, 1, 3], [2]]
    """

    matrix: Floats  # (K,C)

    def __post_init__(self) -> None:
        matrix = np.array(self.matrix, dtype=np.float64)
        if matrix.ndim != 2 or 0 in matrix.shape:
            raise ConfigError(f"a partition needs a (clients,classes) matrix, got {matrix.shape}")
        totals = matrix.sum(0)
        if not (matrix >= 0).all() or not (np.isclose(totals, 1) | (totals == 0)).all():
            raise ConfigError("shares must be 0 or more and sum to 1 (or 0) for each class")
        matrix.flags.writeable = False
        object.__setattr__(self, "matrix", matrix)

    def holds(self) -> NDArray[np.bool_]:
        """Say which client has a share of which class; small classes may still yield no image.

        Returns:
            A mask (K, C).

        >>> iid(2, 3).holds().all()
        np.True_
        """
        return self.matrix > 0

    def assign(self, labels: ArrayLike, seed: int) -> list[Index]:
        """Give each client its images of any split over the same classes.

        Images are shuffled within their class first: files ordered by severity or by source then
        give every client a mix. Equal remainders go to the client with the fewest images so far.
        Images of classes that nobody holds are left out.

        Args:
            labels: Class of each image (N,).
            seed: Seed of the shuffle.

        Returns:
            Sorted image indices of each client.

        Raises:
            ConfigError: A label is no class of the partition.

        >>> [len(part) for part in iid(2, 3).assign([0] * 4 + [1] * 5, seed=1)]
        [3, 3, 3]
        """
        num_clients, num_classes = self.matrix.shape
        values = _labels(labels, num_classes)
        parts: list[list[Index]] = [[] for _ in range(num_clients)]
        totals = np.zeros(num_clients, dtype=np.int64)
        for label in range(num_classes):
            members = np.flatnonzero(values == label)
            if not len(members) or not self.matrix[:, label].any():
                continue
            generator = numpy_generator(seed, "partition", label)
            generator.shuffle(members)
            counts = _apportion(self.matrix[:, label], len(members), totals, generator)
            totals += counts
            for part, share in zip(parts, np.split(members, np.cumsum(counts)[:-1]), strict=True):
                part.append(share)
        if totals.sum() < num_clients:
            raise ConfigError(
                f"{num_clients} clients cannot share {totals.sum()} images; "
                f"use at most {totals.sum()} clients"
            )
        return [_joined(part) for part in parts]


def iid(num_classes: int, num_clients: int) -> Partition:
    """Give every client the same share of every class.

    Args:
        num_classes: Number of classes.
        num_clients: Number of clients.

    Returns:
        The partition.

    >>> iid(2, 4).matrix[:, 0].tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    _check_sizes(num_classes, num_clients)
    return Partition(np.full((num_clients, num_classes), 1.0 / num_clients))


def dirichlet(num_classes: int, num_clients: int, alpha: float, seed: int) -> Partition:
    """Draw for each class one Dirichlet(alpha, ..., alpha) share over clients.

    Args:
        num_classes: Number of classes.
        num_clients: Number of clients.
        alpha: Evenness; a small value gives most of a class to few clients.
        seed: Seed of the draw.

    Returns:
        The partition.

    Raises:
        ConfigError: alpha is not positive.

    >>> dirichlet(5, 3, alpha=0.5, seed=0).matrix.sum(0).round(6).tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """
    _check_sizes(num_classes, num_clients)
    if not 0.0 < alpha < float("inf"):
        raise ConfigError(f"alpha must be positive and finite, got {alpha}; usual: 0.1, 0.5, 5.0")
    generator = numpy_generator(seed, "dirichlet")
    shares = generator.dirichlet(np.full(num_clients, alpha), size=num_classes).T
    if not np.isfinite(shares).all():
        raise ConfigError(f"alpha {alpha} is too small to draw from; use 0.001 or more")
    return Partition(shares / shares.sum(0))


def pathological(num_classes: int, num_clients: int, seed: int) -> Partition:
    """Give clients classes of their own: shuffled classes cut into runs of floor(C/K).

    Left-over classes go to clients 0, 1, and so on.

    Args:
        num_classes: Number of classes.
        num_clients: Number of clients.
        seed: Seed of the shuffle.

    Returns:
        The partition.

    Raises:
        ConfigError: There are fewer classes than clients.

    >>> pathological(5, 2, seed=0).holds().sum(1).tolist()
    [3, 2]
    """
    _check_sizes(num_classes, num_clients)
    if num_clients > num_classes:
        raise ConfigError(
            f"{num_classes} classes are too few for {num_clients} clients that share none: set "
            f"partition.clients to {num_classes} or fewer, or another partition.kind"
        )
    order = numpy_generator(seed, "pathological").permutation(num_classes)
    run = num_classes // num_clients
    whole = run * num_clients
    matrix = np.zeros((num_clients, num_classes))
    matrix[np.arange(whole) // run, order[:whole]] = 1.0
    matrix[np.arange(num_classes - whole), order[whole:]] = 1.0
    return Partition(matrix)


def overlap(num_classes: int, num_clients: int, classes_per_client: int, seed: int) -> Partition:
    """Give each client the same number of distinct classes, shared equally by their holders.

    Classes are dealt from shuffled packs; a client whose hand straddles two packs skips what it
    has. Every class has floor or ceil of K*m/C holders (none, for some, when K*m < C).

    Args:
        num_classes: Number of classes C.
        num_clients: Number of clients K.
        classes_per_client: m.
        seed: Seed of the shuffle.

    Returns:
        The partition.

    Raises:
        ConfigError: A client would hold more classes than there are.

    >>> partition = overlap(10, 6, classes_per_client=5, seed=0)
    >>> partition.holds().sum(1).tolist(), set(partition.holds().sum(0).tolist())
    ([5, 5, 5, 5, 5, 5], {3})
    """
    _check_sizes(num_classes, num_clients)
    if not 1 <= classes_per_client <= num_classes:
        raise ConfigError(
            f"classes_per_client must be 1 to {num_classes}, got {classes_per_client}"
        )
    generator = numpy_generator(seed, "overlap")
    pack: list[int] = []
    matrix = np.zeros((num_clients, num_classes))
    for client in range(num_clients):
        hand, pack = pack[:classes_per_client], pack[classes_per_client:]
        if missing := classes_per_client - len(hand):
            pack = generator.permutation(num_classes).tolist()
            fresh = [label for label in pack if label not in hand][:missing]
            pack = [label for label in pack if label not in fresh]
            hand = hand + fresh
        matrix[client, hand] = 1.0
    holders = matrix.sum(0)
    return Partition(matrix / np.where(holders > 0, holders, 1.0))


def by_domain(domains: ArrayLike, num_clients: int | None = None, seed: int = 0) -> list[Index]:
    """Give clients whole domains.

    With as many clients as domains (the default) client k has the k-th present domain; further
    clients split domains in turn, fewer clients take several domains each.

    Args:
        domains: Domain of each image (N,).
        num_clients: Number of clients; None: one for each domain.
        seed: Seed of the shuffle where clients split a domain.

    Returns:
        Sorted image indices of each client.

    Raises:
        ConfigError: There are more clients than images allow.
        DataError: There are no images.

    >>> [part.tolist() for part in by_domain([4, 7, 4, 7, 7])]
    [[0, 2], [1, 3, 4]]
    """
    values = np.asarray(domains)
    if values.ndim != 1 or not len(values):
        raise DataError("a partition by domain needs the domain of every image; this set has none")
    present = np.unique(values)
    count = len(present) if num_clients is None else num_clients
    _check_sizes(1, count)
    parts: list[list[Index]] = [[] for _ in range(count)]
    for position, domain in enumerate(present):
        members = np.flatnonzero(values == domain)
        clients = [position % count, *range(position + len(present), count, len(present))]
        if len(members) < len(clients):
            raise ConfigError(
                f"domain {domain} has {len(members)} images for {len(clients)} clients; "
                "use fewer clients"
            )
        if len(clients) > 1:
            numpy_generator(seed, "domain", int(domain)).shuffle(members)
        for client, share in zip(clients, np.array_split(members, len(clients)), strict=True):
            parts[client].append(share)
    return [_joined(part) for part in parts]


@dataclass(frozen=True, eq=False)
class Shots:
    """A few-shot cut: sorted indices of each client, and how many of them are repeated draws."""

    indices: tuple[Index, ...]
    repeated: int


def take_shots(
    indices: Sequence[ArrayLike],
    labels: ArrayLike,
    shots: int | None,
    seed: int,
    *,
    repeats: bool = False,
) -> Shots:
    """Draw at most a number of images per client and class, without replacement.

    A client with fewer images of a class gives all of them, and with `repeats` more with
    replacement. A draw depends on the seed, the client and the class alone.

    Args:
        indices: Images of each client.
        labels: Class of each image (N,).
        shots: Images per client and class; None takes all.
        seed: Seed of the draw.
        repeats: Fill every class that a client holds up to `shots`.

    Returns:
        The drawn images.

    Raises:
        ConfigError: `shots` is less than 1.

    >>> len(take_shots([[0, 1, 2, 3]], [0, 0, 0, 1], shots=2, seed=0).indices[0])
    3
    >>> cut = take_shots([[0, 1, 2, 3]], [0, 0, 0, 1], shots=2, seed=0, repeats=True)
    >>> len(cut.indices[0]), cut.indices[0].tolist().count(3), cut.repeated
    (4, 2, 1)
    """
    if shots is not None and shots < 1:
        raise ConfigError(f"shots must be 1 or more, or none for all images, got {shots}")
    values, owned = np.asarray(labels), [np.asarray(part, dtype=np.int64) for part in indices]
    if shots is None:
        return Shots(tuple(np.sort(own) for own in owned), 0)
    chosen, repeated = [], 0
    for client, own in enumerate(owned):
        draws: list[Index] = []
        for label in np.unique(values[own]).tolist():
            members = own[values[own] == label]
            generator = numpy_generator(seed, "shots", client, int(label))
            missing = max(0, shots - len(members)) if repeats else 0
            draws += [generator.permutation(members)[:shots], generator.choice(members, missing)]
            repeated += missing
        chosen.append(_joined(draws))
    return Shots(tuple(chosen), repeated)


def validation_cut(
    labels: ArrayLike, *, per_class: int | None = None, fraction: float | None = None, seed: int
) -> tuple[Index, Index]:
    """Cut validation images from each class; every class keeps an image for training.

    Args:
        labels: Class of each image (N,).
        per_class: Validation images of each class; give either this or `fraction`.
        fraction: Their share of each class, rounded down.
        seed: Seed of the draw.

    Returns:
        Sorted indices of training and of validation images.

    Raises:
        ConfigError: Both or none of the two are given, or one is out of range.

    >>> train, validation = validation_cut([0, 0, 0, 1, 1, 1], per_class=1, seed=0)
    >>> len(train), len(validation)
    (4, 2)
    """
    if (per_class is None) == (fraction is None):
        raise ConfigError("give either per_class or fraction for the validation cut")
    if fraction is not None and not 0.0 < fraction < 1.0:
        raise ConfigError(f"fraction must be between 0 and 1, got {fraction}; try 0.1")
    values = np.asarray(labels)
    train, validation = [], []
    for label in np.unique(values).tolist():
        members = np.flatnonzero(values == label)
        count = per_class if per_class is not None else int((fraction or 0.0) * len(members))
        if not 0 <= count < len(members) or per_class == 0:
            raise ConfigError(f"per_class must be 1 to {len(members) - 1} for class {label}")
        numpy_generator(seed, "validation", int(label)).shuffle(members)
        validation.append(members[:count])
        train.append(members[count:])
    return _joined(train), _joined(validation)


def summary(indices: Sequence[ArrayLike], labels: ArrayLike, num_classes: int) -> Index:
    """Count the images of each class at each client, repeated draws included.

    Args:
        indices: Images of each client.
        labels: Class of each image (N,).
        num_classes: Number of classes.

    Returns:
        Counts (K, C).

    >>> summary([[0, 1], [2, 2]], [0, 1, 1], num_classes=2).tolist()
    [[1, 1], [0, 2]]
    """
    values = _labels(labels, num_classes)
    counts = np.zeros((len(indices), num_classes), dtype=np.int64)
    for row, part in zip(counts, indices, strict=True):
        np.add.at(row, values[np.asarray(part, dtype=np.int64)], 1)
    return counts


def _apportion(shares: Floats, count: int, totals: Index, generator: np.random.Generator) -> Index:
    """Whole numbers that sum to ``count``, as near as possible to ``count * shares``."""
    quotas = count * shares / shares.sum()
    # Nine digits: 3 * (1/3) is 1, and equal remainders are equal.
    counts: Index = np.floor(quotas + 1e-9).astype(np.int64)
    remainders = np.where(shares > 0, np.round(quotas - counts, 9), -1.0)
    ties = generator.permutation(len(shares))
    order = np.lexsort((ties, totals + counts, -remainders))
    counts[order[: count - counts.sum()]] += 1
    return counts


def _joined(parts: Sequence[Index]) -> Index:
    return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *parts]).astype(np.int64))


def _labels(labels: ArrayLike, num_classes: int) -> Index:
    values = np.asarray(labels)
    if values.ndim != 1 or not (np.issubdtype(values.dtype, np.integer) or not len(values)):
        raise DataError(f"labels must be a vector of integers, got {values.dtype} {values.shape}")
    if len(values) and not 0 <= values.min() <= values.max() < num_classes:
        raise DataError(
            f"labels run from {values.min()} to {values.max()}, classes from 0 to {num_classes - 1}"
        )
    return values.astype(np.int64)


def _check_sizes(num_classes: int, num_clients: int) -> None:
    for name, value in (("num_clients", num_clients), ("num_classes", num_classes)):
        if value < 1:
            raise ConfigError(f"{name} must be 1 or more, got {value}")
