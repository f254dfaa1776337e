"""The other sites of a federation by their keys: whose signature a site accepts in a secure sum.

Keys of a sum come through the server. So that it can swap none, each site signs its own with the
key it joined with, and every site checks all signatures. A site learns another's public key from
the server in their first sum and remembers it (`STATE/peers-FEDERATION.toml`): any other key under
that number is refused from then on. Its operator compares the fingerprints with the others' (a
telephone will do), or writes the file beforehand; with `closed = true` in it no other site is
accepted at all.
"""

import hashlib
from collections.abc import Mapping
from logging import INFO
from pathlib import Path

from flwr.common.logger import log

from focoop.errors import FederationError
from focoop.fields import parse_toml, toml_value
from focoop.flower.deploy.enrolment import key_print
from focoop.flower.identity import Site, signs
from focoop.flower.mask_keys import Keys
from focoop.runs import write

LONGEST = 1000  # bytes of a public key; one of P-521 has 300


def peers_file(state: Path, keys: Path) -> Path:
    """Return the file of a site's peers in the federation that its folder of keys is for.

    Args:
        state: The site's state folder.
        keys: The site's folder of keys.

    Returns:
        The file.

    Raises:
        FederationError: The authority's certificate is missing.
    """
    try:
        authority = (keys / "ca.crt").read_bytes()
    except OSError as error:
        raise FederationError(f"{keys} lacks the federation's ca.crt ({error})") from error
    return state / f"peers-{hashlib.sha256(authority).hexdigest()[:16]}.toml"


def accept(
    path: Path, own: Site, publics: Mapping[int, bytes], everyone: Mapping[int, Keys], about: str
) -> None:
    """Check who is in a sum, and remember those that are new.

    Args:
        path: the file of peers.
        own: this site.
        publics: public keys (OpenSSH) by client, as the server says.
        everyone: the keys of the sum by client, with signatures.
        about: which sum it is.

    Raises:
        FederationError: a key is not signed by its site, a site has another key than before, or two
            clients have the same one.
    """
    known, closed = read_peers(path)
    known = {**known, own.client: own.public}
    if set(publics) != set(everyone):
        raise FederationError("the server does not say whose keys these are: no secure sum")
    keys = {client: _plain(public) for client, public in publics.items()}
    if len(set(keys.values())) < len(keys):
        raise FederationError("two clients of the sum have the same key: they are one")
    for client, public in publics.items():
        if client in known and _plain(known[client]) != keys[client]:
            raise FederationError(
                f"client {client} has another key than before ({key_print(public)}, not "
                f"{key_print(known[client])}): ask its site. If it has a new key, change {path}"
            )
        if client not in known and closed:
            raise FederationError(f"client {client} is not among the sites of {path}")
        client_keys = everyone[client]
        if not signs(public, client_keys.signature, client_keys.claim(about, client)):
            raise FederationError(f"the keys of client {client} are not signed by its site")
    new = {client: public for client, public in publics.items() if client not in known}
    if new:
        _remember(path, {**known, **new}, closed)
        for client, public in new.items():
            log(INFO, "secure sums: client %d has the key %s", client, key_print(public))


def read_peers(path: Path) -> tuple[dict[int, bytes], bool]:
    """Read the public keys of peers.

    Args:
        path: The file.

    Returns:
        Keys by client, and whether there are no others.

    Raises:
        FederationError: The file is damaged.
    """
    if not path.is_file():
        return {}, False
    try:
        table = parse_toml(path.read_text(encoding="utf-8"))
        sites = {int(client): str(key).encode() for client, key in table["sites"].items()}
        return sites, bool(table.get("closed", False))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise FederationError(
            f"{path} cannot be read ({error}): mend it, or remove it and compare keys again"
        ) from error


def known_peers(state: Path) -> dict[str, dict[str, str]]:
    """List fingerprints of the sites that a state folder knows.

    Args:
        state: The site's state folder.

    Returns:
        Fingerprints by federation and client.
    """
    peers = {}
    for path in sorted(state.glob("peers-*.toml")):
        sites, _ = read_peers(path)
        marks = {str(client): key_print(public) for client, public in sorted(sites.items())}
        peers[path.stem.removeprefix("peers-")] = marks
    return peers


def _remember(path: Path, sites: Mapping[int, bytes], closed: bool) -> None:
    lines = [
        "# Sites whose keys this one accepts in secure sums, by number.",
        f"closed = {toml_value(closed)}  # true: no others",
        "[sites]",
    ]
    for client, public in sorted(sites.items()):
        text = _plain(public).decode()
        lines.append(f"{client} = {toml_value(text)}  # {key_print(public)}")
    write(path, ("\n".join(lines) + "\n").encode())


def _plain(public: bytes) -> bytes:
    """Kind and key of an OpenSSH line, without its comment."""
    if len(public) > LONGEST:
        raise FederationError("a public key is too long to be one")
    return b" ".join(public.split()[:2])
