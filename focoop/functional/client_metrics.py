"""Metrics and frontiers of many clients at once, on any device, without a wait for the host.

The numbers are those of `metrics` and `frontier`, which take one client at a time on the host; the
rules for ties and thresholds are theirs. Clients are rows. A client with fewer values than others
has +inf behind its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from focoop.functional.frontier import CURVE

if TYPE_CHECKING:
    from torch import Tensor

DETECTION = ("auroc", "aupr_in", "aupr_out", "fpr95", "fpr95_oodpos")
FRONTIER = ("ausuc", "harmonic_best", "bias", "own_only", "other_only")
KEEP = 0.95  # share of images that a threshold keeps


@dataclass(frozen=True)
class Sorted:
    """Ascending values (K, n) float64 of K clients; `counts` (K,) of each client's are its own."""

    values: Tensor
    counts: Tensor

    @classmethod
    def of(cls, values: Tensor, valid: Tensor | None = None) -> Sorted:
        """Sort each client's values.

        Args:
            values: Numbers (K, n), none of them NaN.
            valid: Which of them count (K, n); None: all.

        Returns:
            The sorted values.
        """
        values = values.double()
        if valid is None:
            counts = torch.full((len(values),), values.shape[1], device=values.device)
            return cls(values.sort(dim=1).values, counts)
        values = torch.where(valid, values, torch.inf)
        return cls(values.sort(dim=1).values, valid.sum(dim=1))

    @property
    def own(self) -> Tensor:
        """Return which places hold a client's own values (K, n)."""
        places = torch.arange(self.values.shape[1], device=self.values.device)
        return places < self.counts[:, None]

    def below(self, values: Tensor) -> Tensor:
        """Count each client's own values that lie below others.

        Args:
            values: Numbers (K, m).

        Returns:
            Counts (K, m) int64.
        """
        return self._count(values, right=False)

    def at_most(self, values: Tensor) -> Tensor:
        """Count each client's own values that are at most as large as others.

        Args:
            values: Numbers (K, m).

        Returns:
            Counts (K, m) int64.
        """
        return self._count(values, right=True)

    def at(self, place: Tensor) -> Tensor:
        """Pick a value of each client.

        Args:
            place: Places (K,); +inf is found before a client's first value and behind its last.

        Returns:
            Values (K,).
        """
        last = self.values.shape[1] - 1
        found = self.values.gather(1, place.clamp(0, last)[:, None])[:, 0]
        return torch.where((place < self.counts) & (place >= 0), found, torch.inf)

    def _count(self, values: Tensor, *, right: bool) -> Tensor:
        found = torch.searchsorted(self.values, values.contiguous(), right=right)
        return torch.minimum(found, self.counts[:, None])


def threshold(inside: Sorted) -> Tensor:
    """Return the smallest thresholds that keep at least 95% of each client's ID images.

    Args:
        inside: Scores of each client's ID images.

    Returns:
        Thresholds (K,).
    """
    return inside.at(needed(inside.counts) - 1)


def calibrated(aside: Sorted) -> Tensor:
    """Return the thresholds that keep a new ID image with probability 0.95 (split conformal).

    Args:
        aside: Scores of each client's calibration images.

    Returns:
        Thresholds (K,); +inf where a client has none.
    """
    rank = ((aside.counts + 1).double() * KEEP).round(decimals=9).ceil().long()
    return aside.at(torch.minimum(rank, aside.counts) - 1)


def needed(counts: Tensor) -> Tensor:
    """Return the least numbers of images that are at least 95% of all.

    Args:
        counts: Numbers of all images (K,).

    Returns:
        Numbers (K,) int64.
    """
    # 0.95 * count can exceed a whole number by a rounding error.
    return (KEEP * counts.double() - 1e-9).ceil().long().clamp(min=1)


def detection(inside: Sorted, outside: Sorted, copies: int = 1) -> Tensor:
    """Compute all detection metrics of each client.

    Args:
        inside: Scores of each client's ID images.
        outside: Scores of OOD images, each client's own or the same for all.
        copies: How many times every OOD image counts.

    Returns:
        Values (K, 5) float64 in the order of `DETECTION`.
    """
    n, m = inside.counts.double(), outside.counts.double()
    mine, theirs = inside.own, outside.own
    left, right = outside.below(inside.values), outside.at_most(inside.values)
    above = torch.where(mine, 2 * outside.counts[:, None] - left - right, 0).sum(dim=1)
    # Of equal scores each has the precision of the last.
    hits = inside.at_most(inside.values).double()
    precise = torch.where(mine, hits / (hits + copies * right), 0.0).sum(dim=1)
    caught = copies * (outside.counts[:, None] - outside.below(outside.values)).double()
    missed = inside.counts[:, None] - inside.below(outside.values)
    precise_out = torch.where(theirs, caught / (caught + missed), 0.0).sum(dim=1)
    accepted = outside.at_most(threshold(inside)[:, None])[:, 0]
    limit = outside.at(outside.counts - needed(outside.counts))
    flagged = inside.counts - inside.below(limit[:, None])[:, 0]
    parts = [above / (2.0 * n * m), precise / n, precise_out / m, accepted / m, flagged / n]
    return torch.stack(parts, dim=1)


def frontier(own: Sorted, num_own: Tensor, other: Sorted, num_other: Tensor) -> Tensor:
    """Compute each client's frontier between own and other classes.

    Args:
        own: Margins of each client's own images that are answered rightly on their side.
        num_own: Number of all its own images (K,).
        other: The same of images of other classes.
        num_other: Number of all of these (K,).

    Returns:
        Values (K, 5 + 21) float64: those of `FRONTIER`, then the curve at `CURVE`.
    """
    count, others = num_own.double(), num_other.double()
    low, high = own.below(other.values), own.at_most(other.values)
    pairs = torch.where(other.own, low + high, 0).sum(dim=1)  # each counts twice, ties once
    # Just above an own image's margin that image is won; others at or below it are lost.
    places = torch.arange(own.values.shape[1] + 1, device=own.values.device)
    left = other.counts[:, None] - other.at_most(own.values)
    reachable = places <= own.counts[:, None]
    won = places / count[:, None]
    retained = torch.cat([other.counts[:, None], left], dim=1) / others[:, None]
    retained = torch.where(reachable, retained, -1.0)
    means = torch.where(reachable, harmonic(won, retained), -1.0)
    highest = means.amax(dim=1)
    first = torch.where(means == highest[:, None], places, len(places)).amin(dim=1)
    # Made on the device: a copy from the host would wait for it.
    percent = torch.arange(CURVE[0], CURVE[-1] + 1, CURVE[1] - CURVE[0], device=count.device)
    least = (percent.double() / 100 - 1e-9).expand(len(count), -1).contiguous()
    reached = torch.searchsorted(-retained, -least, right=True)
    curve = torch.where(reached > 0, (reached - 1) / count[:, None], 0.0)
    ends = [own.counts / count, other.counts / others]
    parts = [pairs / (2.0 * count * others), highest]
    parts += [between(own, other, first), *ends]
    return torch.cat([torch.stack(parts, dim=1), curve], dim=1)


def between(own: Sorted, other: Sorted, won: Tensor) -> Tensor:
    """Find biases that win the first `won` own images, half way to what comes next.

    Args:
        own: Margins of own images.
        other: Margins of other images.
        won: How many own images are won (K,).

    Returns:
        Biases (K,).
    """
    zero = torch.zeros_like(won)
    start = torch.minimum(own.at(zero), other.at(zero))
    start = torch.where(start.isinf(), 0.0, start - 1.0)
    here = own.at((won - 1).clamp(min=0))
    later = [side.at(side.at_most(here[:, None])[:, 0]) for side in (own, other)]
    following = torch.minimum(*later)
    after = torch.where(following.isinf(), here + 1.0, here + (following - here) / 2)
    return torch.where(won == 0, start, after)


def harmonic(a: Tensor, b: Tensor) -> Tensor:
    """Return the harmonic mean of shares, 0 where both are 0.

    Args:
        a: Shares.
        b: Shares of the same shape.

    Returns:
        Means.
    """
    both = a + b
    return 2.0 * a * b / torch.where(both > 0, both, 1.0)
