"""Who may pass the coordinator's front, and with which requests: the sites, with what they use.

A request is judged by its first lines alone, before any of its body is read. It must be one of the
ten requests that Flower's node makes, and be signed by the key of a site of this federation.
"""

import binascii
import datetime
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cryptography.exceptions import UnsupportedAlgorithm
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

HEALTH = (b"GET", b"/health")
ENROL = (b"POST", b"/v1/focoop/enrol")
# What Flower's node with a key of its own asks for. It registers nobody: the coordinator does.
FLEET = frozenset(
    b"/v1/fleet/" + name
    for name in (
        b"activate-node",
        b"deactivate-node",
        b"send-node-heartbeat",
        b"pull-messages",
        b"push-messages",
        b"get-run",
        b"get-fab",
        b"push-object",
        b"pull-object",
        b"confirm-message-received",
    )
)
UNKNOWN, CLOCK = 2004, 9001  # 2004 is Flower's own number for a key it does not know
Names = Callable[[bytes], str | None]


@dataclass(frozen=True)
class Refused(Exception):
    """A request that is not passed on: an HTTP status, and for sites a number and a reason."""

    status: int
    reason: str
    code: int = 0


def site_of(headers: Mapping[bytes, bytes], names: Names) -> str:
    """The site that signed a request.

    Args:
        headers: The request's headers, by name in small letters.
        names: The site's name for a public key (PEM), None for a key of nobody.

    Returns:
        The site's name.

    Raises:
        Refused: No site of this federation has signed it, or not now.
    """
    try:
        public = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.encode()], validate=True)
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.encode()], validate=True)
        stamp = headers[TIMESTAMP_HEADER.encode()]
    except (KeyError, binascii.Error):
        raise Refused(404, "it is not signed") from None
    name = names(public)
    if name is None:
        raise Refused(412, "no site of this federation has this key", UNKNOWN)
    try:
        signed = verify_signature(bytes_to_public_key(public), stamp, signature)
        at = datetime.datetime.fromisoformat(stamp.decode("ascii"))
        age = (datetime.datetime.now(datetime.UTC) - at).total_seconds()
    except (ValueError, TypeError, OverflowError, UnsupportedAlgorithm):
        signed, age = False, 0.0
    if not signed:
        raise Refused(412, f"the signature is not that of {name}", UNKNOWN)
    if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
        how = f"{abs(age):.0f} s {'behind' if age > 0 else 'ahead of'}"
        raise Refused(412, f"the clock of {name} is {how} the server's", CLOCK)
    return name
