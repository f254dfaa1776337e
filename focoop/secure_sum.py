"""Sums of which a server sees the total alone: pairwise masks, and recovery of those who drop out.

After Bonawitz et al. 2017, for a server that follows the protocol. Numbers are fixed-point in the
ring of whole numbers modulo 2^64. Each pair of clients agrees on a mask that one adds and the other
subtracts; each client adds a mask of its own. Shares of what made the masks lie with the others
(Shamir, any `threshold` of them restore it): of a client that answered, its own mask is taken off;
of one that dropped out, the masks it left with others. Never both, so that no single update opens.

`pack` and `unpack` turn updates into what can be summed and back. Masks cancel exactly, so that a
simulation adds the packed updates as they are and ends with the same bits (`summed`).
"""

import hashlib
import hmac
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from focoop.errors import MethodError
from focoop.methods._base import ClientUpdate, Method, Params, Server, Task

FRACTION = 24  # bits after the point
# RFC 3526, group 14: 2^2048 - 2^1984 - 1 + 2^64 (floor(2^1918 pi) + 124476), generator 2.
GROUP = int(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22"
    "514A08798E3404DDEF9519B3CD3A431B302B0A6DF25F14374FE1356D6D51C245E485B576625E7EC6"
    "F44C42E9A637ED6B0BFF5CB6F406B7EDEE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3D"
    "C2007CB8A163BF0598DA48361C55D39A69163FA8FD24CF5F83655D23DCA3AD961C62F356208552BB"
    "9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E462E36CE3BE39E772C180E8603"
    "9B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF6955817183995497CEA956AE515D2261898FA0510"
    "15728E5A8AACAA68FFFFFFFFFFFFFFFF",
    16,
)
FIELD = 2**521 - 1  # a prime above every secret that is shared
SECRET_BITS = 256
SHARE_BYTES = 66
Draw = Callable[[int], int]
Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Keys:
    """What a client tells everyone: one key for masks, one to send shares under."""

    mask: int
    channel: int


@dataclass(frozen=True)
class Revealed:
    """Shares a client opens: of the own masks of those who answered, of the keys of the others."""

    client: int
    seeds: Mapping[int, int]
    keys: Mapping[int, int]


class Party:
    """One client in one sum: `keys`, `share`, `mask`, `reveal`, in this order, then forgotten."""

    def __init__(self, client: int, threshold: int, draw: Draw = secrets.randbits) -> None:
        if threshold < 2:
            raise MethodError(f"a secure sum needs a threshold of 2 or more, not {threshold}")
        self.client, self.threshold, self._draw = client, threshold, draw
        self._mask_key, self._channel_key = draw(SECRET_BITS), draw(SECRET_BITS)
        self._seed = draw(SECRET_BITS)
        self._everyone: dict[int, Keys] = {}
        self._own: tuple[int, int] = (0, 0)
        self._received: dict[int, tuple[int, int]] = {}
        self._answered: frozenset[int] | None = None

    def keys(self) -> Keys:
        """What the server passes on to all."""
        return Keys(pow(2, self._mask_key, GROUP), pow(2, self._channel_key, GROUP))

    def share(self, everyone: Mapping[int, Keys]) -> dict[int, bytes]:
        """Sealed shares of this client's secrets, one package for each other client."""
        if len(everyone) < self.threshold or self.client not in everyone:
            raise MethodError(
                f"{len(everyone)} clients are too few for a secure sum of threshold "
                f"{self.threshold}: wait for more, or lower the threshold"
            )
        for other, keys in everyone.items():
            if not (1 < keys.mask < GROUP - 1 and 1 < keys.channel < GROUP - 1):
                raise MethodError(f"client {other} sent a key that is none: leave it out")
        self._everyone = dict(everyone)
        seeds = split(self._seed, everyone, self.threshold, self._draw)
        keys_ = split(self._mask_key, everyone, self.threshold, self._draw)
        self._own = (seeds[self.client], keys_[self.client])
        return {
            other: self._seal(other, seeds[other], keys_[other])
            for other in everyone
            if other != self.client
        }

    def mask(self, vector: Words, packages: Mapping[int, bytes]) -> Words:
        """`vector` (uint64) under the masks of all who sent a package; this is what is sent."""
        for other, package in packages.items():
            self._received[other] = self._open(other, package)
        if len(packages) + 1 < self.threshold:
            raise MethodError(f"{len(packages) + 1} clients are left, fewer than the threshold")
        total = vector + stream(self._seed, len(vector))
        for other in packages:
            seed = agreed(self._everyone[other].mask, self._mask_key)
            total = _signed(total, stream(seed, len(vector)), self.client < other)
        return total

    def reveal(self, answered: Iterable[int]) -> Revealed:
        """Shares for the server once it has told who answered; a second, other list is refused."""
        alive = frozenset(answered)
        if self._answered is not None and alive != self._answered:
            raise MethodError("the server asked twice with other lists: shares stay closed")
        if len(alive) < self.threshold or self.client not in alive:
            raise MethodError(f"{len(alive)} clients answered, fewer than the threshold")
        self._answered = alive
        held = {**self._received, self.client: self._own}
        return Revealed(
            self.client,
            {k: shares[0] for k, shares in held.items() if k in alive},
            {k: shares[1] for k, shares in held.items() if k not in alive},
        )

    def _seal(self, other: int, seed: int, key: int) -> bytes:
        plain = seed.to_bytes(SHARE_BYTES, "big") + key.to_bytes(SHARE_BYTES, "big")
        secret, pad = self._channel(other, self.client, other)
        hidden = bytes(a ^ b for a, b in zip(plain, pad, strict=True))
        return hidden + hmac.digest(secret, hidden, "sha256")

    def _open(self, other: int, package: bytes) -> tuple[int, int]:
        hidden, tag = package[: 2 * SHARE_BYTES], package[2 * SHARE_BYTES :]
        secret, pad = self._channel(other, other, self.client)
        if not hmac.compare_digest(tag, hmac.digest(secret, hidden, "sha256")):
            raise MethodError(f"the package of client {other} was changed on its way: leave it out")
        plain = bytes(a ^ b for a, b in zip(hidden, pad, strict=True))
        return int.from_bytes(plain[:SHARE_BYTES], "big"), int.from_bytes(
            plain[SHARE_BYTES:], "big"
        )

    def _channel(self, other: int, sender: int, receiver: int) -> tuple[bytes, bytes]:
        common = agreed(self._everyone[other].channel, self._channel_key)
        base = f"{common:x}/{sender}/{receiver}".encode()
        return hashlib.sha256(b"tag/" + base).digest(), hashlib.shake_256(b"pad/" + base).digest(
            2 * SHARE_BYTES
        )


def unmask(
    masked: Mapping[int, Words],
    shared: Iterable[int],
    everyone: Mapping[int, Keys],
    revealed: Sequence[Revealed],
    threshold: int,
) -> Words:
    """The server's step: the sum of the vectors of those who answered.

    `shared` are the clients whose packages were passed on: all of them are in the masks.
    """
    if len(revealed) < threshold:
        raise MethodError(
            f"{len(revealed)} clients opened their shares, {threshold} are needed: this round's "
            "sum is lost, go on with the next"
        )
    alive = set(masked)
    total: Words = np.add.reduce([masked[k] for k in sorted(alive)])
    for client in sorted(alive):
        seed = restore({r.client: r.seeds[client] for r in revealed}, threshold)
        total = total - stream(seed, len(total))
    for client in sorted(set(shared) - alive):
        key = restore({r.client: r.keys[client] for r in revealed}, threshold)
        for other in sorted(alive):
            seed = agreed(everyone[other].mask, key)
            total = _signed(total, stream(seed, len(total)), other > client)
    return total


def split(secret: int, clients: Iterable[int], threshold: int, draw: Draw) -> dict[int, int]:
    """Shamir's shares: values at client + 1 of a polynomial whose constant is the secret."""
    # 64 bits beyond the field's size make the remainder uniform for all purposes.
    coefficients = [secret, *(draw(585) % FIELD for _ in range(threshold - 1))]
    return {
        client: sum(c * pow(client + 1, i, FIELD) for i, c in enumerate(coefficients)) % FIELD
        for client in clients
    }


def restore(shares: Mapping[int, int], threshold: int) -> int:
    """The secret, by Lagrange at 0 from `threshold` of the shares."""
    points = dict(sorted(shares.items())[:threshold])
    total = 0
    for mine, value in points.items():
        others = [k + 1 for k in points if k != mine]
        top = math.prod(others)
        bottom = math.prod(x - (mine + 1) for x in others)
        total += value * top * pow(bottom, -1, FIELD)
    return total % FIELD


def agreed(public: int, secret: int) -> int:
    """Diffie-Hellman: what two clients know and nobody else."""
    return pow(public, secret, GROUP)


def stream(seed: int, length: int) -> Words:
    """(length,) uniform uint64 from a seed."""
    bytes_ = hashlib.shake_256(f"mask/{seed:x}".encode()).digest(8 * length)
    return np.frombuffer(bytes_, dtype="<u8").astype(np.uint64)


def _signed(total: Words, mask: Words, plus: bool) -> Words:
    return total + mask if plus else total - mask


def pack(update: ClientUpdate, by_class: Sequence[str], parties: int) -> Words:
    """A client's summands (uint64): n_kc t_kc of class rows, n_k t_k of the rest, n_kc, n_k."""
    parts = []
    for name in sorted(update.shared):
        value = update.shared[name].double().cpu()
        if update.shared[name].is_floating_point():
            weighted = value * _weights(update, value, name in by_class)
            parts.append(_fixed(weighted.flatten(), parties))
    counts = [*update.class_counts.tolist(), update.num_examples]
    parts.append(np.array(counts, dtype=np.int64).view(np.uint64))
    return np.concatenate(parts)


def unpack(total: Words, received: Params, by_class: Sequence[str], classes: int) -> ClientUpdate:
    """The sum of packed updates as one update that holds the means; nobody's classes stay."""
    whole = total.view(np.int64)
    counts = torch.from_numpy(whole[-1 - classes : -1].copy())
    mean = ClientUpdate(0, {}, int(whole[-1]), counts, math.nan)
    shared, at = dict(received), 0
    for name in sorted(received):
        value = received[name]
        if not value.is_floating_point():
            continue
        flat = torch.from_numpy(whole[at : at + value.numel()].astype(np.float64))
        weights = _weights(mean, value.cpu(), name in by_class)
        row = flat.view(value.shape) / 2**FRACTION / weights.clamp(min=1)
        found = row.to(value.dtype).to(value.device)
        shared[name] = torch.where((weights > 0).to(value.device), found, value)
        at += value.numel()
    return ClientUpdate(0, shared, mean.num_examples, counts, math.nan)


def summed(
    method: Method, server: Server, updates: Sequence[ClientUpdate], task: Task
) -> tuple[list[ClientUpdate], dict[str, float]]:
    """All a server learns under secure sums: one update with the means, and how many sent one."""
    total = np.add.reduce([pack(update, method.by_class, len(updates)) for update in updates])
    mean = unpack(total, server.shared, method.by_class, len(task.classes))
    return [mean], {"summed": float(len(updates))}


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
