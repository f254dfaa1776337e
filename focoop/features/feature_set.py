"""Features of images in memory, with labels, class names and where they come from."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from focoop.clip import LabelledFeatures
from focoop.data import plain
from focoop.errors import DataError, nearest


@dataclass(frozen=True)
class FeatureSet(LabelledFeatures):
    """Images as features of a frozen backbone.

    Attributes:
        pooled: (N, D) float32 unit vectors.
        patches: (N, P, D) float32 unit vectors, or None.
        labels: (N,) int64 into `classes`.
        classes: Class names, in the order of the labels.
        domains: (N,) int64 into `domain_names`, or None.
        domain_names: Names of the domains; empty without domains.
        provenance: Where the rows come from.
        views: Random views of the same images in the same order, for training.
    """

    classes: tuple[str, ...]
    domains: Tensor | None = None
    domain_names: tuple[str, ...] = ()
    provenance: dict[str, str] = field(default_factory=dict)
    views: "tuple[FeatureSet, ...]" = ()

    def __repr__(self) -> str:
        patches = "" if self.patches is None else f", patches {tuple(self.patches.shape)}"
        return (
            f"FeatureSet({len(self):,} images, {len(self.classes)} classes, pooled "
            f"{tuple(self.pooled.shape)}{patches})"
        )

    @property
    def dim(self) -> int:
        """Return the width D of the joint space."""
        return self.pooled.shape[1]

    def sha256(self) -> str:
        """Return a hash of the content, for a run's manifest; provenance is no part of it."""
        whole = hashlib.sha256(json.dumps([self.classes, self.domain_names]).encode())
        for tensor in (self.pooled, self.patches, self.labels, self.domains):
            if tensor is not None:
                whole.update(tensor.contiguous().numpy().tobytes())
        for view in self.views:
            whole.update(view.sha256().encode())
        return whole.hexdigest()

    def select(self, index: Tensor | Sequence[int]) -> "FeatureSet":
        """Return some of the rows; classes stay as they are.

        Args:
            index: Row numbers, or a boolean mask.

        Returns:
            The rows, in the order of `index`.
        """
        rows = torch.as_tensor(index)
        rows = rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows.long()
        return replace(
            self,
            pooled=self.pooled[rows],
            patches=None if self.patches is None else self.patches[rows],
            labels=self.labels[rows],
            domains=None if self.domains is None else self.domains[rows],
            views=tuple(view.select(rows) for view in self.views),
            num_views=0,
        )

    def with_view_rows(self) -> "FeatureSet":
        """Return all images and then all of their views as rows.

        Row i of N has its views at N + i, 2 N + i.
        """
        if not self.views:
            return self
        every = (self, *self.views)
        patches = [view.patches for view in every if view.patches is not None]
        domains = [view.domains for view in every if view.domains is not None]
        return replace(
            self,
            pooled=torch.cat([view.pooled for view in every]),
            patches=torch.cat(patches) if patches else None,
            labels=torch.cat([view.labels for view in every]),
            domains=torch.cat(domains) if domains else None,
            views=(),
            num_views=len(self.views),
        )

    def drop_classes(self, names: Sequence[str]) -> "FeatureSet":
        """Remove classes and their rows; the others are renumbered in their order.

        Args:
            names: Names of the classes.

        Returns:
            The set without them.

        Raises:
            DataError: A name is no class of the set.
        """
        for name in names:
            if name not in self.classes:
                raise DataError(
                    f"cannot drop class {name!r}: it is no class{nearest(name, self.classes)}"
                )
        remaining = tuple(name for name in self.classes if name not in names)
        stays = torch.tensor([name in remaining for name in self.classes])
        return self.select(stays[self.labels]).with_classes(remaining)

    def with_classes(self, classes: Sequence[str]) -> "FeatureSet":
        """Number the same rows by other class names.

        Names are matched with underscores read as spaces. Use it to give a test or corrupted set
        the class order of the training set. A name that is there letter by letter comes first:
        `Mug` and `mug` stay apart where both are classes.

        Args:
            classes: The class names to number by.

        Returns:
            The set with new labels.

        Raises:
            DataError: A class of the set is not among them, or may be two of them.
        """
        refuse_same_names(classes, "the class names to number by")
        exact = {name: i for i, name in enumerate(classes)}
        place = {plain(name): i for i, name in enumerate(classes)}
        alike = Counter(plain(name) for name in classes)
        used = set(self.labels.tolist())
        for name in [self.classes[i] for i in sorted(used)]:
            if name not in exact and alike[plain(name)] > 1:
                two = [repr(other) for other in classes if plain(other) == plain(name)]
                raise DataError(
                    f"class {name!r} may be {' or '.join(two)}: give it the name of one of them"
                )
        strangers = [
            name for i, name in enumerate(self.classes) if i in used and plain(name) not in place
        ]
        if strangers:
            many = "1 class has" if len(strangers) == 1 else f"{len(strangers)} classes have"
            among = "is not" if len(strangers) == 1 else "are not"
            raise DataError(
                f"{many} images but {among} among the {len(classes)} expected ones, first "
                f"{strangers[0]!r}{nearest(strangers[0], classes)}: give folders the expected "
                "names in class_names.csv beside them (lines of folder,name), or drop the extra "
                "classes"
            )
        table = torch.tensor([exact.get(name, place.get(plain(name), -1)) for name in self.classes])
        views = tuple(view.with_classes(classes) for view in self.views)
        return replace(self, labels=table[self.labels], classes=tuple(classes), views=views)


def refuse_same_names(classes: Sequence[str], where: str) -> None:
    """Refuse classes of one name: their images could not be told apart by any prompt.

    Underscores are read as spaces, as prompts read them; capital letters count.

    Args:
        classes: The class names.
        where: What has them, for the message.

    Raises:
        DataError: Two classes have one name.

    >>> refuse_same_names(("cup", "a_b", "a b"), "the set")
    Traceback (most recent call last):
    focoop.errors.DataError: classes 1 and 2 of the set are both called 'a b' ('a_b' and 'a b'): \
give each class its own name
    """
    seen: dict[str, int] = {}
    for place, name in enumerate(classes):
        read = " ".join(name.replace("_", " ").split())
        first = seen.setdefault(read, place)
        if first != place:
            raise DataError(
                f"classes {first} and {place} of {where} are both called {read!r} "
                f"({classes[first]!r} and {name!r}): give each class its own name"
            )
