"""Updates as vectors that can be summed, and the sum as one update: all a server needs to see.

Numbers are fixed-point in the ring of whole numbers modulo 2^64. `flower/masking.py` holds the
protocol that shows a server the total alone; masks cancel exactly, so that a simulation adds the
packed updates as they are and ends with the same bits (`summed`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from focoop.errors import MethodError
from focoop.methods import ClientUpdate, Method, Params, Server, Task

if TYPE_CHECKING:
    from torch import Tensor

FRACTION = 24  # bits after the point
# A sum of two tells each of them, and the server with its help, the other's update.
LEAST_PARTIES = 3
# Bytes on the wire: keys and hashes, Shamir's shares, two of them sealed, a site's signature and
# the public key by which others check it.
KEY_BYTES, HASH_BYTES, SHARE_BYTES, TAG_BYTES = 32, 32, 66, 16
PACKAGE_BYTES = 2 * SHARE_BYTES + TAG_BYTES
SIGNATURE_BYTES, IDENTITY_BYTES = 104, 216
Words = NDArray[np.uint64]
EXTRA = 3  # words after the class counts: images, images whose loss is told, sum of their losses


def pack(update: ClientUpdate, by_class: Sequence[str], parties: int) -> Words:
    """Write a client's summands: n_kc t_kc of class rows, n_k t_k of the rest, n_kc, n_k.

    Then n_k and n_k times the mean loss, both 0 where the loss is not told.

    Args:
        update: The update.
        by_class: Names of tensors with one row per class.
        parties: Number of clients, for which the sum must have room.

    Returns:
        The summands (uint64).
    """
    parts = []
    for name in sorted(update.shared):
        value = update.shared[name].double().cpu()
        if update.shared[name].is_floating_point():
            weighted = value * _weights(update, value, name in by_class)
            parts.append(_fixed(weighted.flatten(), parties))
    loss_images = update.num_examples if math.isfinite(update.loss) else 0
    counts = [*update.class_counts.tolist(), update.num_examples, loss_images]
    parts.append(np.array(counts, dtype=np.int64).view(np.uint64))
    loss = update.loss * loss_images if loss_images else 0.0
    parts.append(_fixed(torch.tensor([loss], dtype=torch.float64), parties))
    return np.concatenate(parts)


def unpack(total: Words, received: Params, by_class: Sequence[str], classes: int) -> ClientUpdate:
    """Read the sum of packed updates as one update of means; classes without images stay as sent.

    Args:
        total: The sum.
        received: What the server sent, of the tensors that clients send.
        by_class: Names of tensors with one row per class.
        classes: Number of classes.

    Returns:
        The update.

    Raises:
        MethodError: The sum is none of such updates.
    """
    if len(total) != (words := num_words(received, classes)):
        raise MethodError(f"the sum has {len(total)} words, and one of such updates has {words}")
    whole = total.view(np.int64)
    counts = torch.from_numpy(whole[-EXTRA - classes : -EXTRA].copy())
    images, loss_images, losses = (int(word) for word in whole[-EXTRA:])
    if images < 0 or bool((counts < 0).any()) or sum(counts.tolist()) != images:
        raise MethodError(
            "the sum is none of updates, its counts do not add up: a client sent numbers of "
            "another kind, and nobody can tell which"
        )
    loss = losses / 2**FRACTION / loss_images if loss_images > 0 else math.nan
    mean = ClientUpdate(0, {}, images, counts, loss)
    shared, at = dict(received), 0
    for name in sorted(received):
        value = received[name]
        if not value.is_floating_point():
            continue
        flat = torch.from_numpy(whole[at : at + value.numel()].astype(np.float64))
        weights = _weights(mean, value.cpu(), name in by_class)
        row = flat.view(value.shape) / 2**FRACTION / weights.clamp(min=1)
        mean_values = row.to(value.dtype).to(value.device)
        shared[name] = torch.where((weights > 0).to(value.device), mean_values, value)
        at += value.numel()
    return ClientUpdate(0, shared, images, counts, loss)


def summed(
    method: Method, server: Server, updates: Sequence[ClientUpdate], task: Task
) -> tuple[list[ClientUpdate], dict[str, float]]:
    """Return all a server learns under secure sums: one update with the means.

    Args:
        method: The method.
        server: The server.
        updates: The clients' updates.
        task: The task.

    Returns:
        The update, and how many clients sent one.
    """
    total = np.add.reduce([pack(update, method.by_class, len(updates)) for update in updates])
    mean = unpack(total, method.sent(server.shared), method.by_class, len(task.classes))
    return [mean], {"summed": float(len(updates))}


def threshold_of(clients: int, share: float) -> int:
    """Return how many clients must stay for a sum to open: more than a share of them.

    Args:
        clients: Clients of the sum.
        share: The share.

    Returns:
        Their number.

    >>> threshold_of(4, 2 / 3), threshold_of(6, 2 / 3), threshold_of(3, 1.0)
    (3, 5, 3)
    """
    return min(clients, math.floor(share * clients) + 1)


def num_words(shared: Params, classes: int) -> int:
    """Return the length of a packed update.

    Args:
        shared: The shared tensors that a client sends.
        classes: Number of classes.

    Returns:
        Its length.
    """
    return sum(v.numel() for v in shared.values() if v.is_floating_point()) + classes + EXTRA


def sum_bytes(
    keys: int, shares: int, masked: int, opened: int, words: int, down: int
) -> tuple[int, int]:
    """Count the bytes of one sum, by how many clients answered each of the four messages.

    Keys are counted as those of sites that sign them.

    Args:
        keys: Clients that sent keys.
        shares: Clients that sent shares.
        masked: Clients that sent a vector.
        opened: Clients that opened shares.
        words: Length of a vector.
        down: Bytes of the shared tensors.

    Returns:
        Bytes up and bytes down.
    """
    advertised = 2 * KEY_BYTES + HASH_BYTES + SIGNATURE_BYTES
    up = keys * advertised + shares * (keys - 1) * PACKAGE_BYTES
    up += masked * 8 * words + opened * shares * SHARE_BYTES
    sent = keys * keys * (advertised + IDENTITY_BYTES) + shares * (shares - 1) * PACKAGE_BYTES
    return up, sent + shares * down + masked * masked * 8


def _weights(update: ClientUpdate, value: Tensor, by_class: bool) -> Tensor:
    """What a tensor's rows are weighted by, in the shape to multiply with."""
    if by_class:
        counts = update.class_counts.double().cpu()
        return counts.view(-1, *[1] * (value.dim() - 1))
    return torch.tensor(float(update.num_examples), dtype=torch.float64)


def _fixed(values: Tensor, parties: int) -> Words:
    scaled = (values * 2**FRACTION).round().numpy()
    limit = 2.0**62 / parties
    if not bool(np.isfinite(scaled).all()) or (len(scaled) and np.abs(scaled).max() > limit):
        raise MethodError(
            "an update is too large for a secure sum: set privacy.clip, or lower federation.lr"
        )
    fixed: Words = scaled.astype(np.int64).view(np.uint64)
    return fixed
