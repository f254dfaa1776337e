"""How a site's public key comes to the coordinator: once, with the token of its invitation.

The coordinator invites a site by name and keeps a hash of the token it gives away (`invite`). The
site makes its key at home and sends the public half with the token (`Enrolment`), over TLS to the
server whose authority came with the invitation. A token serves one key: whoever comes second with
another one is refused, and both sides see it.
"""

import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, uses_nist_ec_curve

from focoop.caching import parse_json
from focoop.errors import FederationError
from focoop.fields import parse_toml
from focoop.flower.identity import registered
from focoop.runs import write

INVITATION = "invitation.toml"
DAYS = 30
TEXT = str.maketrans("", "", "\n\r\0")


def invite(keys: Path, name: str, days: float = DAYS) -> str:
    """Make a token by which a site can send its key; earlier tokens of the site end here.

    Args:
        keys: The coordinator's folder of keys.
        name: The site's name.
        days: How long the token is valid.

    Returns:
        The token.
    """
    token = secrets.token_urlsafe(32)
    until = int(time.time() + days * 86_400)
    content = f'token_sha256 = "{_digest(token)}"\nuntil = {until}\n'
    write(keys / "sites" / name / INVITATION, content.encode())
    return token


def key_print(public: bytes) -> str:
    """Return a public key in a form that two people can compare on the telephone.

    Args:
        public: The key (OpenSSH).

    Returns:
        The fingerprint.
    """
    digest = hashlib.sha256(public.split()[1] if len(public.split()) > 1 else public).hexdigest()
    return " ".join(digest[k : k + 4] for k in range(0, 16, 4))


class Enrolment:
    """Takes sites' public keys and knows whose they are.

    Args:
        keys: The coordinator's own folder of keys.
        admit: Lets the node with a public key (OpenSSH) and a name in.
        say: Told what a person should know.
    """

    def __init__(
        self, keys: Path, admit: Callable[[bytes, str], None], say: Callable[[str], None]
    ) -> None:
        self.keys, self.admit, self.say = keys, admit, say
        sites = registered(keys).values()
        self.known = {_pem(site.public): (site.name, site.public) for site in sites}

    def name(self, pem: bytes) -> str | None:
        """Return the site that has a public key now; a key that was replaced is nobody's any more.

        Args:
            pem: The key.

        Returns:
            The site's name, or None.
        """
        name, public = self.known.get(pem, ("", b""))
        try:
            stored = (self.keys / "sites" / name / "key.pub").read_bytes() if name else b""
        except OSError:
            return None
        return name if name and stored == public else None

    def __call__(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """Answer a site's request {site, token, key}: an HTTP status and a document."""
        try:
            request = parse_json(body)
            name, token, line = (str(request[key]) for key in ("site", "token", "key"))
        except (ValueError, KeyError, TypeError):
            return 400, {"detail": "the request cannot be read"}
        place = self._place(name)
        if place is None or not self._invited(place, token):
            self.say("refused a site that came without a valid invitation")
            return 403, {"detail": "this invitation is not valid, or not any more: ask for another"}
        public = line.translate(TEXT).encode() + b"\n"
        try:
            pem = _pem(public)
        except FederationError as error:
            return 400, {"detail": str(error)}
        if not self._keep(place, public):
            self.say(f"refused a second key for {name}: its invitation has been used")
            again = (
                "join with the --state of its first join, or ask the coordinator for a new bundle"
            )
            return 409, {"detail": f"another key is known for {name}: {again}"}
        try:
            self.admit(public, name)
        except FederationError as error:
            return 503, {"detail": str(error)}
        if self.name(pem) is None:
            self.known[pem] = (name, (place / "key.pub").read_bytes())
            self.say(f"{name} has sent its key, {key_print(public)}")
        return 200, {"site": name}

    def _place(self, name: str) -> Path | None:
        """The site's folder; a name that is no folder's is nobody's."""
        folders = [path for path in (self.keys / "sites").iterdir() if path.is_dir()]
        return next((path for path in folders if path.name == name), None)

    def _invited(self, place: Path, token: str) -> bool:
        try:
            invitation = parse_toml((place / INVITATION).read_text(encoding="utf-8"))
            expected, until = str(invitation["token_sha256"]), int(invitation["until"])
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return hmac.compare_digest(expected, _digest(token)) and time.time() < until

    def _keep(self, place: Path, public: bytes) -> bool:
        """Store the site's first key; whether it is this one."""
        path = place / "key.pub"
        draft = place / ".key.pub.draft"
        if not path.exists():
            write(draft, public)
            os.replace(draft, path)
        return path.read_bytes().split()[:2] == public.split()[:2]


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _pem(public: bytes) -> bytes:
    """A public key as requests name it.

    Raises:
        FederationError: It is no key that Flower takes.
    """
    try:
        key = serialization.load_ssh_public_key(public)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise FederationError(f"this is no public key ({error})") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not uses_nist_ec_curve(key):
        raise FederationError("the key is not of an elliptic curve that Flower takes")
    return public_key_to_bytes(key)
