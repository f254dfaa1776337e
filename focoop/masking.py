"""Pairwise masks under which vectors can be summed, and recovery of those who drop out.

After Bonawitz et al. 2017, for a server that follows the protocol, in the ring of whole numbers
modulo 2^64. Each pair of clients agrees on a mask that one adds and the other subtracts; each
client adds a mask of its own. Shares of what made the masks lie with the others (Shamir, any
`threshold` of them restore it): of a client that answered, its own mask is taken off; of one that
dropped out, the masks it left with others. Never both, so that no single vector opens.

A restored secret is compared with what its owner said of it at the start (a public key, a hash),
so that false shares are found, named and done without while enough true ones are left.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from focoop.errors import MethodError
from focoop.shamir import Draw, opened, split

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
SECRET_BITS = 256
SHARE_BYTES, KEY_BYTES, TAG_BYTES = 66, 256, 32
PACKAGE_BYTES = 2 * SHARE_BYTES + TAG_BYTES
Words = NDArray[np.uint64]


@dataclass(frozen=True)
class Keys:
    """What a client tells everyone: a key for masks, one to send shares under, its seed's hash."""

    mask: int
    channel: int
    commitment: bytes

    @property
    def usable(self) -> bool:
        """Whether both are keys: 0, 1 and -1 would make every mask the same."""
        return all(1 < key < GROUP - 1 for key in (self.mask, self.channel))

    def fits_seed(self, seed: int) -> bool:
        """Whether a restored seed is the one this client started with."""
        return committed(seed) == self.commitment

    def fits_key(self, key: int) -> bool:
        """Whether a restored key is the one behind the masks."""
        return pow(2, key, GROUP) == self.mask


@dataclass(frozen=True)
class Revealed:
    """Shares a client opens: of the own masks of those who answered, of the keys of the others."""

    client: int
    seeds: Mapping[int, int]
    keys: Mapping[int, int]


class Masker:
    """One client in one sum: `keys`, `share`, `mask`, `reveal`, in this order, then forgotten.

    Each step answers a repeated question as before and another question not at all: two answers
    under the same masks would tell their difference.
    """

    def __init__(self, client: int, threshold: int, draw: Draw = secrets.randbits) -> None:
        if threshold < 2:
            raise MethodError(f"a secure sum needs a threshold of 2 or more, not {threshold}")
        self.client, self.threshold, self._draw = client, threshold, draw
        self._mask_key, self._channel_key = draw(SECRET_BITS), draw(SECRET_BITS)
        self._seed = draw(SECRET_BITS)
        self._everyone: dict[int, Keys] = {}
        self._packages: dict[int, bytes] = {}
        self._own: tuple[int, int] = (0, 0)
        self._received: dict[int, tuple[int, int]] = {}
        self._masked = ""
        self._answered: frozenset[int] | None = None

    def dump(self) -> dict[str, Any]:
        """Everything, secrets too, as JSON can hold it; for a file of the client's own."""
        return {
            "client": self.client,
            "threshold": self.threshold,
            "secrets": [f"{s:x}" for s in (self._mask_key, self._channel_key, self._seed)],
            "everyone": {
                str(k): [f"{keys.mask:x}", f"{keys.channel:x}", keys.commitment.hex()]
                for k, keys in self._everyone.items()
            },
            "packages": {str(k): package.hex() for k, package in self._packages.items()},
            "own": [f"{share:x}" for share in self._own],
            "received": {str(k): [f"{s:x}" for s in two] for k, two in self._received.items()},
            "masked": self._masked,
            "answered": None if self._answered is None else sorted(self._answered),
        }

    @classmethod
    def load(cls, kept: Mapping[str, Any]) -> "Masker":
        """What `dump` gave."""
        found = cls(kept["client"], kept["threshold"])
        found._mask_key, found._channel_key, found._seed = (int(s, 16) for s in kept["secrets"])
        found._everyone = {
            int(k): Keys(int(mask, 16), int(channel, 16), bytes.fromhex(commitment))
            for k, (mask, channel, commitment) in kept["everyone"].items()
        }
        found._packages = {int(k): bytes.fromhex(text) for k, text in kept["packages"].items()}
        found._own = int(kept["own"][0], 16), int(kept["own"][1], 16)
        found._received = {
            int(k): (int(seed, 16), int(key, 16)) for k, (seed, key) in kept["received"].items()
        }
        found._masked = kept["masked"]
        answered = kept["answered"]
        found._answered = None if answered is None else frozenset(answered)
        return found

    def keys(self) -> Keys:
        """What the server passes on to all."""
        mask, channel = pow(2, self._mask_key, GROUP), pow(2, self._channel_key, GROUP)
        return Keys(mask, channel, committed(self._seed))

    def share(self, everyone: Mapping[int, Keys]) -> dict[int, bytes]:
        """Sealed shares of this client's secrets, one package for each other client."""
        if self._everyone:
            if dict(everyone) != self._everyone:
                raise MethodError("the server asked twice with other keys: shares stay here")
            return self._packages
        if len(everyone) < self.threshold or everyone.get(self.client) != self.keys():
            raise MethodError(
                f"{len(everyone)} clients are too few for a secure sum of threshold "
                f"{self.threshold}, or this one's keys are not among theirs: wait for more"
            )
        for other, keys in everyone.items():
            if not keys.usable:
                raise MethodError(f"client {other} sent a key that is none: leave it out")
        self._everyone = dict(everyone)
        seeds = split(self._seed, everyone, self.threshold, self._draw)
        keys_ = split(self._mask_key, everyone, self.threshold, self._draw)
        self._own = (seeds[self.client], keys_[self.client])
        self._packages = {
            other: self._seal(other, seeds[other], keys_[other])
            for other in everyone
            if other != self.client
        }
        return self._packages

    def mask(self, vector: Words, packages: Mapping[int, bytes]) -> Words:
        """`vector` (uint64) under the masks of all who sent a package; this is what is sent."""
        asked = hashlib.sha256(vector.astype("<u8").tobytes())
        for other, package in sorted(packages.items()):
            asked.update(f"/{other}/".encode() + package)
        if self._masked not in ("", asked.hexdigest()):
            raise MethodError("the server asked twice for one sum, and not the same: no answer")
        received = {other: self._open(other, package) for other, package in packages.items()}
        if len(packages) + 1 < self.threshold:
            raise MethodError(f"{len(packages) + 1} clients are left, fewer than the threshold")
        self._masked, self._received = asked.hexdigest(), received
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
        if other not in self._everyone or other == self.client:
            raise MethodError(f"a package came of client {other}, which takes no part")
        secret, pad = self._channel(other, other, self.client)
        if not hmac.compare_digest(tag, hmac.digest(secret, hidden, "sha256")):
            raise MethodError(f"the package of client {other} was changed on its way: leave it out")
        plain = bytes(a ^ b for a, b in zip(hidden, pad, strict=True))
        first, second = plain[:SHARE_BYTES], plain[SHARE_BYTES:]
        return int.from_bytes(first, "big"), int.from_bytes(second, "big")

    def _channel(self, other: int, sender: int, receiver: int) -> tuple[bytes, bytes]:
        common = agreed(self._everyone[other].channel, self._channel_key)
        base = f"{common:x}/{sender}/{receiver}".encode()
        pad = hashlib.shake_256(b"pad/" + base).digest(2 * SHARE_BYTES)
        return hashlib.sha256(b"tag/" + base).digest(), pad


def unmask(
    masked: Mapping[int, Words],
    shared: Iterable[int],
    everyone: Mapping[int, Keys],
    revealed: Sequence[Revealed],
    threshold: int,
) -> tuple[Words, set[int]]:
    """The server's step: the sum of the vectors of those who answered, and who opened false shares.

    `shared` are the clients whose packages were passed on: all of them are in the masks.
    """
    alive, gone = set(masked), set(shared) - set(masked)
    complete = [r for r in revealed if set(r.seeds) == alive and set(r.keys) == gone]
    liars = {r.client for r in revealed if r not in complete}
    if len(complete) < threshold:
        raise MethodError(
            f"{len(complete)} clients opened their shares, {threshold} are needed: this round's "
            "sum is lost, go on with the next"
        )
    total: Words = np.add.reduce([masked[k] for k in sorted(alive)])
    for client in sorted(alive):
        shares = {r.client: r.seeds[client] for r in complete}
        seed, wrong = opened(client, shares, threshold, everyone[client].fits_seed)
        total, liars = total - stream(seed, len(total)), liars | wrong
    for client in sorted(gone):
        shares = {r.client: r.keys[client] for r in complete}
        key, wrong = opened(client, shares, threshold, everyone[client].fits_key)
        liars |= wrong
        for other in sorted(alive):
            seed = agreed(everyone[other].mask, key)
            total = _signed(total, stream(seed, len(total)), other > client)
    return total, liars


def committed(seed: int) -> bytes:
    """What is told of a seed before it may be opened."""
    return hashlib.sha256(f"seed/{seed:x}".encode()).digest()


def agreed(public: int, secret: int) -> int:
    """Diffie-Hellman: what two clients know and nobody else."""
    return pow(public, secret, GROUP)


def stream(seed: int, length: int) -> Words:
    """(length,) uniform uint64 from a seed."""
    bytes_ = hashlib.shake_256(f"mask/{seed:x}".encode()).digest(8 * length)
    return np.frombuffer(bytes_, dtype="<u8").astype(np.uint64)


def _signed(total: Words, mask: Words, plus: bool) -> Words:
    return total + mask if plus else total - mask
