"""Pairwise masks under which vectors can be summed, and recovery of those who drop out.

After Bonawitz et al. 2017, in the ring of whole numbers modulo 2^64. Each pair of clients agrees on
a mask that one adds and the other subtracts; each client adds a mask of its own. Shares of what
made the masks lie with the others (Shamir, any `threshold` of them restore it): of a client that
answered, its own mask is taken off; of one that dropped out, the masks it left with others. Never
both, so that no single vector opens.

Key agreement is X25519, keys are derived by HKDF-SHA256, shares are sealed by ChaCha20-Poly1305
and masks are ChaCha20's stream, all of the package `cryptography`. A mask depends on a `context`, a
hash of what the clients were asked: masks of clients that were asked different things do not
cancel.

A restored secret is compared with what its owner said of it at the start (a public key, a hash),
so that false shares are found, named and done without while enough true ones are left.
"""

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from focoop.errors import FederationError
from focoop.federation import LEAST_PARTIES, SHARE_BYTES, Words
from focoop.flower.mask_keys import (
    NONCE,
    SECRET_BITS,
    Keys,
    agreed,
    committed,
    derived,
    own_mask,
    pair_mask,
    public_of,
    stream,
)
from focoop.flower.shamir import Draw, restore_secret, split


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

    Args:
        client: its number.
        threshold: how many clients restore a secret; above two thirds of all, so that a server that
            tells two groups different stories needs a third of them on its side.
        least: the fewest clients whose sum this one takes part in. In a sum of two, the other one
            and the server know this client's vector.
        draw: random bits, secret and fresh.
    """

    def __init__(
        self,
        client: int,
        threshold: int,
        least: int = LEAST_PARTIES,
        draw: Draw = secrets.randbits,
    ) -> None:
        self.client, self.threshold, self._draw = client, threshold, draw
        self.least = max(least, LEAST_PARTIES)
        self._mask_key, self._channel_key = draw(SECRET_BITS), draw(SECRET_BITS)
        self._seed = draw(SECRET_BITS)
        self._everyone: dict[int, Keys] = {}
        self._packages: dict[int, bytes] = {}
        self._own: tuple[int, int] = (0, 0)
        self._received: dict[int, tuple[int, int]] = {}
        self._masked = ""
        self._answered: frozenset[int] | None = None

    def dump(self) -> dict[str, Any]:
        """Return everything, secrets too, as JSON can hold it; for a file of the client's own."""
        return {
            "client": self.client,
            "threshold": self.threshold,
            "least": self.least,
            "secrets": [f"{s:064x}" for s in (self._mask_key, self._channel_key, self._seed)],
            "everyone": {
                str(k): [
                    part.hex()
                    for part in (keys.mask, keys.channel, keys.commitment, keys.signature)
                ]
                for k, keys in self._everyone.items()
            },
            "packages": {str(k): package.hex() for k, package in self._packages.items()},
            "own": [f"{share:x}" for share in self._own],
            "received": {str(k): [f"{s:x}" for s in two] for k, two in self._received.items()},
            "masked": self._masked,
            "answered": None if self._answered is None else sorted(self._answered),
        }

    @classmethod
    def load(cls, dumped: Mapping[str, Any]) -> "Masker":
        """Read what `dump` gave.

        Args:
            dumped: Plain values.

        Returns:
            The masker.
        """
        masker = cls(dumped["client"], dumped["threshold"], dumped["least"])
        masker._mask_key, masker._channel_key, masker._seed = (
            int(s, 16) for s in dumped["secrets"]
        )
        masker._everyone = {
            int(k): Keys(*(bytes.fromhex(part) for part in parts))
            for k, parts in dumped["everyone"].items()
        }
        masker._packages = {int(k): bytes.fromhex(text) for k, text in dumped["packages"].items()}
        masker._own = int(dumped["own"][0], 16), int(dumped["own"][1], 16)
        masker._received = {
            int(k): (int(seed, 16), int(key, 16)) for k, (seed, key) in dumped["received"].items()
        }
        masker._masked = dumped["masked"]
        answered = dumped["answered"]
        masker._answered = None if answered is None else frozenset(answered)
        return masker

    def keys(self) -> Keys:
        """Return the keys that the server passes on to all, not signed yet."""
        mask, channel = public_of(self._mask_key), public_of(self._channel_key)
        return Keys(mask, channel, committed(self._seed))

    def share(self, everyone: Mapping[int, Keys]) -> dict[int, bytes]:
        """Seal shares of this client's secrets, one package for each other client.

        Args:
            everyone: All clients' keys.

        Returns:
            Packages by client.

        Raises:
            FederationError: There are too few clients, or a key cannot be used.
        """
        if self._everyone:
            if dict(everyone) != self._everyone:
                raise FederationError("the server asked twice with other keys: shares stay here")
            return self._packages
        self._enough(len(everyone), "sent keys")
        if everyone.get(self.client, self.keys()).signed(b"") != self.keys():
            raise FederationError("this client's keys came back changed: shares stay here")
        if self.client not in everyone:
            raise FederationError("this client's keys are not among those of the sum")
        if 3 * self.threshold <= 2 * len(everyone):
            raise FederationError(
                f"a threshold of {self.threshold} among {len(everyone)} clients is not above two "
                "thirds: shares stay here"
            )
        for other, keys in everyone.items():
            if not keys.usable:
                raise FederationError(f"client {other} sent a key that is none: leave it out")
        points = [
            key
            for client_keys in everyone.values()
            for key in (client_keys.mask, client_keys.channel)
        ]
        if len(set(points)) < len(points):
            raise FederationError("two clients sent the same key: shares stay here")
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

    def mask(self, vector: Words, packages: Mapping[int, bytes], context: bytes = b"") -> Words:
        """Put a vector under the masks of all who sent a package; this is what is sent.

        Args:
            vector: The vector (uint64).
            packages: Packages by client.
            context: A hash of what this client was asked; see `unmask`.

        Returns:
            The masked vector.

        Raises:
            FederationError: A package is damaged, or there are too few.
        """
        asked = hashlib.sha256(len(context).to_bytes(8, "big") + context)
        asked.update(vector.astype("<u8").tobytes())
        for other, package in sorted(packages.items()):
            asked.update(f"/{other}/".encode() + package)
        if self._masked not in ("", asked.hexdigest()):
            raise FederationError("the server asked twice for one sum, and not the same: no answer")
        received = {other: self._open(other, package) for other, package in packages.items()}
        self._enough(len(packages) + 1, "are left")
        self._masked, self._received = asked.hexdigest(), received
        total = vector + stream(own_mask(self._seed), len(vector))
        for other in packages:
            seed = pair_mask(self._everyone, self.client, other, self._mask_key, context)
            total = _add_or_subtract(total, stream(seed, len(vector)), self.client < other)
        return total

    def reveal(self, answered: Iterable[int]) -> Revealed:
        """Open shares for the server once it has told who answered.

        A second, other list is refused.

        Args:
            answered: The clients that answered.

        Returns:
            The shares.

        Raises:
            FederationError: There are too few clients, or another list was answered before.
        """
        alive = frozenset(answered)
        if self._answered is not None and alive != self._answered:
            raise FederationError("the server asked twice with other lists: shares stay closed")
        self._enough(len(alive), "answered")
        held = {**self._received, self.client: self._own}
        if self.client not in alive or not alive <= set(held):
            raise FederationError("the list of those who answered is not of this sum's clients")
        self._answered = alive
        return Revealed(
            self.client,
            {k: shares[0] for k, shares in held.items() if k in alive},
            {k: shares[1] for k, shares in held.items() if k not in alive},
        )

    def _enough(self, count: int, what: str) -> None:
        needed = max(self.threshold, self.least)
        if count < needed:
            raise FederationError(
                f"{count} clients {what}, and this one takes part in secure sums of {needed} or "
                "more: fewer would tell too much of each. Wait for more clients"
            )

    def _seal(self, other: int, seed: int, key: int) -> bytes:
        plain = seed.to_bytes(SHARE_BYTES, "big") + key.to_bytes(SHARE_BYTES, "big")
        return ChaCha20Poly1305(self._channel(other, self.client, other)).encrypt(
            NONCE, plain, None
        )

    def _open(self, other: int, package: bytes) -> tuple[int, int]:
        if other not in self._everyone or other == self.client:
            raise FederationError(f"a package came of client {other}, which takes no part")
        try:
            cipher = ChaCha20Poly1305(self._channel(other, other, self.client))
            plain = cipher.decrypt(NONCE, package, None)
        except InvalidTag as error:
            raise FederationError(
                f"the package of client {other} was changed on its way: leave it out"
            ) from error
        first, second = plain[:SHARE_BYTES], plain[SHARE_BYTES:]
        return int.from_bytes(first, "big"), int.from_bytes(second, "big")

    def _channel(self, other: int, sender: int, receiver: int) -> bytes:
        common = agreed(self._everyone[other].channel, self._channel_key)
        both = self._everyone[sender].channel + self._everyone[receiver].channel
        return derived(common, f"share/{sender}/{receiver}/".encode() + both)


def unmask(
    masked: Mapping[int, Words],
    shared: Iterable[int],
    everyone: Mapping[int, Keys],
    revealed: Sequence[Revealed],
    threshold: int,
    context: bytes = b"",
) -> tuple[Words, set[int]]:
    """Sum the vectors of those who answered: the server's step.

    Args:
        masked: Vectors under masks by client.
        shared: The clients whose packages were passed on: all of them are in the masks.
        everyone: All clients' keys.
        revealed: The shares that clients have opened.
        threshold: How many shares restore a secret.
        context: A hash of what all clients were asked, as they made it.

    Returns:
        The sum, and who opened false shares.

    Raises:
        FederationError: A secret cannot be restored.
    """
    alive, gone = set(masked), set(shared) - set(masked)
    complete = [r for r in revealed if set(r.seeds) == alive and set(r.keys) == gone]
    liars = {r.client for r in revealed if r not in complete}
    if len(complete) < threshold:
        raise FederationError(
            f"{len(complete)} clients opened their shares, {threshold} are needed: this round's "
            "sum is lost, go on with the next"
        )
    total: Words = np.add.reduce([masked[k] for k in sorted(alive)])
    for client in sorted(alive):
        shares = {r.client: r.seeds[client] for r in complete}
        seed, wrong = restore_secret(client, shares, threshold, everyone[client].fits_seed)
        total, liars = total - stream(own_mask(seed), len(total)), liars | wrong
    for client in sorted(gone):
        shares = {r.client: r.keys[client] for r in complete}
        key, wrong = restore_secret(client, shares, threshold, everyone[client].fits_key)
        liars |= wrong
        for other in sorted(alive):
            pair = pair_mask(everyone, client, other, key, context)
            total = _add_or_subtract(total, stream(pair, len(total)), other > client)
    return total, liars


def _add_or_subtract(total: Words, mask: Words, plus: bool) -> Words:
    return total + mask if plus else total - mask
