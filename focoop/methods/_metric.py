"""A metric for image features: what varies within classes, over all clients, counts for less."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from focoop.methods.base import Batch
from focoop.threads import one_core

if TYPE_CHECKING:
    from torch import Tensor

# Mean variance of a unit feature's entries that is none; images of a class have 1e-3 and more.
NOTHING = 1e-8


def class_means(images: Batch, num_classes: int) -> Tensor:
    """(C, D) mean features of a client's images in float64; zero where it has none."""
    pooled = images.pooled.double()
    sums = pooled.new_zeros(num_classes, pooled.shape[1]).index_add_(0, images.labels, pooled)
    return sums / torch.bincount(images.labels, minlength=num_classes).clamp(min=1)[:, None]


def distinct_counts(images: Batch, num_classes: int) -> Tensor:
    """Count the different images of each class; copies of one image count once.

    Args:
        images: Images and their classes.
        num_classes: Number of classes.

    Returns:
        Counts (C,).
    """
    kind = torch.promote_types(images.pooled.dtype, torch.float32)  # which holds every label
    rows = torch.cat([images.labels[:, None].to(kind), images.pooled.to(kind)], dim=1)
    labels = torch.unique(rows, dim=0)[:, 0].long()
    return torch.bincount(labels, minlength=num_classes)


def whitening(spread: Tensor, shrinkage: float) -> Tensor:
    """(D, D) ((1 - k) S + k s I)^(-1/2) / sqrt(D), s the mean of S's diagonal; k -> `shrinkage`.

    What varies as images within a class do has length 1; a multiple of the unit matrix stays one.
    Where nothing was seen to vary, as with one image per class, it is the plain metric I.
    """
    spread = spread.detach().double().cpu()
    size = spread.diagonal().mean()
    if size < NOTHING:
        return torch.eye(len(spread), dtype=spread.dtype)
    with one_core():  # bits that do not depend on the machine; more cores gain little
        values, vectors = torch.linalg.eigh((spread + spread.T) / (2 * size))
    # Noise or robust rules may leave a scatter that is not positive.
    values = ((1.0 - shrinkage) * values.clamp(min=0.0) + shrinkage) * size * len(values)
    metric: Tensor = (vectors * values.rsqrt()) @ vectors.T
    return metric
