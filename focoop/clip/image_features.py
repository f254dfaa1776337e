"""Images as tensors of features: what towers return, and what methods and evaluation read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ImageFeatures:
    """Unit image features: `pooled` (N, D) and, where asked for, `patches` (N, P, D)."""

    pooled: Tensor
    patches: Tensor | None


@dataclass(frozen=True)
class LabelledFeatures(ImageFeatures):
    """Image features with labels: what methods, clients and the evaluation read.

    A batch, a client's images and a test set are all of this type.

    Attributes:
        pooled: (N, D) unit vectors.
        patches: (N, P, D) unit vectors, or None.
        labels: (N,) int64 class numbers.
        num_views: How many random views of each image follow as rows: rows are the N' images, then
            N' rows of each view.
    """

    labels: Tensor
    num_views: int = field(default=0, kw_only=True)

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, index: Tensor, device: torch.device | None = None) -> LabelledFeatures:
        """Return some of the rows.

        Args:
            index: Row numbers.
            device: Where the rows shall be; None: where they are.

        Returns:
            The rows in the order of `index`, without names or views of their own.
        """
        patches = None if self.patches is None else self.patches[index].to(device)
        return LabelledFeatures(
            self.pooled[index].to(device), patches, self.labels[index].to(device)
        )

    def counts(self, num_classes: int) -> Tensor:
        """Count the images of each class.

        Args:
            num_classes: Number C of classes.

        Returns:
            (C,) int64.
        """
        return torch.bincount(self.labels, minlength=num_classes)
