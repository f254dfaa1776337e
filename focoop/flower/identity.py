"""Which site a key belongs to, and a site's proof that it holds the key.

A node's number would be its own claim. The coordinator's folder of keys says which number each
public key has, and a site signs its number together with the server's challenge, the run and the
node id by which Flower knows it: no other site can make that signature or use it for its node.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from focoop.errors import ConfigError, FederationError
from focoop.fields import parse_toml

SITE = "site.toml"
SCHEME = ec.ECDSA(hashes.SHA384())
SIGNED = b"focoop signed\n"  # what is signed for one purpose serves no other


@dataclass(frozen=True)
class Site:
    """A site by name, its place in the federation from 0, and its public key (OpenSSH)."""

    name: str
    client: int
    public: bytes


def read_name(folder: Path) -> tuple[str, int]:
    """Read the name and number of the site that a folder is for.

    Args:
        folder: The site's folder of keys.

    Returns:
        Name and number.

    Raises:
        ConfigError: The folder is not a site's.
    """
    try:
        table = parse_toml((folder / SITE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder} is no folder of a site's keys ({error}): ask the coordinator for the one "
            "that was made for this site"
        ) from error
    name, client = table.get("name"), table.get("client")
    if not isinstance(name, str) or type(client) is not int or client < 0:
        raise ConfigError(f'{folder / SITE} must hold name = "..." and client = 0, 1, ...')
    return name, client


def read_site(folder: Path) -> Site:
    """Read the site whose keys are in a folder.

    Args:
        folder: The site's folder of keys.

    Returns:
        The site.

    Raises:
        ConfigError: The folder is not a site's, or lacks its key.
    """
    name, client = read_name(folder)
    try:
        return Site(name, client, (folder / "key.pub").read_bytes())
    except OSError as error:
        raise ConfigError(
            f"{folder} holds no key of {name} ({error}): make one (focoop site key), or ask the "
            "coordinator for the folder that was made for this site"
        ) from error


def site_folders(keys: Path) -> list[Path]:
    """List the folders of a federation's sites.

    A hidden one is what is left of a site whose adding was interrupted: it is nobody's.

    Args:
        keys: The coordinator's own folder of keys.

    Returns:
        The folders by name.
    """
    return [path.parent for path in sorted(keys.glob(f"sites/[!.]*/{SITE}"))]


def numbered(keys: Path) -> dict[int, str]:
    """List a federation's sites, whether they have joined yet or not.

    Args:
        keys: The coordinator's own folder of keys.

    Returns:
        Names by number.

    Raises:
        ConfigError: The numbers have a gap, or a folder was renamed.
    """
    folders = site_folders(keys)
    sites = [read_name(folder) for folder in folders]
    for (name, _), folder in zip(sites, folders, strict=True):
        if name != folder.name:
            raise ConfigError(f"{folder} holds the keys of {name}: give it that name again")
    if not sites or sorted(client for _, client in sites) != list(range(len(sites))):
        numbers = ", ".join(f"{name} {client}" for name, client in sites)
        raise ConfigError(
            f"the sites in {keys / 'sites'} are not numbered from 0 without a gap ({numbers}): "
            "add the missing one (focoop keys DIR --add --site NAME)"
        )
    return {client: name for name, client in sites}


def registered(keys: Path) -> dict[int, Site]:
    """List the sites of a federation that have a key.

    Args:
        keys: The coordinator's own folder of keys.

    Returns:
        Sites by number.
    """
    places = {client: keys / "sites" / name for client, name in numbered(keys).items()}
    return {
        client: read_site(place)
        for client, place in sorted(places.items())
        if (place / "key.pub").is_file()
    }


class Registry(Mapping[int, Site]):
    """`registered(keys)` as it is now: a site that joins during a run is in it at once."""

    def __init__(self, keys: Path) -> None:
        self.keys_folder = keys
        self.names = numbered(keys)

    def __getitem__(self, client: int) -> Site:
        place = self.keys_folder / "sites" / self.names[client]
        if not (place / "key.pub").is_file():
            raise KeyError(client)
        return read_site(place)

    def __iter__(self) -> Iterator[int]:
        return iter(registered(self.keys_folder))

    def __len__(self) -> int:
        return len(registered(self.keys_folder))


def prove(folder: Path, challenge: str, run: int, node: int, client: int) -> bytes:
    """Sign this site's claim to be a client.

    Args:
        folder: The site's folder of keys.
        challenge: What the server wants signed.
        run: The run's number.
        node: The node's number.
        client: The client's number.

    Returns:
        The signature.
    """
    return _private(folder).sign(claim(challenge, run, node, client), SCHEME)


def proves(site: Site, proof: bytes, challenge: str, run: int, node: int) -> bool:
    """Say whether a node holds a site's private key.

    Args:
        site: The site.
        proof: The signature it sent.
        challenge: What it had to sign.
        run: The run's number.
        node: The node's number.

    Returns:
        Whether it does.

    Raises:
        ConfigError: The site's public key cannot be read.
    """
    key = serialization.load_ssh_public_key(site.public)
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"the public key of {site.name} is not of an elliptic curve")
    try:
        key.verify(proof, claim(challenge, run, node, site.client), SCHEME)
    except InvalidSignature:
        return False
    return True


def claim(challenge: str, run: int, node: int, client: int) -> bytes:
    """Return the bytes that a site signs to be a client.

    Args:
        challenge: What the server wants signed.
        run: The run's number.
        node: The node's number.
        client: The client's number.

    Returns:
        The bytes.
    """
    return f"focoop site\n{challenge}\n{run}\n{node}\n{client}".encode()


def sign(folder: Path, content: bytes) -> bytes:
    """Sign any other content than the claim to be a client.

    Args:
        folder: The site's folder of keys.
        content: The content.

    Returns:
        The signature.
    """
    return _private(folder).sign(SIGNED + content, SCHEME)


def signs(public: bytes, signature: bytes, content: bytes) -> bool:
    """Say whether the holder of a public key has signed some content by `sign`.

    Args:
        public: The key (OpenSSH).
        signature: The signature.
        content: The content.

    Returns:
        Whether it has.
    """
    try:
        key = serialization.load_ssh_public_key(public)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        key.verify(signature, SIGNED + content, SCHEME)
    except (InvalidSignature, ValueError, UnsupportedAlgorithm):
        return False
    return True


def _private(folder: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_ssh_private_key((folder / "key").read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise FederationError(f"the key in {folder} cannot be used ({error})") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FederationError(f"the key in {folder} is not of an elliptic curve")
    return key
