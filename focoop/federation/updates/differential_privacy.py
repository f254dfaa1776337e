"""Differential privacy at the client: clipped, noised updates, coarser counts, and what they cost.

Before anything leaves a client, its change of the shared tensors is shortened to length S and
Gaussian noise of deviation z S is added to every number. Neighbours are two federations in which
one client's whole data set is replaced by any other: two clipped changes lie at most 2 S apart, so
that one round is a Gaussian mechanism of multiplier z / 2. The mean training loss is withheld.

The noise protects where nobody else can draw it again: a site draws it from fresh bytes
(`SecretNormal`) and answers each round once (`flower/releases.py`). The simulator draws it from the
run's seed, which everyone knows: its noise shows what privacy costs, and protects nothing.

Costs are Renyi divergences of order a (Mironov 2017), added over rounds and turned into
(epsilon, delta) at the end. What is covered and what is not: `docs/reliability/threat-model.md`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import torch

from focoop.methods import ClientUpdate, Params

if TYPE_CHECKING:
    from torch import Tensor

COUNTS = ("exact", "rounded", "noised", "none")
# Whole orders serve every bound; those below 2 matter where epsilon is large.
WHOLE_ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512)
ORDERS = (*(1 + i / 20 for i in range(1, 20)), *WHOLE_ORDERS)


@dataclass(frozen=True)
class Privacy:
    """What a client does to its update before it leaves.

    Attributes:
        clip: S, longest change of all floating shared tensors together; 0: as it is.
        noise: z, deviation of the noise in units of S; 0: none.
        delta: probability with which the bound epsilon may fail.
        counts: `exact`; `rounded` up to a multiple of `count_step`; `noised` by a Gaussian of
            deviation `count_noise`, drawn once for all rounds; `none`: every class counts one.
        count_step, count_noise: of the above.
        secret_draw: whether nobody but the server knows who takes part in a round; only then does
            drawing clients lower what an outsider learns.
    """

    clip: float = 0.0
    noise: float = 0.0
    delta: float = 1e-5
    counts: str = "exact"
    count_step: int = 10
    count_noise: float = 0.0
    secret_draw: bool = False

    @property
    def draws(self) -> bool:
        """Return whether a release holds random numbers, so that two of them can be compared."""
        return self.noise > 0 or self.counts == "noised"

    def release(
        self, update: ClientUpdate, received: Params, noise: Normal, count_noise: Normal
    ) -> ClientUpdate:
        """The update as it may leave the client that received `received`.

        A client without images is released as any other under noise: that it has none must not
        show. Without noise its unchanged tensors tell it anyway, and it leaves as it is.

        Args:
            update: the client's update after training.
            received: the shared tensors it was given.
            noise: draws the noise of the tensors; must be new in every round.
            count_noise: draws the noise of the counts; must be the same in all rounds, as counts
                noised anew each round could be averaged.

        Returns:
            The update with clipped and noised tensors, coarser counts and, under noise, no loss.
        """
        if update.num_examples == 0 and not self.noise:
            return update
        shared = update.shared
        if self.clip:
            shared = clip_change(shared, received, self.clip)
        if self.noise:
            shared = add_noise(shared, self.noise * self.clip, noise)
        counts = self.release_counts(update.class_counts, count_noise)
        return replace(
            update,
            shared=shared,
            class_counts=counts,
            num_examples=int(counts.sum()),
            loss=math.nan if self.noise else update.loss,
        )

    def release_counts(self, counts: Tensor, noise: Normal) -> Tensor:
        """Return class counts as they may leave the client.

        Args:
            counts: Class counts (C,).
            noise: Draws the noise.

        Returns:
            Counts (C,).
        """
        if self.counts == "rounded":
            return (counts + self.count_step - 1) // self.count_step * self.count_step
        if self.counts == "noised":
            drawn = normal(noise, counts.shape, torch.float64)
            noisy = counts.double().cpu() + self.count_noise * drawn
            whole = noisy.round().clamp(min=0).long()
            if not whole.any():  # no images at all would leave the client out
                whole[noisy.argmax()] = 1
            return whole.to(counts.device)
        if self.counts == "none":
            return torch.ones_like(counts)
        return counts

    def spent(self, busiest: int, rounds: int, share: float) -> dict[str, float]:
        """Epsilon so far, for the round's report; empty without noise.

        `epsilon` bounds what the server learns, who knows who took part. `epsilon_outside` bounds
        what the noised tensors tell somebody who sees neither counts nor who took part; it is told
        only where clients are drawn secretly. `epsilon_counts` is for one image of a client
        replaced, whatever the number of rounds.

        Args:
            busiest: how often the client took part that did so most often.
            rounds: rounds so far.
            share: the true share of clients asked in a round, their number over all clients.

        Returns:
            Epsilons by name.
        """
        epsilons = {}
        if self.noise:
            epsilons["epsilon"] = composed([self.noise] * busiest, self.delta)
            if self.secret_draw and share < 1:
                outside: dict[float, float] = {
                    a: rounds * drawn_rdp(a, share, self._one_round) for a in WHOLE_ORDERS
                }
                epsilons["epsilon_outside"] = min(epsilons["epsilon"], epsilon(outside, self.delta))
        if self.counts == "noised" and self.count_noise:
            multiplier = self.count_noise / math.sqrt(2)  # one class loses an image, another gains
            epsilons["epsilon_counts"] = epsilon(
                {a: gaussian_rdp(a, multiplier) for a in ORDERS}, self.delta
            )
        return epsilons

    def _one_round(self, order: float) -> float:
        return gaussian_rdp(order, self.noise / 2)


class SecretNormal:
    """Normal draws that only the holder of `key` can repeat: a stream of SHAKE-256.

    For real sites: torch's generators start from 63 bits and are not made to resist attacks.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) < 32:
            raise ValueError("a key for noise has 32 bytes or more")
        self._key, self._drawn = key, 0

    def draw(self, shape: Sequence[int]) -> Tensor:
        """Draw normal numbers, other ones at each call.

        Args:
            shape: Their shape.

        Returns:
            Numbers in float64.
        """
        count = math.prod(shape)
        name = self._key + self._drawn.to_bytes(8, "big")
        self._drawn += 1
        words = torch.frombuffer(
            bytearray(hashlib.shake_256(name).digest(8 * count + 8)), dtype=torch.int64
        )[:count]
        # 53 bits in the middle of their steps: never 0 or 1, where the quantile is infinite.
        uniform = (((words >> 11) & (2**53 - 1)).double() + 0.5) / 2.0**53
        drawn: Tensor = torch.special.ndtri(uniform)
        return drawn.reshape(tuple(shape))


# Where normal numbers come from: a seeded generator in the simulator, a secret at a site.
Normal: TypeAlias = "torch.Generator | SecretNormal"


def normal(source: Normal, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Draw standard normal numbers on the CPU.

    Args:
        source: Draws them.
        shape: Their shape.
        dtype: Their type.

    Returns:
        The numbers.
    """
    if isinstance(source, SecretNormal):
        return source.draw(shape).to(dtype)
    return torch.randn(shape, generator=source, dtype=dtype)


def composed(noises: Iterable[float], delta: float) -> float:
    """Return the epsilon of a client's releases.

    Args:
        noises: Noise of each release, in units of the clip.
        delta: The delta of the guarantee.

    Returns:
        Epsilon.

    >>> composed([], 1e-5)
    0.0
    >>> composed([8.0, 8.0], 1e-5) < composed([8.0, 4.0], 1e-5)
    True
    """
    given = [z / 2 for z in noises]  # two clipped changes lie up to 2 S apart
    if not given:
        return 0.0
    return epsilon({a: math.fsum(gaussian_rdp(a, z) for z in given) for a in ORDERS}, delta)


def clip_change(shared: Params, received: Params, bound: float) -> Params:
    """Shorten the change of the shared tensors, as one vector, to a bound.

    Args:
        shared: The client's tensors.
        received: What the server sent.
        bound: The longest change.

    Returns:
        The clipped tensors.
    """
    names = [name for name in sorted(shared) if shared[name].is_floating_point()]
    changes = {name: shared[name].double() - received[name].double() for name in names}
    length = math.sqrt(math.fsum(float(c.square().sum()) for c in changes.values()))
    if length <= bound:
        return shared
    factor = bound / length
    moved = {
        name: (received[name].double() + factor * change).to(shared[name].dtype)
        for name, change in changes.items()
    }
    return {name: moved.get(name, value) for name, value in shared.items()}


def add_noise(shared: Params, deviation: float, source: Normal) -> Params:
    """Add independent N(0, deviation^2) to every number, drawn on the CPU in the order of names.

    Args:
        shared: The tensors.
        deviation: The noise's deviation.
        source: Draws the noise.

    Returns:
        The noised tensors.
    """
    noised = dict(shared)
    for name in sorted(shared):
        value = shared[name]
        if value.is_floating_point():
            noise = normal(source, value.shape, value.dtype)
            noised[name] = value + deviation * noise.to(value.device)
    return noised


def gaussian_rdp(order: float, multiplier: float) -> float:
    """Return the Renyi divergence of N(1, z^2) from N(0, z^2): a / (2 z^2).

    Args:
        order: a.
        multiplier: z.

    Returns:
        The divergence.

    >>> gaussian_rdp(2, 1.0)
    1.0
    """
    return order / (2 * multiplier**2)


def drawn_rdp(order: int, share: float, rdp: Callable[[float], float]) -> float:
    """Bound the divergence where a share of clients is drawn without replacement.

    Wang, Balle and Kasiviswanathan 2019, Theorem 9, for any mechanism of divergence e(a) without
    bound on its ratio: log(1 + q^2 (a over 2) min(4 (e^e(2) - 1), 2 e^e(2)) + sum_{j=3}^a q^j (a
    over j) 2 e^((j-1) e(j))) / (a - 1); never more than without drawing.

    Args:
        order: a, a whole number above 1.
        share: The share q of clients.
        rdp: Divergence of the mechanism by order.

    Returns:
        The bound.
    """
    if share >= 1:
        return rdp(order)
    two = rdp(2)
    least = min(math.log(4) + log_expm1(two), math.log(2) + two)
    terms = [0.0, 2 * math.log(share) + log_binomial(order, 2) + least]
    terms += [
        j * math.log(share) + log_binomial(order, j) + math.log(2) + (j - 1) * rdp(j)
        for j in range(3, order + 1)
    ]
    return min(rdp(order), log_sum_exp(terms) / (order - 1))


def epsilon(rdp: dict[float, float], delta: float) -> float:
    """Return the least epsilon that divergences by order give (Canonne et al. 2020, Prop. 12).

    It is min_a e(a) + log((a - 1) / a) - (log delta + log a) / (a - 1).

    Args:
        rdp: Divergences by order.
        delta: The delta of the guarantee.

    Returns:
        Epsilon.
    """
    bounds = (
        cost + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        for order, cost in rdp.items()
    )
    return max(0.0, min(bounds))


def log_binomial(total: int, chosen: int) -> float:
    """Return the logarithm of (total over chosen).

    Args:
        total: The upper number.
        chosen: The lower number.

    Returns:
        The logarithm.
    """
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)


def log_expm1(value: float) -> float:
    """Return log(e^value - 1) without overflow.

    Args:
        value: A positive number.

    Returns:
        The logarithm.
    """
    return value + math.log(-math.expm1(-value))


def log_sum_exp(terms: Iterable[float]) -> float:
    """Return the logarithm of a sum of exponentials, without overflow.

    Args:
        terms: The exponents.

    Returns:
        The logarithm.
    """
    given = list(terms)
    top = max(given)
    return top + math.log(math.fsum(math.exp(term - top) for term in given))
