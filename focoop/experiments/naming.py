"""Name a run's data: classes, clients, and who holds how much."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from focoop.clip import Backbone
from focoop.config import RunConfig
from focoop.runs import Client, Names, RunFolder
from focoop.scenario import Divide, Split, make_split


@dataclass(frozen=True)
class PartitionView:
    """Which client holds how many images of which class.

    Attributes:
        train: (K, C) training images of each client and class, after shots were drawn.
        test: (K, C) test images.
        classes: The C class names.
        repeated: Shots that repeat an image, because a client has fewer of a class.
        names: Names of the K clients, where each is a domain or was given; else empty.
    """

    train: np.ndarray
    test: np.ndarray
    classes: tuple[str, ...]
    repeated: int
    names: tuple[str, ...] = ()  # of the clients, where each is a domain or was given


def describe_partition(config: RunConfig) -> PartitionView:
    """Count the images of each class at each client for a run with these settings.

    Args:
        config: The run's settings.

    Returns:
        The label-by-client picture.
    """
    split = make_split(config)
    return PartitionView(
        split.counts(),
        split.counts(of_test=True),
        split.classes,
        split.repeated,
        client_names(config, split),
    )


def client_names(config: RunConfig, split: Split) -> tuple[str, ...]:
    """Names of the clients where each is a domain or was given; empty where they have only numbers.

    Args:
        config: the run's settings.
        split: its images, divided among the clients.

    Returns:
        One name per client, or none at all.
    """
    if config.partition.kind not in ("domain", "given"):
        return ()
    features = split.train if len(split.train) else split.test
    names: Sequence[str] = features.domain_names
    if config.partition.kind == "domain" and features.domains is not None:
        present = np.unique(features.domains.numpy())  # client k has the k-th domain that is there
        names = [names[place] for place in present]
    return tuple(names) if len(names) == len(split.test_index) else ()


def names_of(config: RunConfig, split: Split, words: Sequence[str] = ()) -> Names:
    """The names that a run of these images keeps in its folder.

    Args:
        config: the run's settings.
        split: its images, divided among the clients; their features are not looked at.
        words: its mined words.

    Returns:
        The names.
    """
    train = _counts(split.train.labels, split.classes, split.train_index, 1 + split.views)
    test = _counts(split.test.labels, split.classes, split.test_index)
    names = client_names(config, split) or tuple(map(str, range(len(test))))
    tested = "" if config.data.validation else split.tested.split
    clients = tuple(Client(*row) for row in zip(names, train, test, strict=True))
    return Names(split.classes, clients, tuple(words), tested)


def checked(folder: RunFolder, divide: Divide, of: tuple[str, ...], hint: str = "") -> Divide:
    """Wrap a function that divides images, so that it refuses images other than a run's.

    They are refused before any is encoded.

    Args:
        folder: The run.
        divide: Divides images among clients.
        of: The images that it opens, of `train` and `test`.
        hint: What else the user may do where nothing but training images differ.

    Returns:
        The checked division.
    """

    def checked_divide(
        config: RunConfig, backbone: Backbone | None, cache_dir: Path | None
    ) -> Split:
        split, known = divide(config, backbone, cache_dir), folder.names
        names = names_of(config, split, () if known is None else known.words)
        folder.agree_names(names, of=of, hint=hint)
        return split

    return checked_divide


def refuse_other_data(folder: RunFolder, config: RunConfig) -> None:
    """Refuse a run whose classes, clients or image counts have changed; no image is encoded.

    Args:
        folder: the run.
        config: its settings, with paths that lead to its data from here.

    Raises:
        RunError: what differs, line by line.
    """
    checked(folder, make_split, ("train", "test"))(config, None, None)


def train_counts(names: Names, client: int) -> torch.Tensor:
    """Return the training images of each class at a client, as the run folder has them.

    Args:
        names: The run's names.
        client: The client's number.

    Returns:
        Counts (C,).
    """
    held = names.clients[client].train
    return torch.tensor([held.get(name, 0) for name in names.classes])


def _counts(
    labels: torch.Tensor, classes: Sequence[str], index: Sequence[np.ndarray], copies: int = 1
) -> list[dict[str, int]]:
    """Images of each class at each client; each image is there `copies` times, with its views."""
    counts = []
    for rows in index:
        held = np.bincount(labels.numpy()[rows[: len(rows) // copies]])
        counts.append({classes[int(k)]: int(held[k]) for k in np.flatnonzero(held)})
    return counts
