"""Keys of a secure sum: what clients agree on, and the masks that follow from it.

Key agreement is X25519, keys are derived by HKDF-SHA256 and masks are ChaCha20's stream, all of the
package `cryptography`.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from focoop.errors import FederationError
from focoop.federation import HASH_BYTES, KEY_BYTES, Words

SECRET_BITS = 8 * KEY_BYTES
# Every key seals one package, so the number that makes packages differ may be the same.
NONCE = bytes(12)


@dataclass(frozen=True)
class Keys:
    """What a client tells everyone: a key for masks, one to send shares under, its seed's hash.

    `signature` is the client's own, under `claim`; empty where clients have no identities.
    """

    mask: bytes
    channel: bytes
    commitment: bytes
    signature: bytes = b""

    @property
    def usable(self) -> bool:
        """Return whether sizes are right and no key is a point that makes every mask the same."""
        if len(self.commitment) != HASH_BYTES:
            return False
        try:
            for key in (self.mask, self.channel):
                agreed(key, 1)
        except FederationError:
            return False
        return True

    def fits_seed(self, seed: int) -> bool:
        """Say whether a restored seed is the one this client started with.

        Args:
            seed: The seed.

        Returns:
            Whether it is.
        """
        return seed < 2**SECRET_BITS and committed(seed) == self.commitment

    def fits_key(self, key: int) -> bool:
        """Say whether a restored key is the one behind the masks.

        Args:
            key: The key.

        Returns:
            Whether it is.
        """
        return key < 2**SECRET_BITS and public_of(key) == self.mask

    def claim(self, about: str, client: int) -> bytes:
        """Return what the client signs: these keys, for one sum and no other.

        Args:
            about: Names the sum.
            client: The client's number.

        Returns:
            The bytes.
        """
        head = f"focoop sum\n{about}\n{client}\n".encode()
        return head + self.mask + self.channel + self.commitment

    def signed(self, signature: bytes) -> "Keys":
        """Return the same keys with their signature.

        Args:
            signature: The signature.

        Returns:
            The keys.
        """
        return replace(self, signature=signature)


def public_of(secret: int) -> bytes:
    """Return the public half of a secret X25519 key.

    Args:
        secret: The secret key.

    Returns:
        The public key.
    """
    private = X25519PrivateKey.from_private_bytes(secret.to_bytes(KEY_BYTES, "big"))
    return private.public_key().public_bytes_raw()


def agreed(public: bytes, secret: int) -> bytes:
    """Return what two clients know and nobody else (X25519).

    Args:
        public: The other's public key.
        secret: The own secret key.

    Returns:
        The shared secret.

    Raises:
        FederationError: The public key cannot be used.
    """
    private = X25519PrivateKey.from_private_bytes(secret.to_bytes(KEY_BYTES, "big"))
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:  # a wrong length, or a point of which every multiple is zero
        raise FederationError("a client sent a key that is none: leave it out") from error


def derived(secret: bytes, purpose: bytes) -> bytes:
    """Derive a key of 32 bytes for one purpose (HKDF-SHA256).

    Args:
        secret: The shared secret.
        purpose: What the key is for.

    Returns:
        The key.
    """
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=b"focoop/" + purpose).derive(secret)


def own_mask(seed: int) -> bytes:
    """Return the key of the mask that a client adds for itself.

    Args:
        seed: The client's seed.

    Returns:
        The key.
    """
    return derived(seed.to_bytes(KEY_BYTES, "big"), b"own mask")


def pair_mask(
    everyone: Mapping[int, Keys], mine: int, other: int, secret: int, context: bytes
) -> bytes:
    """Return the key of the mask that two clients share.

    Args:
        everyone: All clients' keys.
        mine: The one client.
        other: The other client.
        secret: Secret key of `mine`.
        context: A hash of what clients were asked.

    Returns:
        The key.
    """
    first, second = sorted((mine, other))
    both = everyone[first].mask + everyone[second].mask
    common = agreed(everyone[other].mask, secret)
    return derived(common, f"pair mask/{first}/{second}/".encode() + both + context)


def committed(seed: int) -> bytes:
    """Return what is told of a seed before it may be opened.

    Args:
        seed: The seed.

    Returns:
        A hash.
    """
    return hashlib.sha256(b"focoop seed/" + seed.to_bytes(KEY_BYTES, "big")).digest()


def stream(key: bytes, length: int) -> Words:
    """Return uniform numbers of a key: ChaCha20's stream, each key used once.

    Args:
        key: The key.
        length: How many numbers.

    Returns:
        Numbers (length,) uint64.
    """
    cipher = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(cipher.update(bytes(8 * length)), dtype="<u8").astype(np.uint64)
