"""Keys of a federation: its own certificate authority, the server's certificate, one key per site.

ca.crt, ca.key           the authority; ca.key signs, and leaves this folder never
server.pem, server.key   for the SuperLink
sites/NAME/              what site NAME is given: key, key.pub, ca.crt, site.toml (name and number)

A site may make its key itself (`make_site_key`): then no private key of it is ever here.
"""

import datetime
import errno
import ipaddress
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from focoop.errors import ConfigError, FederationError
from focoop.fields import toml_value
from focoop.flower.identity import SITE, read_name, site_folders

HOST = re.compile(r"\w[\w.-]*", re.ASCII)
DAYS = 365
SOON = 30  # days before the certificate's end from which on a start says so
AUTHORITY_DAYS = 3650  # every site holds a copy: it outlives the server's certificates
ISSUER = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "focoop federation")])


def make_keys(
    folder: Path,
    hosts: Sequence[str],
    sites: Sequence[str],
    publics: Mapping[str, Path] | None = None,
    days: int = DAYS,
    *,
    keyed: bool = True,
) -> None:
    """Write all keys of a federation, or nothing.

    Args:
        folder: Where to; it must not be there or be empty.
        hosts: Names and addresses by which sites reach the server.
        sites: Names of the sites, numbered in this order.
        publics: Public keys of sites that made their own.
        days: How long the server's certificate is valid.
        keyed: Whether the other sites' keys are made here; without, they send them later.

    Raises:
        ConfigError: A name or a key cannot be used, or there are keys already.
    """
    if not hosts or not sites:
        raise ConfigError("name at least one host and one site")
    _check_names(sites)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty: keys are never overwritten (--add adds sites to it)"
        )
    with _whole(folder) as draft:
        authority = ec.generate_private_key(ec.SECP256R1())
        ca = _certificate(ISSUER, authority.public_key(), authority, AUTHORITY_DAYS, None)
        _write(draft / "ca.key", _pem(authority), secret=True)
        _write(draft / "ca.crt", ca)
        renew_server(draft, hosts, days)
        add_sites(draft, sites, publics, keyed=keyed)


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `folder` if all goes well and is removed if not."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield draft
        os.replace(draft, folder)  # an empty folder may be there, nothing else
    except BaseException:
        shutil.rmtree(draft)
        raise


def renew_server(folder: Path, hosts: Sequence[str], days: int = DAYS) -> None:
    """Make a new certificate and key of the server, signed by the same authority.

    Sites keep theirs.

    Args:
        folder: The coordinator's folder of keys.
        hosts: Names and addresses of the server.
        days: How long the certificate is valid.

    Raises:
        ConfigError: The folder has no authority, or a host is no name or address.
    """
    check_hosts(hosts)
    try:
        authority = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder} holds no authority's key ({error})") from error
    if not isinstance(authority, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{folder / 'ca.key'} is not a key that `focoop keys` made")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    # A server that listens on all addresses is reached by its own programs through this one.
    names = list(dict.fromkeys([*hosts, "127.0.0.1"]))
    certificate = _certificate(subject, key.public_key(), authority, days, names)
    drafts = {
        folder / "server.key": _draft(folder / "server.key", _pem(key), secret=True),
        folder / "server.pem": _draft(folder / "server.pem", certificate),
    }
    for path, draft in drafts.items():  # both are on the disk: stopped here, one may be the old one
        os.replace(draft, path)


def check_server(
    folder: Path, say: Callable[[str], None], now: datetime.datetime | None = None
) -> None:
    """Check that the server's certificate fits its key and is valid now; say when it soon is not.

    Args:
        folder: The coordinator's folder of keys.
        say: Told what a person should know.
        now: The time; None: this machine's.

    Raises:
        FederationError: It cannot be used.
    """
    now, hosts = now or datetime.datetime.now(datetime.UTC), ["NAME"]
    try:
        certificate = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
        hosts = _hosts_of(certificate)
        key = serialization.load_pem_private_key((folder / "server.key").read_bytes(), None)
        fits = certificate.public_key() == key.public_key()
    except (OSError, ValueError) as error:
        again = _renewal(folder, hosts)
        raise FederationError(
            f"the server's certificate in {folder} cannot be read ({error}): {again}"
        ) from error
    again = _renewal(folder, hosts)
    if not fits:
        raise FederationError(f"server.pem and server.key in {folder} do not fit: {again}")
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < first:
        raise FederationError(
            f"the server's certificate is not valid before {first:%Y-%m-%d %H:%M} UTC, and this "
            f"machine's clock says {now:%Y-%m-%d %H:%M} UTC: set the clock right, as with NTP"
        )
    if now > last:
        raise FederationError(
            f"the server's certificate expired on {last:%Y-%m-%d} (this machine's clock says "
            f"{now:%Y-%m-%d %H:%M} UTC): {again}"
        )
    if (last - now).days < SOON:
        say(f"warning: the server's certificate expires on {last:%Y-%m-%d}: {again}")


def _renewal(folder: Path, hosts: Sequence[str]) -> str:
    names = " ".join(f"--host {host}" for host in hosts)
    return f"make it anew with focoop keys {folder} --renew {names}; sites need nothing new"


def _hosts_of(certificate: x509.Certificate) -> list[str]:
    """The hosts that a certificate of ours was made for."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [str(name.value) for name in names]
    return hosts[:-1] if len(hosts) > 1 and hosts[-1] == "127.0.0.1" else hosts


def add_sites(
    folder: Path,
    names: Sequence[str],
    publics: Mapping[str, Path] | None = None,
    *,
    keyed: bool = True,
) -> None:
    """Make folders of more sites, each with the lowest number that is free.

    Args:
        folder: The coordinator's folder of keys.
        names: The sites' names.
        publics: Public keys that sites made themselves, by site.
        keyed: Make a key for each site that sent none.

    Raises:
        ConfigError: A name is taken or cannot be one.
    """
    _check_names(names)
    if not (folder / "ca.crt").is_file():
        raise ConfigError(f"{folder} is no folder of keys: make one first (without --add)")
    for name in names:
        place = folder / "sites" / name
        if place.exists():
            raise ConfigError(f"{place} is there already: keys are never overwritten")
        given = (publics or {}).get(name)
        taken = {read_name(place)[1] for place in site_folders(folder)}
        number = next(k for k in range(len(taken) + 1) if k not in taken)
        with _whole(place) as draft:
            if given is not None:
                _write(draft / "key.pub", _public(given))
            elif keyed:
                make_site_key(draft, name)
            _write(draft / "ca.crt", (folder / "ca.crt").read_bytes())
            content = f"name = {toml_value(name)}\nclient = {number}\n"
            _write(draft / SITE, content.encode())


def make_site_key(folder: Path, name: str) -> bytes:
    """Make a site's key, of the kind Flower's node authentication takes.

    Args:
        folder: The site's folder of keys.
        name: The site's name.

    Returns:
        The public part (OpenSSH).

    Raises:
        ConfigError: There is a key already.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    line = _public_line(key, name)
    try:
        _write(folder / "key", private, secret=True)
        _write(folder / "key.pub", line)
    except FileExistsError as error:
        raise ConfigError(f"{folder} has a key already: keys are never overwritten") from error
    return line


def complete_site_key(folder: Path, name: str) -> None:
    """Give a site a whole key: a new one where it has none, the rest of one that was interrupted.

    A key whose public half is missing was never sent to anybody. Where the private half can be
    read, the public half is made of it; where it cannot, there is nothing to lose, and both are
    made anew.

    Args:
        folder: The site's folder of keys.
        name: The site's name.
    """
    private, public = folder / "key", folder / "key.pub"
    if public.exists() and private.exists():
        return
    if private.exists():
        try:
            key = serialization.load_ssh_private_key(private.read_bytes(), password=None)
        except (ValueError, UnsupportedAlgorithm):
            private.unlink()
        else:
            if isinstance(key, ec.EllipticCurvePrivateKey):
                _write(public, _public_line(key, name))
            return  # `check_keys` names a key of another kind
    if not public.exists():
        make_site_key(folder, name)


def _public_line(key: ec.EllipticCurvePrivateKey, name: str) -> bytes:
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return public + f" {name}\n".encode()


def _public(path: Path) -> bytes:
    """A site's own public key, if Flower will take it."""
    try:
        content = path.read_bytes()
        key = serialization.load_ssh_public_key(content)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is not a public key ({error})") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(f"{path} is not of an elliptic curve: make one with focoop site key")
    return content


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if not name.replace("-", "").replace("_", "").isalnum():
            raise ConfigError(f"a site cannot be called {name!r}: use letters, digits, - and _")
    if len(set(names)) < len(names):
        raise ConfigError("two sites have the same name")


def check_hosts(hosts: Sequence[str]) -> None:
    """Refuse hosts that no certificate can name.

    Args:
        hosts: Names and addresses of the server.

    Raises:
        ConfigError: One is neither, as the address of a page.
    """
    for host in hosts:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            if HOST.fullmatch(host):
                continue
            bare = host.partition("://")[2] or host
            bare = bare.partition("/")[0].partition(":")[0] or "fl.example.org"
            raise ConfigError(
                f"the server cannot be reached by {host!r}: give its name or address alone, "
                f"without https:// or a path, as --host {bare}"
            ) from None


def _certificate(
    subject: x509.Name,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    days: int,
    hosts: Sequence[str] | None,
) -> bytes:
    """A certificate as PEM: the authority's own without hosts, else a server's."""
    now = datetime.datetime.now(datetime.UTC)
    usage = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    signs = hosts is None
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ISSUER)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=signs, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **usage
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if hosts is not None:
        names = x509.SubjectAlternativeName([_name(host) for host in hosts])
        server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        made = made.add_extension(names, critical=False).add_extension(server, critical=False)
    return made.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes, *, secret: bool = False) -> None:
    """A new file, whole or not at all; a secret one is never readable by others.

    Raises:
        FileExistsError: There is one already.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    os.replace(_draft(path, content, secret=secret), path)


def _draft(path: Path, content: bytes, *, secret: bool = False) -> Path:
    """A file beside `path` that holds `content` and is on the disk, to take its place."""
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)  # of somebody who was stopped here
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return draft
