"""A metric for image features: what varies within classes, over all clients, counts for less."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from focoop.methods._base import Batch, ClientUpdate, Params, Server, weighted_mean


def scatter(images: Batch, num_classes: int) -> Tensor:
    """(D, D) mean of (h - m_y)(h - m_y)^T over a client's images, m_c its own class means."""
    pooled = images.pooled.double()
    sums = pooled.new_zeros(num_classes, pooled.shape[1]).index_add_(0, images.labels, pooled)
    counts = torch.bincount(images.labels, minlength=num_classes).clamp(min=1)
    off = pooled - (sums / counts[:, None])[images.labels]
    return (off.T @ off / max(1, len(off))).to(images.pooled.dtype)


def whitening(spread: Tensor, shrinkage: float) -> Tensor:
    """(D, D) ((1 - k) S + k I)^(-1/2) of a scatter scaled to mean variance 1; k -> `shrinkage`."""
    spread = spread.detach().double().cpu()
    size = spread.diagonal().mean().clamp(min=1e-12)
    values, vectors = torch.linalg.eigh((spread + spread.T) / (2 * size))
    # Noise or robust rules may leave a scatter that is not positive.
    values = (1.0 - shrinkage) * values.clamp(min=0.0) + shrinkage
    metric: Tensor = (vectors * values.rsqrt()) @ vectors.T
    return metric


def whitened(features: Tensor, centre: Tensor, metric: Tensor) -> Tensor:
    """Unit rows of (h - centre) A for features (N, D)."""
    return F.normalize((features - centre) @ metric, dim=-1)


def learned(
    server: Server, updates: Sequence[ClientUpdate], shrinkage: float
) -> tuple[Params, Params]:
    """Mean `centre` and `scatter` of all rounds so far and their `metric`; the server's memory.

    A round weighs as many images as its clients hold, so that rounds with few clients add up.
    """
    now = float(sum(update.num_examples for update in updates))
    before = float(server.memory["measured"]) if "measured" in server.memory else 0.0
    shared = {}
    for name in ("centre", "scatter"):
        old = server.shared[name]
        shared[name] = old + (weighted_mean(updates, name) - old) * (now / (now + before))
    shared["metric"] = whitening(shared["scatter"], shrinkage).to(server.shared["metric"])
    return shared, {"measured": torch.tensor(now + before, dtype=torch.float64)}
